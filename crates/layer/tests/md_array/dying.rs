//! Arrays with a parity of which a member lists something as bad, and another one dies, which makes up for that.

use std::collections::BTreeSet;

use blockwork_engine::{Errno, FileId, Nanos, Sectors};
use blockwork_format::md::bad_blocks;
use blockwork_format::md::v1::{Features, Region, Superblock};
use blockwork_layer::md::MemberState;
use blockwork_sim::{Faults, World};

use crate::rig::{BAD_BLOCKS, DATA_START, Make, Rig, SUPERBLOCK, examine};

/// The row of which something is listed, and where that is in its chunk, on whoever lists it.
pub const ROW: u64 = 2;
pub const SKIP: u64 = 8;
pub const NR: u64 = 8;
/// Another row.
pub const BESIDE: u64 = 6;
pub const CHUNK: u64 = 16;

/// What is at a sector of the array from the start.
pub fn fill(sector: u64) -> u8 {
    (sector / 4 % 250) as u8 + 1
}

/// Where the data of a member are in a row, if it has data there.
pub fn data_of(make: &Make, row: u64, member: u16) -> Option<u64> {
    let layout = make.parity_layout();
    let nth = (0..layout.data_disks()).find(|nth| layout.member(row, *nth) == member)?;
    Some((row * u64::from(layout.data_disks()) + u64::from(nth)) * CHUNK)
}

/// An array of which some members list these sectors of theirs.
pub fn listed(make: Make, lists: &[(u16, u64, u64)]) -> Rig {
    listed_but(make, lists, None)
}

/// Likewise, and one has no list.
pub fn listed_but(make: Make, lists: &[(u16, u64, u64)], no_list: Option<u16>) -> Rig {
    let mut rig = Rig::new(make);
    for at in (0..sectors(&rig.make)).step_by(4) {
        rig.write(at, 4, fill(at)).unwrap();
    }
    let (world, make) = rig.close();
    for device in lists.iter().map(|(device, ..)| *device).collect::<BTreeSet<_>>() {
        let own = lists.iter().filter(|(other, ..)| *other == device);
        let list: Vec<_> =
            own.map(|(_, start, nr)| Region { start: DATA_START + start, sectors: *nr }).collect();
        let mut superblock = examine(&world, device, make.device_sectors()).superblock;
        superblock.features = superblock.features.with(Features::BAD_BLOCKS, true);
        world.preload(FileId(device.into()), SUPERBLOCK, &superblock.encode());
        world.preload(FileId(device.into()), BAD_BLOCKS, &bad_blocks::encode(&list, 0, 8).unwrap());
        for region in list {
            let garbage = vec![0xee; Sectors(region.sectors).byte_len()];
            world.preload(FileId(device.into()), region.start, &garbage);
        }
    }
    if let Some(device) = no_list {
        let superblock = examine(&world, device, make.device_sectors()).superblock;
        let superblock = Superblock { bblog_sectors: 0, bblog_offset: 0, ..superblock };
        world.preload(FileId(device.into()), SUPERBLOCK, &superblock.encode());
    }
    Rig::on(world, make, &[], true)
}

pub fn sectors(make: &Make) -> u64 {
    make.geometry().sectors().0
}

/// An array whose member with the first data of a row lists some of that, and the member with the second.
pub struct Case {
    pub rig: Rig,
    pub lister: u16,
    pub dying: u16,
    /// What is listed, of the array.
    pub bad: u64,
}

pub fn case(make: Make) -> Case {
    let [lister, dying] = [0, 1].map(|nth| make.parity_layout().member(ROW, nth));
    case_of(make, &[lister], dying)
}

pub fn case_of(make: Make, listers: &[u16], dying: u16) -> Case {
    let lists: Vec<_> = listers.iter().map(|lister| (*lister, ROW * CHUNK + SKIP, NR)).collect();
    let bad = data_of(&make, ROW, listers[0]).unwrap() + SKIP;
    let rig = listed(make, &lists);
    Case { rig, lister: listers[0], dying, bad }
}

pub const REFUSES_WRITES: Faults = Faults { write_errors: 1_000_000, ..Faults::NONE };
pub const REFUSES_ALL: Faults =
    Faults { read_errors: 1_000_000, flush_errors: 1_000_000, discard_errors: 1_000_000, ..REFUSES_WRITES };
pub const STALLS: Faults = Faults { stalls: 1_000_000, stall_time: Nanos::millis(20), ..Faults::NONE };

impl Case {
    pub fn faults(&self, device: u16, faults: Faults) {
        self.rig.world.set_faults(FileId(device.into()), faults);
    }

    /// A part of a write, in another row, of who dies.
    pub fn part(&self, row: u64) -> u64 {
        data_of(&self.rig.make, row, self.dying).expect("it has data there")
    }

    /// One in a row other than that.
    pub fn part_beside(&self) -> u64 {
        (BESIDE..).find_map(|row| data_of(&self.rig.make, row, self.dying)).expect("it has data somewhere")
    }

    pub fn dies(&self) -> bool {
        self.rig.states()[usize::from(self.dying)] == MemberState::Faulty
    }

    /// Reads all, but for what was written since: what is lost fails, and nothing else does.
    pub fn check(&mut self, lost: &[u64], written: &[(u64, u8)]) {
        check(&mut self.rig, lost, written);
    }

    /// As it is when it is assembled anew, after the power was cut and after its end.
    pub fn check_anew(mut self, lost: &[u64], written: &[(u64, u8)]) {
        self.rig.flush().unwrap();
        // Where it was being written, nobody knows whether parities fit.
        self.rig.rest(Nanos::secs(20));
        let mut cut = Rig::on(self.rig.world.power_cut(), self.rig.make.clone(), &[], true);
        check(&mut cut, lost, written);
        let (world, make) = cut.close();
        check(&mut Rig::on(world, make, &[], true), lost, written);
    }
}

/// Blocks of four sectors that begin at those are lost or have been written.
pub fn check(rig: &mut Rig, lost: &[u64], written: &[(u64, u8)]) {
    for at in (0..sectors(&rig.make)).step_by(4) {
        let new = written.iter().find(|(start, _)| *start == at).map(|(_, fill)| *fill);
        let expected = match lost.contains(&at) {
            true => Err(Errno::EIO),
            false => Ok(vec![new.unwrap_or(fill(at)); 4 * 512]),
        };
        let read = rig.read(at, 4);
        assert!(
            read == expected,
            "{at}: {:?}, expected {:?}",
            read.map(|it| it[0]),
            expected.map(|it| it[0])
        );
    }
}

/// The list of a device as it is on disk.
pub fn list(world: &World, make: &Make, device: u16) -> Vec<(u64, u64)> {
    let found = examine(world, device, make.device_sectors());
    found.bad.iter().map(|(start, nr)| (start.0, nr.0)).collect()
}

pub fn makes() -> Vec<Make> {
    let raid5 = Make::raid5(4).with_bad_blocks();
    Vec::from([raid5.clone(), Make { bitmap: Some(4096), ..raid5 }])
}

/// Four sectors each, from there on.
pub fn blocks(from: u64, nr: u64) -> Vec<u64> {
    (from..from + nr).step_by(4).collect()
}
