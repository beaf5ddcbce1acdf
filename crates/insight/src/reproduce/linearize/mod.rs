//! raw-posix: "Linearize direct I/O on Linux NFS".
//!
//! A guest's disk was a file on NFS, opened with O_DIRECT. Of a request whose memory lay in several pieces the kernel's client made one
//! request each; a copy to one piece of memory made most of ffsb's jobs faster and a few slower. The patch was not taken: nobody
//! could say on which kernels to copy. Here each job runs over a server of the report's kind with `linearize` off, on and auto.
//!
//! The rows and their servers are in `ffsb.rs`.

mod ffsb;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use blockwork_engine::{Errno, Linearize, Sector, Sectors};
use blockwork_memory::{Pool, Segment, Segments};
use blockwork_sim::Random;
use serde::Serialize;

use super::Reproduction;
use super::lab::{Ask, Lab, Next, Progress, Workload};
use super::runs::run_all;
pub use ffsb::Kernel;
use ffsb::{ELEMENT, FILE, ROWS, Row};

/// What is run.
#[derive(Clone, Debug)]
pub struct LinearizePlan {
    /// Of the simulator.
    pub seed: u64,
    /// Requests of each run.
    pub requests: u32,
    /// What the client's kernel does.
    pub kernel: Kernel,
    /// How much the times of calls vary: the deviation of their logarithm.
    pub noise: f64,
    /// For kernels that change: after what part of the time that the requests take with the patch.
    pub change_at: f64,
    /// The change is not made at once, but little by little until that part of the same time.
    pub change_until: Option<f64>,
}

impl Default for LinearizePlan {
    fn default() -> LinearizePlan {
        LinearizePlan {
            seed: 1,
            requests: 40_000,
            kernel: Kernel::Reported,
            noise: 0.2,
            change_at: 0.5,
            change_until: None,
        }
    }
}

/// A request failed, on a device that has no faults: the engine is wrong.
#[derive(Debug, thiserror::Error)]
#[error("{job}, {threads} threads: {errno}, on a device without faults")]
pub struct LinearizeError {
    job: &'static str,
    threads: u32,
    errno: Errno,
}

/// A job's rates, MB (1,000,000 bytes) a second.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LinearizeRate {
    /// What ffsb does.
    pub client: String,
    /// Threads that do it.
    pub threads: u32,
    /// What the report measured without the patch.
    pub report_unpatched: f64,
    /// And with it.
    pub report_patched: f64,
    /// What came out here with `linearize=off`; calibrated by the report where the kernel is the report's.
    pub off: f64,
    /// With `linearize=on`; likewise.
    pub on: f64,
    /// With `linearize=auto`: no figure of the report is in this.
    pub auto: f64,
    /// What auto is of the better of both.
    pub auto_of_better: f64,
}

/// Threads of which each has one request under way, anywhere in the file.
struct Threads {
    row: Row,
    random: Random,
    left: u32,
    total: u32,
    kernel: Kernel,
    pool: Pool,
}

impl Workload for Threads {
    fn total(&self) -> Sectors {
        Sectors(u64::from(self.total) * self.row.bytes / 512)
    }

    fn next(&mut self, under_way: usize) -> Next {
        if self.left == 0 || under_way >= self.row.threads as usize {
            return Next::Wait;
        }
        self.left -= 1;
        let nr = self.row.bytes / 512;
        let start = Sector(self.random.below(FILE.0 / nr) * nr);
        let op = self.row.mix.op(self.random.coin());
        Next::Ask(Ask { op, start, nr: Sectors(nr) })
    }

    fn done(&mut self, _: Ask) {}

    /// Pages of a guest, no two of which adjoin.
    fn memory(&mut self, _: &Pool, ask: Ask) -> Segments {
        let off_pages = self.kernel == Kernel::Half && self.random.coin();
        let at = if off_pages { 512 } else { 0 };
        let element = |_| Segment::new(self.pool.get(at + ELEMENT as usize), at, ELEMENT as usize);
        (0..ask.nr.bytes() / ELEMENT).map(element).collect()
    }
}

fn run(
    row: &Row,
    linearize: Linearize,
    plan: &LinearizePlan,
    progress: Progress,
) -> Result<f64, LinearizeError> {
    let lab = Lab::new(plan.seed, &row.device(plan, linearize), 1);
    let (mut layers, _) = lab.layers();
    let root = layers.remove(0);
    let threads = Threads {
        row: *row,
        random: Random::part(plan.seed, 0),
        left: plan.requests,
        total: plan.requests,
        kernel: plan.kernel,
        pool: Pool::new(64 << 20),
    };
    let bytes = threads.total().bytes() as f64;
    let outcome = lab.run_workload(Arc::clone(&root), 1, Box::new(threads), progress);
    let failed = |errno| LinearizeError { job: row.job, threads: row.threads, errno };
    Ok(bytes / outcome.map_err(failed)?.seconds() / 1e6)
}

/// Runs the report, on all processors; `progress` hears how much of it is done, from 0 to 1.
///
/// # Errors
///
/// What is wrong with us.
pub fn reproduce(
    plan: &LinearizePlan,
    progress: &mut dyn FnMut(f64),
) -> Result<Reproduction, LinearizeError> {
    const WAYS: [Linearize; 3] = [Linearize::Off, Linearize::On, Linearize::Auto];
    let runs: Vec<_> = ROWS.iter().flat_map(|row| WAYS.map(|way| (row, way))).collect();
    let rates = run_all(&runs, |(row, way), progress| run(row, *way, plan, progress), progress)?;
    let rate = |(row, rates): (&Row, &[f64])| LinearizeRate {
        client: row.job.into(),
        threads: row.threads,
        report_unpatched: row.unpatched,
        report_patched: row.patched,
        off: rates[0],
        on: rates[1],
        auto: rates[2],
        auto_of_better: rates[2] / rates[0].max(rates[1]),
    };
    Ok(Reproduction {
        name: "linearize",
        title: "raw-posix: Linearize direct I/O on Linux NFS",
        source: "qemu-devel mailing list",
        assumptions: assumptions(),
        calibration: (plan.kernel == Kernel::Reported).then(calibration),
        rows: Vec::new(),
        rates: Vec::new(),
        rings: Vec::new(),
        reads: Vec::new(),
        linearize: ROWS.iter().zip(rates.chunks(WAYS.len())).map(rate).collect(),
        traces: Vec::new(),
        notes: notes(),
    })
}

fn calibration() -> String {
    "Both figures of each row: what a request takes at the server with the patch, and what each further call takes without. A copy \
     takes 0.54 ns a byte, by which sequential reads of 256K by one thread fell from 87.9 to 83.9 MB/s; the two rows of 8K that \
     fell as well, by less than 2.2 %, have this copy too and nothing else. So off and on are no predictions; auto is."
        .into()
}

fn assumptions() -> Vec<String> {
    [
        "The server makes one call after the other, whoever asks; 1 Gbit Ethernet carries 112 MB/s, the most that the report shows; a \
         round trip takes 150 us besides, which threads share. What a call takes varies: log-normal, deviation 0.2 if not told \
         otherwise, and one in a thousand takes ten times as long.",
        "The client: threads with one request each, 40,000 requests in all, of 8 or 256 KiB (mail server: 16 KiB, half of them reads), \
         in elements of 4 KiB, the pages of a guest. File systems in the guest and the work of ffsb itself are in what a request takes.",
        "off, on and auto are the queue's own code. A copy takes no virtual time in it, so the server adds what it takes.",
        "--kernel half: elements that meet between pages are one call, as in Linux 6.1, and half of the requests have memory that does \
         not; mended: one call always; mended-later and broken-later: the one becomes the other in mid-run, or after another part of \
         the time (--change-at): at once, or by as much in each moment until a later part (--change-until).",
    ]
    .map(String::from)
    .into()
}

fn notes() -> Vec<String> {
    [
        "auto tries both ways in pairs of short blocks, on the job's own requests. What it loses beside the better column is what \
         trying costs; where requests differ (--kernel half) or times change it may be better than both.",
        "A change is not known at once. That the way in use has become dearer shows in each request, and is known after some windows of \
         sixteen; that the other one has become cheaper shows only when it is tried, which is rare where it was much dearer.",
        "What a change costs is what goes the old way until it is decided: some hundred requests. Where two classes notice it, as the mail \
         server's reads and writes may, they try both ways together first, so that neither takes the other's trials for a difference of its own.",
        "`blockwork status` and `blockwork serve --stats` show what it has found out about a real file.",
    ]
    .map(String::from)
    .into()
}
