//! A closed loop of requests by one thread: as many in flight as it is told, and what each took.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use blockwork_format::virtio::blk::status;

use crate::disk::{Disk, Request};

/// Longest sleep: a call that is lost shows as a stall, and not as a hang.
const PATIENCE: Duration = Duration::from_millis(200);

/// Without any answer for so long, none is waited for any more.
const PATIENCE_LAST: Duration = Duration::from_secs(30);

/// What is done.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    /// What every request wants: [`blk::request`](blockwork_format::virtio::blk::request).
    pub kind: u32,
    /// Where on the disk: anywhere, or one after the other.
    pub random: bool,
    /// Bytes of a request.
    pub block: usize,
    /// Blocks of the disk, one at least.
    pub blocks: u64,
    /// Requests in flight in each queue.
    pub depth: u16,
    /// Look for answers, without sleeping.
    pub poll: bool,
}

/// What came of it.
#[derive(Debug)]
pub struct Measured {
    /// What the requests took, the shortest first.
    pub took: Vec<Duration>,
    /// How often a call did not come.
    pub stalls: u64,
    /// How often the thread slept until it was called, and for how long in all. Each sleep takes the clock 40 ns or so.
    pub sleeps: (u64, Duration),
    /// From the first request to the last answer.
    pub time: Duration,
}

impl Measured {
    /// What this share of the requests took at most, microseconds; 0 if there were none.
    pub fn quantile_us(&self, share: f64) -> f64 {
        let at = (share * self.took.len().saturating_sub(1) as f64) as usize;
        self.took.get(at).map_or(0.0, |time| time.as_secs_f64() * 1e6)
    }

    /// Requests a second.
    pub fn iops(&self) -> f64 {
        self.took.len() as f64 / self.time.as_secs_f64()
    }
}

impl Load {
    /// The `number`th request.
    pub fn request(&self, number: u64) -> Request {
        let number = if self.random { number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 16 } else { number };
        Request { kind: self.kind, sector: number % self.blocks * (self.block as u64 / 512), len: self.block }
    }

    /// Does it for so long, and waits until all is answered.
    ///
    /// # Errors
    /// A request fails, or none is answered for half a minute.
    pub fn run(&self, disk: &mut Disk, time: Duration) -> Result<Measured> {
        let begin = Instant::now();
        let started = vec![vec![begin; self.depth.into()]; disk.queues.len()];
        let mut running = Running {
            load: *self,
            next: 0,
            started,
            took: Vec::new(),
            in_flight: 0,
            sleeps: Default::default(),
        };
        let stalls = running.run(disk, begin + time)?;
        let time = begin.elapsed();
        let Running { mut took, sleeps, .. } = running;
        took.sort_unstable();
        Ok(Measured { took, stalls, sleeps, time })
    }
}

struct Running {
    load: Load,
    next: u64,
    /// By queue and request.
    started: Vec<Vec<Instant>>,
    took: Vec<Duration>,
    in_flight: u32,
    sleeps: (u64, Duration),
}

impl Running {
    /// Until `end`, then until all is answered; how often a call did not come.
    fn run(&mut self, disk: &mut Disk, end: Instant) -> Result<u64> {
        let mut stalls = 0;
        for queue in &mut disk.queues {
            queue.want_calls(&disk.guest, !self.load.poll);
        }
        let (mut answered, mut since) = (0, Instant::now());
        loop {
            for queue in 0..disk.queues.len() {
                self.turn(disk, queue, end)?;
            }
            if self.in_flight == 0 && Instant::now() >= end {
                return Ok(stalls);
            }
            if self.in_flight == 0 || self.took.len() > answered {
                (answered, since) = (self.took.len(), Instant::now());
            }
            let waited = since.elapsed();
            ensure!(waited < PATIENCE_LAST, "{} requests, and no answer for {waited:?}", self.in_flight);
            if self.load.poll || any_is_done(disk) {
                continue;
            }
            let slept = Instant::now();
            let called = disk.sleep(PATIENCE);
            self.sleeps = (self.sleeps.0 + 1, self.sleeps.1 + slept.elapsed());
            if !called && self.in_flight > 0 {
                stalls += 1;
            }
        }
    }

    /// Takes the answers of a queue, and has it as full as it may be.
    fn turn(&mut self, disk: &mut Disk, queue: usize, end: Instant) -> Result<()> {
        let now = Instant::now();
        while let Some(finished) = disk.finished(queue) {
            ensure!(finished.status == status::OK, "{finished:?}");
            self.took.push(now - self.started[queue][usize::from(finished.id)]);
            self.in_flight -= 1;
        }
        let mut any = false;
        while now < end && self.load.depth > 0 && disk.queues[queue].next_id().is_some() {
            self.next += 1;
            let Some(id) = disk.queues[queue].prepare(&disk.guest, self.load.request(self.next)) else {
                break;
            };
            self.started[queue][usize::from(id)] = now;
            self.in_flight += 1;
            any = true;
        }
        if any {
            disk.queues[queue].publish(&disk.guest);
        }
        Ok(())
    }
}

/// Has all queues call from now on; whether something is done in one already.
fn any_is_done(disk: &mut Disk) -> bool {
    let guest = &disk.guest;
    // All are asked, also where the first has something.
    disk.queues.iter_mut().filter_map(|queue| queue.want_calls(guest, true).then_some(())).count() > 0
}
