//! The environment of one simulated worker.
//!
//! Several workers of one world run on one thread, in turns. `wait` lets virtual time pass up to the first event that
//! concerns this worker, or to its deadline; what happens to others meanwhile is kept for them.

use std::net::SocketAddr;
use std::sync::Arc;

use blockwork_engine::{Completion, Env, Errno, FileOp, Nanos, Network, Notify, StreamId, Token, Wait};
use blockwork_memory::Segment;

use crate::net::LATENCY;

use crate::world::{Inner, World};

/// One worker's view of a [`World`].
pub struct SimEnv {
    world: World,
    worker: usize,
    /// Waits since anything was there.
    idle_polls: u32,
}

/// So many polls in a row that find nothing are a worker that spins: time stands still while it polls.
const IDLE_POLLS_MAX: u32 = 100_000;

impl SimEnv {
    pub(crate) fn new(world: World, worker: usize) -> SimEnv {
        SimEnv { world, worker, idle_polls: 0 }
    }

    /// The world it is in.
    pub fn world(&self) -> &World {
        &self.world
    }

    /// Lets a completion with `token` and result 0 come after some time.
    pub fn timeout(&mut self, token: Token, after: Nanos) {
        let mut inner = self.world.inner_mut();
        let at = inner.now() + after;
        inner.timer(self.worker, token, at);
    }

    fn has_ready(&self, inner: &Inner) -> bool {
        !inner.workers[self.worker].ready.is_empty()
    }

    fn wait_until(&self, inner: &mut Inner, deadline: Option<Nanos>) {
        loop {
            if self.has_ready(inner) || inner.workers[self.worker].notified.take() {
                return;
            }
            let next = match (inner.next_at(), deadline) {
                (Some(next), Some(deadline)) if next > deadline => deadline,
                (Some(next), _) => next,
                (None, Some(deadline)) => deadline,
                (None, None) => panic!(
                    "worker {} waits for ever: nothing is in flight, and nothing will happen (a bio or a wake-up was lost)",
                    self.worker
                ),
            };
            inner.advance_to(next);
            if deadline == Some(next) {
                return;
            }
        }
    }

    fn gather(&self, inner: &mut Inner, completions: u32, for_at_most: Nanos) {
        let end = inner.now() + for_at_most;
        while inner.workers[self.worker].ready.len() < completions as usize {
            match inner.next_at() {
                Some(next) if next <= end => inner.advance_to(next),
                _ => {
                    inner.advance_to(end);
                    return;
                }
            }
        }
    }

    fn deliver(&self, inner: &mut Inner, out: &mut Vec<Completion>) -> usize {
        let chaos = inner.chaos();
        let side = &mut inner.workers[self.worker];
        let mut n = side.ready.len();
        if n > 1 && side.chaos.rate(chaos.partial_batches) {
            n = side.chaos.index(n) + 1;
        }
        let start = out.len();
        out.extend(side.ready.drain(..n));
        if n > 1 && side.chaos.rate(chaos.shuffled_batches) {
            for i in (1..n).rev() {
                out.swap(start + i, start + side.chaos.index(i + 1));
            }
        }
        n
    }
}

impl Env for SimEnv {
    fn now(&self) -> Nanos {
        self.world.inner().now()
    }

    fn random(&mut self) -> u64 {
        self.world.inner_mut().workers[self.worker].random.bits()
    }

    fn start(&mut self, token: Token, op: FileOp<'_>) {
        self.world.inner_mut().start(self.worker, token, &op);
    }

    fn wait(&mut self, wait: Wait, out: &mut Vec<Completion>) {
        let world = self.world.clone();
        let inner = &mut *world.inner_mut();
        let now = inner.now();
        inner.advance_to(now);
        let chaos = inner.chaos();
        let spurious = inner.workers[self.worker].chaos.rate(chaos.spurious_wakeups);
        match wait {
            _ if spurious => return,
            Wait::Poll => {}
            Wait::Until(deadline) | Wait::Soon { until: deadline, .. } => self.wait_until(inner, deadline),
            Wait::Gather { completions, for_at_most } => self.gather(inner, completions, for_at_most),
        }
        let n = self.deliver(inner, out);
        self.idle_polls = if n > 0 || wait != Wait::Poll { 0 } else { self.idle_polls + 1 };
        assert!(
            self.idle_polls < IDLE_POLLS_MAX || inner.workers.len() > 1,
            "worker {} spins: it polled {IDLE_POLLS_MAX} times and nothing was there",
            self.worker
        );
    }

    fn notifier(&self) -> Arc<dyn Notify> {
        self.world.inner().workers[self.worker].notified.clone()
    }

    fn network(&mut self) -> Option<&mut dyn Network> {
        Some(self)
    }
}

impl Network for SimEnv {
    fn connect(&mut self, token: Token, to: SocketAddr, from: Option<u16>) -> Result<StreamId, Errno> {
        let inner = &mut *self.world.inner_mut();
        let (stream, number) = inner.net.connect(self.worker, token, to, from);
        inner.schedule_arrival(inner.now() + LATENCY, number);
        Ok(stream)
    }

    fn send(&mut self, token: Token, stream: StreamId, data: &[Segment]) {
        let inner = &mut *self.world.inner_mut();
        let (arrives, number) = inner.net.send(inner.now(), token, stream, data);
        inner.schedule_arrival(arrives, number);
    }

    fn receive(&mut self, token: Token, stream: StreamId, into: Segment) {
        let inner = &mut *self.world.inner_mut();
        if let Some(completion) = inner.net.receive(token, stream, into) {
            inner.workers[self.worker].ready.push_back(completion);
        }
    }

    fn arrived(&mut self, stream: StreamId) -> Option<u64> {
        let inner = &mut *self.world.inner_mut();
        let now = inner.now();
        Some(inner.net.arrived(now, stream))
    }

    fn close(&mut self, stream: StreamId) -> Option<u16> {
        let inner = &mut *self.world.inner_mut();
        let (port, completion) = inner.net.close(stream);
        inner.workers[self.worker].ready.extend(completion);
        Some(port)
    }

    fn timer(&mut self, token: Token, after: Nanos) {
        self.timeout(token, after);
    }
}
