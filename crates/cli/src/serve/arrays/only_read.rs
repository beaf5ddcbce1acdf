//! Arrays with parity: there is nothing to be done with them, but they are told of as others are.

use blockwork_daemon::{ArrayStatus, DeviceStatus, SyncStatus};
use blockwork_engine::NodeId;
use blockwork_format::escape;
use blockwork_format::md::{IN_SYNC, Superblock};
use blockwork_layer::md::SyncAction;
use blockwork_volume::md::{Array, Member};
use blockwork_volume::{Assembly, Content, Graph};

/// Those that were assembled, each with the number of its layer.
pub(super) fn arrays_of(assembly: &Assembly) -> Vec<(NodeId, ArrayStatus)> {
    let graph = assembly.graph();
    let status = |array: &Array| {
        let of_array = graph.device(array.device);
        let layer = of_array.layer().filter(|_| array.layer.is_none())?;
        let (chunk, resync) = match &*array.truth {
            Superblock::V0(one) => (one.chunk_sectors(), one.resync_offset()),
            Superblock::V1(one) => (one.chunk_sectors, one.resync_offset),
        };
        let is_clean = resync == IN_SYNC;
        let mut devices: Vec<_> = array.members.iter().map(|member| device(graph, member)).collect();
        devices.extend(array.missing().into_iter().map(missing));
        let degraded =
            devices.iter().filter(|device| device.role.is_some() && device.state != "in_sync").count();
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
            degraded,
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

fn device(graph: &Graph, member: &Member) -> DeviceStatus {
    let device = graph.device(member.device);
    let recovered = match &device.content {
        Content::MdMember(superblock) => match &**superblock {
            Superblock::V1(one) => Some(one.recovered_sectors()).filter(|sectors| *sectors != IN_SYNC),
            Superblock::V0(_) => None,
        },
        _ => None,
    };
    let recovered = recovered.filter(|_| member.place().is_some());
    let state = match (member.place(), recovered) {
        (None, _) => member.state.to_string(),
        (Some(_), None) => "in_sync".to_owned(),
        (Some(_), Some(_)) => "recovering".to_owned(),
    };
    DeviceStatus {
        name: Some(escape(device.title())),
        role: member.place(),
        state,
        recovered: recovered.map(|sectors| sectors.saturating_mul(512)),
        write_mostly: false,
        bad_ranges: 0,
        corrected_sectors: 0,
    }
}

/// Nobody is in that place.
fn missing(place: u16) -> DeviceStatus {
    DeviceStatus {
        name: None,
        role: Some(place),
        state: "missing".to_owned(),
        recovered: None,
        write_mostly: false,
        bad_ranges: 0,
        corrected_sectors: 0,
    }
}
