//! Launchpad 1896578, "raid10: Block discard is very slow, causing severe delays for mkfs and fstrim operations".
//!
//! Four 1.9 TB devices of an i3.8xlarge as RAID10: mkfs.xfs took 11 minutes, and 4 seconds on RAID0. The array's queue had a
//! chunk for its discard limit. Here both behaviours are run: the old one is [`DiscardMax`] over the array.
//!
//! What a client does is in `xfs.rs`; how Linux hands a discard to an array, in `discard_step`.

mod xfs;

use std::sync::Arc;

use blockwork_engine::{Errno, Layer, NodeId, Op, Sector, Sectors, SettingError};
use blockwork_format::md::raid0::Raid0Layout;
use blockwork_format::md::{NotALayout, Raid10Layout};
use blockwork_layer::DiscardMax;
use blockwork_layer::md::{
    Array, ArrayConfig, ArrayError, Geometry, GeometryError, MemberConfig, Unrecorded,
};
use blockwork_sim::DeviceModel;

use super::lab::{Lab, Outcome, Progress, Step};
use super::runs::run_all;
use super::{Behaviour, Reproduction, Requests, Row};
use xfs::Xfs;

/// A device of an i3 instance: 1,900 GB.
const DEVICE: Sectors = Sectors(1_900_000_000_000 / 512);
/// Devices of an i3.8xlarge.
const DEVICES: u16 = 4;
/// Where mdadm lets data begin on devices of that size, by default.
const DATA_START: Sector = Sector(264_192);
/// mdadm's default.
const CHUNK: Sectors = Sectors(1024);
/// Discards under way on a device at most: tags of a queue of Linux's nvme driver.
const TAGS: u64 = 1023;

/// Why it cannot be run.
#[derive(Debug, thiserror::Error)]
pub enum DiscardError {
    /// There is no array over devices of that size.
    #[error(transparent)]
    Layout(#[from] NotALayout),
    /// Nor this one.
    #[error(transparent)]
    Geometry(#[from] GeometryError),
    /// Nor this one.
    #[error(transparent)]
    Array(#[from] ArrayError),
    /// The limit is not one.
    #[error(transparent)]
    Setting(#[from] SettingError),
    /// A client's I/O failed, on devices that have no faults: the engine is wrong.
    #[error("{client} on {stack}: {errno}, on devices without faults")]
    Io {
        /// What it did.
        client: &'static str,
        /// On what.
        stack: &'static str,
        /// How it failed.
        errno: Errno,
    },
}

/// What is run, and on what.
#[derive(Clone, Debug)]
pub struct DiscardPlan {
    /// Of the simulator.
    pub seed: u64,
    /// Size of each device: 1.9 TB in the report.
    pub device: Sectors,
    /// Which arrays: of [`DiscardPlan::STACKS`].
    pub stacks: Vec<&'static str>,
}

impl DiscardPlan {
    /// All arrays that there are.
    pub const STACKS: &'static [&'static str] = &["n2", "f2", "o2", "raid0"];
}

impl Default for DiscardPlan {
    /// As in the report.
    fn default() -> DiscardPlan {
        DiscardPlan { seed: 1, device: DEVICE, stacks: DiscardPlan::STACKS.to_vec() }
    }
}

/// The clients of the report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Client {
    /// mkfs.xfs of 2020 (xfsprogs before 5.4): one ioctl over the device, then the log, written 256 KiB at a time.
    Mkfs2020,
    /// mkfs.xfs since: discards 2 GiB at a time, and has the log zeroed.
    Mkfs6,
    /// fstrim on the new file system: each free extent by itself.
    Fstrim,
}

impl Client {
    fn name(self) -> &'static str {
        match self {
            Client::Mkfs2020 => "mkfs.xfs (2020)",
            Client::Mkfs6 => "mkfs.xfs 6.1",
            Client::Fstrim => "fstrim",
        }
    }

    /// What the report measured, seconds.
    fn reported(self, stack: &str, behaviour: Behaviour) -> Option<f64> {
        match (self, stack, behaviour) {
            (Client::Mkfs2020, "n2", Behaviour::Old) => Some(674.734),
            (Client::Mkfs2020, "n2", Behaviour::New) => Some(4.226),
            (Client::Fstrim, "n2", Behaviour::Old) => Some(697.643),
            (Client::Fstrim, "n2", Behaviour::New) => Some(1.991),
            (Client::Mkfs2020, "raid0", Behaviour::New) => Some(4.0),
            _ => None,
        }
    }

    fn steps(self, root: &dyn Layer, behaviour: Behaviour) -> Vec<Step> {
        let xfs = Xfs::on(root);
        let all = (Sector(0), root.sectors());
        let (log, log_sectors) = xfs.log();
        let log_by = |op, bio| Step { op, start: log, nr: log_sectors, bio, depth: 1 };
        match self {
            Client::Mkfs2020 => {
                vec![discard_step(all, behaviour), log_by(Op::Write, xfs::LOG_WRITE)]
            }
            Client::Mkfs6 => {
                let discard = Step { bio: xfs::DISCARD_STEP, depth: 1, ..discard_step(all, behaviour) };
                vec![discard, log_by(Op::WriteZeroes, log_sectors)]
            }
            Client::Fstrim => {
                xfs.free_extents().into_iter().map(|extent| discard_step(extent, behaviour)).collect()
            }
        }
    }
}

/// One BLKDISCARD (or one extent of an fstrim), as Linux hands it to a device: in bios of less than 4 GiB (here whole chunks,
/// so that none is cut twice), and waits for all of them. Who submits sleeps once a device has as many requests as it takes;
/// with the old behaviour, two bios are more than that.
fn discard_step((start, nr): (Sector, Sectors), behaviour: Behaviour) -> Step {
    let bio = Sectors(u64::from(u32::MAX) / 512 / CHUNK.0 * CHUNK.0);
    let depth = match behaviour {
        Behaviour::Old => 2,
        Behaviour::New => u32::try_from(TAGS).unwrap_or(u32::MAX),
    };
    Step { op: Op::Discard, start, nr, bio, depth }
}

/// Runs the report, on all processors; `progress` hears how much of it is done, from 0 to 1.
///
/// # Errors
///
/// Devices too small for an array; what is wrong with us.
pub fn reproduce(plan: &DiscardPlan, progress: &mut dyn FnMut(f64)) -> Result<Reproduction, DiscardError> {
    let rows = run_all(&runs(plan), |run, progress| run.row(plan, progress), progress)?;
    Ok(Reproduction {
        name: "discard",
        title: "RAID10: block discard is very slow, causing severe delays for mkfs and fstrim",
        source: "https://bugs.launchpad.net/bugs/1896578",
        assumptions: assumptions(),
        calibration: Some(
            "how long the device takes for a discard (0.186 ms), from mkfs.xfs (2020) on n2 with the old \
                      behaviour; every other row is a prediction"
                .into(),
        ),
        rows,
        rates: Vec::new(),
        rings: Vec::new(),
        reads: Vec::new(),
        linearize: Vec::new(),
        traces: Vec::new(),
        notes: notes(),
    })
}

/// One client on one array.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Run {
    client: Client,
    stack: &'static str,
    behaviour: Behaviour,
}

/// RAID0 never had the fault. mkfs.xfs 6.1 is younger than the old behaviour, and would get the same requests from it as the one
/// of 2020.
fn runs(plan: &DiscardPlan) -> Vec<Run> {
    let mut runs = Vec::new();
    for &stack in &plan.stacks {
        for client in [Client::Mkfs2020, Client::Fstrim, Client::Mkfs6] {
            let had_the_fault = stack != "raid0" && client != Client::Mkfs6;
            runs.extend(had_the_fault.then_some(Run { client, stack, behaviour: Behaviour::Old }));
            runs.push(Run { client, stack, behaviour: Behaviour::New });
        }
    }
    runs
}

impl Run {
    fn row(self, plan: &DiscardPlan, progress: Progress) -> Result<Row, DiscardError> {
        let outcome = self.outcome(plan, progress)?;
        let report_seconds = self.client.reported(self.stack, self.behaviour);
        let is_calibration = self == Run { client: Client::Mkfs2020, stack: "n2", behaviour: Behaviour::Old };
        let devices = outcome.devices.iter();
        Ok(Row {
            client: self.client.name().into(),
            stack: if self.stack == "raid0" { "RAID0".into() } else { format!("RAID10 {}", self.stack) },
            behaviour: self.behaviour,
            report_seconds,
            seconds: outcome.seconds(),
            is_calibration,
            devices: devices.map(Requests::from).collect(),
        })
    }

    fn outcome(self, plan: &DiscardPlan, progress: Progress) -> Result<Outcome, DiscardError> {
        let model = DeviceModel::i3_nvme(plan.device);
        let lab = Lab::new(plan.seed, &model, DEVICES);
        let (members, node) = lab.layers();
        let array = self.array(plan, members, node)?;
        let root: Arc<dyn Layer> = match self.behaviour {
            Behaviour::New => array,
            Behaviour::Old => {
                let old = DiscardMax::new(array, &CHUNK.bytes().to_string())?;
                Arc::new(old.cut_at_chunks(CHUNK))
            }
        };
        let steps = self.client.steps(&*root, self.behaviour);
        let (client, stack) = (self.client.name(), self.stack);
        lab.run(root, node.0 + 1, steps, progress).map_err(|errno| DiscardError::Io { client, stack, errno })
    }

    fn array(
        self,
        plan: &DiscardPlan,
        members: Vec<Arc<dyn Layer>>,
        node: NodeId,
    ) -> Result<Arc<Array>, DiscardError> {
        let room = Sectors(plan.device.0.saturating_sub(DATA_START.0));
        let geometry = if self.stack == "raid0" {
            Geometry::raid0(CHUNK, &vec![room; members.len()], Raid0Layout::Alternate)?
        } else {
            let layout = Raid10Layout::from_short_name(self.stack, DEVICES.into())?;
            Geometry::raid10(layout, CHUNK, room)?
        };
        let members = (0..).zip(members).map(|(role, layer): (u16, _)| {
            Some(MemberConfig {
                name: format!("nvme{role}n1"),
                layer,
                data_start: DATA_START,
                recovered: None,
                write_mostly: false,
                bad: Vec::new(),
            })
        });
        let config = ArrayConfig {
            name: self.stack.into(),
            geometry,
            members: members.collect(),
            resync_from: None,
            intent: None,
            record: Some(Box::new(Unrecorded)),
        };
        Ok(Array::new(node, config)?)
    }
}

fn assumptions() -> Vec<String> {
    [
        "4 devices of the simulator's model i3-nvme, 1,900 GB each, whose largest discard is 2199023255040 bytes, as in the \
         report. A discard takes 0.186 ms, whatever its size, and a device serves one at a time. Writes: 737 MB/s, \
         which is what Amazon's 180,000 random writes of 4 KiB a second come to.",
        "The array: chunks of 512 KiB, data from 129 MiB on, as mdadm makes them; in sync, no bitmap.",
        "old: discard_max_bytes of the array is 524288. Each discard is cut to that before it is mapped, then at \
         chunks, and what becomes of a piece is not merged again. The client always has two bios of just under 4 GiB under way, or 16,382 pieces: \
         more than the 1023 requests that each device takes.",
        "new: a discard is mapped whole; pieces that meet on a device are one request, up to the device's limit.",
        "mkfs.xfs (2020): one discard of the whole array, then 2 GiB of log in writes of 256 KiB, one at a time. mkfs.xfs 6.1: \
         discards of 2 GiB, one at a time, then the log zeroed at once. fstrim: the free extents of each of 32 allocation \
         groups, one at a time.",
    ]
    .map(String::from)
    .into()
}

fn notes() -> Vec<String> {
    [
        "Nobody has published how long such a device takes for a large discard. The model takes it to be as short as a small \
         one: new rows are what the requests cost, and the report's new figures have besides what the device needs to \
         forget terabytes.",
        "The report's programs also start, read and write a little metadata, and mount: that is not in the model.",
        "fstrim, old: a free extent does not begin with a chunk, so each of its pieces lies in two chunks and becomes two \
         requests a copy. That is twice the requests of mkfs.xfs, and would take twice its time; the report's fstrim took \
         about as long as its mkfs.xfs. So there, small neighbours cost less than two, for a reason that it does not show.",
    ]
    .map(String::from)
    .into()
}

#[cfg(test)]
mod tests;
