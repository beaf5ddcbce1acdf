//! Words in shared memory that change when there is something to do: a ring's index, which a client stores without calling
//! anybody. Whoever is about to sleep looks at them for a moment first.
//!
//! A word is looked at until the next wait that would sleep. That looks for a while, if it pays ([`crate::look`]), and then
//! tells what it has found; its port, told that it was nothing, asks its client to call from now on, and the wait after that
//! sleeps.

use blockwork_engine::{Completion, Nanos, Token};
use blockwork_memory::Buffer;
use std::sync::atomic::Ordering;

use crate::ring::Uring;

/// How long to look at words where clients have several requests under way: they come back with the next ones after about
/// what one batch takes them. A share of what a lone client is given.
const SHARE: u64 = 4;

/// A word, and whom to tell.
#[derive(Debug)]
struct Word {
    token: Token,
    buffer: Buffer,
    offset: usize,
    seen: u16,
}

impl Word {
    #[inline]
    fn has_changed(&self) -> bool {
        self.buffer.load_u16(self.offset, Ordering::Acquire) != self.seen
    }
}

/// All words that are looked at.
#[derive(Debug, Default)]
pub(crate) struct Words {
    all: Vec<Word>,
    /// One of them is that of a ring that was full.
    refill: bool,
    /// A look was in vain, and nothing has come since: no use to look again.
    in_vain: bool,
}

impl Words {
    pub(crate) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Whether a ring that was full is to be filled again.
    pub(crate) fn await_refill(&self) -> bool {
        self.refill
    }

    /// Whether any has changed.
    #[inline]
    pub(crate) fn have_changed(&self) -> bool {
        self.all.iter().any(Word::has_changed)
    }

    /// Ends the looking: tells of each word whether it has changed.
    pub(crate) fn resolve(&mut self, out: &mut Vec<Completion>) {
        self.refill = false;
        for word in self.all.drain(..) {
            out.push(Completion { token: word.token, result: word.has_changed().into(), flags: 0 });
        }
    }

    /// Notes what became of a look.
    pub(crate) fn looked(&mut self, found: bool) {
        self.in_vain = !found;
    }

    /// Whether a look at nothing but completions would follow one that was in vain.
    pub(crate) fn were_in_vain(&mut self) -> bool {
        std::mem::take(&mut self.in_vain) && self.all.is_empty()
    }
}

impl Uring {
    /// Looks, when it would sleep next, for a moment at the 16-bit word at `offset` of `buffer`, if that pays. Completes once
    /// under `token`: by 1 if the word is other than `seen`; by 0 if not, and from then on nobody looks.
    pub fn look_at(&mut self, token: Token, buffer: &Buffer, offset: usize, seen: u16) {
        self.words.all.push(Word { token, buffer: buffer.clone(), offset, seen });
    }

    /// As [`Uring::look_at`], of a ring that was full, whose driver has just been told that there is room: what it has to ask for waits
    /// for that, and is asked for as soon as the driver is awake. It is looked for longer, also where several requests are under way, but
    /// not for more than a share of the time.
    pub fn look_at_refill(&mut self, token: Token, buffer: &Buffer, offset: usize, seen: u16) {
        self.look_at(token, buffer, offset, seen);
        self.words.refill = true;
    }

    /// How long to look at words where no lone client is expected.
    pub(crate) fn short_look(&self) -> Nanos {
        Nanos(self.looks.time.0 / SHARE)
    }
}
