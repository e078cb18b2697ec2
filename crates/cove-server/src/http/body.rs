//! Reads a whole body within limits on size, time, and memory over all connections.
//!
//! The first bytes of a body need no permits. Before it grows beyond them it takes permits for its declared size, or
//! for the maximum if the size is unknown: first from the share of its principal, then from the memory of all. After
//! reading, it returns the permits that it did not need. The request keeps the rest in `RequestBody::share` until its
//! answer begins.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt;
use hyper::body::{Body, Incoming};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

use super::response::RequestRefusal;
use cove_core::session::registry::Principal;
use cove_core::sync::lock;

const KIB: usize = 1024;

/// The limits of all bodies together.
#[derive(Debug, Clone)]
pub(super) struct BodyReader {
    max_bytes: usize,
    free_bytes: usize,
    timeout: Duration,
    /// In KiB, because a semaphore holds at most 2^29 permits on 32-bit machines.
    memory: Arc<Semaphore>,
    /// In KiB.
    most_of_principal: usize,
    /// The shares of principals that have one in use.
    shares: Arc<Mutex<HashMap<Principal, Weak<Semaphore>>>>,
}

/// A body and its permits, which return to the semaphores on drop.
pub(super) struct RequestBody {
    pub(super) bytes: Bytes,
    pub(super) share: Option<MemoryShare>,
}

/// Permits of the principal and of all.
pub(super) struct MemoryShare {
    own: OwnedSemaphorePermit,
    all: OwnedSemaphorePermit,
}

impl MemoryShare {
    fn shrink(&mut self, kib: usize) {
        for permits in [&mut self.own, &mut self.all] {
            drop(permits.split(permits.num_permits().saturating_sub(kib)));
        }
    }
}

impl BodyReader {
    /// `memory` is raised to `max_bytes`, because a body of that size would otherwise wait for ever. A principal may
    /// hold half of the memory, and at least one body.
    pub(super) fn new(max_bytes: usize, free_bytes: usize, timeout: Duration, memory: usize) -> Self {
        let most_of_principal = (memory / 2).max(max_bytes).div_ceil(KIB);
        let memory = Arc::new(Semaphore::new(memory.max(max_bytes).div_ceil(KIB)));
        Self { max_bytes, free_bytes, timeout, memory, most_of_principal, shares: Arc::default() }
    }

    fn share_of(&self, principal: &Principal) -> Arc<Semaphore> {
        let mut shares = lock(&self.shares);
        if let Some(share) = shares.get(principal).and_then(Weak::upgrade) {
            return share;
        }
        shares.retain(|_, share| share.strong_count() > 0);
        let share = Arc::new(Semaphore::new(self.most_of_principal));
        shares.insert(principal.clone(), Arc::downgrade(&share));
        share
    }

    async fn reserve(&self, principal: &Principal, bytes: usize) -> Result<MemoryShare, RequestRefusal> {
        let kib = u32::try_from(bytes.div_ceil(KIB)).unwrap_or(u32::MAX);
        // The semaphores are never closed, so this only fails if the number of permits is out of range.
        let own = self.share_of(principal).acquire_many_owned(kib).await.map_err(|_| RequestRefusal::NoMemory)?;
        let all = Arc::clone(&self.memory).acquire_many_owned(kib).await.map_err(|_| RequestRefusal::NoMemory)?;
        Ok(MemoryShare { own, all })
    }

    /// Reads a body. Fails if it is too large, arrives too slowly, breaks off, or gets no memory in time. Nothing is
    /// read, and no `100 Continue` is sent, before the declared size fits.
    pub(super) async fn read(&self, mut body: Incoming, principal: &Principal) -> Result<RequestBody, RequestRefusal> {
        let hint = body.size_hint();
        if hint.lower() > self.max_bytes as u64 {
            return Err(RequestRefusal::TooLarge { most: self.max_bytes });
        }
        let declared = hint.exact().map(|size| size as usize);
        if declared == Some(0) {
            return Ok(RequestBody { bytes: Bytes::new(), share: None });
        }
        let mut is_waiting = false;
        let all = async {
            let mut share = None;
            let mut bytes = BytesMut::with_capacity(declared.unwrap_or_default().min(self.free_bytes));
            if declared.is_some_and(|size| size > self.free_bytes) {
                // All permits are taken at once: bodies that hold a part while they wait for more could block each
                // other.
                share = self.reserve_noting(principal, declared.unwrap_or(self.max_bytes), &mut is_waiting).await?;
            }
            while let Some(frame) = body.frame().await {
                // Trailers are ignored.
                let Ok(part) = frame.map_err(|_| RequestRefusal::BodyBroken)?.into_data() else { continue };
                let size = bytes.len() + part.len();
                if size > self.max_bytes {
                    return Err(RequestRefusal::TooLarge { most: self.max_bytes });
                }
                if size > self.free_bytes && share.is_none() {
                    // A body of undeclared size may become the largest.
                    share = self.reserve_noting(principal, self.max_bytes, &mut is_waiting).await?;
                }
                bytes.extend_from_slice(&part);
            }
            if let Some(share) = &mut share {
                share.shrink(bytes.len().div_ceil(KIB));
            }
            Ok(RequestBody { bytes: bytes.freeze(), share })
        };
        match timeout(self.timeout, all).await {
            Ok(read) => read,
            Err(_) if is_waiting => Err(RequestRefusal::NoMemory),
            Err(_) => Err(RequestRefusal::BodyTimeout(self.timeout)),
        }
    }

    /// Takes permits, and sets `is_waiting` meanwhile.
    async fn reserve_noting(
        &self,
        principal: &Principal,
        bytes: usize,
        is_waiting: &mut bool,
    ) -> Result<Option<MemoryShare>, RequestRefusal> {
        *is_waiting = true;
        let share = self.reserve(principal, bytes).await?;
        *is_waiting = false;
        Ok(Some(share))
    }
}
