//! The power goes between any two writes of `md grow`: whoever opens the array next has all of its members, at the old size or
//! the new one, with its data, and knows where mirrors may differ.

mod cuts;
mod lab;

use std::sync::Arc;

use blockwork_engine::{Layer, Sectors, Worker, WorkerConfig};
use blockwork_format::md::create::{BitmapChoice, NewArray, NewDevice, NewMember, Shape};
use blockwork_format::md::v1::{Features, Minor, Superblock};
use blockwork_format::md::{IN_SYNC, Raid10Layout, SetName, Time, Uuid, v1};
use blockwork_format::{SECTOR_BYTES, md};
use blockwork_uring::{Uring, UringConfig};
use blockwork_volume::md::MemberState;
use blockwork_volume::{Assembly, DeviceId, Plan};
use cuts::{Chance, Cut, Event, logged};
use lab::{Disk, Lab, content, numbered, volume};

/// What the array uses of each member before, sectors.
const OLD: u64 = 256;
/// What there is for data.
const ROOM: u64 = 512;
const CHUNK: u64 = 8;

/// An array that grows.
#[derive(Clone, Copy, Debug)]
struct Kind {
    minor: Minor,
    /// A RAID10 of near copies; otherwise a RAID1 of two.
    raid10: bool,
    bitmap: BitmapChoice,
    /// Disks have become larger since the superblocks were written.
    gained: bool,
    assume_clean: bool,
    spares: u16,
}

impl Kind {
    fn disks(self) -> u16 {
        if self.raid10 { 4 } else { 2 }
    }

    /// Where the data starts.
    fn start(self) -> u64 {
        if self.minor == Minor::V1_0 { 0 } else { 64 }
    }

    /// Disks that hold the same.
    fn pair(disk: u32) -> u32 {
        disk / 2
    }

    /// Sectors of the array, with so many of each member.
    fn sectors(self, of_member: u64) -> u64 {
        if self.raid10 { 2 * of_member } else { of_member }
    }

    fn new_members(self) -> Vec<NewMember> {
        let layout = Raid10Layout::from_short_name("n2", 4).unwrap();
        let array = NewArray {
            minor: self.minor,
            shape: if self.raid10 {
                Shape::Raid10 { layout, chunk_sectors: u32::try_from(CHUNK).unwrap() }
            } else {
                Shape::Raid1
            },
            raid_disks: self.disks(),
            bitmap: self.bitmap,
            assume_clean: true,
            size: Some(OLD),
            data_offset: Some(self.start()),
            uuid: Uuid([7; 16]),
            name: SetName::new("host:grown").unwrap(),
            ctime: Time::new(1_700_000_000, 0),
        };
        // Superblock, list and bitmap at the end.
        let behind = if self.minor == Minor::V1_0 { 8 + 8 + 16 } else { 0 };
        let sectors = self.start() + behind + if self.gained { OLD } else { ROOM };
        let device = |nth: u16| Some(NewDevice { sectors, uuid: Uuid([nth as u8 + 1; 16]) });
        array.lay_out(&(0..self.disks() + self.spares).map(device).collect::<Vec<_>>()).unwrap()
    }

    /// Mirrors agree in the old part, and behind it where somebody says so.
    fn make(self, lab: &Lab) -> Vec<Disk> {
        let make = |(nth, member): (u32, NewMember)| {
            let behind = if self.minor == Minor::V1_0 { 8 + 8 + 16 } else { 0 };
            let disk = lab.disk(&format!("disk{nth}"), self.start() + ROOM + behind);
            let own = self.number_behind(nth);
            disk.number(Self::pair(nth), self.start(), OLD);
            disk.number(own, self.start() + OLD, ROOM - OLD);
            for (sector, bytes) in member.before_superblock() {
                disk.write(sector * SECTOR_BYTES, &bytes);
            }
            lab::put_superblock(&disk, &member.superblock);
            disk
        };
        (0..).zip(self.new_members()).map(make).collect()
    }

    /// The number of what a disk holds behind the old part.
    fn number_behind(self, disk: u32) -> u32 {
        100 + if self.assume_clean { Self::pair(disk) } else { disk }
    }

    /// What an array of that size holds: where mirrors differ, what the first of them has.
    fn expected(self, sectors: u64) -> Vec<u8> {
        let sector = |sector: u64| {
            let (chunk, within) = (sector / CHUNK, sector % CHUNK);
            let (first, at) = if self.raid10 {
                (2 * u32::try_from(chunk % 2).unwrap(), chunk / 2 * CHUNK + within)
            } else {
                (0, sector)
            };
            let number = if at < OLD { Self::pair(first) } else { self.number_behind(first) };
            numbered(number, self.start() + at)
        };
        (0..sectors).flat_map(sector).collect()
    }
}

fn open(paths: &[std::path::PathBuf]) -> Assembly {
    let disks = paths.iter().map(|path| path.to_str().unwrap().to_owned()).collect();
    Assembly::open(Plan { disks, ..Plan::default() }).unwrap()
}

fn grow(assembly: &Assembly, assume_clean: bool) -> Vec<Event> {
    let array = assembly.graph().arrays[0].layer.clone().unwrap();
    logged(assembly, move |cx| async move {
        array.grow(&cx, None, assume_clean).await.unwrap();
    })
}

/// Does what is due, as a server does, and puts the array to rest.
fn settle(assembly: &Assembly) {
    let array = assembly.graph().arrays[0].layer.clone().unwrap();
    let config = WorkerConfig::new(Arc::from([]), assembly.leaves(), assembly.stats().worker());
    let mut worker = Worker::new(Uring::new(&UringConfig::default()).unwrap(), config);
    // Nothing begins any more on a worker that is about to end.
    let handle = worker.handle();
    worker.spawn(move |cx| async move {
        array.open(cx.clone()).unwrap().await.unwrap();
        array.wait_sync(&cx).await;
        array.close(cx).unwrap().await.unwrap();
        handle.stop();
    });
    worker.run().unwrap();
}

fn superblock(assembly: &mut Assembly, device: DeviceId) -> Superblock {
    match assembly.examine(device).unwrap().superblock {
        md::Superblock::V1(superblock) => *superblock,
        md::Superblock::V0(_) => unreachable!("these are of version 1"),
    }
}

/// The array as it is found, with all of its members; its size.
fn found(assembly: &mut Assembly, kind: Kind) -> u64 {
    let array = volume(assembly, "md/grown");
    let members = &assembly.graph().arrays[0].members;
    let states: Vec<_> = members.iter().map(|it| it.state.clone()).collect();
    let all: Vec<MemberState> = (0..kind.disks()).map(|place| MemberState::InPlace { place }).collect();
    let all = [all, vec![MemberState::Spare; kind.spares.into()]].concat();
    assert_eq!(states, all, "{:?}", assembly.warnings());
    let sectors = array.sectors().0;
    assert!([OLD, ROOM].map(|of_member| kind.sectors(of_member)).contains(&sectors), "{sectors}");
    let found = content(assembly, &array);
    assert!(found == kind.expected(sectors), "what was written, and one copy of what was not");
    sectors
}

/// Where somebody has to resync, as whoever serves the array knows.
fn resync_from(assembly: &Assembly) -> Option<u64> {
    let array = assembly.graph().arrays[0].layer.as_ref().unwrap();
    array.status().resync_from.map(|from| from.0)
}

/// Whether all superblocks tell of the same size.
fn has_one_size(assembly: &mut Assembly) -> bool {
    let devices: Vec<_> = assembly.graph().arrays[0].members.iter().map(|it| it.device).collect();
    let sizes: Vec<u64> = devices.iter().map(|it| superblock(assembly, *it).size).collect();
    sizes.iter().all(|size| *size == sizes[0])
}

/// Superblocks and bitmaps say the same on all members, and all members hold the same.
fn agree(paths: &[std::path::PathBuf], kind: Kind, sectors: u64) {
    let mut assembly = open(paths);
    assert_eq!(found(&mut assembly, kind), sectors);
    let of_member = if kind.raid10 { sectors / 2 } else { sectors };
    let devices: Vec<_> = assembly.graph().arrays[0].members.iter().map(|it| it.device).collect();
    let superblocks: Vec<_> = devices.iter().map(|it| superblock(&mut assembly, *it)).collect();
    let words = |it: &v1::Superblock| (it.events, it.size, it.resync_offset, it.features);
    let first = &superblocks[0];
    // Where nothing was due, nothing was written: superblocks stay uneven until the first write. So it is
    // where nobody but a spare has heard of the growth.
    let (of_slots, of_spares) = superblocks.split_at(kind.disks().into());
    let differs = |some: &[Superblock]| some.iter().any(|it| it.events != first.events);
    let is_idle = (kind.assume_clean && differs(of_slots)) || (!differs(of_slots) && differs(of_spares));
    assert!(is_idle || superblocks.iter().all(|it| words(it) == words(first)), "{superblocks:#?}");
    assert!(is_idle || (first.size, first.resync_offset) == (of_member, IN_SYNC), "{first:#?}");
    for device in devices.into_iter().filter(|_| !is_idle) {
        let bitmap = assembly.examine(device).unwrap().bitmap;
        assert_eq!(bitmap.is_some(), first.features.has(Features::BITMAP));
        if let Some(bitmap) = bitmap {
            let (bitmap, bits) = bitmap.unwrap();
            assert_eq!((bitmap.sync_size, bits.dirty_chunks()), (sectors, 0));
        }
    }
    let data = |path| {
        let at = Sectors(kind.start()).byte_len();
        std::fs::read(path).unwrap()[at..][..Sectors(of_member).byte_len()].to_vec()
    };
    let data: Vec<_> = paths[..kind.disks().into()].iter().map(data).collect();
    assert!(data.chunks(2).all(|pair| pair[0] == pair[1]), "mirrors differ, and nobody knows");
}

/// The same events, where those of one round (the same sectors of each disk) happen the other way round.
fn reversed(events: &[Event]) -> Vec<Event> {
    let place = |event: &Event| match event {
        Event::Write { offset, .. } => Some(*offset),
        Event::Flush { .. } => None,
    };
    let rounds = events.chunk_by(|one, other| place(one) == place(other));
    rounds.flat_map(|round| round.iter().rev().cloned()).collect()
}

fn cut_everywhere(kind: Kind) {
    let lab = Lab::new();
    let disks = kind.make(&lab);
    let before: Vec<_> = disks.iter().map(Disk::bytes).collect();
    let paths: Vec<_> = disks.iter().map(|disk| disk.path.clone()).collect();
    let mut assembly = open(&paths);
    assert_eq!(found(&mut assembly, kind), kind.sectors(OLD));
    let events = grow(&assembly, kind.assume_clean);
    drop(assembly);
    let (mut chance, mut sizes) = (Chance::default(), [0, 0]);
    for events in [reversed(&events), events] {
        for count in 0..=events.len() {
            let cut = Cut::at(&before, &events, count, &mut || chance.bit());
            let mut assembly = open(&cut.paths);
            let sectors = found(&mut assembly, kind);
            let is_large = sectors > kind.sectors(OLD);
            sizes[usize::from(is_large)] += 1;
            let from = resync_from(&assembly);
            // Who says that the new part agrees says so of members that know of it.
            let agrees = kind.assume_clean && has_one_size(&mut assembly);
            let is_known = agrees || from.is_some_and(|from| from <= kind.sectors(OLD));
            assert!(!is_large || is_known, "{from:?} of {sectors}");
            settle(&assembly);
            drop(assembly);
            agree(&cut.paths, kind, sectors);
            if !is_large {
                let assembly = open(&cut.paths);
                grow(&assembly, kind.assume_clean);
                settle(&assembly);
                drop(assembly);
                agree(&cut.paths, kind, kind.sectors(ROOM));
            }
        }
    }
    let [small, large] = sizes;
    assert!(small > 2 && large > 2 * usize::from(kind.disks()), "{small} small, {large} large: {kind:?}");
}

const MIRROR: Kind = Kind {
    minor: Minor::V1_2,
    raid10: false,
    bitmap: BitmapChoice::Internal,
    gained: false,
    assume_clean: false,
    spares: 0,
};

#[test]
fn a_mirror_that_was_growing_is_whole() {
    cut_everywhere(MIRROR);
    cut_everywhere(Kind { bitmap: BitmapChoice::None, ..MIRROR });
    cut_everywhere(Kind { assume_clean: true, ..MIRROR });
}

#[test]
fn a_striped_mirror_that_was_growing_is_whole() {
    let striped = Kind { raid10: true, ..MIRROR };
    cut_everywhere(striped);
    cut_everywhere(Kind { bitmap: BitmapChoice::None, spares: 1, ..striped });
}

#[test]
fn so_is_one_whose_disks_have_become_larger_and_one_with_superblocks_at_the_end() {
    cut_everywhere(Kind { gained: true, raid10: true, ..MIRROR });
    cut_everywhere(Kind { minor: Minor::V1_0, ..MIRROR });
    cut_everywhere(Kind { minor: Minor::V1_0, raid10: true, ..MIRROR });
}
