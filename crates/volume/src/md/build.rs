//! The array as a device, with its layer.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use blockwork_engine::{Layer, NodeKind, Sector, Sectors};
use blockwork_format::md::v1::{self, Features};
use blockwork_format::md::{Access, IN_SYNC, Level, Role, Superblock, Time, bad_blocks};
use blockwork_format::{FormatError, SECTOR_BYTES, Source, escape};
use blockwork_layer::md::{
    self, ArrayConfig, Geometry, IntentConfig, MdRecord, MdSite, MemberConfig, Record,
};
use rustix::time::{ClockId, clock_gettime};

use super::choose::Choice;
use super::{Array, Bitmap, Member, MemberState, behind, intent, layout};
use crate::assembly::Assembly;
use crate::error::VolumeError;
use crate::graph::{ArrayId, Content, DeviceId, DeviceKind, NewDevice, Stack};
use crate::lvm::stack::Built;
use crate::nodes::MAJOR_MD;

/// An array with its layer.
struct Assembled {
    stack: Stack,
    layer: Option<Arc<md::Array>>,
    sectors: Sectors,
    /// Why it must not be written.
    read_only: Option<String>,
    bitmap: Option<Bitmap>,
}

impl Assembly {
    /// Makes an array of what was chosen. One that cannot be assembled becomes a device that says why.
    pub(crate) fn assemble_array(&mut self, choice: Choice) {
        let Choice { truth, members, refusal, mut warnings } = choice;
        let name = self.graph.unused_name(&format!("md/{}", name_of(&truth)));
        let mut below: Vec<DeviceId> = members.iter().map(|member| member.device).collect();
        below.sort_unstable();
        below.dedup();
        let assembled = match refusal {
            Some(why) => Err(why),
            None => Building {
                assembly: self,
                name: &name,
                truth: &truth,
                members: &members,
                warnings: &mut warnings,
            }
            .assemble(),
        };
        let assembled = assembled.unwrap_or_else(|why| Assembled {
            sectors: Sectors(size_without_members(&truth)),
            stack: Stack::Refused(why),
            layer: None,
            read_only: None,
            bitmap: None,
        });
        let array = ArrayId(self.graph.arrays.len());
        let is_ready = matches!(assembled.stack, Stack::Ready(_));
        let device = self.graph.add(NewDevice {
            name: name.clone(),
            kind: DeviceKind::Array(array),
            sectors: assembled.sectors,
            below: below.into(),
            stack: assembled.stack,
            is_offered: true,
            read_only: assembled.read_only,
        });
        let Assembled { bitmap, layer, .. } = assembled;
        self.graph.arrays.push(Array { name, device, truth, members, bitmap, layer, warnings });
        if is_ready {
            self.unprobed.push(device);
        }
    }
}

/// What people call an array: its name without the host's, or its number; its UUID where that is no name.
fn name_of(superblock: &Superblock) -> String {
    match superblock {
        Superblock::V0(superblock) => superblock.md_minor.to_string(),
        Superblock::V1(superblock) => {
            let name = std::str::from_utf8(superblock.set_name.without_homehost()).unwrap_or_default();
            let is_plain = !matches!(name, "" | "." | "..") && !name.contains('/') && escape(name) == name;
            if is_plain { name.to_owned() } else { superblock.set_uuid.to_string() }
        }
    }
}

/// Sectors of data that a member has room for.
fn room_of(superblock: &Superblock) -> u64 {
    match superblock {
        Superblock::V0(superblock) => superblock.data().sectors,
        Superblock::V1(superblock) => superblock.data_size,
    }
}

/// Size of an array that is not assembled, where one superblock tells it.
fn size_without_members(truth: &Superblock) -> u64 {
    match truth {
        Superblock::V1(superblock) => superblock.array_sectors().unwrap_or(0),
        Superblock::V0(superblock) if superblock.level == Level::Raid1 => superblock.member_sectors(),
        Superblock::V0(_) => 0,
    }
}

/// An array that is being assembled.
struct Building<'a> {
    assembly: &'a mut Assembly,
    name: &'a str,
    truth: &'a Superblock,
    members: &'a [Member],
    warnings: &'a mut Vec<String>,
}

impl Building<'_> {
    fn assemble(mut self) -> Result<Assembled, String> {
        let places = usize::try_from(self.truth.raid_disks()).expect("at most RAID_DISKS_MAX");
        let mut room = vec![None; places];
        let mut configs: Vec<Option<MemberConfig>> = vec![None; places];
        for member in self.members {
            if let Some(place) = member.place().map(usize::from).filter(|place| *place < places) {
                room[place] = Some(room_of(&self.superblock(member.device)));
                configs[place] = Some(self.member(member.device)?);
            }
        }
        let geometry = layout::geometry(self.truth, &room)?;
        let in_sync = |place: u16| {
            configs[usize::from(place)].as_ref().is_some_and(|config| config.recovered.is_none())
        };
        if !geometry.has_all_data(&in_sync) {
            let room: Vec<_> = (0..).zip(room).map(|(place, room)| room.filter(|_| in_sync(place))).collect();
            return Err(layout::missing(self.truth, &room));
        }
        let is_degraded = !(0..).zip(&configs).all(|(place, _)| in_sync(place));
        let mut read_only = self.read_only();
        let mut intent = self.intent().unwrap_or_else(|error| {
            read_only.get_or_insert_with(|| format!("its write-intent bitmap cannot be kept: {error}"));
            None
        });
        let (resync_from, why) = self.unsynced(&mut intent, &geometry, is_degraded)?;
        read_only = read_only.or(why);
        let mut record = None;
        if self.truth.level().is_redundant() && read_only.is_none() && !self.assembly.plan.read_only {
            match self.record(intent.as_ref()) {
                Ok(found) => record = Some(found),
                Err(why) => read_only = Some(why),
            }
        }
        self.tell_degraded(&configs);
        let node = self.assembly.graph.nodes.add(self.name, NodeKind::Md, MAJOR_MD);
        let raid10_chunk = match self.truth.level() {
            Level::Raid10 => geometry.chunk().unwrap_or_default(),
            _ => Sectors::ZERO,
        };
        let (sectors, bitmap) = (geometry.sectors(), intent.as_ref().map(Bitmap::of));
        let config = ArrayConfig {
            name: self.name.to_owned(),
            geometry,
            members: configs,
            resync_from,
            intent,
            record,
        };
        let array = md::Array::new(node.map_err(|error| error.to_string())?, config);
        let array = array.map_err(|error| error.to_string())?;
        let said = |error: VolumeError| error.to_string();
        self.assembly.set_sync_speed(self.name, NodeKind::Md, &array, (None, None)).map_err(said)?;
        let root = self.assembly.with_settings(self.name, array.clone(), raid10_chunk).map_err(said)?;
        Ok(Assembled { stack: Stack::Ready(root), layer: Some(array), sectors, read_only, bitmap })
    }

    /// Where mirrors may differ, or a parity not fit its data, since the array was not stopped; and why that one is only read then. What a missing
    /// member had is computed from the parity: Linux starts no such array, unless it is told to take it as it is.
    ///
    /// # Errors
    /// There is nothing that says where the parity fits.
    fn unsynced(
        &mut self,
        intent: &mut Option<IntentConfig>,
        geometry: &Geometry,
        is_degraded: bool,
    ) -> Result<(Option<Sector>, Option<String>), String> {
        let Some(from) = self.resync_from() else { return Ok((None, None)) };
        let has_parity = self.truth.level().has_parity();
        if !(has_parity && is_degraded) {
            // Linux counts one as soon as it starts an array.
            let why = intent::why_unsynced(self.truth.events() == 0);
            let what = if has_parity { "its parity may not fit its data" } else { "its mirrors may differ" };
            self.warnings.push(format!("{why}: {what}"));
            return Ok((Some(from), None));
        }
        let is_told = self.assembly.starts_dirty_degraded(self.name, NodeKind::Md);
        if is_told.map_err(|error| error.to_string())? {
            self.warnings.push(
                "it was not stopped properly, and its parity is taken as it is: start_dirty_degraded".into(),
            );
            intent.iter_mut().for_each(|intent| intent.may_differ = false);
            return Ok((None, None));
        }
        let size = geometry.sync_sectors().0;
        let remedy = "--set md:start_dirty_degraded=1 takes the parity as it is (what was being written then may be garbage)";
        match &intent::stale(intent.as_ref(), from, size)[..] {
            [] => Ok((Some(from), None)),
            [all] if all.start == 0 && all.end >= size => Err(format!(
                "it was not stopped properly and a member is missing, and nothing says where its parity fits its data; {remedy}, as \
                 `mdadm --assemble --force` does"
            )),
            _ => {
                self.warnings.push(format!(
                    "it was not stopped properly: what a missing member had where its parity may not fit is not read; {remedy}"
                ));
                Ok((
                    Some(from),
                    Some(format!(
                        "it was not stopped properly and a member is missing, so that nobody knows all of its data; {remedy}"
                    )),
                ))
            }
        }
    }

    /// What a device's superblock says; of one that the last update has not reached, what it would say then.
    fn superblock(&self, device: DeviceId) -> Superblock {
        let device = self.assembly.graph.device(device);
        match &device.content {
            Content::MdMember(superblock) => behind::caught_up(self.truth, superblock, device.sectors.0),
            _ => unreachable!("who is a member of an array has a superblock"),
        }
    }

    fn title(&self, device: DeviceId) -> String {
        escape(self.assembly.graph.device(device).title())
    }

    fn layer(&mut self, device: DeviceId) -> Built {
        let title = self.title(device);
        self.assembly.layer(device).map_err(|why| format!("{title}: {why}"))
    }

    fn member(&mut self, device: DeviceId) -> Result<MemberConfig, String> {
        let (name, layer) = (self.title(device), self.layer(device)?);
        Ok(match self.superblock(device) {
            Superblock::V0(own) => MemberConfig {
                name,
                layer,
                data_start: Sector(0),
                recovered: None,
                write_mostly: own.this_disk.is_write_mostly(),
                bad: Vec::new(),
            },
            Superblock::V1(own) => MemberConfig {
                bad: self.bad_blocks(&name, &*layer, &own)?,
                name,
                layer,
                data_start: Sector(own.data_offset),
                recovered: Some(own.recovered_sectors()).filter(|sectors| *sectors != IN_SYNC).map(Sector),
                write_mostly: own.devflags & v1::Superblock::WRITE_MOSTLY != 0,
            },
        })
    }

    /// The list of bad blocks of a device of that name, from the start of its data.
    fn bad_blocks(
        &mut self,
        name: &str,
        layer: &dyn Layer,
        superblock: &v1::Superblock,
    ) -> Result<Vec<(Sector, Sectors)>, String> {
        let list = self.assembly.read(layer, |source| bad_blocks(source, superblock));
        list.map_err(|error| format!("{name}: {error}"))
    }

    /// Why the array must not be written, by what its superblocks say and by what it stands upon.
    fn read_only(&self) -> Option<String> {
        let in_place = self.members.iter().filter(|member| member.place().is_some());
        in_place.map(|member| member.device).find_map(|device| {
            if self.assembly.graph.device(device).read_only.is_some() {
                return Some(format!("{} is read-only", self.title(device)));
            }
            match self.superblock(device) {
                Superblock::V0(_) => Some("superblocks of version 0.90 are not written".into()),
                Superblock::V1(own) => own.supports(Access::Write).err().map(|error| error.to_string()),
            }
        })
    }

    /// Where mirrors may differ, or a parity not fit its data, since the array was not stopped.
    fn resync_from(&self) -> Option<Sector> {
        let offset = match self.truth {
            Superblock::V0(truth) => truth.resync_offset(),
            Superblock::V1(truth) => truth.resync_offset,
        };
        Some(Sector(offset)).filter(|_| offset != IN_SYNC && self.truth.level().is_redundant())
    }

    fn intent(&mut self) -> Result<Option<IntentConfig>, FormatError> {
        // Who makes up for no member by parity has no use for one that is not kept.
        let is_kept = matches!(self.truth, Superblock::V1(_));
        if !self.truth.level().is_redundant() || !(is_kept || self.truth.level().has_parity()) {
            return Ok(None);
        }
        let mut copies = Vec::new();
        for device in self.members.iter().filter(|member| member.place().is_some()).map(|it| it.device) {
            let superblock = self.superblock(device);
            let Ok(layer) = self.assembly.layer(device) else { continue };
            copies.extend(self.assembly.read(&*layer, |source| match &superblock {
                Superblock::V1(own) => intent::read(source, own),
                Superblock::V0(own) => intent::read_old(source, own),
            }));
        }
        intent::combine(copies, self.truth.events(), self.resync_from().is_none())
    }

    /// What is written when the array is: to its members, to those that are to take their places, and to its spares.
    fn record(&mut self, intent: Option<&IntentConfig>) -> Result<Box<dyn Record>, String> {
        let mut sites = Vec::new();
        for member in self.members {
            let Superblock::V1(superblock) = self.superblock(member.device) else { continue };
            let role = match (&member.state, superblock.role()) {
                (MemberState::InPlace { place }, _) => Some(*place),
                (MemberState::Replacement, Role::Active(place)) => Some(place),
                (MemberState::Spare, _) => None,
                _ => continue,
            };
            let (name, layer) = (self.title(member.device), self.layer(member.device)?);
            let bad = match member.state {
                MemberState::Replacement => self.bad_blocks(&name, &*layer, &superblock)?,
                _ => Vec::new(),
            };
            sites.push(MdSite { role, name, layer, superblock: *superblock, bad });
        }
        let bitmap = intent.map(|intent| &intent.superblock);
        let record = MdRecord::new(sites, bitmap, clock_began()).map_err(|error| error.to_string())?;
        Ok(Box::new(record))
    }

    /// Tells what is missing, and what is not in sync.
    fn tell_degraded(&mut self, configs: &[Option<MemberConfig>]) {
        let missing =
            (0..).zip(configs).filter(|(_, config)| config.is_none()).map(|(place, _): (u32, _)| place);
        let count = configs.len();
        self.warnings
            .extend(missing.map(|place| format!("it is degraded: member {place} of {count} is missing")));
        for config in configs.iter().flatten() {
            if let Some(end) = config.recovered {
                self.warnings.push(format!("{} is in sync up to sector {end} only", config.name));
            }
        }
    }
}

/// The list of bad blocks of a member, from the start of its data.
fn bad_blocks(
    source: &dyn Source,
    superblock: &v1::Superblock,
) -> Result<Vec<(Sector, Sectors)>, FormatError> {
    let Some(log) = superblock.bad_block_log().filter(|_| superblock.features.has(Features::BAD_BLOCKS))
    else {
        return Ok(Vec::new());
    };
    let offset = log.start.saturating_mul(SECTOR_BYTES);
    let mut bytes = vec![0; usize::from(superblock.bblog_sectors) * 512];
    source
        .read_at(offset, &mut bytes)
        .map_err(|error| FormatError::unreadable("md bad block log", offset, &error))?;
    let list = bad_blocks::decode(&bytes, superblock.bblog_shift, offset, source.size() / SECTOR_BYTES)?;
    let data = superblock.data_offset;
    Ok(list
        .iter()
        .filter(|region| region.end() > data)
        .map(|region| {
            let start = region.start.max(data);
            (Sector(start - data), Sectors(region.end() - start))
        })
        .collect())
}

/// When the clock of the environment, which is Linux's CLOCK_MONOTONIC, began: superblocks tell what it says as the time of day.
fn clock_began() -> Time {
    let monotonic = clock_gettime(ClockId::Monotonic);
    let part = |n: i64| u64::try_from(n).unwrap_or(0);
    let since = Duration::from_secs(part(monotonic.tv_sec)) + Duration::from_nanos(part(monotonic.tv_nsec));
    let began = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().saturating_sub(since);
    Time::new(began.as_secs(), began.subsec_micros())
}
