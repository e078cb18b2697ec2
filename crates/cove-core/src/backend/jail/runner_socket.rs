//! The host's end of the stream to a runner: a socket that wakes its task only when there is something to read. A socket
//! that the runtime also watches for room reports room each time that the runner has read something, and each report
//! wakes this process. So room is watched only while a write waits for it.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream as StdStream;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, Shutdown};
use tokio::io::unix::AsyncFd;
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};

/// The socket, as a stream of bytes.
pub(super) struct RunnerSocket {
    socket: AsyncFd<OwnedFd>,
    /// A copy of the socket that is watched for room. Set while a write waits.
    room: Option<AsyncFd<OwnedFd>>,
}

impl RunnerSocket {
    /// Adopts one end of a pair. Fails outside of a runtime, or if the kernel refuses.
    pub(super) fn new(socket: StdStream) -> io::Result<Self> {
        socket.set_nonblocking(true)?;
        Ok(Self { socket: watch(socket.into(), Interest::READABLE)?, room: None })
    }

    /// Writes what there is room for, without waiting.
    fn send(&self, bytes: &[u8]) -> io::Result<usize> {
        loop {
            match rustix::net::send(self.socket.get_ref(), bytes, SendFlags::NOSIGNAL) {
                Err(Errno::INTR) => {}
                sent => return Ok(sent?),
            }
        }
    }
}

/// Watches a descriptor. Fails outside of a runtime, or if the kernel refuses.
#[expect(deprecated, reason = "it is unsound for types that do not keep their descriptor open; this one does")]
fn watch(descriptor: OwnedFd, interest: Interest) -> io::Result<AsyncFd<OwnedFd>> {
    AsyncFd::with_interest(descriptor, interest)
}

impl AsyncRead for RunnerSocket {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        loop {
            let mut readable = ready!(self.socket.poll_read_ready(cx))?;
            let room = buffer.initialize_unfilled();
            let wanted = room.len();
            let received =
                readable.try_io(|socket| Ok(rustix::net::recv(socket.get_ref(), room, RecvFlags::empty())?.0));
            match received {
                Ok(Ok(count)) => {
                    if 0 < count && count < wanted {
                        // The socket is empty, and the kernel reports when that changes.
                        readable.clear_ready();
                    }
                    buffer.advance(count);
                    return Poll::Ready(Ok(()));
                }
                Ok(Err(error)) if error.kind() == io::ErrorKind::Interrupted => {}
                Ok(Err(error)) => return Poll::Ready(Err(error)),
                // Nothing was there: it waits.
                Err(_) => {}
            }
        }
    }
}

impl AsyncWrite for RunnerSocket {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        loop {
            match self.send(bytes) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                sent => {
                    self.room = None;
                    return Poll::Ready(sent);
                }
            }
            if self.room.is_none() {
                let copy = self.socket.get_ref().try_clone()?;
                self.room = Some(watch(copy, Interest::WRITABLE)?);
            }
            let Some(room) = &self.room else { continue };
            // Cleared, so that the next turn waits for a change; if there is room already, registering reported it.
            ready!(room.poll_write_ready(cx))?.clear_ready();
        }
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(rustix::net::shutdown(self.socket.get_ref(), Shutdown::Write).map_err(io::Error::from))
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};

    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    /// More than the two sockets hold.
    const LONG: usize = 8 * 1024 * 1024;

    #[tokio::test]
    async fn a_write_waits_until_the_other_side_has_read() {
        let (ours, mut theirs) = StdStream::pair().unwrap();
        let mut socket = RunnerSocket::new(ours).unwrap();
        let reader = tokio::task::spawn_blocking(move || {
            let mut received = vec![0; LONG];
            theirs.read_exact(&mut received).unwrap();
            theirs.write_all(b"read").unwrap();
            received.iter().all(|byte| *byte == 7)
        });
        socket.write_all(&vec![7; LONG]).await.unwrap();
        let mut answer = Vec::new();
        socket.read_to_end(&mut answer).await.unwrap();
        assert_eq!((answer.as_slice(), reader.await.unwrap()), (&b"read"[..], true));
        assert!(socket.room.is_none(), "room is watched only while a write waits");
    }

    #[tokio::test]
    async fn reading_goes_on_after_each_piece_and_ends_with_the_stream() {
        let (ours, mut theirs) = StdStream::pair().unwrap();
        let mut socket = RunnerSocket::new(ours).unwrap();
        let mut piece = [0; 64];
        for number in 0..100_u8 {
            theirs.write_all(&[number; 3]).unwrap();
            let count = socket.read(&mut piece).await.unwrap();
            assert_eq!(piece[..count], [number; 3]);
        }
        drop(theirs);
        assert_eq!(socket.read(&mut piece).await.unwrap(), 0);
        assert!(socket.write_all(b"x").await.is_err(), "the other side is closed");
    }
}
