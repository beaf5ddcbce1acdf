//! What is told of every device, whatever it is: its size, what it holds, whether and how it can be served.

use blockwork_format::md::{Superblock, v1};
use serde::Serialize;

use super::array::{recovered, state_of};
use super::{LimitsReport, PartitionReport, Reader, bytes};
use crate::graph::{Content, Device, DeviceId};
use crate::lvm::Pv;

/// A device. Names of fields that are there for disks and partitions alike.
#[derive(Clone, Debug, Serialize)]
pub struct DeviceReport {
    /// Its volume's name, as `serve` takes it.
    pub volume: String,
    /// Size, bytes.
    pub size: u64,
    /// `gpt`, `mbr`, or none.
    pub partition_table: Option<String>,
    /// The table's GUID or signature.
    pub partition_table_id: Option<String>,
    /// What is on the device itself, as blkid names it: `xfs`, `linux_raid_member`, `LVM2_member` …
    pub content: Option<String>,
    /// That one's UUID.
    pub uuid: Option<String>,
    /// That one's label.
    pub label: Option<String>,
    /// Where it is a member of an md array: what its superblock says.
    pub md_member: Option<MdMemberReport>,
    /// Where it is an LVM2 physical volume: of which group.
    pub pv: Option<PvMemberReport>,
    /// Why it cannot be served, where it cannot.
    pub refusal: Option<String>,
    /// Why it would be served for reading only, where nobody asked for that.
    pub read_only: Option<String>,
    /// Queue limits, by sysfs names; none where its layers are not built.
    pub limits: Option<LimitsReport>,
    /// Its partitions.
    pub partitions: Vec<PartitionReport>,
    /// What is wrong or worth knowing, one sentence each.
    pub warnings: Vec<String>,
}

/// A member of an md array, by its superblock: what `mdadm --examine` shows.
#[derive(Clone, Debug, Serialize)]
pub struct MdMemberReport {
    /// The array's volume; none where the array was assembled without this device.
    pub array: Option<String>,
    /// The array's UUID.
    pub array_uuid: String,
    /// The array's name as the superblock has it, with its homehost. Not in 0.90.
    pub name: Option<String>,
    /// Of the superblock: `1.2`.
    pub version: &'static str,
    /// Level of the array: `raid10`.
    pub level: String,
    /// Places of the array.
    pub raid_disks: u32,
    /// What the superblock says that the device is: its place, or none.
    pub place: Option<u16>,
    /// What it is to the array now: `in_sync`, `recovering`, `spare`, `replacement`, `journal`, `out_of_date`, `faulty`,
    /// `foreign`, `superseded`, `left_out`.
    pub state: &'static str,
    /// Raised at each change of the array.
    pub events: u64,
    /// Whether the array was stopped, or idle, when this was written.
    pub clean: bool,
    /// This device's own UUID. Not in 0.90.
    pub device_uuid: Option<String>,
    /// Where the data begins, bytes.
    pub data_offset: u64,
    /// Room for data, bytes.
    pub data_size: u64,
    /// Bytes of the data that are in sync, where it is still being filled.
    pub recovered: Option<u64>,
    /// Whether reads avoid it.
    pub write_mostly: bool,
    /// When the array was made.
    pub creation_time: u64,
    /// When the superblock was written last.
    pub update_time: u64,
}

/// A physical volume, by its label.
#[derive(Clone, Debug, Serialize)]
pub struct PvMemberReport {
    /// Its own UUID.
    pub pv_uuid: String,
    /// The group that uses it, as in `groups`; none where none does.
    pub group: Option<String>,
    /// The group that its own metadata tells of, if it has any.
    pub metadata_of: Option<String>,
}

impl Reader<'_> {
    pub(super) fn device(&self, id: DeviceId) -> DeviceReport {
        let device = self.graph.device(id);
        let held = Held::of(device);
        let table = match &device.content {
            Content::Partitions(table) => Some(table),
            _ => None,
        };
        let partitions = &self.partitions[id.0];
        DeviceReport {
            volume: device.name.clone(),
            size: device.sectors.bytes(),
            partition_table: table.map(|table| table.kind.to_string()),
            partition_table_id: table.map(|table| table.disk_id.clone()),
            content: held.kind,
            uuid: held.uuid,
            label: held.label,
            md_member: match &device.content {
                Content::MdMember(superblock) => Some(self.md_member(id, superblock)),
                _ => None,
            },
            pv: match &device.content {
                Content::Pv(pv) => Some(self.pv_member(id, pv)),
                _ => None,
            },
            refusal: device.refusal().map(str::to_owned),
            read_only: device.read_only.clone(),
            limits: device.layer().map(|layer| layer.limits().into()),
            partitions: partitions.iter().map(|(id, partition)| self.partition(*id, partition)).collect(),
            warnings: device.warnings.clone(),
        }
    }

    fn md_member(&self, id: DeviceId, superblock: &Superblock) -> MdMemberReport {
        let found = self.members.get(&id).map(|(array, nth)| {
            let array = &self.graph.arrays[array.0];
            (array, &array.members[*nth])
        });
        let common = |own: Own| MdMemberReport {
            array: found.map(|(array, _)| array.name.clone()),
            array_uuid: superblock.uuid().to_string(),
            name: own.name,
            version: superblock.version(),
            level: superblock.level().to_string(),
            raid_disks: superblock.raid_disks(),
            place: match superblock.role() {
                blockwork_format::md::Role::Active(place) => Some(place),
                _ => None,
            },
            state: found.map_or("left_out", |(_, member)| state_of(member, superblock)),
            events: superblock.events(),
            clean: own.clean,
            device_uuid: own.device_uuid,
            data_offset: bytes(own.data_offset),
            data_size: bytes(own.data_size),
            recovered: recovered(superblock),
            write_mostly: own.write_mostly,
            creation_time: superblock.ctime_seconds(),
            update_time: own.update_time,
        };
        common(Own::of(superblock))
    }

    fn pv_member(&self, id: DeviceId, pv: &Pv) -> PvMemberReport {
        PvMemberReport {
            pv_uuid: pv.label.pv.id.to_string(),
            group: self.pvs.get(&id).map(|group| self.graph.groups[group.0].name.clone()),
            metadata_of: pv.newest().map(|text| text.name.clone()),
        }
    }
}

/// What the two kinds of superblock tell in different ways.
struct Own {
    name: Option<String>,
    clean: bool,
    device_uuid: Option<String>,
    data_offset: u64,
    data_size: u64,
    write_mostly: bool,
    update_time: u64,
}

impl Own {
    fn of(superblock: &Superblock) -> Own {
        match superblock {
            Superblock::V0(own) => Own {
                name: None,
                clean: own.is_clean(),
                device_uuid: None,
                data_offset: own.data().start,
                data_size: own.data().sectors,
                write_mostly: own.this_disk.is_write_mostly(),
                update_time: own.utime.into(),
            },
            Superblock::V1(own) => Own {
                name: Some(String::from_utf8_lossy(own.set_name.as_bytes()).into_owned()),
                clean: own.is_clean(),
                device_uuid: Some(own.device_uuid.to_string()),
                data_offset: own.data_offset,
                data_size: own.data_size,
                write_mostly: own.devflags & v1::Superblock::WRITE_MOSTLY != 0,
                update_time: own.utime.seconds(),
            },
        }
    }
}

/// What a device holds, in blkid's words.
#[derive(Default)]
struct Held {
    kind: Option<String>,
    uuid: Option<String>,
    label: Option<String>,
}

impl Held {
    fn of(device: &Device) -> Held {
        match &device.content {
            Content::Unprobed | Content::Nothing | Content::Partitions(_) => Held::default(),
            Content::MdMember(superblock) => Held {
                kind: Some("linux_raid_member".to_owned()),
                uuid: Some(superblock.uuid().to_string()),
                label: Own::of(superblock).name,
            },
            Content::DamagedMember(_) => {
                Held { kind: Some("linux_raid_member".to_owned()), uuid: None, label: None }
            }
            Content::FirmwareMember(firmware) => {
                Held { kind: Some(firmware.kind().to_owned()), uuid: None, label: None }
            }
            Content::Pv(pv) => Held {
                kind: Some("LVM2_member".to_owned()),
                uuid: Some(pv.label.pv.id.to_string()),
                label: None,
            },
            Content::Signature(found) => Held {
                kind: Some(found.kind.to_owned()),
                uuid: found.uuid.clone(),
                label: found.label.clone(),
            },
        }
    }
}
