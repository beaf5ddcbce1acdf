//! A snapshot of a thin volume that takes the place of its origin.
//!
//! Nothing is copied: both are numbers of the same pool. The origin keeps its name, identifier, tags and flags, and gets the snapshot's
//! number and size; the snapshot is gone, and the pool is told to delete what had been the origin's number. Where somebody has the origin
//! open, the text says first that this is to be (`merge`), and whoever opens the group next finds the origin as it is to be, Linux as well as
//! we ([`VolumeGroup::thin_device`](blockwork_format::lvm2::VolumeGroup::thin_device)). The texts are those that LVM 2.03.16 writes.

use std::collections::BTreeMap;

use blockwork_format::escape;
use blockwork_format::lvm2::vg::{LvIndex, Message, SegmentType};
use blockwork_format::lvm2::{Node, Section};

use super::draft::{Draft, lv_list, lv_section};
use super::error::EditError;
use super::remove::replace_names;
use super::resize::only_segment;
use super::section::{Keys, strings};

/// A snapshot, and the volume whose place it takes.
#[derive(Clone, Copy)]
struct ThinMerge {
    snapshot: LvIndex,
    origin: LvIndex,
    pool: LvIndex,
    /// The origin's own number.
    device: u64,
    is_planned: bool,
}

impl Draft {
    /// Whether a volume is one of a thin pool.
    ///
    /// # Errors
    ///
    /// No such volume.
    pub fn is_thin(&self, name: &str) -> Result<bool, EditError> {
        let lv = self.group().lv(name).map_or_else(|| self.visible(name), Ok)?;
        Ok(matches!(self.group().lvs[lv.0].segments[0].kind, SegmentType::Thin { .. }))
    }

    /// Plans that a snapshot takes the place of its origin as soon as nobody has that open. It may be planned already.
    ///
    /// # Errors
    ///
    /// It is no snapshot, or something else lies on one of the two.
    pub(super) fn plan_thin_merge(&mut self, name: &str) -> Result<(), EditError> {
        let merge = self.thin_merge(name)?;
        let origin = self.group().lvs[merge.origin.0].name.clone();
        if merge.is_planned {
            return Ok(());
        }
        self.change(|vg, old| {
            let section = lv_section(vg, name);
            let status = &old.lvs[merge.snapshot.0].flags.status;
            section.set("status", strings(status.iter().filter(|flag| *flag != "VISIBLE")));
            only_segment(section).set("merge", origin.as_str().into());
            Ok(())
        })
    }

    /// Has a snapshot take the place of its origin, whether that was planned or not; the origin's name. Nobody may have either of them open.
    ///
    /// # Errors
    ///
    /// It is no snapshot, something else lies on one of the two, or the pool has yet to be told of other changes.
    pub fn end_thin_merge(&mut self, name: &str) -> Result<String, EditError> {
        let merge = self.thin_merge(name)?;
        let vg = self.group();
        let (origin, pool) = (vg.lvs[merge.origin.0].name.clone(), vg.lvs[merge.pool.0].name.clone());
        if let SegmentType::ThinPool { messages, .. } = &vg.lvs[merge.pool.0].segments[0].kind
            && let Some(message) = messages.first()
        {
            let of = match message {
                Message::Create(lv) => format!("that {} was made", escape(&vg.lvs[lv.0].name)),
                Message::Delete(device) => format!("that its device {device} goes"),
            };
            return Err(EditError::volume(&pool, format!("it has yet to be told {of}")));
        }
        self.change(|vg, _| {
            let mut taken = only_segment(lv_section(vg, name)).clone();
            taken.remove("origin");
            taken.remove("merge");
            let list = lv_list(vg);
            list.remove(name);
            // What were snapshots of the origin are of nobody now, and those of the snapshot are the origin's.
            let names = BTreeMap::from([(name.to_owned(), origin.clone())]);
            for segment in sections(list).flat_map(sections) {
                if matches!(segment.get("origin"), Some(Node::Value(of)) if of.as_str() == Some(&*origin)) {
                    segment.remove("origin");
                }
                replace_names(segment, &names, &[]);
            }
            *only_segment(lv_section(vg, &origin)) = taken;
            Ok(())
        })?;
        self.tell_pool(&pool, Keys::default().number("delete", merge.device).done())?;
        Ok(origin)
    }

    fn thin_merge(&self, name: &str) -> Result<ThinMerge, EditError> {
        let vg = self.group();
        let refuse = |why: String| Err(EditError::volume(name, why));
        let snapshot = vg.lv(name).map_or_else(|| self.visible(name), Ok)?;
        let kind = |lv: LvIndex| &vg.lvs[lv.0].segments[0].kind;
        let SegmentType::Thin { pool, device_id: number, origin, merge, .. } = *kind(snapshot) else {
            return refuse("it is in no thin pool".into());
        };
        let Some(origin) = merge.or(origin) else {
            return refuse(
                "it is no snapshot of a volume that is still there, and only those are merged: into their origin".into(),
            );
        };
        let device = match *kind(origin) {
            // What is deleted must not be what stays, whatever a text says.
            SegmentType::Thin { pool: own, device_id, .. } if own == pool && device_id != number => device_id,
            _ => {
                let origin = escape(&vg.lvs[origin.0].name);
                return refuse(format!("its origin {origin} is no other volume of its pool"));
            }
        };
        // A chain of them is done from its end.
        for (lv, what) in [(snapshot, "itself"), (origin, "the same origin")] {
            if let Some(other) = vg.merging_thin(lv).filter(|other| *other != snapshot) {
                let other = escape(&vg.lvs[other.0].name);
                return refuse(format!("{other} is to be merged into {what}; merge that first"));
            }
        }
        if let Some(further) = vg.merged_into(origin) {
            let (origin, further) = (escape(&vg.lvs[origin.0].name), escape(&vg.lvs[further.0].name));
            return refuse(format!("its origin {origin} is to be merged into {further}; merge that first"));
        }
        // What lies on one of them would find something else there, or have another volume below it.
        for lv in [snapshot, origin] {
            self.check_not_needed(lv, &[])?;
            self.check_names_are_known(&vg.lvs[lv.0].name, "lvconvert --merge")?;
        }
        Ok(ThinMerge { snapshot, origin, pool, device, is_planned: merge.is_some() })
    }
}

/// The sections of a section: volumes of their list, segments of a volume.
fn sections(section: &mut Section) -> impl Iterator<Item = &mut Section> {
    section.entries.iter_mut().filter_map(|entry| match &mut entry.node {
        Node::Section(section) => Some(section),
        Node::Value(_) | Node::Array(_) => None,
    })
}
