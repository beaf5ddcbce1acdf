//! What pools have yet to be told of a group's changes, and that they were told.
//!
//! The order, in LVM's way, which a power cut cannot break: the text with the messages and the new transaction; the pool's metadata, in
//! transactions of which the last has that number; the text without messages. A cut before the first leaves everything as it was; after it,
//! whoever uses the group next tells the pool, which is known from the pool's own number not to have heard, or, where it is the
//! text's already, to have.

use std::collections::BTreeMap;

use blockwork_engine::Sectors;
use blockwork_format::lvm2::Uuid;
use blockwork_format::lvm2::vg::{Lv, LvIndex, Message, SegmentType, VolumeGroup};

use super::draft::{Draft, lv_section};
use super::error::EditError;
use super::open::{GroupEditor, layer_of};
use super::resize::only_segment;
use crate::assembly::Assembly;
use crate::lvm::check_transaction;
use crate::thin::{PoolChange, PoolCommit, PoolEditError, PoolEditor};

/// A pool that has yet to be told of changes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Untold {
    /// Its name in the group.
    pub pool: String,
    /// What to tell it, in this order.
    pub changes: Vec<PoolChange>,
    /// The number of its transaction then.
    pub transaction_id: u64,
}

impl GroupEditor {
    /// What there is to write so that these pools know all of the group's changes; and notes in the draft that they do. To be written
    /// before the draft is.
    ///
    /// # Errors
    ///
    /// The metadata of a pool cannot be read, is another one than the group's text is about, or has no room for the change.
    pub fn tell_pools(&mut self, pools: &[String]) -> Result<Vec<PoolCommit>, EditError> {
        let mut commits = Vec::new();
        for untold in self.untold_to(pools)? {
            let (assembly, draft) = self.parts();
            commits.extend(tell_idle_pool(assembly, draft, &untold)?);
            self.draft_mut().settle(&untold.pool)?;
        }
        Ok(commits)
    }

    /// The pools that this draft has more for than the text had; they can be told of it, as far as that can be known before: a text that
    /// says what a pool does not take is none to be written.
    ///
    /// # Errors
    ///
    /// As of [`GroupEditor::tell_pools`].
    pub fn check_pools(&mut self) -> Result<Vec<String>, EditError> {
        let id = self.draft().group().id;
        let before = self.assembly().graph().groups.iter().find(|group| group.text.id == id);
        let pools = before.map_or_else(Vec::new, |group| newly_untold(&group.text, self.draft().group()));
        for untold in self.untold_to(&pools)? {
            let (assembly, draft) = self.parts();
            tell_idle_pool(assembly, draft, &untold)?;
        }
        Ok(pools)
    }

    fn untold_to(&self, pools: &[String]) -> Result<Vec<Untold>, EditError> {
        let mut all = self.draft().untold()?;
        all.retain(|untold| pools.contains(&untold.pool));
        Ok(all)
    }

    /// What there is to write so that a pool counts all of its devices, after they have grown; none where it does, or was never
    /// used. (Where this is not done, Linux does it when it activates the pool.)
    ///
    /// # Errors
    ///
    /// No such pool; its metadata cannot be read, or has no room for the change.
    pub fn grow_pool_to_devices(&mut self, pool: &str) -> Result<Option<PoolCommit>, EditError> {
        let (assembly, draft) = self.parts();
        let mut editor = pool_editor(assembly, draft, pool)?;
        if editor.is_new() {
            return Ok(None);
        }
        let grown = editor.change(self.assembly_mut(), PoolChange::Grow);
        let commit = grown.and_then(|()| editor.plan(self.assembly_mut()));
        commit.map(Some).map_err(|error| EditError::volume(pool, error.to_string()))
    }
}

/// The pools that a text has something else for to be told of than the one before had.
pub fn newly_untold(before: &VolumeGroup, after: &VolumeGroup) -> Vec<String> {
    let known: BTreeMap<_, _> = before.lvs.iter().map(|lv| (lv.id, untold_of(before, lv))).collect();
    let is_new = |lv: &&Lv| {
        let untold = untold_of(after, lv);
        !untold.is_empty() && known.get(&lv.id) != Some(&untold)
    };
    after.lvs.iter().filter(is_new).map(|lv| lv.name.clone()).collect()
}

/// The messages for a pool, by what texts have in common: who is made, and the number of who goes.
fn untold_of(text: &VolumeGroup, lv: &Lv) -> Vec<(Option<Uuid>, Option<u64>)> {
    let Some(SegmentType::ThinPool { messages, .. }) = lv.segments.first().map(|segment| &segment.kind)
    else {
        return Vec::new();
    };
    let plain = messages.iter().map(|message| match *message {
        Message::Create(lv) => (Some(text.lvs[lv.0].id), None),
        Message::Delete(device) => (None, Some(device)),
    });
    plain.collect()
}

/// What there is to write so that a pool knows of changes, which nobody uses; none, if it does. Of a change that was cut short it may
/// know a part: what it has is not made again, as for LVM.
pub(crate) fn tell_idle_pool(
    assembly: &mut Assembly,
    draft: &Draft,
    untold: &Untold,
) -> Result<Option<PoolCommit>, EditError> {
    let refuse = |why: String| EditError::volume(&untold.pool, why);
    let mut pool = pool_editor(assembly, draft, &untold.pool)?;
    let found = pool.transaction_id();
    check_transaction(found, untold.transaction_id, true).map_err(refuse)?;
    if found == untold.transaction_id {
        return Ok(None);
    }
    for change in &untold.changes {
        let changed = pool.change(assembly, *change);
        let knows = matches!(&changed, Err(PoolEditError::Edit(error)) if change.is_made(error));
        if !knows {
            changed.map_err(|error| refuse(error.to_string()))?;
        }
    }
    let count = PoolChange::TransactionId { current: found, new: untold.transaction_id };
    pool.change(assembly, count).map_err(|error| refuse(error.to_string()))?;
    let commit = pool.plan(assembly);
    commit.map(Some).map_err(|error| refuse(error.to_string()))
}

fn pool_editor(assembly: &mut Assembly, draft: &Draft, name: &str) -> Result<PoolEditor, EditError> {
    let refuse = |why: String| EditError::volume(name, why);
    let pool = draft.pool(name)?;
    let vg = draft.group();
    let SegmentType::ThinPool { chunk_size, .. } = vg.lvs[pool.lv.0].segments[0].kind else {
        unreachable!("it is a pool")
    };
    let block =
        u32::try_from(chunk_size).map_err(|_| refuse(format!("its blocks have {chunk_size} sectors")))?;
    let (data, title) = (Sectors(vg.lv_sectors(pool.data)), format!("{}/{name}", vg.name));
    let metadata = layer_of(assembly, draft, &vg.lvs[pool.metadata.0].name).map_err(refuse)?;
    let editor = PoolEditor::open(assembly, &title, metadata, data, block);
    editor.map_err(|error| refuse(error.to_string()))
}

impl Draft {
    /// The pools of the group that have yet to be told of changes.
    ///
    /// # Errors
    ///
    /// A message is about a volume that is in no pool.
    pub fn untold(&self) -> Result<Vec<Untold>, EditError> {
        let mut all = Vec::new();
        for lv in &self.group().lvs {
            let SegmentType::ThinPool { messages, transaction_id, .. } = &lv.segments[0].kind else {
                continue;
            };
            if messages.is_empty() {
                continue;
            }
            let changes = messages.iter().map(|message| self.change_of(&lv.name, message));
            let changes = changes.collect::<Result<_, _>>()?;
            all.push(Untold { pool: lv.name.clone(), changes, transaction_id: *transaction_id });
        }
        Ok(all)
    }

    fn change_of(&self, pool: &str, message: &Message) -> Result<PoolChange, EditError> {
        let number = |lv: LvIndex| match self.group().lvs[lv.0].segments[0].kind {
            SegmentType::Thin { device_id, origin, .. } => Some((device_id, origin)),
            _ => None,
        };
        match *message {
            Message::Delete(device) => Ok(PoolChange::Delete { device }),
            Message::Create(lv) => {
                let name = &self.group().lvs[lv.0].name;
                let (device, origin) = number(lv).ok_or_else(|| {
                    let why = format!("a message for it is about {name}, which is no thin volume");
                    EditError::volume(pool, why)
                })?;
                // As LVM does: of an origin that has left the pool nothing can be taken.
                match origin.and_then(number) {
                    Some((origin, _)) => Ok(PoolChange::Snapshot { device, origin }),
                    None => Ok(PoolChange::Create { device }),
                }
            }
        }
    }

    /// Notes that a pool was told.
    ///
    /// # Errors
    ///
    /// No such pool.
    pub fn settle(&mut self, pool: &str) -> Result<(), EditError> {
        self.pool(pool)?;
        self.change(|vg, _| {
            let segment = only_segment(lv_section(vg, pool));
            segment.entries.retain(|entry| !entry.key.starts_with("message"));
            Ok(())
        })
    }
}
