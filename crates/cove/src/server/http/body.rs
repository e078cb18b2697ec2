//! Reads a whole body within bounds: of size, of time, and of memory over all connections.

use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt;
use hyper::body::{Body, Incoming};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

use super::answer::Refusal;

const KIB: usize = 1024;

/// The bounds of all bodies together.
#[derive(Debug, Clone)]
pub(super) struct Bodies {
    most: usize,
    within: Duration,
    /// In KiB, because a semaphore counts no further than 2^29 where numbers are small.
    memory: Arc<Semaphore>,
}

/// A body, and its share of the memory until it is dropped.
pub(super) struct Whole {
    pub(super) bytes: Bytes,
    pub(super) share: Option<OwnedSemaphorePermit>,
}

impl Bodies {
    /// `memory` is at least `most`, else a body of that size would wait for ever.
    pub(super) fn new(most: usize, within: Duration, memory: usize) -> Self {
        Self { most, within, memory: Arc::new(Semaphore::new(memory.max(most).div_ceil(KIB))) }
    }

    /// Nothing is read, and no client that waits is told to go on, before its declared size fits.
    pub(super) async fn read(&self, body: Incoming) -> Result<Whole, Refusal> {
        let hint = body.size_hint();
        if hint.lower() > self.most as u64 {
            return Err(Refusal::TooLarge { most: self.most });
        }
        if hint.exact() == Some(0) {
            return Ok(Whole { bytes: Bytes::new(), share: None });
        }
        // A size that is not declared may become the largest. All is taken at once: who held a part while it waits for
        // more could wait for others that do the same.
        let expected = hint.exact().map_or(self.most, |size| size as usize);
        let mut taken = None;
        let all = async {
            let kib = u32::try_from(expected.div_ceil(KIB)).unwrap_or(u32::MAX);
            // Never closed, so that this fails only if it is asked for more than a number can hold.
            let share =
                Arc::clone(&self.memory).acquire_many_owned(kib).await.map_err(|_| Refusal::NoMemory)?;
            let share = taken.insert(share);
            let bytes = self.collect(body, hint.exact().map_or(0, |size| size as usize)).await?;
            let needed = bytes.len().div_ceil(KIB);
            drop(share.split(share.num_permits().saturating_sub(needed)));
            Ok(bytes)
        };
        match timeout(self.within, all).await {
            Ok(read) => read.map(|bytes| Whole { bytes, share: taken }),
            Err(_) if taken.is_none() => Err(Refusal::NoMemory),
            Err(_) => Err(Refusal::BodyTimeout(self.within)),
        }
    }

    async fn collect(&self, mut body: Incoming, expected: usize) -> Result<Bytes, Refusal> {
        // Memory that is never written is never used, so that a size which is only declared costs nothing.
        let mut bytes = BytesMut::with_capacity(expected);
        while let Some(frame) = body.frame().await {
            // Trailers are not ours to read.
            let Ok(part) = frame.map_err(|_| Refusal::BodyBroken)?.into_data() else { continue };
            if bytes.len() + part.len() > self.most {
                return Err(Refusal::TooLarge { most: self.most });
            }
            bytes.extend_from_slice(&part);
        }
        Ok(bytes.freeze())
    }
}
