//! Disks that are laid out by hand, with the encoders whose output the tools of md and LVM take (the tests of
//! `blockwork-format` show that), and what is assembled from them.
#![allow(dead_code, reason = "each test file uses a part of it")]

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use blockwork_engine::{
    CounterTable, Flags, Op, Resolver, SECTOR, Sector, Sectors, Span, Target, Tracer, Volume,
};
use blockwork_format::lvm2::{AreaHeader, DiskArea, Extension, Label, PvHeader, RawLocation, Uuid as PvUuid};
use blockwork_format::md::create::{BitmapChoice, NewArray, NewDevice, Shape};
use blockwork_format::md::v1::{Minor, Superblock};
use blockwork_format::md::{Level, SetName, Time, Uuid};
use blockwork_format::{Piece, Source};
use blockwork_volume::{Assembly, Plan};

/// A folder of disks.
pub struct Lab {
    folder: tempfile::TempDir,
}

/// A disk in a file.
pub struct Disk {
    pub path: PathBuf,
    file: File,
}

impl Lab {
    pub fn new() -> Lab {
        Lab { folder: tempfile::tempdir().unwrap() }
    }

    /// A disk of so many sectors: all zeros.
    pub fn disk(&self, name: &str, sectors: u64) -> Disk {
        let path = self.folder.path().join(name);
        let file = File::options().read(true).write(true).create_new(true).open(&path).unwrap();
        file.set_len(sectors * SECTOR).unwrap();
        Disk { path, file }
    }

    /// Assembles the disks, as `serve --read-only` does.
    pub fn open(&self, disks: &[&Disk]) -> Assembly {
        open(disks, Plan { read_only: true, ..Plan::default() })
    }

    /// As `serve` does.
    pub fn open_for_writing(&self, disks: &[&Disk]) -> Assembly {
        open(disks, Plan::default())
    }
}

fn open(disks: &[&Disk], plan: Plan) -> Assembly {
    let disks = disks.iter().map(|disk| disk.path.to_str().unwrap().to_owned()).collect();
    Assembly::open(Plan { disks, ..plan }).unwrap()
}

impl Source for Disk {
    fn size(&self) -> u64 {
        self.file.metadata().unwrap().len()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.file.read_exact_at(buf, offset)
    }
}

impl Disk {
    pub fn write(&self, offset: u64, bytes: &[u8]) {
        self.file.write_all_at(bytes, offset).unwrap();
    }

    /// Gives it that size, bytes.
    pub fn cut(&self, size: u64) {
        self.file.set_len(size).unwrap();
    }

    pub fn sectors(&self) -> u64 {
        self.size() / SECTOR
    }

    /// Fills sectors with words that tell which disk they are on, and where.
    pub fn number(&self, disk: u32, start: u64, sectors: u64) {
        for sector in start..start + sectors {
            self.write(sector * SECTOR, &numbered(disk, sector));
        }
    }

    pub fn bytes(&self) -> Vec<u8> {
        let mut bytes = vec![0; usize::try_from(self.size()).unwrap()];
        self.read_at(0, &mut bytes).unwrap();
        bytes
    }
}

/// A sector that [`Disk::number`] has written.
pub fn numbered(disk: u32, sector: u64) -> [u8; 512] {
    let word = u64::from(disk) << 48 | sector;
    let mut bytes = [0; 512];
    bytes.chunks_exact_mut(8).for_each(|chunk| chunk.copy_from_slice(&word.to_le_bytes()));
    bytes
}

/// The volume of that name.
#[track_caller]
pub fn volume(assembly: &mut Assembly, name: &str) -> Volume {
    let mut chosen = assembly.choose(&[name.to_owned()]).unwrap_or_else(|error| panic!("{error}"));
    chosen.remove(0).volume
}

/// Why there is no volume of that name to be served.
#[track_caller]
pub fn refused(assembly: &mut Assembly, name: &str) -> String {
    match assembly.choose(&[name.to_owned()]) {
        Ok(_) => panic!("{name} can be served; there are warnings: {:?}", assembly.warnings()),
        Err(error) => error.to_string(),
    }
}

/// Names of all volumes that `serve` takes when none is named.
pub fn all_names(assembly: &mut Assembly) -> Vec<String> {
    assembly.choose_all().0.into_iter().map(|chosen| chosen.volume.name).collect()
}

/// The only warning in which the text stands.
#[track_caller]
pub fn warning(assembly: &Assembly, text: &str) -> String {
    let all = assembly.warnings();
    let mut found = all.iter().filter(|warning| warning.contains(text));
    match (found.next(), found.next()) {
        (Some(only), None) => only.clone(),
        _ => panic!("{text:?} is not in one of {all:#?}"),
    }
}

/// All bytes of a volume.
pub fn content(assembly: &Assembly, volume: &Volume) -> Vec<u8> {
    let stats = assembly.stats();
    let counters: std::sync::Arc<CounterTable> = stats.worker();
    let (leaves, mut tracer, mut extents) = (assembly.leaves(), Tracer::default(), Vec::new());
    let mut resolver = Resolver::new(&mut extents, &counters, &mut tracer);
    let nr = volume.sectors();
    let span = Span { op: Op::Read, flags: Flags::NONE, sector: Sector(0), nr, at: Sectors::ZERO };
    volume.root.resolve(span, &mut resolver).unwrap();
    let mut bytes = vec![0xee; nr.byte_len()];
    for extent in &extents {
        let at = Sectors(extent.span.at.0).byte_len();
        let piece = &mut bytes[at..at + extent.span.nr.byte_len()];
        match extent.target {
            Target::Leaf(leaf) => {
                leaves[usize::from(leaf.0)].1.read_now(extent.span.sector.bytes(), piece).unwrap();
            }
            Target::Zero => piece.fill(0),
            Target::Error(errno) => panic!("{errno}"),
            Target::Sum(_) | Target::Task(_) => panic!("nothing is missing of what is read here"),
        }
    }
    bytes
}

/// What all members of an array have in common.
#[derive(Clone)]
pub struct Set {
    pub uuid: [u8; 16],
    pub name: &'static str,
    pub level: Level,
    pub layout: u32,
    pub chunk: u32,
    pub disks: u16,
    /// Sectors of each member.
    pub size: u64,
    pub events: u64,
}

/// Where the data of members begins.
pub const DATA: u64 = 64;

impl Set {
    pub fn new(name: &'static str, level: Level, layout: u32, disks: u16) -> Set {
        let chunk = if level == Level::Raid1 { 0 } else { 8 };
        let mut uuid = [0x5a; 16];
        uuid[..name.len().min(16)].copy_from_slice(&name.as_bytes()[..name.len().min(16)]);
        Set { uuid, name, level, layout, chunk, disks, size: 256, events: 10 }
    }

    /// The superblock 1.2 of a member: as a new mirror's, with what this set has instead.
    pub fn superblock(&self, place: u16) -> Superblock {
        let array = NewArray {
            minor: Minor::V1_2,
            shape: Shape::Raid1,
            raid_disks: self.disks,
            bitmap: BitmapChoice::None,
            assume_clean: true,
            size: Some(self.size),
            data_offset: Some(DATA),
            uuid: Uuid(self.uuid),
            name: SetName::new(self.name).unwrap(),
            ctime: Time::new(1_700_000_000, 0),
        };
        let device = |nth| Some(NewDevice { sectors: DATA + self.size, uuid: Uuid([nth; 16]) });
        // Those beyond its places are spares.
        let count = usize::from(self.disks.max(place + 1));
        let devices: Vec<_> = (1..).take(count).map(device).collect();
        let mirror = array.lay_out(&devices).unwrap().swap_remove(place.into()).superblock;
        Superblock {
            level: self.level,
            layout: self.layout,
            chunk_sectors: self.chunk,
            events: self.events,
            ..mirror
        }
    }

    /// Members with numbered data: the number of a disk is its place.
    pub fn members(&self, lab: &Lab) -> Vec<Disk> {
        (0..self.disks).map(|place| self.member(lab, &format!("{}-{place}", self.name), place)).collect()
    }

    pub fn member(&self, lab: &Lab, file: &str, place: u16) -> Disk {
        let disk = lab.disk(&file.replace(':', "-"), DATA + self.size);
        put_superblock(&disk, &self.superblock(place));
        disk.number(place.into(), DATA, self.size);
        disk
    }
}

pub fn put_superblock(disk: &Disk, superblock: &Superblock) {
    disk.write(superblock.super_offset * SECTOR, &superblock.encode_blocks(512));
}

/// Where extents begin on PVs made here, sectors, and how many sectors an extent has.
pub const PE_START: u64 = 256;
pub const EXTENT: u64 = 8;

/// A physical volume with two metadata areas, numbered data, and no metadata yet.
pub fn pv(lab: &Lab, name: &str, nr: u8, extents: u64) -> Disk {
    let disk = lab.disk(name, PE_START + extents * EXTENT + 128);
    make_pv(&disk, nr);
    disk.number(nr.into(), PE_START, extents * EXTENT);
    disk
}

pub fn make_pv(disk: &Disk, nr: u8) {
    let end = disk.size() - (64 << 10);
    let areas = [DiskArea { offset: 4096, size: 120 << 10 }, DiskArea { offset: end, size: 64 << 10 }];
    label(disk, nr, &areas);
}

/// Where extents begin on a PV of [`make_big_pv`], sectors.
pub const BIG_PE_START: u64 = 4096;

/// A physical volume whose one metadata area has room for a long text.
pub fn make_big_pv(disk: &Disk, nr: u8) {
    label(disk, nr, &[DiskArea { offset: 4096, size: BIG_PE_START * SECTOR - 4096 }]);
}

fn label(disk: &Disk, nr: u8, areas: &[DiskArea]) {
    let label = Label {
        sector: 1,
        pv: PvHeader {
            id: pv_id(nr),
            device_bytes: disk.size(),
            data_areas: vec![DiskArea { offset: PE_START * SECTOR, size: 0 }],
            metadata_areas: areas.to_vec(),
            extension: Some(Extension { version: 2, flags: Extension::IN_USE, bootloader_areas: Vec::new() }),
        },
    };
    disk.write(512, &label.encode().unwrap());
    for area in areas {
        disk.write(area.offset, &AreaHeader::new(*area).unwrap().encode());
    }
}

pub fn pv_id(nr: u8) -> PvUuid {
    let mut id = [b'A' + nr % 26; 32];
    id[31] = b'A' + nr / 26;
    PvUuid::from_compact(&id).unwrap()
}

/// Writes a text to both metadata areas.
pub fn commit(disk: &Disk, text: &str) {
    let label = Label::find(disk).unwrap().expect("a label").label;
    for area in label.pv.metadata_areas {
        let mut header = AreaHeader::read(disk, area).unwrap();
        let place = header.place(text.as_bytes()).unwrap();
        for Piece { offset, bytes } in header.pieces(&place, text.as_bytes()).unwrap() {
            disk.write(offset, &bytes);
        }
        header.slots = [place, RawLocation::default()];
        disk.write(area.offset, &header.encode());
    }
}

/// The text of a group: `more` stands in its section, `pvs` are numbers and extents, `lvs` the sections of its volumes.
pub struct Group<'a> {
    pub name: &'a str,
    pub id: char,
    pub seqno: u64,
    pub more: &'a str,
    pub pvs: &'a [(u8, u64)],
    pub lvs: Vec<String>,
}

impl Group<'_> {
    pub fn text(&self) -> String {
        let pe_start = if self.pvs.len() > 100 { BIG_PE_START } else { PE_START };
        let pv = |(nr, extents): &(u8, u64)| {
            format!(
                "pv{nr} {{ id = \"{}\" status = [\"ALLOCATABLE\"] pe_start = {pe_start} pe_count = {extents} }}\n",
                pv_id(*nr)
            )
        };
        let pvs: String = self.pvs.iter().map(pv).collect();
        let id = PvUuid::from_compact(self.id.to_string().repeat(32).as_bytes()).unwrap();
        let status =
            if self.more.contains("status") { "" } else { "status = [\"RESIZEABLE\", \"READ\", \"WRITE\"]" };
        format!(
            "{} {{ id = \"{id}\" seqno = {} format = \"lvm2\" {status} {} extent_size = {EXTENT}\n\
             physical_volumes {{\n{pvs}}}\nlogical_volumes {{\n{}}}\n}}\n\
             contents = \"Text Format Volume Group\"\nversion = 1\n",
            self.name,
            self.seqno,
            self.more,
            self.lvs.concat()
        )
    }
}

/// The section of a logical volume with these segments: type and extents, and what else stands in each.
pub fn lv(name: &str, id: u16, status: &str, segments: &[(&str, u64, &str)]) -> String {
    let mut start = 0;
    let mut text = String::new();
    for (nr, (kind, extents, more)) in (1..).zip(segments) {
        text += &format!(
            "segment{nr} {{ start_extent = {start} extent_count = {extents} type = \"{kind}\" {more} }}\n"
        );
        start += extents;
    }
    let id = PvUuid::from_compact(format!("{id:032}").as_bytes()).unwrap();
    format!("{name} {{ id = \"{id}\" status = [{status}] segment_count = {}\n{text}}}\n", segments.len())
}

/// The status of a volume that is seen, and of one that is not.
pub const SEEN: &str = "\"READ\", \"WRITE\", \"VISIBLE\"";
pub const HIDDEN: &str = "\"READ\", \"WRITE\"";

/// A linear segment on a PV.
pub fn linear(pv: u8, extent: u64) -> String {
    format!("stripe_count = 1 stripes = [\"pv{pv}\", {extent}]")
}
