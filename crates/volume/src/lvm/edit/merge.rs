//! A snapshot of the old kind that is merged back into its origin: first the text says so, then it is done, then the text has no snapshot.
//! (`thin_merge.rs` has those of thin volumes.)
//!
//! As LVM does it: the tie names the store as `merging_store` and is seen no more. From then on the origin is what the snapshot was, and
//! whoever serves it goes on with the merge, Linux as well as we; when all is merged, tie and store go.

use std::sync::Arc;

use blockwork_engine::{Errno, Layer, TaskContext};
use blockwork_format::escape;
use blockwork_format::lvm2::vg::{LvIndex, Snapshot};
use blockwork_layer::snapshot::{Merge, MergeError, SnapshotStatus, Step};

use super::draft::{Draft, lv_section};
use super::error::{EditError, bytes_shown};
use super::open::GroupEditor;
use super::resize::only_segment;
use super::section::strings;
use crate::lvm::snapshot::snapshot_sectors;
use crate::steps::close;

/// A merge that is under way: by the text of its group, and of this process.
#[derive(Clone, Debug)]
pub struct Merger {
    merge: Arc<Merge>,
    /// The origin.
    top: Arc<dyn Layer>,
}

impl Merger {
    /// How far it is.
    pub fn status(&self) -> SnapshotStatus {
        self.merge.status()
    }

    /// Merges a piece.
    ///
    /// # Errors
    ///
    /// A disk fails: what is not merged stays in the store.
    pub async fn step(&self, cx: &TaskContext) -> Result<Step, MergeError> {
        self.merge.step(cx).await
    }

    /// Leaves what lies below in order: arrays record that they are clean.
    ///
    /// # Errors
    ///
    /// An array cannot record it: it is checked when it is opened next.
    pub async fn close(&self, cx: &TaskContext) -> Result<(), Errno> {
        close(vec![self.top.clone()], cx).await
    }
}

impl GroupEditor {
    /// Plans that a snapshot is being merged; false: the text says so already. What could not be merged is refused.
    ///
    /// # Errors
    ///
    /// It is no snapshot, or an invalid one, or another one is being merged into the same origin, or that is only read, or nothing but zeros.
    pub fn begin_merge(&mut self, name: &str) -> Result<bool, EditError> {
        let snapshot = self.draft().mergeable(name)?;
        if snapshot.merging {
            return Ok(false);
        }
        // Once the text says that it is being merged, Linux merges it when it activates the group next: all is asked before.
        let (at, _) = self.writable_origin(name, &snapshot)?;
        let store = self.assembly().graph().groups[at].lv(snapshot.store);
        let layer = store.map(|device| self.assembly_mut().layer(device));
        if let Some(Err(why)) = layer {
            return Err(EditError::volume(name, format!("it cannot be merged: {why}")));
        }
        self.draft_mut().mark_as_merging(name, &snapshot)?;
        Ok(true)
    }

    /// What merges a snapshot of which the text on the disks says that it is being merged.
    ///
    /// # Errors
    ///
    /// The origin cannot be served, or only be read.
    pub fn merger(&mut self, name: &str) -> Result<Merger, EditError> {
        let snapshot = self.draft().mergeable(name)?;
        let (at, top) = self.writable_origin(name, &snapshot)?;
        let merge = self.assembly().graph().groups[at].merges.get(&snapshot.origin).cloned();
        let merge = merge.ok_or_else(|| EditError::volume(name, "it is not being merged"))?;
        Ok(Merger { merge, top })
    }

    /// The origin that a snapshot is to be merged into, and the place of its group.
    fn writable_origin(
        &mut self,
        name: &str,
        snapshot: &Snapshot,
    ) -> Result<(usize, Arc<dyn Layer>), EditError> {
        let group = self.draft().group().id;
        let Some(at) = self.assembly().graph().groups.iter().position(|found| found.text.id == group) else {
            return Err(EditError::volume(name, "its group is gone"));
        };
        let device = self.assembly().graph().groups[at].lv(snapshot.origin);
        let device = device.ok_or_else(|| EditError::volume(name, "its origin is no volume"))?;
        let top = self.assembly_mut().layer(device).map_err(|why| EditError::volume(name, why))?;
        if let Some(why) = &self.assembly().graph().device(device).read_only {
            return Err(EditError::volume(name, format!("its origin must not be written: {why}")));
        }
        Ok((at, top))
    }
}

impl Draft {
    /// The snapshot of a name, of the old kind, which is being merged or could be.
    pub(super) fn mergeable(&self, name: &str) -> Result<Snapshot, EditError> {
        let vg = self.group();
        let refuse = |why: String| Err(EditError::volume(name, why));
        let lv = match vg.lv(name) {
            Some(lv) => lv,
            None => self.visible(name)?,
        };
        let Some(snapshot) = vg.snapshot_in(lv) else {
            self.check_not_split_off(lv)?;
            return refuse("it is no snapshot, and only those are merged: into their origin".into());
        };
        self.check_no_external_origin(snapshot.origin)?;
        if vg.has_virtual_origin(&snapshot) && !snapshot.merging {
            return refuse(
                "there is nothing behind it but zeros: merged into them, all that it holds would be lost"
                    .into(),
            );
        }
        let other = |one: &Snapshot| one.merging && one.origin == snapshot.origin && one.store != lv;
        if let Some(other) = vg.snapshots().find(other) {
            let other = escape(&vg.lvs[other.store.0].name);
            return refuse(format!("{other} is being merged into the same origin; merge that first"));
        }
        self.check_end(name, &snapshot)?;
        Ok(snapshot)
    }

    /// Chunks are merged whole, as Linux merges them, up to the origin's end. What an origin that has grown has in a chunk in whose midst
    /// the snapshot ends is not kept up to date in the store, and would be overwritten by what it was.
    fn check_end(&self, name: &str, snapshot: &Snapshot) -> Result<(), EditError> {
        if snapshot.merging {
            // Some of it may be in the store alone by now.
            return Ok(());
        }
        let vg = self.group();
        let (end, origin) = (snapshot_sectors(vg, snapshot), vg.lv_sectors(snapshot.origin));
        if end >= origin || end.is_multiple_of(snapshot.chunk_size) {
            return Ok(());
        }
        let chunk_end = end.next_multiple_of(snapshot.chunk_size).min(origin);
        let [chunk, end, chunk_end] = [snapshot.chunk_size, end, chunk_end].map(|nr| bytes_shown(nr * 512));
        let origin = escape(&vg.lvs[snapshot.origin.0].name);
        let why = format!(
            "it cannot be merged: it ends at {end}, in the middle of one of its chunks of {chunk}, and {origin} has become larger since: what {origin} \
             has from there to {chunk_end} would be lost; copy what the snapshot holds into {origin} instead, and remove it"
        );
        Err(EditError::volume(name, why))
    }

    /// Plans that a snapshot of either kind is being merged from now on.
    ///
    /// # Errors
    ///
    /// It is no snapshot, or one is being merged into its origin already.
    pub(super) fn plan_merge(&mut self, name: &str) -> Result<(), EditError> {
        if self.is_thin(name)? {
            return self.plan_thin_merge(name);
        }
        let snapshot = self.mergeable(name)?;
        if snapshot.merging {
            let why = "it is being merged into its origin already; `blockwork lv show` says how much is left";
            return Err(EditError::volume(name, why));
        }
        self.mark_as_merging(name, &snapshot)
    }

    pub(super) fn mark_as_merging(&mut self, store: &str, snapshot: &Snapshot) -> Result<(), EditError> {
        let tie = self.group().lvs[snapshot.tie.0].name.clone();
        self.change(|vg, _| {
            let tie = lv_section(vg, &tie);
            tie.set("status", strings(["READ", "WRITE"]));
            let segment = only_segment(tie);
            segment.rename("cow_store", "merging_store");
            segment.set("merging_store", store.into());
            Ok(())
        })
    }

    /// Makes a snapshot again of one that is being merged, and is invalid: nothing of it can be merged, and it can be removed.
    ///
    /// # Errors
    ///
    /// It is not being merged.
    pub fn give_up_merge(&mut self, name: &str) -> Result<(), EditError> {
        let snapshot = self.mergeable(name)?;
        if !snapshot.merging {
            return Err(EditError::volume(name, "it is not being merged"));
        }
        let tie = self.group().lvs[snapshot.tie.0].name.clone();
        self.change(|vg, _| {
            let tie = lv_section(vg, &tie);
            tie.set("status", strings(["READ", "WRITE", "VISIBLE"]));
            only_segment(tie).rename("merging_store", "cow_store");
            Ok(())
        })
    }

    /// Takes a snapshot that is merged out of the group, with its store.
    ///
    /// # Errors
    ///
    /// It is not being merged.
    pub fn end_merge(&mut self, name: &str) -> Result<(), EditError> {
        let snapshot = self.mergeable(name)?;
        if !snapshot.merging {
            return Err(EditError::volume(name, "it is not being merged"));
        }
        let mut gone: Vec<LvIndex> = vec![snapshot.store, snapshot.tie];
        self.collect_parts(snapshot.store, &mut gone)?;
        self.take_out(&gone)?;
        Ok(())
    }
}
