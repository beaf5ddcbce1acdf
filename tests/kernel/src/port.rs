//! Our end of the line to the agent in the guest: frames, the first byte of each within a deadline.

use std::io;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::wire::{Kind, read_frame, write_frame};

/// A frame that has begun goes on within this time, unless the guest hangs.
const PATIENCE: Duration = Duration::from_secs(30);

/// The line.
#[derive(Debug)]
pub(crate) struct Port {
    stream: UnixStream,
}

/// What came.
#[derive(Debug)]
pub(crate) enum Heard {
    Frame(Kind, Vec<u8>),
    /// Nothing until the deadline.
    Nothing,
    /// The guest has hung up, or what it says cannot be read.
    End,
}

impl Port {
    pub(crate) fn new(stream: UnixStream) -> io::Result<Port> {
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        Ok(Port { stream })
    }

    pub(crate) fn send(&mut self, kind: Kind, payload: &[u8]) -> io::Result<()> {
        write_frame(&mut self.stream, kind, payload)
    }

    /// The next frame.
    pub(crate) fn hear(&mut self, deadline: Instant) -> Heard {
        let rest = deadline.saturating_duration_since(Instant::now());
        let Ok(rest) = Timespec::try_from(rest) else { return Heard::End };
        match poll(&mut [PollFd::new(&self.stream, PollFlags::IN)], Some(&rest)) {
            Ok(0) => Heard::Nothing,
            Ok(_) => {
                read_frame(&mut self.stream).map_or(Heard::End, |(kind, payload)| Heard::Frame(kind, payload))
            }
            Err(rustix::io::Errno::INTR) => self.hear(deadline),
            Err(_) => Heard::End,
        }
    }
}
