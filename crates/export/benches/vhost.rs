//! A guest's ring, front end and server in one process: what a 4 KiB read takes of the server, from the ring's available index to
//! its used index.
//!
//! The worker is a real one, with a ring of its own to call the driver by; it and the driver take turns on one thread. The
//! device completes at once. What is counted are the worker's turns: in each it looks at the index, takes what is there in batches, submits
//! it, answers, and calls the driver, which wants that as one that sleeps; between turns the driver fills the ring again. The driver's part is
//! not counted. Run it with
//!
//! ```text
//!   cargo bench -p blockwork-export --bench vhost                 # ns and allocations
//!   bench/instructions                                            # instructions, by callgrind
//! ```
//!
//! `--reads N [--depth N] [--packed 1] [--direct 1] [--touched 1]` runs one of them only, for callgrind: `--packed` has a packed ring,
//! `--direct` no indirect tables, `--touched` fills what is read.

#[path = "../../layer/benches/rig/mod.rs"]
mod rig;
#[path = "../tests/vhost_support/mod.rs"]
mod vhost_support;

use std::sync::Arc;
use std::time::{Duration, Instant};

use blockwork_engine::*;
use blockwork_format::virtio::blk::{request, status};
use blockwork_uring::{Uring, clock};
use rig::{RigLeaf, allocations, option};
use vhost_support::Single;
use vhostload::{Disk, Options, Request};

const SECTORS: u64 = 1 << 30;
/// Reads of a measurement.
const READS: u64 = 100_000;
/// Measurements, of which the best counts.
const REPEATS: usize = 7;
/// Longer than the session's thread takes to start a queue.
const PATIENCE: Nanos = Nanos::millis(100);

/// What kind of ring, and of device.
#[derive(Clone, Copy)]
struct Kind {
    depth: u16,
    packed: bool,
    direct: bool,
    touched: bool,
}

/// A server, and a guest.
struct Stand {
    single: Single,
    state: u64,
}

impl Stand {
    fn new(kind: Kind) -> Stand {
        let source: Arc<dyn LeafSource> = if kind.touched {
            let spec = format!("null:{}", SECTORS * SECTOR);
            blockwork_leaf::open(&spec, &Default::default()).expect("there is room").source
        } else {
            Arc::new(RigLeaf::null(Sectors(SECTORS), Limits::default()))
        };
        let options = Options {
            requests: kind.depth,
            packed: kind.packed,
            indirect: !kind.direct,
            ..Options::default()
        };
        let mut stand = Stand { single: Single::new(source, |disk| disk, options), state: 1 };
        // Until the ring is looked at, without sleeping: valgrind would have the session's thread wait for that.
        let mut answered = stand.drive();
        while answered < u64::from(kind.depth) {
            stand.single.worker.turn(Wait::Until(Some(Nanos(0))));
            std::thread::yield_now();
            answered += stand.drive();
        }
        stand
    }

    /// The driver's turn: takes what is answered, and has the ring full again. How many were answered.
    #[inline(never)]
    fn drive(&mut self) -> u64 {
        let mut answered = 0;
        while let Some(finished) = self.single.disk.finished(0) {
            assert_eq!(finished.status, status::OK);
            answered += 1;
        }
        let Disk { guest, queues, .. } = &mut self.single.disk;
        queues[0].want_calls(guest, true);
        while queues[0].next_id().is_some() {
            self.state = self.state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let sector = (self.state >> 33) % (SECTORS / 8) * 8;
            let read = Request { kind: request::IN, sector, len: 4096 };
            if queues[0].prepare(guest, read).is_none() {
                break;
            }
        }
        queues[0].publish(guest);
        answered
    }

    /// So many reads, or some more. How long the worker took, and how often it allocated memory.
    fn run(&mut self, reads: u64) -> (Duration, u64) {
        let (mut left, mut took, mut allocated) = (reads, Duration::ZERO, 0);
        while left > 0 {
            left = left.saturating_sub(self.drive());
            let until = clock() + PATIENCE;
            let (start, before) = (Instant::now(), allocations());
            serve_ring(&mut self.single.worker, until);
            took += start.elapsed();
            allocated += allocations() - before;
        }
        (took, allocated)
    }
}

/// The worker's turn. By this name callgrind knows what to count.
#[inline(never)]
fn serve_ring(worker: &mut Worker<Uring>, until: Nanos) {
    // As its own loop has it turn: after a turn that did not come to the end of the ring, the next begins at once.
    let wait =
        if worker.is_settled() { Wait::Soon { of: Awaited::Client, until: Some(until) } } else { Wait::Poll };
    worker.turn(wait);
}

fn main() {
    let is_set = |name| option(name) == Some(1);
    if let Some(reads) = option("--reads") {
        let depth = u16::try_from(option("--depth").unwrap_or(32)).expect("a ring has few requests");
        let (packed, direct, touched) = (is_set("--packed"), is_set("--direct"), is_set("--touched"));
        let mut stand = Stand::new(Kind { depth, packed, direct, touched });
        stand.run(reads);
        std::process::exit(0); // not by sleeping until all has ended
    }
    println!("| ring | in flight | 4 KiB touched | ns per read | allocations per read |");
    println!("| --- | --- | --- | --- | --- |");
    for (name, packed, direct) in
        [("split", false, false), ("split, no tables", false, true), ("packed", true, false)]
    {
        for (depth, touched) in [(32, false), (32, true), (1, false)] {
            let mut stand = Stand::new(Kind { depth, packed, direct, touched });
            stand.run(READS);
            let runs = (0..REPEATS).map(|_| stand.run(READS));
            let (took, allocated) = runs.min().expect("there are some");
            let of_each = |n: f64| n / READS as f64;
            println!(
                "| {name} | {depth} | {touched} | {:.1} | {:.4} |",
                of_each(took.as_nanos() as f64),
                of_each(allocated as f64)
            );
            stand.single.stop();
        }
    }
}
