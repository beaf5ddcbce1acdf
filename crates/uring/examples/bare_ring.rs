//! The least that a back end of a guest's ring can be that has a file behind it: what it reaches is what this machine lets any back
//! end of this shape reach. No engine, no layers, no protocol: one thread with an io_uring, 4 KiB reads of one file with O_DIRECT
//! straight into the guest's memory, all that is done in one call. The guest is a thread of the same process, with vhostload's driver.
//! `bench/run vhost` measures it beside raw fio, `blockwork serve` and qemu-storage-daemon: from raw fio to here is the price of the ring
//! and of the scheduler, from here to us is ours.
//!
//! ```text
//! bare_ring FILE --depth N --seconds S [--looks] [--portion N]
//! ```
//!
//! - `--looks`: never sleep. Else it sleeps in the io_uring, where it also waits for kicks.
//! - `--portion N`: hand N reads to the kernel as soon as they wait, not all that are there.
//!
//! Prints one JSON object.
//!
//! Invariants: the kernel writes only to the guest's memory, which is mapped as long as the ring is there, and the ring is dropped
//! with nothing under way.

use std::error::Error;
use std::fs::{File, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use blockwork_format::virtio::blk::request;
use io_uring::{EnterFlags, IoUring, opcode, squeue, types};
use vhostload::{Bare, DeviceRing, Disk, Load, Options, Read};

type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

/// Bytes of a request.
const BLOCK: usize = 4096;
const SECTOR: u64 = 512;
/// The completion that says that the driver has kicked.
const KICK: u64 = u64::MAX;

struct BackEnd {
    uring: IoUring,
    ring: DeviceRing,
    file: File,
    looks: bool,
    portion: usize,
    /// By the first descriptor.
    reads: Vec<Option<Read>>,
    under_way: usize,
    /// Whether the next kick wakes us.
    listens: bool,
    /// Never given back: the kernel may hold on to it when the back end ends.
    count: *mut u64,
}

impl BackEnd {
    fn serve(&mut self, stop: &AtomicBool) -> Outcome<()> {
        let mut done = Vec::new();
        loop {
            self.submit()?;
            if self.under_way == 0 && stop.load(Ordering::Acquire) {
                return Ok(());
            }
            self.wait()?;
            done.extend(self.uring.completion().map(|entry| (entry.user_data(), entry.result())));
            for (what, result) in done.drain(..) {
                if what == KICK {
                    self.listens = false;
                    continue;
                }
                if usize::try_from(result) != Ok(BLOCK) {
                    return Err(format!("{result} from the file, {BLOCK} expected").into());
                }
                let read = self.reads[usize::try_from(what)?].take().ok_or("done twice")?;
                self.under_way -= 1;
                self.ring.answer(&read);
            }
            self.ring.publish()?;
        }
    }

    /// Has the kernel begin what the driver wants.
    fn submit(&mut self) -> Outcome<()> {
        while let Some(head) = self.ring.take() {
            let read = self.ring.read_of(head)?;
            if read.data.len != BLOCK {
                return Err(format!("{} bytes: only reads of {BLOCK} here", read.data.len).into());
            }
            let at = self.ring.memory().as_ptr().wrapping_add(read.data.offset);
            let entry = opcode::Read::new(types::Fd(self.file.as_raw_fd()), at, BLOCK as u32);
            self.push(&entry.offset(read.sector * SECTOR).build().user_data(head.into()))?;
            self.reads[usize::from(head)] = Some(read);
            self.under_way += 1;
            if self.uring.submission().len() >= self.portion {
                self.uring.submit()?;
            }
        }
        Ok(())
    }

    /// Sleeps, or looks, until there is a completion or the driver wants something.
    fn wait(&mut self) -> Outcome<()> {
        if !self.looks {
            if !self.ring.want_kick() {
                return Ok(());
            }
            if !self.listens {
                let fd = types::Fd(self.ring.kick().as_raw_fd());
                let entry = opcode::Read::new(fd, self.count.cast(), 8).build().user_data(KICK);
                self.push(&entry)?;
                self.listens = true;
            }
            self.uring.submit_and_wait(1)?;
            return Ok(());
        }
        let queue = self.uring.submission();
        let (waiting, run) = (u32::try_from(queue.len())?, queue.taskrun());
        drop(queue);
        if waiting > 0 || run {
            // SAFETY: there are no arguments; entries are sound by the promise of `push`.
            unsafe { self.uring.submitter().enter::<()>(waiting, 0, EnterFlags::GETEVENTS.bits(), None) }?;
        }
        std::hint::spin_loop();
        Ok(())
    }

    fn push(&mut self, entry: &squeue::Entry) -> Outcome<()> {
        // SAFETY: by the invariant of the module; the number of kicks belongs to the one read of them.
        unsafe { self.uring.submission().push(entry) }?;
        Ok(())
    }
}

struct Arguments {
    file: String,
    depth: u16,
    seconds: f64,
    looks: bool,
    portion: usize,
}

fn arguments() -> Outcome<Arguments> {
    let usage = "bare_ring FILE --depth N --seconds S [--looks] [--portion N]";
    let mut all = std::env::args().skip(1);
    let mut told =
        Arguments { file: String::new(), depth: 1, seconds: 1.0, looks: false, portion: usize::MAX };
    while let Some(argument) = all.next() {
        match argument.as_str() {
            "--looks" => told.looks = true,
            "--depth" => told.depth = all.next().ok_or(usage)?.parse()?,
            "--seconds" => told.seconds = all.next().ok_or(usage)?.parse()?,
            "--portion" => told.portion = all.next().ok_or(usage)?.parse()?,
            _ => told.file = argument,
        }
    }
    if told.file.is_empty() || told.depth == 0 { Err(usage.into()) } else { Ok(told) }
}

fn main() -> Outcome<()> {
    let Arguments { file, depth, seconds, looks, portion } = arguments()?;
    let file = OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(file)?;
    let blocks = file.metadata()?.len() / BLOCK as u64;
    if blocks == 0 {
        return Err("the file is smaller than one request".into());
    }
    let ring_size = depth.next_power_of_two().max(128);
    let mut disk = Disk::without_server(Options { requests: depth, ring_size, ..Options::default() })?;
    let bare = Bare::run(&disk, move |ring, stop| {
        // Not DEFER_TASKRUN, with which one call tells of 20 completions at most (Linux 6.13): that takes a fifth more of the processor here.
        let uring = IoUring::builder()
            .setup_single_issuer()
            .setup_coop_taskrun()
            .setup_taskrun_flag()
            .setup_submit_all()
            .build(2048)?;
        let reads = vec![None; ring_size.into()];
        let mut back_end = BackEnd {
            uring,
            ring,
            file,
            looks,
            portion,
            reads,
            under_way: 0,
            listens: false,
            count: Box::into_raw(Box::new(0)),
        };
        back_end.serve(stop).map_err(anyhow::Error::from_boxed)
    })?;
    let load = Load { kind: request::IN, random: true, block: BLOCK, blocks, depth, poll: false };
    let measured = load.run(&mut disk, Duration::from_secs_f64(seconds))?;
    let cpu = bare.end()?.as_secs_f64();
    let requests = measured.took.len();
    println!(
        "{{\"iops\": {:.1}, \"p50_us\": {:.2}, \"server_cpu_us_per_io\": {:.3}, \"stalls\": {}, \"requests\": {requests}}}",
        measured.iops(),
        measured.quantile_us(0.5),
        cpu * 1e6 / requests as f64,
        measured.stalls
    );
    Ok(())
}
