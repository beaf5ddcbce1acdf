//! A volume group on simulated devices, with one RAID volume: made once, and then assembled for each life from nothing but the bytes on the
//! devices that are there, by the code that serves it.
//!
//! Each leg has a device, which holds its metadata volume and its data; or a device each for the two, so that they fail apart.

use std::sync::Arc;

use blockwork_engine::{FileId, Sector, Sectors};
use blockwork_format::dm_raid::{self, BITMAP_OFFSET, EVENTS_OF_NEW, ParityType, Superblock};
use blockwork_format::lvm2::{AreaHeader, DiskArea, Extension, Label, PvHeader, RawLocation, Uuid};
use blockwork_format::md::bitmap::{BITMAP_SUPERBLOCK_BYTES, BitmapSuperblock, Bits};
use blockwork_format::md::{FarSets, Level, ParityLayout, Raid10Layout};
use blockwork_layer::md::{Array, Geometry, Place, Places};
use blockwork_leaf::Opened;
use blockwork_sim::{DeviceModel, Lies, Oracle, Random, World};
use blockwork_volume::{Assembly, Plan as Wanted, parse_setting};

use crate::running::Stack;
use crate::running::devices::draw_device;

/// Sectors of an extent, and before the first one.
const EXTENT: u64 = 8;
const PE_START: u64 = 256;
/// Extents of a metadata volume.
const META: u64 = 2;
/// The metadata area of a physical volume, bytes.
const AREA: DiskArea = DiskArea { offset: 4096, size: 120 << 10 };
/// Events of an array that has been in use.
const EVENTS: u64 = 10;
const VOLUME: &str = "vg/lv";

/// What mirrors hold at first that nobody has brought in line, leg by leg.
const GARBAGE: [u8; 8] = [0xe0, 0xe1, 0xe2, 0xe3, 0xe4, 0xe5, 0xe6, 0xe7];

/// A volume group of one RAID volume, and what it lies on.
#[derive(Clone, Debug)]
pub struct GroupPlan {
    pub devices: Vec<DeviceModel>,
    pub legs: u16,
    pub level: RaidType,
    /// Sectors of a stripe; 0 for RAID1.
    pub stripe: u64,
    /// Sectors that a bit of the bitmap stands for.
    pub region: u64,
    /// Extents of a leg's data.
    pub extents: u64,
    pub start: Start,
    /// A leg that was away before the bitmap was last cleared, and full of what is nobody's data: nothing tells what it lacks.
    pub stale: Option<u16>,
    pub write_mostly: Option<u16>,
    /// Metadata volumes have devices of their own, behind those of the data.
    pub apart: bool,
}

/// What the volume is, as LVM has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RaidType {
    Raid1,
    /// Two copies of each stripe.
    Raid10,
    Parity(ParityType),
}

/// How the volume is when it is first served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    InSync,
    /// Its legs hold whatever there was on the disks, and it has not been resynced: the first one counts.
    New,
    /// Likewise, and nobody will ever resync it (`lvcreate --nosync`).
    NoSync,
}

/// How the volume is assembled.
#[derive(Clone, Copy, Debug, Default)]
pub struct How {
    /// Nothing is to be written.
    pub read_only: bool,
    /// Parities are to be taken as they are (`raid:start_dirty_degraded=1`).
    pub told: bool,
    pub lies: Lies,
}

/// The volume, assembled.
pub struct Open {
    pub stack: Stack,
    pub array: Arc<Array>,
    /// Why it must not be written, although nobody asked for that.
    pub read_only: Option<String>,
}

impl GroupPlan {
    pub fn draw(random: &mut Random) -> GroupPlan {
        let (level, legs) = match random.below(8) {
            0..3 => (RaidType::Raid1, random.between(2, 4)),
            3 | 4 => (RaidType::Raid10, *random.choose(&[4, 4, 6])),
            _ => {
                let kind = *random.choose(&ParityType::ALL);
                (RaidType::Parity(kind), random.between(u64::from(kind.parities()) + 2, 6))
            }
        };
        let stripe = if level == RaidType::Raid1 { 0 } else { *random.choose(&[8, 8, 16, 64]) };
        let rows = stripe.max(EXTENT) / EXTENT;
        // It takes a while to fill a large leg.
        let most = if random.chance(1, 4) { 96 } else { 24 };
        let extents = random.between(2, 1 + most / rows) * rows;
        let apart = random.chance(1, 5);
        let mut plan = GroupPlan {
            devices: Vec::new(),
            legs: u16::try_from(legs).expect("few legs"),
            level,
            stripe,
            region: *random.choose(&[8, 16, 32, 128]),
            extents,
            start: Start::InSync,
            stale: None,
            write_mostly: None,
            apart,
        };
        if random.chance(1, 4) {
            plan.start = match level {
                RaidType::Parity(_) => Start::New,
                _ => *random.choose(&[Start::New, Start::NoSync]),
            };
        }
        if plan.start == Start::InSync && random.chance(1, 5) {
            plan.stale = Some(random.below(legs) as u16);
        }
        if level == RaidType::Raid1 && random.chance(1, 4) {
            // Of a new one the first leg counts, which is the first that is not that.
            plan.write_mostly =
                Some(random.below(legs) as u16).filter(|leg| *leg > 0 || plan.start != Start::New);
        }
        for device in 0..legs * if apart { 2 } else { 1 } {
            let extents = if device >= legs { META } else { META + extents };
            let sectors = PE_START + extents * EXTENT + random.below(3) * 8;
            let mut model = draw_device(random, sectors, false);
            // Larger pieces than a stripe would be discarded on one leg, and not on another.
            model.limits.discard_granularity = model.limits.discard_granularity.min(4096);
            plan.devices.push(model);
        }
        plan
    }

    pub fn leg_sectors(&self) -> u64 {
        self.extents * EXTENT
    }

    pub fn geometry(&self) -> Geometry {
        let (stripe, sectors) = (Sectors(self.stripe), Sectors(self.leg_sectors()));
        let geometry = match self.level {
            RaidType::Raid1 => Ok(Geometry::raid1(self.legs, sectors)),
            RaidType::Raid10 => Geometry::raid10(self.raid10(), stripe, sectors),
            RaidType::Parity(_) => Geometry::parity(self.parity().expect("it has a parity"), stripe, sectors),
        };
        geometry.expect("a volume of this layout and size")
    }

    fn raid10(&self) -> Raid10Layout {
        Raid10Layout::new(2, 1, false, FarSets::One, self.legs.into()).expect("a layout")
    }

    /// The layout of rows with a parity.
    pub fn parity(&self) -> Option<ParityLayout> {
        let RaidType::Parity(kind) = self.level else { return None };
        Some(kind.layout(self.legs).expect("enough legs"))
    }

    /// Sectors of the volume.
    pub fn sectors(&self) -> u64 {
        self.geometry().sectors().0
    }

    /// The places of a sector of the volume, in the order of the layout.
    pub fn places(&self, sector: u64) -> Places {
        let mut places = Places::new();
        self.geometry().places(Sector(sector), &mut places);
        places
    }

    /// All devices.
    pub fn all(&self) -> Vec<FileId> {
        (0..).map(FileId).take(self.devices.len()).collect()
    }

    /// The devices of a leg: of its data, and of its metadata volume.
    pub fn devices_of(&self, leg: u16) -> [FileId; 2] {
        let data = u32::from(leg);
        let meta = if self.apart { data + u32::from(self.legs) } else { data };
        [data, meta].map(FileId)
    }

    /// The devices of some legs, each once.
    pub fn devices_of_all(&self, legs: &[u16]) -> Vec<FileId> {
        let mut all: Vec<FileId> = legs.iter().flat_map(|leg| self.devices_of(*leg)).collect();
        all.sort_unstable_by_key(|device| device.0);
        all.dedup();
        all
    }

    /// The legs of which all devices are among these.
    pub fn legs_on<'a>(&'a self, devices: &'a [FileId]) -> impl Iterator<Item = u16> + 'a {
        (0..self.legs).filter(|leg| self.devices_of(*leg).iter().all(|device| devices.contains(device)))
    }

    /// Where the extents of the metadata volume begin, and those of the data: sectors of their devices.
    fn starts(&self) -> (u64, u64) {
        let data = if self.apart { PE_START } else { PE_START + META * EXTENT };
        (PE_START, data)
    }

    /// What a leg holds at a place.
    pub fn peek(&self, world: &World, place: Place) -> [u8; 512] {
        world.peek(self.devices_of(place.member)[0], self.starts().1 + place.sector.0)
    }

    /// The superblock of a leg, which is written so that it is never torn.
    pub fn superblock(&self, world: &World, leg: u16) -> Result<Superblock, String> {
        let bytes = world.peek(self.devices_of(leg)[1], self.starts().0);
        Superblock::decode(&bytes).map_err(|error| format!("leg {leg}: {error}"))
    }

    /// The bitmap of a leg.
    pub fn bitmap(&self, world: &World, leg: u16) -> Result<(BitmapSuperblock, Bits), String> {
        let start = self.starts().0 + BITMAP_OFFSET / 512;
        let bytes: Vec<u8> = (start..PE_START + META * EXTENT)
            .flat_map(|at| world.peek(self.devices_of(leg)[1], at))
            .collect();
        let wrong = |error| format!("the bitmap of leg {leg}: {error}");
        let superblock = BitmapSuperblock::decode(&bytes, 0).map_err(wrong)?;
        let bits = Bits::decode(&superblock, &bytes[BITMAP_SUPERBLOCK_BYTES..], 0).map_err(wrong)?;
        Ok((superblock, bits))
    }

    /// Makes the group: the volume is all zeros, but where nobody has ever written it.
    pub fn make(&self, world: &World) {
        for model in &self.devices {
            world.add_device(model.clone());
        }
        for device in self.all() {
            self.make_pv(world, device);
        }
        for leg in 0..self.legs {
            let meta = self.devices_of(leg)[1];
            world.preload(meta, self.starts().0, &self.first_superblock(leg).encode());
            world.preload(meta, self.starts().0 + BITMAP_OFFSET / 512, &self.first_bitmap());
            for sector in 0..self.leg_sectors() {
                if let Some(byte) = self.garbage(Place { member: leg, sector: Sector(sector) }) {
                    world.preload(self.devices_of(leg)[0], self.starts().1 + sector, &[byte; 512]);
                }
            }
        }
    }

    /// What a leg is full of there at first, which is nobody's data.
    fn garbage(&self, place: Place) -> Option<u8> {
        let is_garbage = match (self.start, self.parity()) {
            (Start::InSync, _) => self.stale == Some(place.member),
            (Start::NoSync, _) => true,
            (Start::New, Some(layout)) => layout.parity(place.sector.0 / self.stripe).0 == place.member,
            (Start::New, None) => {
                let sector = self.geometry().to_array(place);
                sector.is_some_and(|Sector(sector)| self.places(sector)[0] != place)
            }
        };
        is_garbage.then(|| GARBAGE[usize::from(place.member)])
    }

    /// Tells of what clients may find before they have written anything, which is what any copy has; where mirrors differ for ever, not the same
    /// each time.
    pub fn tell(&self, oracle: &mut Oracle) {
        if self.start == Start::InSync || self.parity().is_some() {
            return;
        }
        let bytes = self.sectors() * 512;
        if self.start == Start::NoSync {
            let discard = oracle.begin_discard(0, bytes);
            oracle.end_write(discard, false, false);
        }
        for byte in &GARBAGE[..self.legs.into()] {
            let write = oracle.begin_write(0, &vec![*byte; bytes as usize]);
            oracle.end_write(write, false, false);
        }
    }

    fn make_pv(&self, world: &World, device: FileId) {
        let model = &self.devices[device.0 as usize];
        let label = Label {
            sector: 1,
            pv: PvHeader {
                id: id('P', device.0),
                device_bytes: model.sectors.bytes(),
                data_areas: vec![DiskArea { offset: PE_START * 512, size: 0 }],
                metadata_areas: vec![AREA],
                extension: Some(Extension {
                    version: 2,
                    flags: Extension::IN_USE,
                    bootloader_areas: Vec::new(),
                }),
            },
        };
        world.preload(device, 1, &label.encode().expect("a label"));
        let text = self.text();
        let mut header = AreaHeader::new(AREA).expect("an area");
        let place = header.place(text.as_bytes()).expect("room for the text");
        for piece in header.pieces(&place, text.as_bytes()).expect("pieces of the text") {
            let bytes: Vec<u8> = piece.bytes.to_vec();
            assert!(piece.offset % 512 == 0, "a text begins with a sector");
            world.preload(device, piece.offset / 512, &padded(bytes));
        }
        header.slots = [place, RawLocation::default()];
        world.preload(device, AREA.offset / 512, &header.encode());
    }

    /// What the group's metadata say.
    fn text(&self) -> String {
        let pvs: String = (0..).zip(&self.devices)
            .map(|(n, model): (u32, _)| {
                let extents = (model.sectors.0 - PE_START) / EXTENT;
                format!(
                    "pv{n} {{ id = \"{}\" status = [\"ALLOCATABLE\"] pe_start = {PE_START} pe_count = {extents} }}\n",
                    id('P', n)
                )
            })
            .collect();
        let mut lvs = String::new();
        let mut lv = |name: &str, n: u16, status: &str, extents: u64, kind: &str, keys: &str| {
            lvs += &format!(
                "{name} {{ id = \"{}\" status = [{status}] segment_count = 1\n\
                 segment1 {{ start_extent = 0 extent_count = {extents} type = \"{kind}\" {keys} }}\n}}\n",
                id('L', n.into())
            );
        };
        let mut names = Vec::new();
        for leg in 0..self.legs {
            let [data, meta] = self.devices_of(leg);
            let at = (self.starts().1 - PE_START) / EXTENT;
            let on =
                |device: FileId, at: u64| format!("stripe_count = 1 stripes = [\"pv{}\", {at}]", device.0);
            let hidden = "\"READ\", \"WRITE\"";
            let mostly = if self.write_mostly == Some(leg) { ", \"WRITEMOSTLY\"" } else { "" };
            lv(&format!("lv_rmeta_{leg}"), 2 * leg + 1, hidden, META, "striped", &on(meta, 0));
            let status = format!("{hidden}{mostly}");
            lv(&format!("lv_rimage_{leg}"), 2 * leg + 2, &status, self.extents, "striped", &on(data, at));
            names.push(format!("\"lv_rmeta_{leg}\", \"lv_rimage_{leg}\""));
        }
        let stripe = if self.stripe > 0 { format!("stripe_size = {}", self.stripe) } else { String::new() };
        let keys = format!(
            "device_count = {} {stripe} region_size = {} raids = [{}]",
            self.legs,
            self.region,
            names.join(", ")
        );
        let kind = match self.level {
            RaidType::Raid1 => "raid1",
            RaidType::Raid10 => "raid10",
            RaidType::Parity(kind) => kind.name(),
        };
        let not_synced = if self.start == Start::NoSync { ", \"NOTSYNCED\"" } else { "" };
        let seen = format!("\"READ\", \"WRITE\", \"VISIBLE\"{not_synced}");
        lv("lv", 100, &seen, self.sectors() / EXTENT, kind, &keys);
        format!(
            "vg {{ id = \"{}\" seqno = 1 format = \"lvm2\" status = [\"RESIZEABLE\", \"READ\", \"WRITE\"] extent_size = {EXTENT}\n\
             physical_volumes {{\n{pvs}}}\nlogical_volumes {{\n{lvs}}}\n}}\n\
             contents = \"Text Format Volume Group\"\nversion = 1\n",
            id('V', 0)
        )
    }

    fn first_superblock(&self, leg: u16) -> Superblock {
        let (level, layout) = match self.level {
            RaidType::Raid1 => (Level::Raid1, 0),
            RaidType::Raid10 => (Level::Raid10, self.raid10().encode()),
            RaidType::Parity(kind) => (kind.level(), kind.layout_number()),
        };
        let is_new = self.start == Start::New;
        let is_stale = self.stale == Some(leg);
        let mut superblock = Superblock {
            compat_features: Superblock::EXTENDED,
            num_devices: self.legs.into(),
            array_position: leg.into(),
            events: if is_new { EVENTS_OF_NEW } else { EVENTS - if is_stale { 5 } else { 0 } },
            failed_devices: Default::default(),
            disk_recovery_offset: dm_raid::IN_SYNC,
            array_resync_offset: if is_new { 0 } else { dm_raid::IN_SYNC },
            level,
            layout,
            stripe_sectors: self.stripe as u32,
            flags: 0,
            reshape_position: 0,
            new_level: i32::from(level).cast_unsigned(),
            new_layout: layout,
            new_stripe_sectors: self.stripe as u32,
            delta_disks: 0,
            array_sectors: self.sectors(),
            data_offset: 0,
            new_data_offset: 0,
            sectors: self.leg_sectors(),
            incompat_features: 0,
        };
        self.stale.filter(|_| !is_stale).into_iter().for_each(|stale| superblock.fail(stale));
        superblock
    }

    fn first_bitmap(&self) -> Vec<u8> {
        let is_new = self.start == Start::New;
        let events = if is_new { EVENTS_OF_NEW } else { EVENTS };
        let synced = self.geometry().sync_sectors().0;
        let new = BitmapSuperblock::new(Default::default(), synced, (self.region * 512) as u32);
        let bitmap = BitmapSuperblock { events, events_cleared: if is_new { 0 } else { events }, ..new };
        let bits = if is_new { Bits::dirty(bitmap.chunks()) } else { Bits::clean(bitmap.chunks()) };
        padded([&bitmap.encode()[..], bits.as_bytes()].concat())
    }

    /// The volume on the devices that are there; an error says why it cannot be had.
    pub fn open(&self, world: &World, present: &[FileId], how: How) -> Result<Open, String> {
        let disks = present.iter().map(|device| {
            let source = Arc::new(world.lying_source(*device, how.lies));
            (format!("d{}", device.0), Opened { source, warnings: Vec::new() })
        });
        let settings = if how.told { vec!["raid:start_dirty_degraded=1"] } else { Vec::new() };
        let settings = settings.into_iter().map(|text| parse_setting(text).expect("a setting")).collect();
        let wanted = Wanted { read_only: how.read_only, settings, ..Wanted::default() };
        let mut assembly = Assembly::over(wanted, disks.collect()).map_err(|error| error.to_string())?;
        let chosen = assembly.choose(&[VOLUME.to_owned()]).map_err(|error| error.to_string())?;
        let chosen = chosen.into_iter().next().expect("one was asked for");
        let raids = assembly.graph().groups.first().and_then(|group| Some(group.raids().next()?.1.clone()));
        let array = raids.ok_or("the volume has no array")?;
        let stack = Stack {
            volumes: [chosen.volume].into(),
            leaves: assembly.leaves(),
            nodes: assembly.node_count(),
        };
        Ok(Open { stack, array, read_only: chosen.read_only })
    }
}

/// With zeros up to whole sectors.
fn padded(mut bytes: Vec<u8>) -> Vec<u8> {
    bytes.resize(bytes.len().next_multiple_of(512), 0);
    bytes
}

/// The id of the `n`-th of a kind.
fn id(kind: char, n: u32) -> Uuid {
    Uuid::from_compact(format!("{kind}{n:031}").as_bytes()).expect("an id")
}
