//! `blockwork md create`: a new array on disks that nobody needs.

use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, anyhow};
use blockwork_format::md::create::{BitmapChoice, NewArray, Shape, check_parity_devices};
use blockwork_format::md::v1::{Features, Minor, Superblock};
use blockwork_format::md::{Level, NotALayout, ParityLayout, Raid10Layout, Role, SetName, Time, Uuid, raid0};
use blockwork_format::{SECTOR_BYTES, escape};
use blockwork_volume::md::{CreateRequest, Creation, MISSING, disk_of};
use ring::rand::{SecureRandom, SystemRandom};
use serde_json::{Value, json};

use super::args::{Bitmap, CreateArgs, Metadata, NewLevel};
use crate::scan::size;
use crate::sizes::{KIB, sectors};
use crate::usage::{bail_usage, usage};
use crate::{at_once, out};

/// Where nobody says, as mdadm: 512 KiB.
const CHUNK_SECTORS: u32 = 1024;

/// Longest name that mdadm takes.
const NAME_BYTES_MAX: usize = 32;

pub(crate) fn run(args: &CreateArgs) -> Result<()> {
    let request = request(args)?;
    let creation = Creation::prepare(&request)?;
    for created in creation.members() {
        if let Some(held) = &created.held {
            log::warn!("{}: it held {held}, which is overwritten", escape(&created.name));
        }
    }
    advice(&creation).iter().for_each(|advice| log::warn!("{advice}"));
    let writing = creation.writing();
    at_once::run(creation.assembly(), |cx| async move { writing.carry_out(&cx).await })?.map_err(
        |error| {
            anyhow!("{error}; the array is not made: when the disk is well again, make it again with --force")
        },
    )?;
    if args.json {
        out::print_json_done(&json(&creation))
    } else {
        out::print_done(&summary(args, &creation))
    }
}

fn request(args: &CreateArgs) -> Result<CreateRequest> {
    let raid_disks = usize::from(args.raid_devices);
    let needed = raid_disks + usize::from(args.spare_devices);
    if let Some(node) =
        args.disks.first().filter(|disk| disk.starts_with("/dev/md") && args.disks.len() > needed)
    {
        bail_usage!(
            "{node}: an array here has a name and no device: leave {node} out, and name the array by --name"
        );
    }
    if args.disks.len() != needed {
        bail_usage!(
            "--raid-devices {raid_disks} and --spare-devices {} need {needed} disks, and {} were given; say {MISSING:?} for \
             members that are to come",
            args.spare_devices,
            args.disks.len()
        );
    }
    let shape = shape(args)?;
    if raid_disks == 1 && !args.force {
        bail_usage!("an array of one device is unusual: add --force if it is meant, or give more disks");
    }
    let mut uuids = (0..=needed).map(|_| random_uuid()).collect::<Result<Vec<_>>>()?;
    let uuid = uuids.pop().unwrap_or_default();
    let now = SystemTime::now().duration_since(UNIX_EPOCH).context("the clock stands before 1970")?;
    let array = NewArray {
        minor: match args.metadata {
            Metadata::V1_0 => Minor::V1_0,
            Metadata::V1_1 => Minor::V1_1,
            Metadata::V1_2 => Minor::V1_2,
        },
        shape,
        raid_disks: args.raid_devices,
        bitmap: match args.bitmap {
            None => BitmapChoice::Auto,
            Some(Bitmap::Internal) => BitmapChoice::Internal,
            Some(Bitmap::None) => BitmapChoice::None,
        },
        assume_clean: args.assume_clean,
        size: args.size.as_deref().map(|text| sectors("--size", text, KIB)).transpose()?,
        data_offset: args
            .data_offset
            .as_deref()
            .map(|text| sectors("--data-offset", text, KIB))
            .transpose()?,
        uuid,
        name: name(args.name.as_deref(), uuid)?,
        ctime: Time::new(now.as_secs(), 0),
    };
    Ok(CreateRequest { array, disks: args.disks.clone(), uuids, force: args.force })
}

fn shape(args: &CreateArgs) -> Result<Shape> {
    let chunk_sectors = match &args.chunk {
        None => CHUNK_SECTORS,
        Some(text) => {
            u32::try_from(sectors("--chunk", text, KIB)?).map_err(|_| usage!("--chunk {text}: too large"))?
        }
    };
    match args.level {
        NewLevel::Raid1 if args.chunk.is_some() => bail_usage!("--chunk: a RAID1 has no chunks"),
        NewLevel::Raid0 | NewLevel::Raid1 | NewLevel::Raid4 if args.layout.is_some() => {
            bail_usage!("--layout: only a RAID5, RAID6 or RAID10 has a choice of layouts")
        }
        NewLevel::Raid0 => Ok(Shape::Raid0 { chunk_sectors }),
        NewLevel::Raid1 => Ok(Shape::Raid1),
        NewLevel::Raid10 => {
            let word = args.layout.as_deref().unwrap_or("n2");
            let layout = Raid10Layout::from_short_name(word, args.raid_devices.into());
            let layout =
                layout.map_err(|NotALayout { expected }| usage!("--layout {word}: expected {expected}"))?;
            Ok(Shape::Raid10 { layout, chunk_sectors })
        }
        NewLevel::Raid4 => parity(Level::Raid4, args, chunk_sectors),
        NewLevel::Raid5 => parity(Level::Raid5, args, chunk_sectors),
        NewLevel::Raid6 => parity(Level::Raid6, args, chunk_sectors),
    }
}

fn parity(level: Level, args: &CreateArgs, chunk_sectors: u32) -> Result<Shape> {
    // Before its layout, as there is none for too few.
    check_parity_devices(level, args.raid_devices).map_err(|error| usage!("{error}"))?;
    let usual = if level == Level::Raid4 { "parity-last" } else { "left-symmetric" };
    let word = args.layout.as_deref().unwrap_or(usual);
    let layout = ParityLayout::from_name(level, word, args.raid_devices)
        .map_err(|NotALayout { expected }| usage!("--layout {word}: expected {expected}"))?;
    Ok(Shape::Parity { layout, chunk_sectors })
}

/// The name: what was asked for, or the start of the UUID. Characters are those that are sure to make a file's name
/// everywhere, as for mdadm.
fn name(wanted: Option<&str>, uuid: Uuid) -> Result<SetName> {
    let Some(wanted) = wanted else {
        let text = uuid.to_string();
        let first = text.split(':').next().unwrap_or_default();
        return SetName::new(first).map_err(Into::into);
    };
    let (host, own) = wanted.split_once(':').map_or((None, wanted), |(host, own)| (Some(host), own));
    let is_plain = |text: &str| {
        let all = text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte));
        all && !text.is_empty() && !text.starts_with(['-', '.'])
    };
    if !is_plain(own) || !host.is_none_or(is_plain) {
        bail_usage!(
            "--name {wanted:?}: expected letters, digits, '.', '_' and '-', and none of '.' and '-' first; NAME or HOST:NAME"
        );
    }
    if wanted.len() > NAME_BYTES_MAX {
        bail_usage!(
            "--name {wanted}: it has {} bytes, and a name has at most {NAME_BYTES_MAX}",
            wanted.len()
        );
    }
    SetName::new(wanted).map_err(Into::into)
}

fn random_uuid() -> Result<Uuid> {
    let mut bytes = [0; 16];
    SystemRandom::new().fill(&mut bytes).map_err(|_| anyhow!("the kernel gives no random numbers"))?;
    Ok(Uuid(bytes))
}

/// What all members say; there is one at least.
fn any(creation: &Creation) -> Option<&Superblock> {
    creation.members().first().map(|created| &created.member.superblock)
}

fn array_sectors(creation: &Creation) -> u64 {
    let room: Vec<u64> = creation.members().iter().map(|it| it.member.superblock.data_size).collect();
    let sum = |chunk| raid0::array_sectors(chunk, &room);
    any(creation).map_or(0, |it| it.array_sectors().unwrap_or_else(|| sum(it.chunk_sectors)))
}

/// `md/NAME`, as `serve` takes it.
fn volume(superblock: &Superblock) -> String {
    format!("md/{}", String::from_utf8_lossy(superblock.set_name.without_homehost()))
}

/// What an owner may not have meant.
fn advice(creation: &Creation) -> Vec<String> {
    let mut out = Vec::new();
    let Some(superblock) = any(creation) else { return out };
    if superblock.features.has(Features::RAID0_LAYOUT) {
        out.push(
            "the members are of different size, and the superblocks say how the rest is striped: Linux before 5.4 does not \
             know that and refuses the array"
                .to_owned(),
        );
    }
    for created in creation.members() {
        let (room, used) = (created.member.superblock.data_size, superblock.member_sectors());
        if superblock.level.has_equal_members() && room - used > room / 100 {
            let unused = size((room - used) * SECTOR_BYTES);
            out.push(format!("{}: {unused} of it are not used", escape(&created.name)));
        }
    }
    out
}

/// The member of a RAID6 that begins as a spare.
fn spare_of_places(args: &CreateArgs, creation: &Creation) -> Option<String> {
    let places = usize::from(args.raid_devices);
    let mut members = creation.members().iter().filter(|created| created.member.slot < places);
    let spare = members.find(|created| created.member.superblock.role() == Role::Spare);
    spare.map(|created| escape(&created.name))
}

fn summary(args: &CreateArgs, creation: &Creation) -> String {
    let Some(superblock) = any(creation) else { return String::new() };
    let mut out = String::new();
    for created in creation.members() {
        let own = &created.member.superblock;
        out += &format!(
            "{}: {}, {} for data from {} on\n",
            escape(&created.name),
            own.role(),
            size(own.data_size * SECTOR_BYTES),
            size(own.data_offset * SECTOR_BYTES)
        );
    }
    let missing = args.disks.len() - creation.members().len();
    let mut words = vec![superblock.level.to_string()];
    match superblock.level {
        Level::Raid10 => words.extend(superblock.raid10_layout().ok().map(|layout| layout.to_string())),
        Level::Raid5 | Level::Raid6 => {
            words.extend(superblock.parity_layout().ok().map(|layout| layout.to_string()));
        }
        _ => {}
    }
    if superblock.chunk_sectors > 0 {
        words.push(format!("chunk {}", size(u64::from(superblock.chunk_sectors) * SECTOR_BYTES)));
    }
    words.push(format!("{} devices", args.raid_devices));
    if missing > 0 {
        words.push(format!("{missing} missing"));
    }
    if args.spare_devices > 0 {
        words.push(format!("{} spare", args.spare_devices));
    }
    words.push(match creation.members().first().and_then(|it| it.member.bitmap.as_ref()) {
        Some((bitmap, _)) => format!("bitmap of {} chunks", size(bitmap.chunk_bytes.into())),
        None => "no bitmap".to_owned(),
    });
    let bytes = size(array_sectors(creation) * SECTOR_BYTES);
    let volume = volume(superblock);
    out += &format!("{volume}: {bytes} ({}), UUID {}\n", words.join(", "), superblock.set_uuid);
    if superblock.resync_offset == 0 {
        out += "It is resynced by itself as soon as it is served, or written to by Linux; it can be used meanwhile.\n";
    }
    if let Some(name) = spare_of_places(args, creation) {
        out += &format!(
            "As a member is missing, {name} begins as a spare: it is filled by itself as soon as the array is served, or written to by \
             Linux; until then no other member may fail.\n"
        );
    }
    let mut disks: Vec<String> = Vec::new();
    for member in creation.members() {
        let disk = escape(disk_of(&member.name));
        if !disks.contains(&disk) {
            disks.push(disk);
        }
    }
    out += &format!("Serve it: blockwork serve --disk {} {volume} --nbd unix:SOCKET\n", disks.join(" "));
    out
}

fn json(creation: &Creation) -> Value {
    let Some(superblock) = any(creation) else { return Value::Null };
    let bytes = |sectors: u64| sectors * SECTOR_BYTES;
    let members: Vec<Value> = creation
        .members()
        .iter()
        .map(|created| {
            let own = &created.member.superblock;
            json!({
                "device": created.name,
                "device_number": own.dev_number,
                "device_uuid": own.device_uuid.to_string(),
                "role": super::examine::role(own.role()),
                "data_offset": bytes(own.data_offset),
                "data_size": bytes(own.data_size),
                "overwritten": created.held,
            })
        })
        .collect();
    json!({
        "volume": volume(superblock),
        "array_uuid": superblock.set_uuid.to_string(),
        "name": superblock.set_name.to_string(),
        "level": superblock.level.to_string(),
        "version": superblock.minor.to_string(),
        "raid_devices": superblock.raid_disks,
        "chunk_size": bytes(superblock.chunk_sectors.into()),
        "array_size": bytes(array_sectors(creation)),
        "used_dev_size": bytes(superblock.member_sectors()),
        "bitmap_chunk_size":
            creation.members().first().and_then(|it| Some(it.member.bitmap.as_ref()?.0.chunk_bytes)),
        "resync_due": superblock.resync_offset == 0,
        "members": members,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_that_mdadm_takes() {
        let uuid = Uuid([0xab; 16]);
        assert_eq!(name(None, uuid).unwrap().as_bytes(), b"abababab");
        for good in ["data", "0", "host:data.2_x-y", "a234567890123456789012345678901z"] {
            assert_eq!(name(Some(good), uuid).unwrap().as_bytes(), good.as_bytes());
        }
        for bad in
            ["", "-x", ".x", "a b", "a/b", "host:", ":x", "a:b:c", "ä", "a23456789012345678901234567890123"]
        {
            assert!(name(Some(bad), uuid).is_err(), "{bad}");
        }
    }
}
