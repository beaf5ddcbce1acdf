//! What there is to write for a change, step by step, and how it is written.
//!
//! ```text
//!   zeros and RAID metadata in what is free, former content of new disks
//!   ─▶ labels and empty areas of new disks (physical volumes of no group so far)
//!   ─▶ the new text: blockwork_format::lvm2::commit
//!   ─▶ labels that say "in use" ─▶ labels and areas of disks that have left
//! ```
//!
//! Each step is durable before the next begins. A cut before the first header of the new text has come leaves the group as it was
//! (new disks may be physical volumes of no group); from then on the change is made. What a cut keeps from the last two steps is
//! harmless: a label without the flag, which the next change mends, or a disk whose old text is outdated.

use blockwork_engine::{Errno, TaskContext};
use blockwork_format::lvm2::commit::{self, Effect};
use blockwork_format::lvm2::{AreaHeader, Label};
use blockwork_format::{Piece, SECTOR_BYTES};

use super::data::{Content, DataWrite};
use super::draft::Draft;
use super::error::EditError;
use super::open::{Role, Site};
use crate::steps::{Step, StepError, Target, Write, carry_out, close, settle};

/// Why a change was not written to its end.
#[derive(Debug, thiserror::Error)]
pub enum CommitError {
    /// A write failed; those before it are done, those after it are not.
    #[error("{source}; {state}")]
    Step {
        /// Which, where and why.
        source: StepError,
        /// What that means for the group.
        state: &'static str,
    },
    /// All is written, and an array below cannot record that it is in order.
    #[error(
        "the change is made; an array below could not record that it is in order ({0}): it is checked when it is opened next"
    )]
    Close(Errno),
}

impl CommitError {
    /// The same without what that would mean for the group if nothing else had been written.
    pub fn cause(&self) -> String {
        match self {
            CommitError::Step { source, .. } => source.to_string(),
            CommitError::Close(_) => self.to_string(),
        }
    }
}

/// What there is to write. It can go to another thread.
#[derive(Debug, Clone)]
pub struct Commit {
    targets: Vec<Target>,
    /// What leaves the group as it was.
    before: Vec<Step>,
    /// What makes the change.
    change: Vec<Step>,
    /// More copies of it.
    after: Vec<Step>,
}

impl Commit {
    pub(super) fn new(draft: &Draft, sites: &[Site]) -> Result<Commit, EditError> {
        let target = |site: &Site| Target { name: site.title.clone(), layer: site.layer.clone() };
        let mut commit = Commit {
            targets: sites.iter().map(target).collect(),
            before: Vec::new(),
            change: Vec::new(),
            after: Vec::new(),
        };
        add(&mut commit.before, "what new volumes and disks begin with", before(draft, sites)?);
        add(&mut commit.before, "the label of a new physical volume", labels_of_new(sites)?);
        for step in steps_of_text(draft, sites)? {
            let write = |write: commit::Write| Write { device: write.device, piece: write.piece };
            let steps = match step.effect {
                Effect::None => &mut commit.before,
                Effect::Change => &mut commit.change,
                Effect::Copy => &mut commit.after,
            };
            add(steps, step.what, step.writes.into_iter().map(write).collect());
        }
        add(&mut commit.after, "that a disk is in use", flags(sites)?);
        add(&mut commit.after, "that a disk has left the group", farewells(sites)?);
        Ok(commit)
    }

    /// Writes it all, and leaves arrays below in order.
    ///
    /// # Errors
    ///
    /// The first write or flush that fails: nothing is written after it.
    pub async fn run(self, cx: &TaskContext) -> Result<(), CommitError> {
        let layers = self.targets.iter().map(|target| target.layer.clone()).collect();
        self.write(cx).await?;
        close(layers, cx).await.map_err(CommitError::Close)
    }

    /// Writes it all, by a worker that serves what lies on the same disks.
    ///
    /// # Errors
    ///
    /// The first write or flush that fails: nothing is written after it.
    pub async fn write(self, cx: &TaskContext) -> Result<(), CommitError> {
        const NOTHING: &str = "nothing has changed";
        let targets = self.targets;
        let all = [&self.before, &self.change, &self.after].into_iter().flatten();
        let settled = settle(all, &targets, cx).await;
        settled.map_err(|source| CommitError::Step { source, state: NOTHING })?;
        let parts = [
            (self.before, NOTHING),
            (self.change, "whether the change is made, `blockwork vg show` tells"),
            (self.after, "the change is made, and the next one writes the copies that lack it"),
        ];
        for (steps, state) in parts {
            let result = carry_out(steps, &targets, cx).await;
            result.map_err(|source| CommitError::Step { source, state })?;
        }
        Ok(())
    }
}

fn add(steps: &mut Vec<Step>, what: &'static str, writes: Vec<Write>) {
    if !writes.is_empty() {
        steps.push(Step { what, writes });
    }
}

fn write(device: usize, offset: u64, bytes: Vec<u8>) -> Write {
    Write { device, piece: Piece { offset, bytes } }
}

fn zeros(bytes: u64) -> Vec<u8> {
    vec![0; usize::try_from(bytes).expect("a few MiB at most")]
}

/// What lies in free extents, and at the edges of new disks.
fn before(draft: &Draft, sites: &[Site]) -> Result<Vec<Write>, EditError> {
    let mut writes = Vec::new();
    for (device, site) in sites.iter().enumerate() {
        if let Role::New { head, tail } = site.role {
            let end = site.layer.sectors().bytes();
            let edges = [(0, head), (end - tail, tail)].into_iter().filter(|(_, bytes)| *bytes > 0);
            writes.extend(edges.map(|(offset, bytes)| write(device, offset, zeros(bytes))));
        }
    }
    for DataWrite { pv, offset, content } in &draft.data {
        let device = sites.iter().position(|site| site.label.pv.id == *pv).expect("a PV of the group");
        let bytes = match content {
            Content::Zeros(bytes) => zeros(*bytes),
            Content::Bytes(bytes) => bytes.clone(),
        };
        let write = write(device, *offset, bytes);
        let (end, size) = (write.piece.end(), sites[device].layer.sectors().bytes());
        if end > size {
            let why = format!(
                "the metadata says that it goes on to byte {end} and more, and it has {size}; was it cut?"
            );
            return Err(EditError::disk(&sites[device].title, why));
        }
        writes.push(write);
    }
    Ok(writes)
}

fn labels_of_new(sites: &[Site]) -> Result<Vec<Write>, EditError> {
    let mut writes = Vec::new();
    for (device, site) in sites.iter().enumerate() {
        if matches!(site.role, Role::New { .. }) {
            for area in &site.areas {
                writes.push(write(device, area.area.offset, area.encode().to_vec()));
            }
            writes.push(label(device, site, &site.label)?);
        }
    }
    Ok(writes)
}

fn label(device: usize, site: &Site, label: &Label) -> Result<Write, EditError> {
    let bytes = label.encode().map_err(|source| EditError::metadata(&site.title, source))?;
    Ok(write(device, label.sector * SECTOR_BYTES, bytes.to_vec()))
}

fn steps_of_text(draft: &Draft, sites: &[Site]) -> Result<Vec<commit::Step>, EditError> {
    let staying = sites.iter().enumerate().filter(|(_, site)| site.role != Role::Leaving);
    let target = |device| move |header: &AreaHeader| commit::Target { device, header: header.clone() };
    let targets: Vec<_> = staying.flat_map(|(device, site)| site.areas.iter().map(target(device))).collect();
    let name = &draft.group().name;
    if targets.is_empty() {
        let why = "none of its disks has a metadata area that is in use; `pvchange --metadataignore n` changes that";
        return Err(EditError::group(name, why));
    }
    commit::steps(&targets, &draft.text()).map_err(|source| EditError::metadata(name, source))
}

/// Labels that do not say yet that their disk is in use.
fn flags(sites: &[Site]) -> Result<Vec<Write>, EditError> {
    let mut writes = Vec::new();
    for (device, site) in sites.iter().enumerate().filter(|(_, site)| site.role != Role::Leaving) {
        let mut changed = site.label.clone();
        if changed.pv.set_in_use(true) {
            writes.push(label(device, site, &changed)?);
        }
    }
    Ok(writes)
}

/// Disks that have left have no text and no flag.
fn farewells(sites: &[Site]) -> Result<Vec<Write>, EditError> {
    let mut writes = Vec::new();
    for (device, site) in sites.iter().enumerate().filter(|(_, site)| site.role == Role::Leaving) {
        for header in &site.areas {
            let empty = AreaHeader { area: header.area, slots: Default::default() };
            writes.push(write(device, header.area.offset, empty.encode().to_vec()));
        }
        let mut changed = site.label.clone();
        if changed.pv.set_in_use(false) {
            writes.push(label(device, site, &changed)?);
        }
    }
    Ok(writes)
}
