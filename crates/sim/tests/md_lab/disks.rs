//! An array on simulated devices: made once, and found again after each life from nothing but the bytes on them, by the
//! rules of mdadm, as `blockwork_volume` has them: the most events win, one event behind is as good, what a device is by its own
//! superblock counts, and whom the winner does not count on is out. Two devices of one place, or two winners that have given each
//! other up, are a violation.

use std::sync::Arc;

use blockwork_engine::{FileId, Layer, LeafId, LeafLayer, LeafSource, NodeId, Sector, Sectors, Volume};
use blockwork_format::md::bitmap::{BITMAP_SUPERBLOCK_BYTES, BitmapSuperblock, Bits};
use blockwork_format::md::v1::{Features, Minor, Reshape, Superblock};
use blockwork_format::md::{
    FarSets, IN_SYNC, Level, ParityLayout, Raid10Layout, Role, SetName, Time, Uuid, bad_blocks,
};
use blockwork_layer::Linear;
use blockwork_layer::md::{
    Array, ArrayConfig, Geometry, IntentConfig, MdRecord, MdSite, MemberConfig, Place, Places, Record,
};
use blockwork_sim::{DeviceModel, Lies, Random, World};

use crate::running::devices::draw_device;
use crate::running::{Nodes, Stack};

/// Sectors of a member.
const SUPERBLOCK: u64 = 8;
const BITMAP: u64 = 16;
const BAD_BLOCKS: u64 = 48;
const BAD_BLOCKS_SECTORS: u16 = 8;
const DATA: u64 = 64;

const UUID: Uuid = Uuid([0x5e; 16]);
/// Of an array that is made.
pub const EVENTS: u64 = 100;

/// [`Member::in_sync_to`] of one that has all of its data.
pub const WHOLE: u64 = IN_SYNC;

/// An array, and what it lies on. Device `n` is made as the member of role `n`; behind the members come spares, then devices that
/// belong to nothing.
#[derive(Clone, Debug)]
pub struct ArrayPlan {
    pub devices: Vec<DeviceModel>,
    pub members: u16,
    pub spares: u16,
    /// Devices of the array have lists of bad blocks.
    pub bad_blocks: bool,
    pub layout: Layout,
    pub chunk: u32,
    pub member_sectors: u64,
    /// Bytes; none: no bitmap.
    pub bitmap_chunk: Option<u32>,
    /// Where each member starts on its device.
    pub start: u64,
    /// Members that the array has gone on without.
    pub absent: Vec<u16>,
    /// A member that is in sync only below a sector.
    pub recovering: Option<(u16, u64)>,
    pub write_mostly: Option<u16>,
    /// What a member lists as bad may be lost with another one that is given up.
    pub loses_listed: bool,
    /// The volume, where it is only a part of the array: first sector, and how many.
    pub part: Option<(u64, u64)>,
}

/// How its data lie on the members.
#[derive(Clone, Copy, Debug)]
pub enum Layout {
    Raid1,
    Raid10(Raid10Layout),
    /// RAID4, 5 or 6, by the number that superblocks have.
    Parity(ParityLayout, u32),
}

/// What was found of an array.
pub struct Found {
    /// The superblock with the most events.
    pub truth: Superblock,
    /// By role; none: absent, or out of date.
    pub members: Vec<Option<Member>>,
    /// Devices that are filled to take a member's place, with its role.
    pub replacements: Vec<(u16, Member)>,
    pub spares: Vec<Member>,
    /// Devices that were members, and are out of date.
    pub lost: Vec<Member>,
}

/// A device of the array.
pub struct Member {
    pub device: FileId,
    pub superblock: Superblock,
    pub bitmap: Option<(BitmapSuperblock, Bits)>,
    /// Its list of bad blocks: from the start of its data, and how many sectors.
    pub bad: Vec<(u64, u64)>,
}

/// The stack on an array, and the devices as layers.
pub struct Built {
    pub stack: Stack,
    pub array: Arc<Array>,
    pub disks: Vec<Arc<dyn Layer>>,
}

impl Member {
    /// Sectors of its data that are in sync; all, where there is no end to them.
    pub fn in_sync_to(&self) -> u64 {
        self.superblock.recovered_sectors()
    }

    /// Whether a sector of its data is one that it has.
    pub fn holds(&self, sector: Sector) -> bool {
        let is_bad = |(start, nr): &(u64, u64)| (*start..start + nr).contains(&sector.0);
        sector.0 < self.in_sync_to() && !self.bad.iter().any(is_bad)
    }
}

impl Found {
    pub fn is_degraded(&self) -> bool {
        !self
            .members
            .iter()
            .all(|member| member.as_ref().is_some_and(|member| member.in_sync_to() == IN_SYNC))
    }

    /// The device on which all data of a role is.
    pub fn has(&self, role: u16) -> Option<FileId> {
        self.has_but_for_lists(role).filter(|member| member.bad.is_empty()).map(|member| member.device)
    }

    /// Who has all data of a role but for what it lists as bad.
    pub fn has_but_for_lists(&self, role: u16) -> Option<&Member> {
        self.members[usize::from(role)].as_ref().filter(|member| member.in_sync_to() == IN_SYNC)
    }

    /// All devices that get the writes of a role.
    pub fn holders(&self, role: u16) -> impl Iterator<Item = &Member> {
        let replacements = self.replacements.iter().filter(move |(other, _)| *other == role);
        self.members[usize::from(role)].iter().chain(replacements.map(|(_, member)| member))
    }

    /// Whether copies of a sector, one of those that bitmaps count, may differ, as whoever opens the array takes it.
    pub fn may_differ(&self, intent: Option<&IntentConfig>, sector: u64) -> bool {
        let marked = match intent {
            Some(intent) => intent.bits.is_dirty(sector / intent.superblock.chunk_sectors()),
            None => sector >= self.truth.resync_offset,
        };
        marked && !self.truth.is_clean()
    }
}

/// A device for an array.
fn draw_member(random: &mut Random, sectors: u64, small_blocks: bool) -> DeviceModel {
    let mut model = draw_device(random, sectors, small_blocks);
    // Larger pieces than a chunk would be discarded on one member, and not on another.
    model.limits.discard_granularity = model.limits.discard_granularity.min(4096);
    model
}

impl ArrayPlan {
    pub fn draw(random: &mut Random) -> ArrayPlan {
        let members = random.between(2, 5) as u8;
        let raid10 =
            |near, far, offset| Raid10Layout::new(near, far, offset, FarSets::One, members.into()).ok();
        let layout = match random.below(10) {
            0..3 => None,
            3..6 => raid10(2, 1, false),
            6 => raid10(1, 2, false),
            7 => raid10(1, 2, true),
            8 => raid10(3, 1, false),
            _ => raid10(2, 2, false),
        };
        // In a large array the near copies take turns with reads; the volume is where they change.
        let large = random.chance(1, 4) && layout.is_none_or(|layout| layout.near_copies() > 1);
        let chunk = if large { 64 } else { *random.choose(&[8, 16, 64]) };
        let member_sectors = if large { 2304 } else { random.between(2, 7) * 64 };
        let start = *random.choose(&[0, 0, 8, 48]);
        let devices = (0..members)
            .map(|_| {
                let sectors = start + DATA + member_sectors + random.below(3) * 8;
                draw_member(random, sectors, false)
            })
            .collect();
        let role = |random: &mut Random| random.below(members.into()) as u16;
        let mut plan = ArrayPlan {
            devices,
            members: members.into(),
            spares: 0,
            bad_blocks: false,
            layout: layout.map_or(Layout::Raid1, Layout::Raid10),
            chunk: if layout.is_none() { 0 } else { chunk },
            member_sectors,
            bitmap_chunk: *random.choose(&[None, Some(8 << 10), Some(16 << 10), Some(64 << 10)]),
            start,
            absent: Vec::new(),
            recovering: None,
            write_mostly: (layout.is_none() && random.chance(1, 4)).then(|| role(random)),
            loses_listed: false,
            part: None,
        };
        plan.part = plan.draw_part(large, random);
        let odd = role(random);
        if plan.geometry().has_all_data(&|other| other != odd) {
            match random.below(8) {
                0 => plan.absent.push(odd),
                1 => plan.recovering = Some((odd, random.below(member_sectors / 8) * 8)),
                _ => {}
            }
        }
        plan
    }

    /// One of rows with a parity.
    pub fn draw_parity(random: &mut Random) -> ArrayPlan {
        let mut plan = ArrayPlan::draw(random);
        let members = random.between(3, 6) as u16;
        let (level, number) = match random.below(8) {
            0 => (Level::Raid4, 0),
            1..4 => (Level::Raid5, random.below(6) as u32),
            _ => (Level::Raid6, *random.choose(&[0, 1, 2, 3, 4, 5, 8, 9, 10, 16, 17, 18, 19, 20])),
        };
        let layout = ParityLayout::new(level, number, members).expect("enough members for any layout");
        plan.layout = Layout::Parity(layout, number);
        (plan.members, plan.write_mostly, plan.recovering) = (members, None, None);
        plan.chunk = *random.choose(&[8, 8, 16, 64]);
        plan.member_sectors = random.between(2, 5) * 64;
        let sectors = |random: &mut Random| plan.start + DATA + plan.member_sectors + random.below(3) * 8;
        plan.devices = (0..members)
            .map(|_| {
                let sectors = sectors(random);
                draw_member(random, sectors, false)
            })
            .collect();
        let mut roles: Vec<u16> = (0..members).collect();
        (1..roles.len()).rev().for_each(|i| roles.swap(i, random.index(i + 1)));
        let missing = *random.choose(&[0, 0, 0, 1, 1, 2]);
        plan.absent = roles.drain(..missing).collect();
        let lacking = |plan: &ArrayPlan, role| plan.absent.contains(&role) || plan.is_recovering(role);
        while !plan.geometry().has_all_data(&|role| !lacking(&plan, role)) {
            plan.absent.pop();
        }
        if random.chance(1, 6) {
            plan.recovering = Some((roles[0], random.below(plan.member_sectors / 8) * 8));
        }
        if !plan.geometry().has_all_data(&|role| !lacking(&plan, role)) {
            plan.recovering = None;
        }
        plan.part = plan.draw_part(false, random);
        plan
    }

    fn is_recovering(&self, role: u16) -> bool {
        self.recovering.is_some_and(|(recovering, _)| recovering == role)
    }

    /// The same, with devices that can take the places of members.
    #[must_use]
    pub fn with_spares(self, random: &mut Random) -> ArrayPlan {
        let mut plan = self;
        if plan.member_sectors < 1024 {
            let more = random.below(9) * 64;
            plan.member_sectors += more;
            plan.devices.iter_mut().for_each(|model| model.sectors += Sectors(more));
            plan.part = plan.draw_part(false, random);
        }
        plan.spares = random.below(3) as u16;
        plan.bad_blocks = random.coin();
        let blanks = random.between(1, 2) as usize;
        let block = plan.devices.iter().map(|model| model.limits.logical_block_size).max();
        for _ in 0..usize::from(plan.spares) + blanks {
            let sectors = plan.start + DATA + plan.member_sectors + random.below(3) * 8;
            plan.devices.push(draw_member(random, sectors, block == Some(512)));
        }
        plan
    }

    fn draw_part(&self, large: bool, random: &mut Random) -> Option<(u64, u64)> {
        let geometry = self.geometry();
        let sectors = geometry.sectors().0;
        if large {
            let turn = (0..sectors / 8).find(|n| geometry.preferred_copy(Sector(n * 8)) > 0);
            let start = turn.map_or(0, |n| n * 8 - 256);
            Some((start, (sectors - start).min(512)))
        } else {
            random.chance(1, 3).then(|| (24, sectors - 32))
        }
    }

    pub fn geometry(&self) -> Geometry {
        let (members, chunk, sectors) =
            (self.members, Sectors(self.chunk.into()), Sectors(self.member_sectors));
        let geometry = match self.layout {
            Layout::Raid1 => Ok(Geometry::raid1(members, sectors)),
            Layout::Raid10(layout) => Geometry::raid10(layout, chunk, sectors),
            Layout::Parity(layout, _) => Geometry::parity(layout, chunk, sectors),
        };
        let geometry = geometry.expect("an array of this layout and size");
        geometry.with_read_turns(Sectors(512))
    }

    /// The layout of rows with a parity.
    pub fn parity(&self) -> Option<&ParityLayout> {
        if let Layout::Parity(layout, _) = &self.layout { Some(layout) } else { None }
    }

    /// The sector that bitmaps and resyncs count for a sector of the array.
    pub fn to_sync(&self, sector: u64) -> u64 {
        match self.parity() {
            Some(_) => self.place_of(sector).sector.0,
            None => sector,
        }
    }

    /// The first place of a sector of the array.
    pub fn place_of(&self, sector: u64) -> Place {
        let mut places = Places::new();
        self.geometry().places(Sector(sector), &mut places);
        places[0]
    }

    /// Whether anybody can take a member's place.
    pub fn has_spares(&self) -> bool {
        self.devices.len() > usize::from(self.members)
    }

    /// All devices.
    pub fn numbered(&self) -> impl Iterator<Item = (u16, FileId)> {
        (0u16..).zip((0..).map(FileId)).take(self.devices.len())
    }

    /// The device's sector with sector `sector` of a member's data.
    pub fn data(&self, sector: Sector) -> u64 {
        self.start + DATA + sector.0
    }

    /// The superblock of device `role` in a new array: of a spare, where there is no such role.
    fn superblock(&self, role: u16) -> Superblock {
        let gone = |other| self.absent.contains(&other) && role != other;
        let roles =
            (0..self.members).map(|other| if gone(other) { Role::Faulty } else { Role::Active(other) });
        let (bad_sectors, bad_offset) =
            if self.bad_blocks { (BAD_BLOCKS_SECTORS, (BAD_BLOCKS - SUPERBLOCK) as i32) } else { (0, 0) };
        let bitmap = if self.bitmap_chunk.is_some() { Features::BITMAP.0 } else { 0 };
        let recovered = self.recovering.filter(|(other, _)| *other == role).map(|(_, sectors)| sectors);
        let recovering = if recovered.is_some() { Features::RECOVERY_OFFSET.0 } else { 0 };
        let mostly = if self.write_mostly == Some(role) { Superblock::WRITE_MOSTLY } else { 0 };
        let (level, layout) = match self.layout {
            Layout::Raid1 => (Level::Raid1, 0),
            Layout::Raid10(layout) => (Level::Raid10, layout.encode()),
            Layout::Parity(layout, number) => (layout.level(), number),
        };
        Superblock {
            minor: Minor::V1_2,
            features: Features(bitmap | recovering),
            set_uuid: UUID,
            set_name: SetName::new("lab:0").expect("a name"),
            ctime: Time::new(1, 0),
            level,
            layout,
            size: self.member_sectors,
            chunk_sectors: self.chunk,
            raid_disks: self.members.into(),
            bitmap_offset: (BITMAP - SUPERBLOCK) as i32,
            reshape: Reshape::default(),
            data_offset: DATA,
            data_size: self.member_sectors,
            super_offset: SUPERBLOCK,
            recovery_offset: recovered.unwrap_or(0),
            dev_number: role.into(),
            corrected_errors: 0,
            device_uuid: Uuid([role as u8 + 1; 16]),
            devflags: mostly,
            bblog_shift: 0,
            bblog_sectors: bad_sectors,
            bblog_offset: bad_offset,
            utime: Time::new(1, 0),
            events: if self.absent.contains(&role) { EVENTS - 5 } else { EVENTS },
            resync_offset: IN_SYNC,
            logical_block_size: 0,
            roles: roles.chain(std::iter::repeat(Role::Spare)).take(128).collect(),
            reserved: [0; 32],
        }
    }

    fn bitmap(&self) -> Option<BitmapSuperblock> {
        Some(BitmapSuperblock {
            version: 4,
            uuid: UUID,
            events: EVENTS,
            events_cleared: EVENTS,
            sync_size: self.geometry().sync_sectors().0,
            state: 0,
            chunk_bytes: self.bitmap_chunk?,
            daemon_sleep: 1,
            write_behind: 0,
            sectors_reserved: 0,
            nodes: 0,
            cluster_name: [0; 64],
            reserved: [0; 120],
        })
    }

    /// Makes the array: all zeros; what is not to be read holds something else.
    pub fn make(&self, world: &World) {
        for model in &self.devices {
            world.add_device(model.clone());
        }
        for (role, device) in self.numbered() {
            let belongs = role < self.members + self.spares;
            if belongs {
                self.write_superblock(world, device, &self.superblock(role));
            }
            if belongs && self.bad_blocks {
                world.preload(device, self.start + BAD_BLOCKS, &[0xff; 512 * BAD_BLOCKS_SECTORS as usize]);
            }
            if let Some(bitmap) = self.bitmap().filter(|_| belongs) {
                // What was written while a member was absent is marked, so that it can come back.
                let bits = Bits::clean(bitmap.chunks());
                self.write_bitmap(world, device, &bitmap, &bits);
            }
            let garbage_from = match self.recovering {
                _ if self.absent.contains(&role) || role >= self.members => 0,
                Some((recovering, from)) if recovering == role => from,
                _ => self.member_sectors,
            };
            let garbage = vec![0xee; ((self.member_sectors - garbage_from) * 512) as usize];
            world.preload(device, self.data(Sector(garbage_from)), &garbage);
        }
    }

    pub fn write_superblock(&self, world: &World, device: FileId, superblock: &Superblock) {
        world.preload(device, self.start + SUPERBLOCK, &superblock.encode_blocks(512));
    }

    pub fn write_bitmap(&self, world: &World, device: FileId, bitmap: &BitmapSuperblock, bits: &Bits) {
        let mut bytes = bitmap.encode().to_vec();
        bytes.extend_from_slice(bits.as_bytes());
        bytes.resize(bytes.len().next_multiple_of(512), 0xff);
        world.preload(device, self.start + BITMAP, &bytes);
    }

    fn peek(&self, world: &World, device: FileId, sector: u64, nr: u64) -> Vec<u8> {
        (sector..sector + nr).flat_map(|at| world.peek(device, self.start + at)).collect()
    }

    /// The superblock of a device, if it has one. Superblocks are written so that none is ever torn.
    pub fn read_superblock(&self, world: &World, device: FileId) -> Result<Option<Superblock>, String> {
        let bytes = self.peek(world, device, SUPERBLOCK, 8);
        if bytes.iter().all(|byte| *byte == 0) {
            return Ok(None);
        }
        let sectors = self.devices[device.0 as usize].sectors.0 - self.start;
        let superblock = Superblock::decode(&bytes, Minor::V1_2, sectors);
        superblock.map(Some).map_err(|error| format!("device {}: {error}", device.0))
    }

    /// Finds the array. An error is a violation.
    pub fn find(&self, world: &World) -> Result<Found, String> {
        let mut candidates = Vec::new();
        for (_, device) in self.numbered() {
            let Some(superblock) = self.read_superblock(world, device)? else { continue };
            let bad = self.read_bad_blocks(world, device, &superblock)?;
            candidates.push(Member { device, superblock, bitmap: None, bad });
        }
        let truth = truth(&candidates)?;
        let members = (0..self.members).map(|_| None).collect();
        let mut found =
            Found { truth, members, replacements: Vec::new(), spares: Vec::new(), lost: Vec::new() };
        for member in candidates {
            self.sort_in(world, member, &mut found)?;
        }
        Ok(found)
    }

    /// Gives a device the place in the array that it has.
    fn sort_in(&self, world: &World, mut member: Member, found: &mut Found) -> Result<(), String> {
        let own = &member.superblock;
        let fresh = own.events + 1 >= found.truth.events && counts_on(&found.truth, own);
        match own.role() {
            // One that was taken out, and whose slot another one has now, is let alone.
            Role::Spare if counts_on(&found.truth, own) => found.spares.push(member),
            Role::Active(role) if fresh => {
                member.bitmap = self.read_bitmap(world, member.device)?;
                if member.superblock.features.has(Features::REPLACEMENT) {
                    found.replacements.push((role, member));
                    return Ok(());
                }
                let place = &mut found.members[usize::from(role)];
                let events = |member: &Member| member.superblock.events;
                let other = place.replace(member);
                if let (Some(other), Some(own)) = (other, &mut *place) {
                    if events(&other) == events(own) {
                        let of = |it: &Member| (it.device.0, it.superblock.dev_number, it.superblock.events);
                        let (one, other, events) = (of(&other), of(own), found.truth.events);
                        return Err(format!(
                            "two devices (slot, events) are member {role} at event {events}: {one:?}, {other:?}"
                        ));
                    }
                    let older =
                        if events(&other) > events(own) { std::mem::replace(own, other) } else { other };
                    found.lost.push(older);
                }
            }
            _ => found.lost.push(member),
        }
        Ok(())
    }

    fn read_bad_blocks(
        &self,
        world: &World,
        device: FileId,
        superblock: &Superblock,
    ) -> Result<Vec<(u64, u64)>, String> {
        if !superblock.features.has(Features::BAD_BLOCKS) {
            return Ok(Vec::new());
        }
        let bytes = self.peek(world, device, BAD_BLOCKS, BAD_BLOCKS_SECTORS.into());
        let sectors = self.devices[device.0 as usize].sectors.0 - self.start;
        let list = bad_blocks::decode(&bytes, 0, 0, sectors);
        let list = list.map_err(|error| format!("bad blocks of device {}: {error}", device.0))?;
        Ok(list.iter().map(|region| (region.start - DATA, region.sectors)).collect())
    }

    fn read_bitmap(&self, world: &World, device: FileId) -> Result<Option<(BitmapSuperblock, Bits)>, String> {
        let Some(expected) = self.bitmap() else { return Ok(None) };
        let wrong = |what: String| format!("bitmap of device {}: {what}", device.0);
        let bytes = self.peek(world, device, BITMAP, expected.disk_sectors());
        let superblock = BitmapSuperblock::decode(&bytes, 0).map_err(|error| wrong(error.to_string()))?;
        superblock
            .check_for(UUID, expected.sync_size, DATA - BITMAP, 0)
            .map_err(|error| wrong(error.to_string()))?;
        let bits = Bits::decode(&superblock, &bytes[BITMAP_SUPERBLOCK_BYTES..], 0);
        Ok(Some((superblock, bits.map_err(|error| wrong(error.to_string()))?)))
    }

    /// Whether parities may not fit their data, and some of these are missing.
    pub fn has_holes(&self, found: &Found) -> bool {
        self.parity().is_some() && !found.truth.is_clean() && found.is_degraded()
    }

    /// The bits that any member has, as whoever opens the array takes them.
    pub fn intent(&self, found: &Found) -> Option<IntentConfig> {
        let bitmaps = || found.members.iter().flatten().filter_map(|member| member.bitmap.as_ref());
        let (superblock, _) = bitmaps().max_by_key(|(superblock, _)| superblock.events)?;
        let mut bits = Bits::clean(superblock.chunks());
        if bitmaps().all(|(superblock, _)| superblock.is_stale(found.truth.events)) {
            bits = Bits::dirty(superblock.chunks());
        }
        bitmaps().for_each(|(_, own)| bits.merge(own));
        Some(IntentConfig { superblock: superblock.clone(), bits, may_differ: !found.truth.is_clean() })
    }

    /// The stack on the array as it was found.
    pub fn build(&self, world: &World, found: &Found, lies: Lies) -> Built {
        let mut nodes = Nodes::default();
        let sources = self
            .numbered()
            .map(|(_, device)| Arc::new(world.lying_source(device, lies)) as Arc<dyn LeafSource>);
        let leaves: Vec<(NodeId, Arc<dyn LeafSource>)> =
            sources.map(|source| (nodes.next(), source)).collect();
        let disks: Vec<Arc<dyn Layer>> = (0..)
            .zip(&leaves)
            .map(|(n, (node, source))| {
                let leaf = LeafLayer::new(LeafId(n), *node, source.sectors(), source.limits().clone());
                self.part(&mut nodes, Arc::new(leaf))
            })
            .collect();
        let intent = self.intent(found);
        let site = |role: Option<u16>, member: &Member| MdSite {
            role,
            name: format!("d{}", member.device.0),
            layer: disks[member.device.0 as usize].clone(),
            superblock: member.superblock.clone(),
            bad: member.bad.iter().map(|(start, nr)| (Sector(*start), Sectors(*nr))).collect(),
        };
        let members = (0..).zip(&found.members);
        let members = members.filter_map(|(role, member)| Some(site(Some(role), member.as_ref()?)));
        let replacements = found.replacements.iter().map(|(role, member)| site(Some(*role), member));
        let sites = members.chain(replacements).chain(found.spares.iter().map(|spare| site(None, spare)));
        let bitmap = intent.as_ref().map(|intent| &intent.superblock);
        let record =
            MdRecord::new(sites.collect(), bitmap, Time::new(1_000, 0)).expect("superblocks to be written");
        // It is only read where nobody knows all of its data.
        let record = (!self.has_holes(found)).then(|| Box::new(record) as Box<dyn Record>);
        let members = found.members.iter().map(|member| {
            let member = member.as_ref()?;
            Some(MemberConfig {
                name: format!("d{}", member.device.0),
                layer: disks[member.device.0 as usize].clone(),
                data_start: Sector(DATA),
                recovered: Some(Sector(member.in_sync_to())).filter(|to| to.0 != IN_SYNC),
                write_mostly: member.superblock.devflags & Superblock::WRITE_MOSTLY != 0,
                bad: member.bad.iter().map(|(start, nr)| (Sector(*start), Sectors(*nr))).collect(),
            })
        });
        let resync_from = Some(Sector(found.truth.resync_offset)).filter(|_| !found.truth.is_clean());
        let config = ArrayConfig {
            name: "md/lab".into(),
            geometry: self.geometry(),
            members: members.collect(),
            resync_from,
            intent,
            record,
        };
        let array = Array::new(nodes.next(), config).expect("the members make an array");
        let mut root: Arc<dyn Layer> = array.clone();
        if let Some((start, sectors)) = self.part {
            let part = Linear::new(nodes.next(), root, Sector(start), Sectors(sectors));
            root = Arc::new(part.expect("it lies within the array"));
        }
        let volumes = [Volume::new("md/lab", root, false)].into();
        let stack = Stack { volumes, leaves: leaves.into(), nodes: usize::from(nodes.0) };
        Built { stack, array, disks }
    }

    /// The part of a device that is the member.
    fn part(&self, nodes: &mut Nodes, disk: Arc<dyn Layer>) -> Arc<dyn Layer> {
        if self.start == 0 {
            return disk;
        }
        let sectors = disk.sectors() - Sectors(self.start);
        let part = Linear::new(nodes.next(), disk, Sector(self.start), sectors);
        Arc::new(part.expect("it lies within the device"))
    }

    /// First sector of the array that belongs to the volume, and how many do.
    pub fn volume(&self) -> (u64, u64) {
        self.part.unwrap_or((0, self.geometry().sectors().0))
    }
}

/// The newest superblock of a member that no other one as new has given up.
fn truth(candidates: &[Member]) -> Result<Superblock, String> {
    let members = || {
        let superblocks = candidates.iter().map(|candidate| &candidate.superblock);
        superblocks.filter(|superblock| matches!(superblock.role(), Role::Active(_)))
    };
    let newest = members().map(|superblock| superblock.events).max().ok_or("no device is a member")?;
    let peers: Vec<_> = members().filter(|superblock| superblock.events == newest).collect();
    let given_up = |one: &Superblock| peers.iter().any(|other| !counts_on(other, one));
    let truth = peers.iter().find(|peer| !given_up(peer));
    truth.map(|truth| (**truth).clone()).ok_or_else(|| format!("the array was split at event {newest}"))
}

/// Whether `truth` has `other` at the place where that sees itself.
fn counts_on(truth: &Superblock, other: &Superblock) -> bool {
    truth.roles.get(other.dev_number as usize) == Some(&other.role())
}
