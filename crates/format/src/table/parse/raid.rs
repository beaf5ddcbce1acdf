//! The arguments of the `raid` target: `TYPE N_PARAMS CHUNK [PARAM...] N_DEVICES (METADATA DEVICE)×N`.
//!
//! Source: the kernel's `Documentation/admin-guide/device-mapper/dm-raid.rst`. Refused here and taken there: metadata
//! devices, parameters that only arrays with them have, and reshaping.

use super::{Words, error, invalid};
use crate::bytes::index;
use crate::dm_raid::ParityType;
use crate::table::raid::{RAID_CHUNK_MIN, RAID_DEVICES_MAX, Raid, Raid10Format, RaidKind};
use crate::table::{Below, TargetKind};
use crate::{ErrorKind, FormatError, escape};

/// Types that are taken.
const TYPES: &str = "raid0, raid1, raid10, raid4, raid5_ls, raid5_la, raid5_rs, raid5_ra, raid5_n, raid6_zr, raid6_nr, raid6_nc, \
                     raid6_n_6, raid6_ls_6, raid6_la_6, raid6_rs_6 or raid6_ra_6";
/// Parameters that are taken.
const PARAMETERS: &str = "sync, nosync, rebuild, write_mostly, region_size, stripe_cache, min_recovery_rate, max_recovery_rate, \
                          raid10_copies, raid10_format or raid10_use_near_sets";
/// Words of parameters, at most: each device may be rebuilt and write-mostly.
const PARAMETERS_MAX: u64 = 4 * RAID_DEVICES_MAX as u64 + 32;

/// Parameters as they come, before it is known what they have to fit.
#[derive(Default)]
struct Parameters {
    sync: Option<bool>,
    rebuild: Vec<u64>,
    write_mostly: Vec<u64>,
    region_size: Option<u64>,
    stripe_cache: Option<u64>,
    min_recovery_rate: Option<u64>,
    max_recovery_rate: Option<u64>,
    copies: Option<u64>,
    format: Option<Raid10Format>,
    use_near_sets: bool,
}

pub(super) fn raid(words: &mut Words, length: u64) -> Result<TargetKind, FormatError> {
    let line = words.line;
    let level = words.next("RAID type", TYPES)?;
    if !["raid0", "raid1", "raid10"].contains(&level.as_str()) && ParityType::of_target(&level).is_none() {
        let found = format!("\"{}\"", escape(&level));
        return Err(error(ErrorKind::Unsupported, line, "RAID type", found, TYPES));
    }
    let count = words.number("number of RAID parameters")?;
    if !(1..=PARAMETERS_MAX).contains(&count) {
        let expected = format!("1 (the chunk) to {PARAMETERS_MAX}");
        return Err(invalid(line, "number of RAID parameters", count, expected));
    }
    let chunk = chunk(words, &level)?;
    let parameters = parameters(words, count - 1)?;
    let devices = devices(words)?;
    let raid = assemble(line, &level, chunk, parameters, devices)?;
    if raid.device_sectors(length).is_none() {
        let expected =
            "what divides evenly among the devices that have data, with as many copies as there are";
        return Err(invalid(line, "length", length, expected));
    }
    Ok(TargetKind::Raid(raid))
}

fn chunk(words: &mut Words, level: &str) -> Result<u32, FormatError> {
    let chunk = words.number("chunk")?;
    let fits = |chunk: &u32| level == "raid1" || (*chunk >= RAID_CHUNK_MIN && chunk.is_power_of_two());
    u32::try_from(chunk).ok().filter(fits).ok_or_else(|| {
        let expected = format!("a power of two from {RAID_CHUNK_MIN} to 2147483648 sectors");
        invalid(words.line, "chunk", chunk, expected)
    })
}

fn parameters(words: &mut Words, count: u64) -> Result<Parameters, FormatError> {
    let mut all = Parameters::default();
    let mut left = count;
    while left > 0 {
        let name = words.next("RAID parameter", PARAMETERS)?;
        let has_value = !["sync", "nosync", "raid10_use_near_sets"].contains(&name.as_str());
        if has_value && left == 1 && PARAMETERS.contains(name.as_str()) {
            let found = format!("{count}, which ends with {name}");
            return Err(invalid(
                words.line,
                "number of RAID parameters",
                found,
                "its value to be counted too",
            ));
        }
        all.take(&name, words)?;
        left -= 1 + u64::from(has_value);
    }
    Ok(all)
}

impl Parameters {
    fn take(&mut self, name: &str, words: &mut Words) -> Result<(), FormatError> {
        let line = words.line;
        let again = |is_there: bool| match is_there {
            true => Err(invalid(line, "RAID parameter", format!("{name} again"), "it once")),
            false => Ok(()),
        };
        match name {
            "sync" | "nosync" => {
                again(self.sync.is_some())?;
                self.sync = Some(name == "sync");
            }
            "rebuild" => self.rebuild.push(words.number("rebuild")?),
            "write_mostly" => self.write_mostly.push(words.number("write_mostly")?),
            "region_size" => {
                again(self.region_size.is_some())?;
                let sectors = words.number("region_size")?;
                if !sectors.is_power_of_two() {
                    return Err(invalid(line, "region_size", sectors, "a power of two"));
                }
                self.region_size = Some(sectors);
            }
            "stripe_cache" => {
                again(self.stripe_cache.is_some())?;
                self.stripe_cache = Some(words.number("stripe_cache")?);
            }
            "min_recovery_rate" => {
                again(self.min_recovery_rate.is_some())?;
                self.min_recovery_rate = Some(words.number("min_recovery_rate")?);
            }
            "max_recovery_rate" => {
                again(self.max_recovery_rate.is_some())?;
                self.max_recovery_rate = Some(words.number("max_recovery_rate")?);
            }
            "raid10_copies" => {
                again(self.copies.is_some())?;
                self.copies = Some(words.number("raid10_copies")?);
            }
            "raid10_format" => {
                again(self.format.is_some())?;
                self.format = Some(format(words)?);
            }
            "raid10_use_near_sets" => {
                again(self.use_near_sets)?;
                self.use_near_sets = true;
            }
            _ => {
                let found = format!("\"{}\"", escape(name));
                return Err(error(ErrorKind::Unsupported, line, "RAID parameter", found, PARAMETERS));
            }
        }
        Ok(())
    }

    /// What the level makes of those that are RAID10's alone.
    fn kind(&self, line: u64, level: &str, devices: u64) -> Result<RaidKind, FormatError> {
        if level == "raid10" {
            let copies = self.copies.unwrap_or(2);
            let fits = |copies: &u8| (2..=devices).contains(&u64::from(*copies));
            let copies = u8::try_from(copies).ok().filter(fits);
            let copies = copies.ok_or_else(|| {
                let expected = format!("2 to {devices}, the number of devices");
                invalid(line, "raid10_copies", self.copies.unwrap_or(2), expected)
            })?;
            let format = self.format.unwrap_or(Raid10Format::Near);
            return Ok(RaidKind::Raid10 { format, copies, use_near_sets: self.use_near_sets });
        }
        let of_raid10 = [
            ("raid10_copies", self.copies.is_some()),
            ("raid10_format", self.format.is_some()),
            ("raid10_use_near_sets", self.use_near_sets),
        ];
        match of_raid10.iter().find(|(_, is_there)| *is_there) {
            Some((name, _)) => {
                Err(invalid(line, "RAID parameter", format!("{name} of a {level}"), "it with raid10"))
            }
            None if level == "raid0" => Ok(RaidKind::Raid0),
            None => Ok(ParityType::of_target(level).map_or(RaidKind::Raid1, RaidKind::Parity)),
        }
    }
}

fn format(words: &mut Words) -> Result<Raid10Format, FormatError> {
    let word = words.next("raid10_format", "near, far or offset")?;
    let found = Raid10Format::ALL.into_iter().find(|format| format.name() == word);
    found.ok_or_else(|| {
        invalid(words.line, "raid10_format", format!("\"{}\"", escape(&word)), "near, far or offset")
    })
}

/// Pairs of metadata and data devices.
fn devices(words: &mut Words) -> Result<Vec<Option<Below>>, FormatError> {
    let line = words.line;
    let count = words.number("number of RAID devices")?;
    let count = match u32::try_from(count) {
        Ok(count) if (1..=RAID_DEVICES_MAX).contains(&count) => count,
        _ => {
            return Err(invalid(line, "number of RAID devices", count, format!("1 to {RAID_DEVICES_MAX}")));
        }
    };
    let mut devices = Vec::with_capacity(index(count));
    for _ in 0..count {
        let metadata = words.next("metadata device", "-")?;
        if metadata != "-" {
            let found = format!("\"{}\"", escape(&metadata));
            let expected =
                "-, for none: arrays with metadata are LVM's volumes, served as VG/LV from their disks";
            return Err(error(ErrorKind::Unsupported, line, "metadata device", found, expected));
        }
        let dev = words.next("device", "a path, null:SIZE, memory:SIZE, dm/NAME, or - for a missing one")?;
        devices.push((dev != "-").then_some(Below { dev, offset: 0 }));
    }
    Ok(devices)
}

fn assemble(
    line: u64,
    level: &str,
    chunk: u32,
    parameters: Parameters,
    devices: Vec<Option<Below>>,
) -> Result<Raid, FormatError> {
    let count = devices.len() as u64;
    let kind = parameters.kind(line, level, count)?;
    if kind != RaidKind::Raid1 && !parameters.write_mostly.is_empty() {
        return Err(invalid(line, "RAID parameter", format!("write_mostly of a {level}"), "it with raid1"));
    }
    if kind == RaidKind::Raid0 && !parameters.rebuild.is_empty() {
        return Err(invalid(line, "RAID parameter", "rebuild of a raid0", "it with raid1 or raid10"));
    }
    match kind {
        RaidKind::Parity(kind) => parity(line, kind, chunk, &parameters, count)?,
        _ if parameters.stripe_cache.is_some() => {
            let found = format!("stripe_cache of a {level}");
            return Err(invalid(line, "RAID parameter", found, "it with raid4, raid5 or raid6"));
        }
        _ => {}
    }
    let roles = |name: &'static str, roles: Vec<u64>| {
        let role = |role: u64| match u16::try_from(role) {
            Ok(small) if role < count => Ok(small),
            _ => Err(invalid(line, name, role, format!("less than {count}, the number of devices"))),
        };
        roles.into_iter().map(role).collect::<Result<Vec<_>, _>>()
    };
    Ok(Raid {
        kind,
        chunk,
        nosync: parameters.sync == Some(false),
        rebuild: roles("rebuild", parameters.rebuild)?,
        write_mostly: roles("write_mostly", parameters.write_mostly)?,
        region_size: parameters.region_size,
        stripe_cache: parameters.stripe_cache,
        min_recovery_rate: parameters.min_recovery_rate,
        max_recovery_rate: parameters.max_recovery_rate,
        devices,
    })
}

/// What the kernel refuses of an array with a parity alone.
fn parity(
    line: u64,
    kind: ParityType,
    chunk: u32,
    parameters: &Parameters,
    devices: u64,
) -> Result<(), FormatError> {
    let name = kind.name();
    let least = u64::from(kind.devices_min());
    if devices < least {
        return Err(invalid(
            line,
            "number of RAID devices",
            devices,
            format!("{least} of a {name} at least"),
        ));
    }
    if kind.parities() == 2 && parameters.sync == Some(false) {
        let found = format!("nosync of a {name}");
        return Err(invalid(line, "RAID parameter", found, "it with raid1, raid10, raid4 or raid5"));
    }
    if let Some(sync) = parameters.sync.filter(|_| !parameters.rebuild.is_empty()) {
        let found = format!("{} beside rebuild", if sync { "sync" } else { "nosync" });
        return Err(invalid(line, "RAID parameter", found, format!("one of them with a {name}")));
    }
    match parameters.region_size.filter(|region| *region < chunk.into()) {
        Some(region) => Err(invalid(line, "region_size", region, format!("the chunk, {chunk}, at least"))),
        None => Ok(()),
    }
}
