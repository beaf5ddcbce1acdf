//! A guest's ring, front end and server in one process: what a 4 KiB read takes of the server, from what the guest has put into its ring
//! to the answer in it. A virtqueue's, and Xen's.
//!
//! The worker is a real one, with a ring of its own to call the guest by; it and the guest take turns on one thread. The
//! device completes at once. What is counted are the worker's turns: in each it looks at the ring, takes what is there, submits
//! it, answers, and calls the guest, which wants that as one that sleeps; between turns the guest fills the ring again. The guest's part is
//! not counted. Xen's memory and event channel are those of one process here: pages are found without Xen, and the guest
//! is called by an eventfd, as a virtqueue's is. Run it with
//!
//! ```text
//!   cargo bench -p blockwork-export --bench rings                 # ns and allocations
//!   bench/instructions                                            # instructions, by callgrind
//! ```
//!
//! `--reads N [--depth N] [--packed 1] [--direct 1] [--touched 1]` runs one of them only, for callgrind: `--packed` has a packed ring,
//! `--direct` no indirect tables, `--touched` fills what is read, `--file` reads a file that the kernel has in memory; `--pages N [--kept 1]` has Xen's ring of so many pages, and pages of the
//! guest's that stay mapped.

mod guests;
#[path = "../../layer/benches/rig/mod.rs"]
mod rig;
#[path = "../tests/vhost_support/mod.rs"]
mod vhost_support;

use std::time::{Duration, Instant};

use blockwork_engine::*;
use blockwork_uring::{Uring, clock};
use guests::{From, Guest, virtqueue, xen};
use rig::{allocations, option};

/// Reads of a measurement.
const READS: u64 = 100_000;
/// Measurements, of which the best counts.
const REPEATS: usize = 7;
/// Longer than the session's thread takes to start a queue.
const PATIENCE: Nanos = Nanos::millis(100);

/// A guest, a server, and nobody else.
struct Stand {
    guest: Box<dyn Guest>,
}

impl Stand {
    fn new(guest: Box<dyn Guest>) -> Stand {
        let mut stand = Stand { guest };
        // Until the ring is looked at, without sleeping: valgrind would have the session's thread wait for that.
        let mut answered = stand.guest.drive();
        while answered < stand.guest.depth() {
            stand.guest.worker().turn(Wait::Until(Some(Nanos(0))));
            std::thread::yield_now();
            answered += stand.guest.drive();
        }
        stand
    }

    /// So many reads, or some more. How long the worker took, and how often it allocated memory.
    fn run(&mut self, reads: u64) -> (Duration, u64) {
        let (mut left, mut took, mut allocated) = (reads, Duration::ZERO, 0);
        while left > 0 {
            left = left.saturating_sub(self.guest.drive());
            let until = clock() + PATIENCE;
            let (start, before) = (Instant::now(), allocations());
            serve_ring(self.guest.worker(), until);
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

fn null(touched: bool) -> From {
    if touched { From::Touched } else { From::Null }
}

/// One of them only, as the options say.
fn one(reads: u64) {
    let is_set = |name| option(name) == Some(1);
    let number = |name, or| option(name).map_or(or, |n| u32::try_from(n).expect("a ring has few requests"));
    let from = match (is_set("--file"), is_set("--touched")) {
        (true, _) => From::File,
        (_, touched) => null(touched),
    };
    let guest = match option("--pages") {
        Some(_) => xen(number("--pages", 1), is_set("--kept"), from),
        None => virtqueue(number("--depth", 32), is_set("--packed"), is_set("--direct"), from),
    };
    Stand::new(guest).run(reads);
    std::process::exit(0); // not by sleeping until all has ended
}

fn main() {
    if let Some(reads) = option("--reads") {
        return one(reads);
    }
    type Make = fn(u32, bool) -> Box<dyn Guest>;
    let rings: [(&str, &[u32], Make); 5] = [
        ("split", &[1, 32, 256], |depth, touched| virtqueue(depth, false, false, null(touched))),
        ("split, no tables", &[32, 256], |depth, touched| virtqueue(depth, false, true, null(touched))),
        ("packed", &[1, 32, 256], |depth, touched| virtqueue(depth, true, false, null(touched))),
        ("Xen's, pages granted for each request", &[32, 256], |depth, touched| {
            xen(depth / 32, false, null(touched))
        }),
        ("Xen's, pages that stay", &[32, 256], |depth, touched| xen(depth / 32, true, null(touched))),
    ];
    let mut cells: Vec<_> = rings
        .iter()
        .flat_map(|(name, depths, make)| depths.iter().map(move |depth| (*name, *depth, make)))
        .flat_map(|(name, depth, make)| [false, true].map(|touched| (name, depth, touched, make)))
        .map(|(name, depth, touched, make)| {
            (name, depth, touched, Stand::new(make(depth, touched)), Vec::new())
        })
        .collect();
    // In turns, so that a bad moment hits all of them.
    for _ in 0..=REPEATS {
        for (.., stand, runs) in &mut cells {
            runs.push(stand.run(READS));
        }
    }
    println!("| ring | in flight | 4 KiB touched | ns per read | allocations per read |");
    println!("| --- | --- | --- | --- | --- |");
    for (name, depth, touched, mut stand, runs) in cells {
        // The first of all is to get warm.
        let (took, allocated) = runs.into_iter().skip(1).min().expect("there are some");
        let of_each = |n: f64| n / READS as f64;
        println!(
            "| {name} | {depth} | {touched} | {:.1} | {:.4} |",
            of_each(took.as_nanos() as f64),
            of_each(allocated as f64)
        );
        stand.guest.stop();
    }
}
