//! Reads a whole body within limits on size, time, and memory over all connections.
//!
//! A body takes its permits from `memory` before its first byte is read: its declared size, or the maximum if the
//! size is unknown. After reading, it returns the permits that it did not need. The request keeps the rest in
//! `RequestBody::share` until its answer begins.

use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt;
use hyper::body::{Body, Incoming};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

use super::response::RequestRefusal;

const KIB: usize = 1024;

/// The limits of all bodies together.
#[derive(Debug, Clone)]
pub(super) struct BodyReader {
    max_bytes: usize,
    timeout: Duration,
    /// In KiB, because a semaphore holds at most 2^29 permits on 32-bit machines.
    memory: Arc<Semaphore>,
}

/// A body and its permits, which return to the semaphore on drop.
pub(super) struct RequestBody {
    pub(super) bytes: Bytes,
    pub(super) share: Option<OwnedSemaphorePermit>,
}

impl BodyReader {
    /// `memory` is raised to `max_bytes`, because a body of that size would otherwise wait for ever.
    pub(super) fn new(max_bytes: usize, timeout: Duration, memory: usize) -> Self {
        Self { max_bytes, timeout, memory: Arc::new(Semaphore::new(memory.max(max_bytes).div_ceil(KIB))) }
    }

    /// Reads a body. Fails if it is too large, arrives too slowly, breaks off, or gets no memory in time. Nothing is
    /// read, and no `100 Continue` is sent, before the declared size fits.
    pub(super) async fn read(&self, body: Incoming) -> Result<RequestBody, RequestRefusal> {
        let hint = body.size_hint();
        if hint.lower() > self.max_bytes as u64 {
            return Err(RequestRefusal::TooLarge { most: self.max_bytes });
        }
        if hint.exact() == Some(0) {
            return Ok(RequestBody { bytes: Bytes::new(), share: None });
        }
        // A body of undeclared size may become the largest. All permits are taken at once: bodies that hold a part
        // while they wait for more could block each other.
        let expected = hint.exact().map_or(self.max_bytes, |size| size as usize);
        let mut taken = None;
        let all = async {
            let kib = u32::try_from(expected.div_ceil(KIB)).unwrap_or(u32::MAX);
            // The semaphore is never closed, so this only fails if the number of permits is out of range.
            let share = Arc::clone(&self.memory).acquire_many_owned(kib).await.map_err(|_| RequestRefusal::NoMemory)?;
            let share = taken.insert(share);
            let bytes = self.collect(body, hint.exact().map_or(0, |size| size as usize)).await?;
            let needed = bytes.len().div_ceil(KIB);
            drop(share.split(share.num_permits().saturating_sub(needed)));
            Ok(bytes)
        };
        match timeout(self.timeout, all).await {
            Ok(read) => read.map(|bytes| RequestBody { bytes, share: taken }),
            Err(_) if taken.is_none() => Err(RequestRefusal::NoMemory),
            Err(_) => Err(RequestRefusal::BodyTimeout(self.timeout)),
        }
    }

    async fn collect(&self, mut body: Incoming, expected: usize) -> Result<Bytes, RequestRefusal> {
        // The kernel provides memory on first write, so a size that is only declared costs nothing.
        let mut bytes = BytesMut::with_capacity(expected);
        while let Some(frame) = body.frame().await {
            // Trailers are ignored.
            let Ok(part) = frame.map_err(|_| RequestRefusal::BodyBroken)?.into_data() else { continue };
            if bytes.len() + part.len() > self.max_bytes {
                return Err(RequestRefusal::TooLarge { most: self.max_bytes });
            }
            bytes.extend_from_slice(&part);
        }
        Ok(bytes.freeze())
    }
}
