//! Field reports, run again: the real engine and its layers over simulated devices of the report's kind, in virtual time,
//! with Linux's old behaviour and with ours. One file (or folder) a report.
//!
//! | report | what was wrong |
//! | --- | --- |
//! | [`discard`] | discards under md's RAID10 were cut to chunks (Launchpad 1896578) |
//! | [`linearize`] | each element of a vectored request became a request of its own on NFS (raw-posix: Linearize direct I/O) |
//! | [`merge`] | reads through an LVM snapshot were not merged on the way to an NVMe disk (Launchpad 1833319) |
//! | [`ring`] | a Xen guest's ring of one page starves a fast disk (xen/block: add multi-page ring support) |
//! | [`thin`] | thin volumes were a third as fast as thick ones: look-ups under the pool's lock (dm-devel) |
//!
//! Invariants, for every report: (1) nothing is modelled but devices and clients, and an old behaviour that we do not have: what lies
//! between is the code that serves; (2) figures of the report that a model was calibrated by are named in
//! [`Reproduction::calibration`], and marked where they are shown; (3) a seed gives the same result on any machine.

pub mod discard;
mod excerpt;
mod lab;
pub mod linearize;
pub mod merge;
pub mod ring;
mod runs;
pub mod thin;

use blockwork_sim::DeviceCounters;
use serde::Serialize;

/// A report beside what came of running it again.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Reproduction {
    /// Its name on the command line.
    pub name: &'static str,
    /// What it says, in a sentence.
    pub title: &'static str,
    /// Where it stands.
    pub source: &'static str,
    /// What was simulated: devices and clients, with reasons.
    pub assumptions: Vec<String>,
    /// The figures of the report that went into the model, and where; none: no figure did.
    pub calibration: Option<String>,
    /// What was run.
    pub rows: Vec<Row>,
    /// What clients get in a second whose work has no end.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub rates: Vec<Rate>,
    /// What guests get through rings of different sizes.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub rings: Vec<RingRate>,
    /// How many reads clients get in a second.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub reads: Vec<ReadRate>,
    /// What jobs get whose memory is in pieces.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub linearize: Vec<linearize::LinearizeRate>,
    /// What happened on the device, as traces show it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub traces: Vec<Excerpt>,
    /// What the rows do not say by themselves.
    pub notes: Vec<String>,
}

/// One run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// What the client does.
    pub client: String,
    /// On what.
    pub stack: String,
    /// Which behaviour.
    pub behaviour: Behaviour,
    /// What the report measured there, seconds; nothing where it says nothing.
    pub report_seconds: Option<f64>,
    /// What came out here, virtual seconds.
    pub seconds: f64,
    /// What the model was calibrated by: no prediction.
    pub is_calibration: bool,
    /// Requests that each device got, by kind.
    pub devices: Vec<Requests>,
}

/// What a client gets in a second.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Rate {
    /// What it does.
    pub client: String,
    /// On what.
    pub stack: String,
    /// What the report measured, MB (1,000,000 bytes) a second; nothing where it says nothing.
    pub report_mb_per_second: Option<f64>,
    /// What came out here, MB a virtual second.
    pub mb_per_second: f64,
    /// Requests that the device got.
    pub devices: Vec<Requests>,
}

/// What a guest gets through a ring.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RingRate {
    /// What it does.
    pub client: String,
    /// What is between it and the device, apart from the ring.
    pub path: String,
    /// Reads that the guest has under way.
    pub in_flight: u32,
    /// Pages of the ring.
    pub ring_pages: u32,
    /// Whether the host merges requests at the device.
    pub is_merged_at_leaf: bool,
    /// What the report measured, reads a second; nothing where it says nothing.
    pub report_iops: Option<f64>,
    /// What came out here, reads a second, a virtual one where the device is simulated.
    pub iops: f64,
    /// What the model was calibrated by: no prediction.
    pub is_calibration: bool,
    /// Reads in a request of the ring, on average: what the guest's queue merged.
    pub reads_per_request: f64,
    /// Requests that the ring holds.
    pub ring_size: u32,
    /// The most that were in it.
    pub ring_high_water: u32,
    /// Part of the time during which it was full, 0 to 1.
    pub ring_full: f64,
    /// Requests that the device got.
    pub device: Requests,
}

/// How many reads a client gets in a second.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ReadRate {
    /// What it does.
    pub client: String,
    /// On what.
    pub stack: String,
    /// Which behaviour.
    pub behaviour: Behaviour,
    /// What the report measured, reads a second; nothing where it says nothing.
    pub report_iops: Option<f64>,
    /// What came out here, reads a second, a virtual one where the device is simulated.
    pub iops: f64,
    /// What the model was calibrated by: no prediction.
    pub is_calibration: bool,
    /// Requests that the device got.
    pub device: Requests,
}

/// A piece of a trace.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Excerpt {
    /// Of what.
    pub title: String,
    /// As blkparse prints them.
    pub lines: Vec<String>,
}

/// How a layer, or a queue, behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Behaviour {
    /// As Linux did when the report was written.
    Old,
    /// As it does here.
    New,
}

/// Requests of a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Requests {
    /// Reads.
    pub reads: u64,
    /// Discards.
    pub discards: u64,
    /// Writes.
    pub writes: u64,
}

impl From<&DeviceCounters> for Requests {
    fn from(counters: &DeviceCounters) -> Requests {
        Requests { reads: counters.reads, discards: counters.discards, writes: counters.writes }
    }
}
