//! Arrays with parity: there is nothing to be done with them, but they are told of as others are.

use blockwork_daemon::{ArrayStatus, DeviceStatus, SyncStatus};
use blockwork_engine::NodeId;
use blockwork_format::escape;
use blockwork_format::md::Superblock;
use blockwork_layer::md::SyncAction;
use blockwork_volume::Assembly;

/// Those that were assembled, each with the number of its layer.
pub(super) fn arrays_of(assembly: &Assembly) -> Vec<(NodeId, ArrayStatus)> {
    let graph = assembly.graph();
    let status = |array: &blockwork_volume::md::Array| {
        let of_array = graph.device(array.device);
        let layer = of_array.layer().filter(|_| array.layer.is_none())?;
        let (chunk, resync) = match &*array.truth {
            Superblock::V0(one) => (one.chunk_sectors(), one.resync_offset()),
            Superblock::V1(one) => (one.chunk_sectors, one.resync_offset),
        };
        let is_clean = resync == blockwork_format::md::IN_SYNC;
        let device = |member: &blockwork_volume::md::Member| DeviceStatus {
            name: Some(escape(graph.device(member.device).title())),
            role: member.place(),
            state: member.place().map_or_else(|| member.state.to_string(), |_| "in_sync".to_owned()),
            recovered: None,
            write_mostly: false,
            bad_ranges: 0,
            corrected_sectors: 0,
        };
        let mut devices: Vec<_> = array.members.iter().map(device).collect();
        devices.sort_by_key(|device| device.role.map_or(u32::MAX, u32::from));
        let sync = SyncStatus {
            action: SyncAction::Idle.to_string(),
            done_sectors: 0,
            total_sectors: 0,
            speed_kib: 0,
            mismatch_sectors: 0,
        };
        let status = ArrayStatus {
            name: array.name.clone(),
            uuid: array.truth.uuid().to_string(),
            level: array.truth.level().to_string(),
            layout: array.truth.parity_layout().ok().map(|layout| layout.to_string()),
            chunk_size: Some(u64::from(chunk) * 512),
            bytes: of_array.sectors.bytes(),
            raid_disks: array.truth.raid_disks(),
            degraded: 0,
            read_only: of_array.read_only.clone(),
            active: !is_clean,
            events: array.truth.events(),
            resync_from: (!is_clean).then(|| resync.saturating_mul(512)),
            dirty_chunks: None,
            devices,
            sync,
        };
        Some((layer.node(), status))
    };
    graph.arrays.iter().filter_map(status).collect()
}
