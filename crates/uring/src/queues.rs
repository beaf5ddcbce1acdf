//! The two queues that entries go through: the kernel's, or where it has none for us those of the stand-in.

use std::io;

use blockwork_engine::{Decision, Nanos};
use io_uring::{IoUring, squeue};

use crate::enter::Door;
use crate::setup::{Features, Io, UringConfig, UringError, make};
use crate::stand_in::StandIn;

/// Where entries are submitted and completions come from.
pub(crate) enum Queues {
    Ring(IoUring, Door),
    StandIn(StandIn),
}

impl Queues {
    /// As the configuration says; and which it is, and why.
    pub fn new(config: &UringConfig) -> Result<(Queues, Features, Decision), UringError> {
        let asked = config.io != Io::Auto;
        let decision = |value: &'static str, why: String| Decision { setting: "io", value, asked, why };
        let threads =
            |why| (Queues::StandIn(StandIn::default()), Features::NONE, decision(Io::Threads.name(), why));
        let ring = match config.io {
            Io::Threads => return Ok(threads("io=threads".into())),
            Io::Uring => make(config)?,
            Io::Auto => match make(config) {
                Err(error) if error.is_want_of_ring() => {
                    tell_once(&error);
                    return Ok(threads(error.to_string()));
                }
                made => made?,
            },
        };
        let (ring, features) = ring;
        let door = Door::new(&ring, features.registered_ring);
        let why = if asked { "io=io_uring" } else { "the kernel has io_uring" };
        Ok((Queues::Ring(ring, door), features, decision(Io::Uring.name(), why.into())))
    }

    /// Whether threads have to do what blocks.
    #[inline]
    pub fn are_stand_in(&self) -> bool {
        matches!(self, Queues::StandIn(_))
    }

    /// How often they were entered.
    #[inline]
    pub fn enters(&self) -> u64 {
        match self {
            Queues::Ring(_, door) => door.calls,
            Queues::StandIn(stand_in) => stand_in.calls,
        }
    }

    /// Queues an entry; false if there is no room.
    ///
    /// # Safety
    ///
    /// What the entry points to must live, stay where it is, and be left alone until its completion was taken.
    #[inline]
    pub unsafe fn push(&mut self, entry: &squeue::Entry) -> bool {
        match self {
            // SAFETY: the caller's promise.
            Queues::Ring(ring, _) => unsafe { ring.submission().push(entry) }.is_ok(),
            Queues::StandIn(stand_in) => {
                // SAFETY: the caller's promise.
                unsafe { stand_in.push(entry) };
                true
            }
        }
    }

    /// Entries that are queued and not submitted.
    #[inline]
    pub fn queued(&mut self) -> usize {
        match self {
            Queues::Ring(ring, _) => ring.submission().len(),
            Queues::StandIn(stand_in) => stand_in.queued(),
        }
    }

    pub fn are_full(&mut self) -> bool {
        match self {
            Queues::Ring(ring, _) => ring.submission().is_full(),
            Queues::StandIn(_) => false,
        }
    }

    /// Whether entering them is of any use: there are completions that come only then, or entries to be submitted.
    #[inline]
    pub fn have_something(&mut self) -> bool {
        match self {
            Queues::Ring(ring, _) => {
                let queue = ring.submission();
                !queue.is_empty() || queue.taskrun() || queue.cq_overflow()
            }
            Queues::StandIn(stand_in) => stand_in.has_something(),
        }
    }

    /// Submits what is queued, and waits for `want` completions for at most `time`.
    #[inline]
    pub fn enter(&mut self, want: u32, get: bool, time: Option<Nanos>) -> io::Result<()> {
        let submit = u32::try_from(self.queued()).expect("a queue is short");
        match self {
            Queues::Ring(_, door) => door.enter(submit, want, get, time).map(drop),
            Queues::StandIn(stand_in) => stand_in.enter(want, get, time),
        }
    }

    /// Takes what has completed: name, result and flags of each. No system call.
    #[inline]
    pub fn take(&mut self, mut take: impl FnMut(u64, i32, u32)) {
        match self {
            Queues::Ring(ring, _) => {
                for entry in ring.completion() {
                    take(entry.user_data(), entry.result(), entry.flags());
                }
            }
            Queues::StandIn(stand_in) => {
                for (name, result) in stand_in.take_done() {
                    take(name, result, 0);
                }
            }
        }
    }

    /// Gives up what outlives them.
    pub fn close(&mut self) {
        if let Queues::Ring(ring, door) = self {
            door.close(ring);
        }
    }
}

/// Says once in a process what becomes of it.
fn tell_once(error: &UringError) {
    static TOLD: std::sync::Once = std::sync::Once::new();
    TOLD.call_once(|| {
        log::warn!("threads do the I/O, at up to three times the processor time for each request: {error}");
    });
}
