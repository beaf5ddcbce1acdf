//! The report's fourteen rows, and the server that each of them is run against.

use blockwork_engine::{Limits, Linearize, Merges, Nanos, Op, Sectors};
use blockwork_sim::{CallTimes, Cap, CapOn, CapUnit, Cuts, DeviceModel, Elements, Latency, Later};

use super::LinearizePlan;

/// Size of the file that is worked on.
pub(super) const FILE: Sectors = Sectors(8 << 21);
/// What 1 Gbit Ethernet carries, bytes a second: what the report's large requests came to at most.
const WIRE: u64 = 112_000_000;
/// From a request to the first byte of its answer, besides what the server does.
const ROUND_TRIP: Nanos = Nanos::micros(150);
/// What a copy takes, each KiB. Calibrated: sequential reads of 256 KiB by one thread got slower with the patch, from 87.9 to 83.9 MB/s.
const COPY: Nanos = Nanos(555);

/// What a job's threads do.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Mix {
    Reads,
    Writes,
    Both,
}

/// A row of the report.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Row {
    pub(super) job: &'static str,
    pub(super) threads: u32,
    pub(super) mix: Mix,
    /// Bytes of a request.
    pub(super) bytes: u64,
    /// MB (1,000,000 bytes) a second without the patch, and with it.
    pub(super) unpatched: f64,
    pub(super) patched: f64,
}

/// Bytes of an element: a page of the guest's memory.
pub(super) const ELEMENT: u64 = 4096;

/// All rows, in the order of the report.
pub(super) const ROWS: [Row; 14] = [
    row("large file creates, 256K", 8, Mix::Writes, 256 << 10, 20.5, 112.0),
    row("sequential reads, 256K", 8, Mix::Reads, 256 << 10, 58.7, 112.0),
    row("large file creates, 8K", 8, Mix::Writes, 8 << 10, 5.2, 5.8),
    row("sequential reads, 8K", 8, Mix::Reads, 8 << 10, 46.7, 80.9),
    row("random reads, 8K", 8, Mix::Reads, 8 << 10, 8.7, 23.4),
    row("random writes, 8K", 8, Mix::Writes, 8 << 10, 39.6, 44.0),
    row("mail server", 8, Mix::Both, 16 << 10, 10.2, 23.6),
    row("large file creates, 256K", 1, Mix::Writes, 256 << 10, 14.5, 49.8),
    row("sequential reads, 256K", 1, Mix::Reads, 256 << 10, 87.9, 83.9),
    row("large file creates, 8K", 1, Mix::Writes, 8 << 10, 4.8, 4.8),
    row("sequential reads, 8K", 1, Mix::Reads, 8 << 10, 23.2, 23.1),
    row("random reads, 8K", 1, Mix::Reads, 8 << 10, 4.8, 4.7),
    row("random writes, 8K", 1, Mix::Writes, 8 << 10, 9.4, 12.8),
    row("mail server", 1, Mix::Both, 16 << 10, 5.4, 7.3),
];

const fn row(job: &'static str, threads: u32, mix: Mix, bytes: u64, unpatched: f64, patched: f64) -> Row {
    Row { job, threads, mix, bytes, unpatched, patched }
}

impl Row {
    /// The server of this row: what its calls take, so that both of the report's figures come out.
    pub(super) fn device(&self, plan: &LinearizePlan, linearize: Linearize) -> DeviceModel {
        let mut model = DeviceModel::null(FILE);
        model.name = "nfs".into();
        model.latency.read = Latency::Fixed(ROUND_TRIP);
        model.latency.write = Latency::Fixed(ROUND_TRIP);
        let wire = |on| Cap { on, unit: CapUnit::Bytes, per_second: WIRE, burst: self.bytes };
        model.caps = vec![wire(CapOn::Reads), wire(CapOn::Writes)];
        let times = self.calls();
        let linear = u64::from(plan.requests) * (times.request.0 + self.copy() + self.besides());
        let change = |part: f64| Nanos((linear as f64 * part) as u64);
        let later = |cuts| Later {
            from: change(plan.change_at),
            until: change(plan.change_until.unwrap_or(plan.change_at)),
            cuts,
        };
        model.elements = Some(Elements {
            read: times,
            write: times,
            noise: noise(plan.noise),
            copy: COPY,
            cuts: plan.kernel.cuts(),
            later: plan.kernel.later().map(later),
        });
        model.limits = Limits {
            max_hw_sectors: Sectors(2048),
            max_sectors: Sectors(2048),
            max_segments: 256,
            // Requests are the job's: what a queue makes of them is another report.
            merges: Merges::None,
            linearize,
            ..model.limits
        };
        model
    }

    fn copy(&self) -> u64 {
        COPY.0 * self.bytes / 1024
    }

    /// With one thread nothing hides the round trip.
    fn besides(&self) -> u64 {
        if self.threads == 1 { ROUND_TRIP.0 } else { 0 }
    }

    fn calls(&self) -> CallTimes {
        let each = |rate: f64| self.bytes as f64 / rate * 1e3;
        let besides = self.besides() as f64;
        let (vectored, linear) = (each(self.unpatched) - besides, each(self.patched) - besides);
        let request = if self.patched > self.unpatched { linear - self.copy() as f64 } else { vectored };
        let elements = (self.bytes / ELEMENT) as f64;
        let further = ((vectored - request) / (elements - 1.0)).max(0.0);
        CallTimes { request: Nanos(request.max(0.0) as u64), further: Nanos(further as u64) }
    }
}

/// A factor of mean 1, in thousandths: log-normal, and one call in a thousand takes ten times as long.
fn noise(sigma: f64) -> Latency {
    const TAIL: f64 = 1.009;
    // e^(s²/2) to the fourth power of s: the mean of a log-normal whose median is 1.
    let half = sigma * sigma / 2.0;
    let mean = 1.0 + half + half * half / 2.0;
    Latency::with_tail(Nanos((1000.0 / (mean * TAIL)) as u64), sigma)
}

/// What the client's kernel does with elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kernel {
    /// As in the report: a call of each element.
    Reported,
    /// As Linux 6.1: elements that meet between pages are one call. Half of the requests have memory that does not lie so.
    Half,
    /// One call, whatever the elements.
    Mended,
    /// As in the report, and mended in mid-run, at once or little by little.
    MendedLater,
    /// Mended, and in mid-run as in the report; likewise.
    BrokenLater,
}

impl Kernel {
    /// All, by the names that they have on the command line.
    pub const NAMES: [(&'static str, Kernel); 5] = [
        ("reported", Kernel::Reported),
        ("half", Kernel::Half),
        ("mended", Kernel::Mended),
        ("mended-later", Kernel::MendedLater),
        ("broken-later", Kernel::BrokenLater),
    ];

    fn cuts(self) -> Cuts {
        match self {
            Kernel::Reported | Kernel::MendedLater => Cuts::Everywhere,
            Kernel::Half => Cuts::OffPages,
            Kernel::Mended | Kernel::BrokenLater => Cuts::Nowhere,
        }
    }
    fn later(self) -> Option<Cuts> {
        match self {
            Kernel::MendedLater => Some(Cuts::Nowhere),
            Kernel::BrokenLater => Some(Cuts::Everywhere),
            Kernel::Reported | Kernel::Half | Kernel::Mended => None,
        }
    }
}

impl Mix {
    /// The operation of a request for which a coin fell so.
    pub(super) fn op(self, coin: bool) -> Op {
        match self {
            Mix::Reads => Op::Read,
            Mix::Both if coin => Op::Read,
            Mix::Writes | Mix::Both => Op::Write,
        }
    }
}
