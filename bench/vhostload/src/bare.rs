//! The least that a back end can be: a thread that answers reads from one split ring with zeros. No protocol, no disk, no layers, no
//! limits; it believes what the ring says. What a driver gets from it is about the most that it gets from any back end here, since the
//! driver's own work, and waking who sleeps, are the same.

use std::collections::VecDeque;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use blockwork_format::virtio::blk::{RequestHeader, request, status};
use blockwork_format::virtio::{Descriptor, descriptor_flag, need_event, split};
use blockwork_memory::{Buffer, Mapping};
use rustix::time::{ClockId, clock_gettime};

use crate::disk::Disk;
use crate::guest::{Area, Guest};

/// Requests that are answered together: as many as a server takes that does not want its driver to wait for all of them.
const BATCH: u16 = 16;
/// In the first batch after a rest, so that a driver that sleeps wakes up while the others are done.
const FIRST: u16 = 8;

/// Header, data, status: the table of a request with data in one piece.
const TABLE: usize = 3;

/// It runs.
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
        let queue = disk.queues.first().context("a disk without queues")?;
        let (address, size) = (queue.address(0), queue.ring_size());
        let (file, len) = (disk.guest.file.try_clone()?, disk.guest.memory.len());
        let (bell, kick, call) = queue.bells()?;
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let thread = std::thread::spawn(move || {
            let mapping = Mapping::new(file.as_fd(), len as u64).context("mapping the guest's memory")?;
            let at = |user: u64| Area::at_user(user, 0).offset;
            let mut device = Device {
                memory: Buffer::of_mapping(&mapping, 0, len),
                descriptors: at(address.descriptors),
                available: at(address.available),
                used: at(address.used),
                size,
                call,
                delay,
                under_way: VecDeque::new(),
                taken: 0,
                answered: 0,
                published: 0,
            };
            device.serve(sleeps.then_some(&kick), &stopped)?;
            let took = clock_gettime(ClockId::ThreadCPUTime);
            Ok(Duration::new(u64::try_from(took.tv_sec)?, u32::try_from(took.tv_nsec)?))
        });
        Ok(Bare { stop, kick: bell, thread })
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

/// The device's side of a split ring.
struct Device {
    memory: Buffer,
    descriptors: usize,
    available: usize,
    used: usize,
    size: u16,
    call: OwnedFd,
    /// What each request takes.
    delay: Duration,
    /// Requests that have been taken, and when they are done.
    under_way: VecDeque<(Instant, u16)>,
    /// How many were taken, and answered, of all that ever came.
    taken: u16,
    answered: u16,
    /// Of these, the driver knows.
    published: u16,
}

impl Device {
    fn serve(&mut self, kick: Option<&OwnedFd>, stop: &AtomicBool) -> Result<()> {
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
            let Some(kick) = kick else {
                std::hint::spin_loop();
                continue;
            };
            let event = self.used + split::avail_event(self.size);
            self.memory.store_u16(event, self.taken, Ordering::Relaxed);
            fence(Ordering::SeqCst);
            if self.available() == self.taken {
                rustix::io::read(kick, &mut [0; 8]).context("waiting for a kick")?;
            }
        }
    }

    fn available(&self) -> u16 {
        self.memory.load_u16(self.available + split::INDEX, Ordering::Acquire)
    }

    /// Takes what is there, so many at most; whether it was something.
    fn take(&mut self, most: u16) -> bool {
        let end = self.taken.wrapping_add(self.available().wrapping_sub(self.taken).min(most));
        if end == self.taken {
            return false;
        }
        let due = Instant::now() + self.delay;
        while self.taken != end {
            let place = usize::from(self.taken % self.size);
            let head = self.available + split::ENTRIES + split::AVAIL_ENTRY * place;
            self.under_way.push_back((due, self.memory.load_u16(head, Ordering::Relaxed)));
            self.taken = self.taken.wrapping_add(1);
        }
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
            let written = self.read(head)?;
            let mut entry = [0; split::USED_ENTRY];
            entry[..2].copy_from_slice(&head.to_le_bytes());
            entry[4..].copy_from_slice(&written.to_le_bytes());
            let place = usize::from(self.answered % self.size);
            self.memory.write_at(self.used + split::ENTRIES + split::USED_ENTRY * place, &entry);
            self.answered = self.answered.wrapping_add(1);
        }
        if self.answered == self.published {
            return Ok(false);
        }
        self.memory.store_u16(self.used + split::INDEX, self.answered, Ordering::Release);
        fence(Ordering::SeqCst);
        let event = self.memory.load_u16(self.available + split::used_event(self.size), Ordering::Relaxed);
        if need_event(event, self.answered, self.published) {
            rustix::io::write(&self.call, &1_u64.to_ne_bytes()).context("calling the driver")?;
        }
        self.published = self.answered;
        Ok(true)
    }

    /// Does a read; the bytes written.
    fn read(&self, head: u16) -> Result<u32> {
        let bytes = |at: usize| {
            let mut bytes = [0; 16];
            self.memory.read_at(at, &mut bytes);
            bytes
        };
        let table = Descriptor::decode(&bytes(self.descriptors + 16 * usize::from(head)));
        ensure!(table.has(descriptor_flag::INDIRECT), "a request without a table");
        let mut pieces = [(0, 0); TABLE];
        for (i, piece) in pieces.iter_mut().enumerate() {
            let descriptor = Descriptor::decode(&bytes(offset(table.address) + 16 * i));
            *piece = (offset(descriptor.address), descriptor.len);
        }
        let [header, data, ended] = pieces;
        ensure!(RequestHeader::decode(&bytes(header.0)).kind == request::IN, "it only reads");
        self.memory.fill(data.0, data.1 as usize, 0);
        self.memory.write_at(ended.0, &[status::OK]);
        Ok(data.1 + 1)
    }
}

/// Where that address of the guest's is in its memory.
fn offset(guest: u64) -> usize {
    usize::try_from(guest - Guest::base()).expect("an address of the guest's memory")
}
