//! Whether to look for completions for a moment before sleeping: only while that finds some (or where the worker has measured that
//! it pays), and only as long as half of the processors are left to others. A process that is held to one processor (its clients may have others) looks there, which is
//! given up soon if it takes the processor from the client.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

use blockwork_engine::{Awaited, Nanos};

/// Waits between looks, at most, where looking has been in vain.
const BACK_OFF_MAX: u32 = 1024;

/// Workers of this process that are looking just now.
static LOOKING: AtomicUsize = AtomicUsize::new(0);

/// The right to look; dropped, it is another worker's.
pub(crate) struct Looking(());

impl Looking {
    /// Unless as many look already as half of this process's processors.
    fn begin() -> Option<Looking> {
        static MAX: OnceLock<usize> = OnceLock::new();
        let max =
            *MAX.get_or_init(|| std::thread::available_parallelism().map_or(1, |n| (n.get() / 2).max(1)));
        // It only counts; nothing is published by it.
        let free = |looking: usize| (looking < max).then_some(looking + 1);
        LOOKING.fetch_update(Ordering::Relaxed, Ordering::Relaxed, free).ok().map(|_| Looking(()))
    }
}

impl Drop for Looking {
    fn drop(&mut self) {
        LOOKING.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Who is looked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LookedFor {
    /// Whom the worker expects.
    Awaited(Awaited),
    /// Clients with much under way, for a short time.
    Busy,
}

impl From<Awaited> for LookedFor {
    fn from(of: Awaited) -> LookedFor {
        LookedFor::Awaited(of)
    }
}

/// All looks, by who is looked for: that one does not come soon says nothing of the others.
#[derive(Debug)]
pub(crate) struct Looks {
    /// How long to look, at most.
    pub(crate) time: Nanos,
    client: Look,
    clients: Look,
    device: Look,
    busy: Look,
}

impl Looks {
    pub(crate) fn new(time: Nanos) -> Looks {
        let always = Look { always: true, ..Look::default() };
        let [client, device, busy] = Default::default();
        Looks { time, client, clients: always, device, busy }
    }

    pub(crate) fn of(&mut self, of: LookedFor) -> &mut Look {
        match of {
            LookedFor::Awaited(Awaited::Client) => &mut self.client,
            LookedFor::Awaited(Awaited::Clients) => &mut self.clients,
            LookedFor::Awaited(Awaited::Device) => &mut self.device,
            LookedFor::Busy => &mut self.busy,
        }
    }
}

/// What became of the looks so far.
#[derive(Debug, Default)]
pub(crate) struct Look {
    /// The worker measures by itself whether it is worth it.
    always: bool,
    back_off: u32,
    to_skip: u32,
}

impl Look {
    /// The right to look this time, if it is worth it.
    pub(crate) fn begin(&mut self) -> Option<Looking> {
        let skip = self.to_skip > 0;
        self.to_skip = self.to_skip.saturating_sub(1);
        if skip { None } else { Looking::begin() }
    }
    /// Something came.
    pub(crate) fn found(&mut self) {
        self.back_off = 0;
    }
    /// Nothing came.
    pub(crate) fn in_vain(&mut self) {
        if self.always {
            return;
        }
        self.back_off = (self.back_off * 2).clamp(1, BACK_OFF_MAX);
        // One miss between hits is an accident.
        self.to_skip = self.back_off - 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // One test, since the count of those who look is the process's.
    #[test]
    fn looks_in_vain_become_rare_and_one_that_finds_something_brings_them_back() {
        drop(Looking::begin().expect("nobody looks"));
        let mut look = Look::default();
        let looks = (0..100_000).filter(|_| {
            let began = look.begin().is_some();
            if began {
                look.in_vain();
            }
            began
        });
        assert!(looks.count() < 120);
        look.found();
        while look.begin().is_none() {}
        let mut looks = Looks::new(Nanos(1));
        let clients = looks.of(LookedFor::Awaited(Awaited::Clients));
        for _ in 0..100 {
            assert!(clients.begin().is_some(), "whether it pays is measured by who asks");
            clients.in_vain();
        }
        let all: Vec<_> = std::iter::from_fn(Looking::begin).collect();
        assert!(look.begin().is_none(), "{} look already", all.len());
        drop(all);
        assert!(look.begin().is_some());
    }
}
