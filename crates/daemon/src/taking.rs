//! A client's connection on which what is sent has to be taken: one that takes nothing of an answer for [`TAKING_TIME`] is let go, or it would keep
//! its place among the few for ever. (A unix socket tells of room when three quarters of it are free: who takes less than some 3 KiB a second
//! counts as one who takes nothing.) A trace is somebody's to pause, in a pager say: what does not fit is lost to that trace, and its place is taken
//! for as long as it runs in any case.

use std::error::Error;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::UnixStream;
use tokio::time::Sleep;

/// How long a client may take nothing of what it is sent.
pub const TAKING_TIME: Duration = Duration::from_secs(60);

/// What is said of one that takes longer.
pub(crate) const OVER_TIME: &str = "it has taken nothing of its answer for 60 s";

/// See the module's head.
pub(crate) struct Taking {
    stream: UnixStream,
    /// Until when it must take something, while there is no room.
    until: Option<Pin<Box<Sleep>>>,
    /// The answer is one that may be left lying.
    may_wait: Arc<AtomicBool>,
}

/// In the extensions of an answer: its client may take as long as it likes.
#[derive(Clone, Copy)]
pub(crate) struct MayWait;

impl Taking {
    /// `may_wait` is set where the answer, which is not known yet, is of that kind.
    pub(crate) fn new(stream: UnixStream, may_wait: Arc<AtomicBool>) -> Taking {
        Taking { stream, until: None, may_wait }
    }

    /// What has come of a write, which may be that its time is over.
    fn in_time(&mut self, cx: &mut Context<'_>, outcome: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        if outcome.is_ready() || self.may_wait.load(Ordering::Relaxed) {
            self.until = None;
            return outcome;
        }
        let until = self.until.get_or_insert_with(|| Box::pin(tokio::time::sleep(TAKING_TIME)));
        ready!(until.as_mut().poll(cx));
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, OVER_TIME)))
    }
}

/// Whether a connection has ended by that.
pub(crate) fn is_over_time(error: &hyper::Error) -> bool {
    let source = error.source().and_then(|source| source.downcast_ref::<io::Error>());
    source.is_some_and(|source| source.kind() == io::ErrorKind::TimedOut)
}

impl AsyncRead for Taking {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, into)
    }
}

impl AsyncWrite for Taking {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, data: &[u8]) -> Poll<io::Result<usize>> {
        let outcome = Pin::new(&mut self.stream).poll_write(cx, data);
        self.in_time(cx, outcome)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        data: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let outcome = Pin::new(&mut self.stream).poll_write_vectored(cx, data);
        self.in_time(cx, outcome)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
