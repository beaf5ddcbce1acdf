//! The least that a back end can be: a thread that answers reads from one split ring with zeros. No protocol, no disk, no layers, no
//! limits. A driver's own work, and waking who sleeps, are the same as with any back end here, so a server that has less of a driver than this one
//! has lost it by itself. It is no bound: one that answers few at a time, so that the driver stays awake, or fetches ahead, has more.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use rustix::time::{ClockId, clock_gettime};

use crate::device::{DeviceRing, Shared};
use crate::disk::Disk;

/// Requests that are answered together: as many as a server takes that does not want its driver to wait for all of them.
const BATCH: u16 = 16;
/// In the first batch after a rest, so that a driver that sleeps wakes up while the others are done.
const FIRST: u16 = 8;

/// A back end that runs, in a thread of its own.
pub struct Bare {
    stop: Arc<AtomicBool>,
    kick: OwnedFd,
    thread: JoinHandle<Result<Duration>>,
}

impl Bare {
    /// Serves the first queue of `disk`, which has no server: split, with indirect tables and event indices. Sleeps until it is
    /// kicked, or looks; the latter if each request is to take a time.
    ///
    /// # Errors
    /// There are no descriptors left.
    pub fn start(disk: &Disk, sleeps: bool, delay: Duration) -> Result<Bare> {
        ensure!(!sleeps || delay.is_zero(), "one that sleeps does not wake by itself");
        Bare::run(disk, move |ring, stop| {
            Zeros { ring, delay, under_way: VecDeque::new() }.serve(sleeps, stop)
        })
    }

    /// As [`Bare::start`], with what `serve` does of the ring: until it is told to stop, which comes with a kick.
    ///
    /// # Errors
    /// There are no descriptors left.
    pub fn run(
        disk: &Disk,
        serve: impl FnOnce(DeviceRing, &AtomicBool) -> Result<()> + Send + 'static,
    ) -> Result<Bare> {
        let shared = Shared::new(disk)?;
        let kick = disk.queues[0].bells()?.0;
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let thread = std::thread::spawn(move || {
            serve(shared.map()?, &stopped)?;
            let took = clock_gettime(ClockId::ThreadCPUTime);
            Ok(Duration::new(u64::try_from(took.tv_sec)?, u32::try_from(took.tv_nsec)?))
        });
        Ok(Bare { stop, kick, thread })
    }

    /// Ends it, when nothing is in flight: the processor time that it took.
    ///
    /// # Errors
    /// It found a request that it does not know.
    ///
    /// # Panics
    /// It has panicked.
    pub fn end(self) -> Result<Duration> {
        self.stop.store(true, Ordering::Release);
        rustix::io::write(&self.kick, &1_u64.to_ne_bytes()).context("waking the back end")?;
        self.thread.join().expect("it does not panic")
    }
}

/// A disk of zeros.
struct Zeros {
    ring: DeviceRing,
    /// What each request takes.
    delay: Duration,
    /// Requests that have been taken, and when they are done.
    under_way: VecDeque<(Instant, u16)>,
}

impl Zeros {
    fn serve(&mut self, sleeps: bool, stop: &AtomicBool) -> Result<()> {
        let mut most = FIRST;
        loop {
            let any = self.take(most) | self.answer_due(most)?;
            if any {
                most = BATCH;
                continue;
            }
            if stop.load(Ordering::Acquire) {
                return Ok(());
            }
            most = FIRST;
            if !sleeps {
                std::hint::spin_loop();
            } else if self.ring.want_kick() {
                rustix::io::read(self.ring.kick(), &mut [0; 8]).context("waiting for a kick")?;
            }
        }
    }

    /// Takes what is there, so many at most; whether it was something.
    fn take(&mut self, most: u16) -> bool {
        let there = self.ring.waiting().min(most);
        if there == 0 {
            return false;
        }
        let due = Instant::now() + self.delay;
        let ring = &mut self.ring;
        self.under_way.extend((0..there).map_while(|_| ring.take()).map(|head| (due, head)));
        true
    }

    /// Answers what is done, so many at most, and calls the driver if it wants that; whether there was anything.
    fn answer_due(&mut self, most: u16) -> Result<bool> {
        if self.under_way.is_empty() {
            return Ok(false);
        }
        let now = Instant::now();
        for _ in 0..most {
            let Some((_, head)) = self.under_way.pop_front_if(|(due, _)| *due <= now) else { break };
            let read = self.ring.read_of(head)?;
            self.ring.memory().fill(read.data.offset, read.data.len, 0);
            self.ring.answer(&read);
        }
        self.ring.publish()
    }
}

#[cfg(test)]
mod tests {
    use blockwork_format::virtio::blk::{request, status};

    use super::*;
    use crate::{Load, Options, Request};

    /// More than a ring holds, so that places come round.
    fn load(disk: &mut Disk) {
        let load = Load { kind: request::IN, random: true, block: 4096, blocks: 8, depth: 32, poll: false };
        let measured = load.run(disk, Duration::from_millis(50)).unwrap();
        assert!(measured.took.len() > 128, "{}", measured.took.len());
    }

    #[test]
    fn it_answers_with_zeros_asleep_and_looking() {
        for sleeps in [true, false] {
            let mut disk = Disk::without_server(Options::default()).unwrap();
            let bare = Bare::start(&disk, sleeps, Duration::ZERO).unwrap();
            let id = disk.queues[0].next_id().unwrap();
            disk.write_data(0, id, &[7; 4096]);
            let finished = disk.run(0, Request { kind: request::IN, sector: 8, len: 4096 }).unwrap();
            assert_eq!((finished.status, finished.written), (status::OK, 4097));
            let mut data = [1; 4096];
            disk.read_data(0, id, &mut data);
            assert_eq!(data, [0; 4096]);
            load(&mut disk);
            bare.end().unwrap();
        }
    }

    #[test]
    fn a_driver_tells_how_long_it_slept_and_one_that_looks_has_not() {
        let mut disk = Disk::without_server(Options { requests: 1, ..Options::default() }).unwrap();
        let bare = Bare::start(&disk, false, Duration::from_millis(1)).unwrap();
        let mut slept = |poll| {
            let load = Load { kind: request::IN, random: true, block: 4096, blocks: 8, depth: 1, poll };
            let measured = load.run(&mut disk, Duration::from_millis(50)).unwrap();
            (measured.sleeps, measured.time)
        };
        let ((sleeps, asleep), time) = slept(false);
        // How many and how long is the scheduler's: of a thread that had to wait before it could sleep, the answer may be there.
        assert!(sleeps > 0 && !asleep.is_zero() && asleep <= time, "{sleeps} {asleep:?} of {time:?}");
        assert_eq!(slept(true).0, (0, Duration::ZERO));
        bare.end().unwrap();
    }

    #[test]
    fn what_it_does_can_be_said() {
        let mut disk = Disk::without_server(Options::default()).unwrap();
        let bare = Bare::run(&disk, |mut ring, stop| {
            while !stop.load(Ordering::Acquire) {
                while let Some(head) = ring.take() {
                    let read = ring.read_of(head)?;
                    ring.answer(&read);
                }
                ring.publish()?;
            }
            Ok(())
        });
        load(&mut disk);
        bare.unwrap().end().unwrap();
    }
}
