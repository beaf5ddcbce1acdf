//! What thin pools have yet to be told of a group's changes, while its volumes are served.
//!
//! Invariant: no text is written that a pool is known not to take: its change would be half made, and the next one of that pool would have to
//! wait until somebody repairs it. What a pool has not heard all the same (of a change that was cut short) holds up its own changes only.

use blockwork_daemon::{GroupRequest, Refusal, RefusalKind, absent};
use blockwork_format::escape;
use blockwork_format::lvm2::vg::{Message, SegmentType, VolumeGroup};
use blockwork_volume::lvm::edit::{Change, newly_untold};
use blockwork_volume::lvm::{Group, ThinPool};

use super::groups::ServedGroups;
use crate::vg::target::unfinished;

impl ServedGroups {
    /// The pools that are to be told of a change, of which the group's text would be this. With the turn.
    ///
    /// # Errors
    ///
    /// One of them takes no changes, or was to be told of others before, and could not be: why.
    pub(super) fn check_pools(
        &self,
        request: &GroupRequest,
        text: &VolumeGroup,
        untold: Option<&Refusal>,
    ) -> Result<Vec<String>, Refusal> {
        let assembly = self.assembly();
        let group = assembly.graph().groups.iter().find(|group| group.name == request.group);
        let group = group.ok_or_else(|| absent("volume group", &request.group, []))?;
        let pools = newly_untold(&group.text, text);
        if let (Some(why), false) = (untold, pools.is_empty()) {
            let what = unfinished(&request.group, &why.text);
            return Err(Refusal::new(why.kind, format!("{what}; what was asked for now is not done")));
        }
        // A thin snapshot that is merged takes its origin's place later, and its pool is told then.
        let merged = match &request.change {
            Change::Merge { volume } => text.lv(volume).and_then(|lv| text.thin_device(lv)),
            _ => None,
        };
        let merged = merged.map(|(pool, _)| &text.lvs[pool.0].name);
        for name in pools.iter().chain(merged) {
            let open = group.text.lv(name).and_then(|lv| group.thin_pools.get(&lv)).and_then(ThinPool::pool);
            if let Some(error) = open.and_then(|pool| pool.check_writable().err()) {
                let why = format!("the pool {}: {error}", escape(name));
                return Err(Refusal::new(RefusalKind::Conflict, why));
            }
        }
        Ok(pools)
    }
}

/// Whether a change gives a pool more room, and tells it nothing else.
pub(super) fn makes_room(change: &Change) -> bool {
    matches!(change, Change::Resize { .. } | Change::ResizePoolMetadata { .. })
}

/// The volumes that pools of a group have yet to be told to make; none: its pools know all that there is.
pub(super) fn to_be_made(group: &Group) -> Option<Vec<String>> {
    let text = &group.text;
    let messages = text.lvs.iter().filter_map(|lv| match &lv.segments.first()?.kind {
        SegmentType::ThinPool { messages, .. } => Some(messages),
        _ => None,
    });
    let messages: Vec<&Message> = messages.flatten().collect();
    let made = messages.iter().filter_map(|message| match message {
        Message::Create(lv) => Some(format!("{}/{}", group.name, text.lvs[lv.0].name)),
        Message::Delete(_) => None,
    });
    (!messages.is_empty()).then(|| made.collect())
}

/// What there is to know where a change that was cut short stays so.
pub(super) fn left_unfinished(group: &str, why: &Refusal) -> String {
    format!(
        "{}: a change that was cut short cannot be made complete, and what it has made is not served: {why}",
        escape(group)
    )
}
