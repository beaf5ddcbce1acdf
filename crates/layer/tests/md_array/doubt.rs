//! Arrays with a parity that lack a member, and of which another one refuses a write: what is lost is that write's, to the block.

use blockwork_engine::{Errno, FileId, Sectors};
use blockwork_format::md::IN_SYNC;
use blockwork_layer::md::MemberState;
use blockwork_sim::{Fault, Faults};

use crate::dying::{CHUNK, NR, REFUSES_WRITES, ROW, SKIP, blocks, check, data_of, fill, list, listed};
use crate::rig::{Make, Rig, examine};

/// Members that are missing: none of them can be computed if one more is.
fn missing(make: &Make) -> Vec<u16> {
    let layout = make.parity_layout();
    (0..make.members - layout.data_disks()).map(|nth| layout.member(ROW, nth + 1)).collect()
}

fn makes() -> Vec<Make> {
    let makes = [Make::raid5(3), Make::raid5(5), Make::raid6(6)];
    let bitmaps = [None, Some(4096), Some(65536)];
    let make = |make: Make| bitmaps.map(|bitmap| Make { bitmap, ..make.clone().with_bad_blocks() });
    makes.into_iter().flat_map(make).collect()
}

/// An array without redundancy, of which the first members of its row is there.
struct Case {
    rig: Rig,
    missing: Vec<u16>,
    /// Has data in the row.
    there: u16,
    /// Of the array: what the first of the missing ones, and who is there, have of the row, at some blocks.
    of_missing: u64,
    of_there: u64,
}

fn case(make: Make) -> Case {
    let missing = missing(&make);
    let there = make.parity_layout().member(ROW, 0);
    let [of_missing, of_there] =
        [missing[0], there].map(|member| data_of(&make, ROW, member).unwrap() + SKIP);
    let (world, make) = listed(make.with_blank(2), &[]).close();
    // The row has its bit from here on; what was written is not remembered.
    let mut rig = Rig::on(world, make, &missing, true);
    blocks(of_there, NR).into_iter().for_each(|at| rig.write(at, 4, fill(at)).unwrap());
    let (world, make) = rig.close();
    let mut rig = Rig::on(world, make, &missing, true);
    // It is active.
    rig.write(0, 4, fill(0)).unwrap();
    Case { rig, missing, there, of_missing, of_there }
}

impl Case {
    fn lost(&self) -> Vec<u64> {
        let each = |member: &u16| blocks(data_of(&self.rig.make, ROW, *member).unwrap() + SKIP, NR);
        self.missing.iter().flat_map(each).collect()
    }

    /// A write is refused by a member, as its request after so many.
    fn refuses(&mut self, device: u16, after: u64, at: u64, errno: Errno) {
        let so_far = self.rig.world.counters(FileId(device.into())).requests();
        self.rig.world.fail_nth(FileId(device.into()), so_far + after, Fault::Error(errno));
        assert_eq!(self.rig.write(at, NR, 0xa1), Err(errno));
        assert_eq!(self.rig.world.faults(), 1);
        let states = self.rig.states();
        assert_eq!(states[usize::from(device)], MemberState::InSync, "the array cannot go without it");
    }

    fn serve_anew(self) -> Case {
        let Case { rig, missing, there, of_missing, of_there } = self;
        let (world, make) = rig.close();
        for device in (0..make.members).filter(|device| !missing.contains(device)) {
            assert_eq!(examine(&world, device, make.device_sectors()).superblock.resync_offset, IN_SYNC);
        }
        let rig = Rig::on(world, make, &missing, true);
        Case { rig, missing, there, of_missing, of_there }
    }

    /// Spares are filled, of which each lists what is lost of its data; gives the array as it is served then.
    fn add_all(&mut self) {
        let first = self.rig.make.members;
        for nth in 0..self.missing.len() as u16 {
            self.rig.add(first + nth).unwrap();
        }
        self.rig.wait_sync();
        assert!(self.rig.states().iter().all(|state| *state == MemberState::InSync));
        for nth in 0..self.missing.len() as u16 {
            let listed = list(&self.rig.world, &self.rig.make, first + nth);
            assert_eq!(listed, [(ROW * CHUNK + SKIP, NR)]);
        }
    }
}

/// All but what is lost is read at once, after a stop, when members were added, and after another stop; what is written anew can be computed.
fn only_that_is_lost(mut case: Case, mut written: Vec<(u64, u8)>) {
    let lost = case.lost();
    check(&mut case.rig, &lost, &written);
    let mut case = case.serve_anew();
    check(&mut case.rig, &lost, &written);
    case.add_all();
    check(&mut case.rig, &lost, &written);
    // Who is there is written beside what is lost.
    case.rig.write(case.of_there, 4, 0xb0).unwrap();
    written.retain(|(at, _)| *at != case.of_there);
    written.push((case.of_there, 0xb0));
    check(&mut case.rig, &lost, &written);
    let (world, make) = case.rig.close();
    let mut rig = Rig::on(world, make, &[], true);
    check(&mut rig, &lost, &written);
    // One after the other: the last one has what the others lack to compute it.
    for member in &case.missing {
        let at = data_of(&rig.make, ROW, *member).unwrap() + SKIP;
        rig.write(at, NR, 0xb1).unwrap();
        written.extend(blocks(at, NR).into_iter().map(|at| (at, 0xb1)));
    }
    check(&mut rig, &[], &written);
    rig.flush().unwrap();
    for device in 0..rig.make.members + case.missing.len() as u16 {
        assert!(case.missing.contains(&device) || list(&rig.world, &rig.make, device).is_empty(), "{device}");
    }
    let name = ["d0", "d1", "d2", "d3", "d4", "d5"][usize::from(case.there)];
    rig.fail(name).unwrap();
    check(&mut rig, &[], &written);
}

#[test]
fn where_a_parity_is_refused_only_its_blocks_cannot_be_computed() {
    for make in makes().into_iter().filter(|make| make.parity_layout().parity(0).1.is_none()) {
        for errno in [Errno::EIO, Errno::ENOSPC] {
            let mut case = case(make.clone());
            let parity = make.parity_layout().parity(ROW).0;
            let at = case.of_missing;
            case.refuses(parity, 0, at, errno);
            only_that_is_lost(case, Vec::new());
        }
    }
}

#[test]
fn where_data_are_refused_only_their_blocks_cannot_be_computed() {
    for make in makes() {
        for errno in [Errno::EIO, Errno::ENOSPC] {
            let mut case = case(make.clone());
            let (there, at) = (case.there, case.of_there);
            // Its old data are read before.
            case.refuses(there, 1, at, errno);
            assert!(case.rig.read(at, NR).is_ok(), "it is there");
            // It takes it now, although nothing can be computed by it.
            case.rig.write(at, NR, 0xa2).unwrap();
            let written = blocks(at, NR).into_iter().map(|at| (at, 0xa2)).collect();
            only_that_is_lost(case, written);
        }
    }
}

#[test]
fn a_row_that_is_written_as_a_whole_can_be_computed_again() {
    for make in makes() {
        let mut case = case(make.clone());
        let (there, at) = (case.there, case.of_there);
        case.refuses(there, 1, at, Errno::EIO);
        let nr = u64::from(make.parity_layout().data_disks()) * CHUNK;
        // More than what is in doubt, in one unit with it.
        case.rig.write(ROW * nr, nr, 0xa3).unwrap();
        let written: Vec<_> = blocks(ROW * nr, nr).into_iter().map(|at| (at, 0xa3)).collect();
        check(&mut case.rig, &[], &written);
        let mut case = case.serve_anew();
        check(&mut case.rig, &[], &written);
    }
}

#[test]
fn what_is_beside_what_is_in_doubt_keeps_its_parity() {
    for make in makes() {
        let mut case = case(make.clone());
        let (there, at) = (case.there, case.of_there);
        case.refuses(there, 1, at, Errno::EIO);
        // A chunk as a whole: its parity fits but for those blocks, and has to follow.
        case.rig.write(at - SKIP, CHUNK, 0xa4).unwrap();
        let written = blocks(at - SKIP, CHUNK).into_iter().map(|at| (at, 0xa4)).collect();
        only_that_is_lost(case, written);
    }
}

#[test]
fn where_no_list_takes_it_the_array_does_not_count_as_clean() {
    let mut case = case(Make::raid5(4).with_bad_blocks());
    let parity = case.rig.make.parity_layout().parity(ROW).0;
    let faults = |rig: &Rig, faults: Faults| rig.world.set_faults(FileId(parity.into()), faults);
    faults(&case.rig, REFUSES_WRITES);
    assert_eq!(case.rig.write(case.of_missing, NR, 0xa1), Err(Errno::EIO));
    case.rig.rest(blockwork_engine::Nanos::millis(100));
    faults(&case.rig, Faults::NONE);
    let read = |rig: &mut Rig, at| rig.read(at, NR);
    assert_eq!(read(&mut case.rig, case.of_missing), Err(Errno::EIO));
    assert_eq!(read(&mut case.rig, case.of_there).map(|it| it.len()), Ok(Sectors(NR).byte_len()));
    let (world, make) = case.rig.close();
    let found = examine(&world, case.there, make.device_sectors()).superblock;
    assert_eq!(found.resync_offset, ROW * CHUNK + SKIP);
}
