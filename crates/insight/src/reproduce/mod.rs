//! Field reports, run again: the real engine and its layers over simulated devices of the report's kind, in virtual time,
//! with Linux's old behaviour and with ours. One file (or folder) a report.
//!
//! | report | what was wrong |
//! | --- | --- |
//! | [`discard`] | discards under md's RAID10 were cut to chunks (Launchpad 1896578) |
//!
//! Invariants, for every report: (1) nothing is modelled but devices and clients: what lies between is the code that
//! serves; (2) a figure of the report that a model was calibrated by is named in [`Reproduction::calibration`], and there is
//! at most one; (3) a seed gives the same result on any machine.

pub mod discard;
mod lab;

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
    /// The one figure of the report that went into the model, and where.
    pub calibration: String,
    /// What was run.
    pub rows: Vec<Row>,
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

/// How a layer behaves.
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
    /// Discards.
    pub discards: u64,
    /// Writes.
    pub writes: u64,
}
