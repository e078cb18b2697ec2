//! The bodies of inspected requests and answers: counted, and answers searched for credentials, or kept for other sessions.

use std::fs::File;
use std::io::{self, Read};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full};
use hyper::body::{Body, Frame, SizeHint};

use crate::answer_scrubber::{AnswerScrubber, SecretForms};
use crate::download_cache::DownloadFill;
use crate::egress_meter::RelayDirection;
use crate::relay::RelayError;
use crate::request_record::RequestRecord;

const PIECE: usize = 64 * 1024;

pub(crate) type BodyError = Box<dyn std::error::Error + Send + Sync>;
/// What code gets.
pub(crate) type AnswerBody = UnsyncBoxBody<Bytes, BodyError>;

/// Returns a body of this text.
pub(crate) fn text_body(text: String) -> AnswerBody {
    Full::new(Bytes::from(text)).map_err(|never| match never {}).boxed_unsync()
}

/// Counts a body while it is passed on. The last one that is dropped ends the record of its request.
pub(crate) struct CountedBody<B> {
    inner: B,
    direction: RelayDirection,
    record: Arc<RequestRecord>,
    scrubber: Option<(Arc<SecretForms>, AnswerScrubber)>,
    fill: Option<DownloadFill>,
    is_counted: bool,
    has_ended: bool,
}

impl<B> CountedBody<B> {
    pub(crate) fn new(
        inner: B,
        direction: RelayDirection,
        record: Arc<RequestRecord>,
        forms: Option<Arc<SecretForms>>,
    ) -> Self {
        let scrubber = forms.map(|forms| (forms, AnswerScrubber::default()));
        Self { inner, direction, record, scrubber, fill: None, is_counted: false, has_ended: false }
    }

    /// The length of the body was counted before it.
    pub(crate) fn counted_before(self) -> Self {
        Self { is_counted: true, ..self }
    }

    /// Keeps the body for other sessions too.
    pub(crate) fn keep(self, fill: Option<DownloadFill>) -> Self {
        Self { fill, ..self }
    }

    fn scrub(&mut self, data: Bytes) -> Bytes {
        match &mut self.scrubber {
            Some((forms, scrubber)) => scrubber.push(forms, &data).into(),
            None => data,
        }
    }

    /// Returns the bytes that still wait.
    fn finish(&mut self) -> Bytes {
        match &mut self.scrubber {
            Some((forms, scrubber)) => scrubber.finish(forms).into(),
            None => Bytes::new(),
        }
    }
}

impl<B: Body<Data = Bytes, Error: Into<BodyError>> + Unpin> Body for CountedBody<B> {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let this = self.get_mut();
        loop {
            if this.has_ended {
                return Poll::Ready(None);
            }
            let frame = ready!(Pin::new(&mut this.inner).poll_frame(context));
            let data = match frame.map(|frame| frame.map(Frame::into_data)) {
                Some(Ok(Ok(data))) => {
                    let counted = match this.is_counted {
                        true => {
                            this.record.meter.note_movement();
                            Ok(())
                        }
                        false => this.record.meter.count(this.direction, &data),
                    };
                    if let Err(error) = counted {
                        this.has_ended = true;
                        if let RelayError::Limit { name, hint } = error {
                            this.record.break_off(name, hint);
                        }
                        return Poll::Ready(Some(Err("a limit of the session was passed".into())));
                    }
                    if let Some(fill) = &mut this.fill {
                        fill.push(&data);
                    }
                    this.scrub(data)
                }
                // Trailers end a body. Those of a host with a credential are left out.
                Some(Ok(Err(trailers))) => {
                    let waiting = this.finish();
                    match (waiting.is_empty(), this.scrubber.is_some()) {
                        (true, false) => return Poll::Ready(Some(Ok(trailers))),
                        (true, true) => continue,
                        (false, _) => waiting,
                    }
                }
                Some(Err(error)) => {
                    this.has_ended = true;
                    return Poll::Ready(Some(Err(error.into())));
                }
                None => {
                    this.has_ended = true;
                    this.finish()
                }
            };
            if !data.is_empty() {
                return Poll::Ready(Some(Ok(Frame::data(data))));
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.has_ended || self.scrubber.is_none() && self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        match self.scrubber {
            None => self.inner.size_hint(),
            Some(_) => SizeHint::default(),
        }
    }
}

/// A body that is kept in a file.
pub(crate) struct KeptBody {
    file: File,
    left: u64,
}

impl KeptBody {
    pub(crate) fn new(file: File, length: u64) -> Self {
        Self { file, left: length }
    }
}

impl Body for KeptBody {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let this = self.get_mut();
        if this.left == 0 {
            return Poll::Ready(None);
        }
        let mut piece = vec![0; PIECE.min(usize::try_from(this.left).unwrap_or(PIECE))];
        // The file was read to its end before, so most of it is in memory: at worst, a piece waits for the disk.
        let read = this.file.read(&mut piece).and_then(|count| match count {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            count => Ok(count),
        });
        Poll::Ready(Some(read.map(|count| {
            this.left -= count as u64;
            piece.truncate(count);
            Frame::data(piece.into())
        })))
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.left)
    }
}
