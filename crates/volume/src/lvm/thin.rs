//! Thin pools and thin volumes of LVM.
//!
//! A pool's metadata is a volume of its own, with a superblock that Linux writes; LVM's text says which devices in it are which
//! volumes. Both count the pool's changes: unless the counts agree, one of the two is older, and nothing of the pool can be
//! trusted. A pool is opened once, when its group is assembled, and all of its volumes share what it keeps in memory.
//!
//! A pool that Linux wants to be checked first is only read.
//!
//! A volume into which a snapshot of its pool is to be merged is what the snapshot is, as for Linux, which does such a merge when it
//! activates the volume. So what is written to it here is still there then.

use std::sync::Arc;

use blockwork_engine::{NodeKind, Sectors};
use blockwork_format::escape;
use blockwork_format::lvm2::VolumeGroup;
use blockwork_format::lvm2::vg::{Lv, LvIndex, SegmentType};
use blockwork_layer::thin::{Discards, Pool, PoolFeatures};

use super::stack::{Built, Volume};
use crate::assembly::Assembly;
use crate::graph::{DeviceId, GroupId};
use crate::settings::Autoextend;
use crate::thin::{NEVER_USED, OpenPool, PoolUsage, ThinVolume};

/// A thin pool of a group.
#[derive(Debug)]
pub struct ThinPool {
    /// How full it is, or why it cannot be used.
    pub usage: Result<PoolUsage, String>,
    opened: Option<OpenPool>,
    /// When it is extended by itself, if it is.
    pub autoextend: Option<Autoextend>,
}

impl ThinPool {
    /// The pool, where it could be opened.
    pub fn pool(&self) -> Option<Arc<Pool>> {
        self.opened.as_ref().map(OpenPool::pool)
    }
}

impl Assembly {
    /// Opens the pools of a group whose volumes are devices by now.
    pub(crate) fn open_thin_pools(&mut self, group: GroupId, text: &VolumeGroup) {
        let is_pool = |lv: &LvIndex| matches!(text.lvs[lv.0].segments[0].kind, SegmentType::ThinPool { .. });
        for lv in (0..text.lvs.len()).map(LvIndex).filter(is_pool) {
            self.open_pool_of_group(group, text, lv);
        }
    }

    /// Opens a pool of a group, which is not open; or finds out why that cannot be.
    pub(crate) fn open_pool_of_group(&mut self, group: GroupId, text: &VolumeGroup, lv: LvIndex) {
        let Some(device) = self.graph.groups[group.0].lv(lv) else { return };
        let opened = self.open_thin_pool(group, text, lv, device);
        // One without volumes is made a pool of when it gets the first.
        let is_of_it =
            |other: &Lv| matches!(other.segments[0].kind, SegmentType::Thin { pool, .. } if pool == lv);
        if let Err(why) = &opened
            && text.lvs.iter().any(is_of_it)
        {
            self.graph.warn(device, format!("its volumes cannot be served: {why}"));
        }
        let name = self.graph.device(device).name.clone();
        let autoextend = self.autoextend(&name).unwrap_or_else(|error| {
            self.graph.warn(device, error.to_string());
            None
        });
        let pool = match opened {
            Ok((opened, usage)) => ThinPool { usage: Ok(usage), opened: Some(opened), autoextend },
            Err(why) => ThinPool { usage: Err(why), opened: None, autoextend },
        };
        self.graph.groups[group.0].thin_pools.insert(lv, pool);
    }

    fn open_thin_pool(
        &mut self,
        group: GroupId,
        text: &VolumeGroup,
        lv: LvIndex,
        device: DeviceId,
    ) -> Result<(OpenPool, PoolUsage), String> {
        let SegmentType::ThinPool { metadata, data, transaction_id, chunk_size, ref messages, .. } =
            text.lvs[lv.0].segments[0].kind
        else {
            unreachable!("only pools come here")
        };
        let name = self.graph.device(device).name.clone();
        let volume = Volume::new(device, group, lv, name.clone());
        let metadata = volume.part(self, text, metadata)?;
        let data = volume.part(self, text, data)?;
        let found = self.pool_metadata(&*metadata)?;
        let found = found.ok_or(NEVER_USED)?;
        let superblock = found.0;
        check_transaction(superblock.transaction_id, transaction_id, !messages.is_empty())?;
        if u64::from(superblock.data_block_sectors) != chunk_size {
            return Err(format!(
                "its superblock has blocks of {} sectors, and the group's metadata {chunk_size}",
                superblock.data_block_sectors
            ));
        }
        if superblock.needs_check {
            let warning = "Linux met an error in its metadata and set the flag needs_check: what can be read is served, \
                           `lvconvert --repair` mends it";
            self.graph.warn(device, warning.into());
        }
        let features = features(&text.lvs[lv.0], self.graph.groups[group.0].read_only.is_some());
        self.open_pool(name, metadata, data, found, features)
    }
}

/// What a pool's text says of how it behaves.
fn features(lv: &Lv, is_read_only: bool) -> PoolFeatures {
    let SegmentType::ThinPool { ref discards, zero_new_blocks, .. } = lv.segments[0].kind else {
        unreachable!("only pools come here")
    };
    PoolFeatures {
        zero_new_blocks,
        discards: match discards.as_deref() {
            Some("ignore") => Discards::Ignore,
            Some("nopassdown") => Discards::NoPassdown,
            _ => Discards::Passdown,
        },
        read_only: is_read_only,
        error_if_no_space: lv.flags.has("ERROR_WHEN_FULL"),
        ..PoolFeatures::default()
    }
}

/// Whether a pool's transaction is that of the group's text, or the one before where the text has messages for the pool.
///
/// # Errors
///
/// It is not: which of the two is older.
pub(crate) fn check_transaction(found: u64, text: u64, has_messages: bool) -> Result<(), String> {
    // What LVM has yet to tell the pool counts in its text already.
    if found == text || has_messages && found.checked_add(1) == Some(text) {
        return Ok(());
    }
    let older = if found < text { "the pool's metadata" } else { "the group's metadata" };
    Err(format!(
        "its superblock has transaction {found}, and the group's metadata {text}: {older} is older than the other, and what \
         belongs to whom is not known; `vgcfgrestore` brings an older state of the group back"
    ))
}

impl Volume {
    pub(super) fn thin(
        &mut self,
        assembly: &mut Assembly,
        text: &VolumeGroup,
        kind: &SegmentType,
        sectors: Sectors,
        alone: bool,
    ) -> Built {
        let SegmentType::Thin { external_origin, merge, .. } = kind else {
            unreachable!("only thin segments come here")
        };
        if let Some(origin) = merge {
            let origin = escape(&text.lvs[origin.0].name);
            return Err(format!("it is being merged into {origin}: serve that"));
        }
        let (pool, device_id) = text.thin_device(self.lv).expect("a thin segment has a pool");
        let pool_name = escape(&text.lvs[pool.0].name);
        let found = assembly.graph.groups[self.group.0].thin_pools.get(&pool);
        let opened = match found {
            Some(ThinPool { opened: Some(opened), .. }) => opened,
            Some(ThinPool { usage: Err(why), .. }) => return Err(format!("its pool {pool_name}: {why}")),
            _ => return Err(format!("its pool {pool_name} is not assembled")),
        };
        let opened = opened.clone();
        let external_origin = external_origin.map(|origin| self.part(assembly, text, origin)).transpose()?;
        let node = self.node(assembly, NodeKind::Thin, alone)?;
        let volume = ThinVolume { node, device: device_id, sectors, external_origin };
        let found =
            assembly.thin(&opened, volume).map_err(|error| format!("its pool {pool_name}: {error}"))?;
        let (thin, unread) = found.ok_or_else(|| {
            format!(
                "its pool {pool_name} knows no device {device_id}: where it was just made, who serves or changes its group next makes it, or LVM when it activates the pool"
            )
        })?;
        if !assembly.plan.read_only
            && let Some(why) = opened.why_read_only()
        {
            assembly.graph.devices[self.device.0]
                .read_only
                .get_or_insert(format!("its pool {pool_name}: {why}"));
        }
        for error in unread {
            self.warn(assembly, format!("not all of it can be read: {error}"));
        }
        Ok(thin)
    }
}
