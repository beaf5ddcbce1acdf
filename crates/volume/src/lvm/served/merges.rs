//! Merges of snapshots in groups that are served.
//!
//! The text says that a snapshot is being merged before anything of it is done. Where the family is open then, it stays what it was until
//! its server sees that nobody has the origin or the snapshot open: a merge changes what the origin is, under whoever has it mounted. LVM
//! does the same ("Delaying merge since origin is open"). Whoever opens the group after that server finds the merge in the text, and goes
//! on with it at once.
//!
//! A snapshot in a thin pool takes the place of its origin. Once nobody has the origin open as it was, only the text and the pool have to
//! hear of that.

use std::sync::Arc;

use blockwork_format::lvm2::vg::{LvIndex, SegmentType, Snapshot};
use blockwork_layer::snapshot::{Merge, SnapshotStatus};

use super::super::edit::{self, EditError};
use super::super::verdict::Verdicts;
use super::super::{KnownSnapshot, ThinPool};
use super::ChangedFamily;
use crate::assembly::Assembly;
use crate::graph::GroupId;

/// A merge that the text of an open group has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TextMerge {
    /// The group.
    pub group: String,
    /// The snapshot, by its name in that.
    pub snapshot: String,
    /// What it is merged into, by its name in that.
    pub origin: String,
    /// The whole names of the origin and its partitions.
    pub origin_volumes: Vec<String>,
    /// The same of the snapshot.
    pub snapshot_volumes: Vec<String>,
    /// They are volumes of a thin pool.
    pub is_thin: bool,
    /// How far it is.
    pub state: MergeState,
    /// Why it does not go on.
    pub failure: Option<String>,
}

/// How far a merge of the text is in this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MergeState {
    /// Nothing of the family is open.
    Idle,
    /// The family is open, as it was before.
    Waiting,
    /// The same, and the snapshot was lost meanwhile: there is nothing that could be merged.
    Lost,
    /// It is under way, or has failed.
    Begun,
    /// The origin of a thin snapshot is what it is to be for whoever opens it, and the text and the pool have yet to hear of that.
    Due,
}

impl Assembly {
    /// The merges that the texts of open groups have.
    pub fn merges_of_text(&self) -> Vec<TextMerge> {
        let groups = (0..self.graph.groups.len()).map(GroupId);
        groups.flat_map(|group| self.merges_of(group)).collect()
    }

    fn merges_of(&self, group: GroupId) -> Vec<TextMerge> {
        let known = &self.graph.groups[group.0];
        let merging = known.text.snapshots().filter(|one| one.merging);
        let merge = |one: Snapshot| TextMerge {
            group: known.name.clone(),
            snapshot: known.text.lvs[one.store.0].name.clone(),
            origin: known.text.lvs[one.origin.0].name.clone(),
            origin_volumes: self.volume_names(group, one.origin),
            snapshot_volumes: self.volume_names(group, one.store),
            is_thin: false,
            state: self.merge_state(group, &one),
            failure: known.merges.get(&one.origin).and_then(|merge| Some(merge.failure()?.to_string())),
        };
        let thin = |(origin, snapshot): (LvIndex, LvIndex)| TextMerge {
            group: known.name.clone(),
            snapshot: known.text.lvs[snapshot.0].name.clone(),
            origin: known.text.lvs[origin.0].name.clone(),
            origin_volumes: self.volume_names(group, origin),
            snapshot_volumes: self.volume_names(group, snapshot),
            is_thin: true,
            state: self.thin_merge_state(group, origin, snapshot),
            failure: None,
        };
        merging.map(merge).chain(known.text.merging_thins().map(thin)).collect()
    }

    fn thin_merge_state(&self, group: GroupId, origin: LvIndex, snapshot: LvIndex) -> MergeState {
        let known = &self.graph.groups[group.0];
        let is_built =
            |lv: LvIndex| known.lv(lv).is_some_and(|device| self.graph.device(device).layer().is_some());
        let is_as_it_was = match known.text.lvs[origin.0].segments[0].kind {
            SegmentType::Thin { pool, device_id, .. } => {
                let pool = known.thin_pools.get(&pool).and_then(ThinPool::pool);
                pool.is_some_and(|pool| pool.is_in_use(device_id))
            }
            _ => false,
        };
        // A volume does not become smaller under whoever has it open; of one that is only read, nothing changes here.
        let shrinks = !self.plan.read_only && known.text.lv_sectors(snapshot) < known.text.lv_sectors(origin);
        match is_as_it_was || is_built(snapshot) || (shrinks && is_built(origin)) {
            true => MergeState::Waiting,
            false => MergeState::Due,
        }
    }

    /// The layers of a thin snapshot and of its origin are held on to here no more, nor those of their partitions.
    pub fn forget_thin_merge(&mut self, merge: &TextMerge) {
        let partitions_first = merge.origin_volumes.iter().rev().chain(merge.snapshot_volumes.iter().rev());
        partitions_first.for_each(|name| self.forget_layers(name));
    }

    /// Whether nothing of this is changed.
    pub fn is_read_only(&self) -> bool {
        self.plan.read_only
    }

    fn merge_state(&self, group: GroupId, snapshot: &Snapshot) -> MergeState {
        let known = &self.graph.groups[group.0];
        if known.merges.contains_key(&snapshot.origin) {
            return MergeState::Begun;
        }
        if !known.families.contains_key(&snapshot.origin) {
            return MergeState::Idle;
        }
        match known.snapshots.get(&snapshot.store).and_then(KnownSnapshot::status) {
            Some(SnapshotStatus::Invalid) => MergeState::Lost,
            _ => MergeState::Waiting,
        }
    }

    /// A volume and its partitions.
    fn volume_names(&self, group: GroupId, lv: LvIndex) -> Vec<String> {
        let device = self.graph.groups[group.0].lv(lv);
        let all = device.into_iter().flat_map(|device| [vec![device], self.partitions_of(device)].concat());
        all.map(|device| self.graph.device(device).name.clone()).collect()
    }

    /// The family of a merge is built anew by what the text says of it now, and so begins to merge, or has ended that.
    ///
    /// # Errors
    ///
    /// No such group.
    pub fn part_merged(&mut self, merge: &TextMerge) -> Result<Option<ChangedFamily>, EditError> {
        let group = edit::find(self, &merge.group)?;
        let text = self.graph.groups[group.0].text.clone();
        let Some(origin) = text.lv(&merge.origin) else { return Ok(None) };
        Ok(Some(self.part_family(group, &Verdicts::new(&text), origin)))
    }

    /// The merges that are under way.
    pub fn open_merges(&self) -> Vec<Arc<Merge>> {
        self.graph.groups.iter().flat_map(|group| group.merges.values().cloned()).collect()
    }

    /// What the text has for a merge that is under way.
    pub fn text_of_merge(&self, merge: &Arc<Merge>) -> Option<TextMerge> {
        self.graph.groups.iter().enumerate().find_map(|(at, group)| {
            let origin = group.merges.iter().find(|(_, known)| Arc::ptr_eq(known, merge))?.0;
            let name = &group.text.lvs[origin.0].name;
            self.merges_of(GroupId(at)).into_iter().find(|one| one.origin == *name)
        })
    }
}
