//! The same as JSON: sizes and places in bytes, times in seconds since 1970.

use blockwork_format::md::{IN_SYNC, Role, Superblock, v0, v1};
use blockwork_format::{SECTOR_BYTES, escape};
use blockwork_volume::md::Examined;
use serde_json::{Value, json};

pub(super) fn list(members: &[(String, Examined)]) -> Value {
    members.iter().map(|(title, examined)| member(title, examined)).collect()
}

fn member(title: &str, examined: &Examined) -> Value {
    let mut value = match &examined.superblock {
        Superblock::V0(superblock) => of_v0(superblock),
        Superblock::V1(superblock) => of_v1(superblock),
    };
    value["device"] = escape(title).into();
    value["device_size"] = bytes(examined.sectors).into();
    value["version"] = examined.superblock.version().into();
    value["bitmap"] = bitmap(examined);
    value["bad_blocks"] = bad_blocks(examined);
    value
}

fn of_v1(s: &v1::Superblock) -> Value {
    let layout = s.raid10_layout().ok().filter(|_| s.level == blockwork_format::md::Level::Raid10);
    let known = |offset: u64| (offset != IN_SYNC).then(|| bytes(offset));
    json!({
        "array_uuid": s.set_uuid.to_string(),
        "name": s.set_name.to_string(),
        "creation_time": s.ctime.seconds(),
        "update_time": s.utime.seconds(),
        "level": s.level.to_string(),
        "layout": layout.map(|layout| layout.to_string()),
        "layout_word": s.layout,
        "chunk_size": bytes(s.chunk_sectors.into()),
        "raid_devices": s.raid_disks,
        "feature_map": s.features.0,
        "used_dev_size": bytes(s.member_sectors()),
        "array_size": s.array_sectors().map(bytes),
        "data_offset": bytes(s.data_offset),
        "data_size": bytes(s.data_size),
        "super_offset": bytes(s.super_offset),
        "resync_offset": known(s.resync_offset),
        "recovery_offset": known(s.recovered_sectors()),
        "clean": s.resync_offset == IN_SYNC,
        "events": s.events,
        "device_uuid": s.device_uuid.to_string(),
        "device_number": s.dev_number,
        "role": role(s.role()),
        "roles": s.roles.iter().map(|slot| role(*slot)).collect::<Vec<_>>(),
        "write_mostly": s.devflags & v1::Superblock::WRITE_MOSTLY != 0,
        "failfast": s.devflags & v1::Superblock::FAILFAST != 0,
    })
}

fn of_v0(s: &v0::Superblock) -> Value {
    json!({
        "array_uuid": s.uuid.to_string(),
        "preferred_minor": s.md_minor,
        "creation_time": s.ctime,
        "update_time": s.utime,
        "level": s.level.to_string(),
        "layout_word": s.layout,
        "chunk_size": s.chunk_bytes,
        "raid_devices": s.raid_disks,
        "used_dev_size": bytes(s.member_sectors()),
        "super_offset": bytes(s.super_offset),
        "clean": s.is_clean(),
        "events": s.events,
        "device_number": s.this_disk.number,
        "role": role(s.role()),
    })
}

/// A place as its number, anything else as a word.
pub(in crate::md) fn role(role: Role) -> Value {
    match role {
        Role::Active(place) => place.into(),
        Role::Spare => "spare".into(),
        Role::Faulty => "faulty".into(),
        Role::Journal => "journal".into(),
    }
}

fn bitmap(examined: &Examined) -> Value {
    match &examined.bitmap {
        None => Value::Null,
        Some(Err(error)) => json!({ "error": error.to_string() }),
        Some(Ok((bitmap, bits))) => json!({
            "version": bitmap.version,
            "events": bitmap.events,
            "events_cleared": bitmap.events_cleared,
            "chunk_size": bitmap.chunk_bytes,
            "sync_size": bytes(bitmap.sync_size),
            "chunks": bits.chunks(),
            "dirty_chunks": bits.dirty_chunks(),
        }),
    }
}

fn bad_blocks(examined: &Examined) -> Value {
    match &examined.bad_blocks {
        None => Value::Null,
        Some(Err(error)) => json!({ "error": error.to_string() }),
        Some(Ok(list)) => {
            let range =
                |range: &v1::Region| json!({ "start": bytes(range.start), "size": bytes(range.sectors) });
            list.iter().map(range).collect()
        }
    }
}

fn bytes(sectors: u64) -> u64 {
    sectors.saturating_mul(SECTOR_BYTES)
}
