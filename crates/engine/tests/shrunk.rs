//! A device that becomes smaller while it is served: what is behind its end fails, and nothing is written there that would hide the loss.

mod rig;

use blockwork_engine::*;
use rig::{Rig, limits};

/// Where it ends now.
const END: u64 = 1024;

fn shrunk(told: bool) -> Rig {
    let rig = Rig::new(limits());
    rig.hold();
    let mut device = rig.device.lock().unwrap();
    device.shrunk_to = Some((END * 512) as usize);
    device.tells_size = told;
    drop(device);
    rig
}

/// How these end.
fn ends(rig: &mut Rig, bios: impl IntoIterator<Item = Bio>) -> Vec<Result<(), Errno>> {
    rig.client.borrow_mut().done.clear();
    rig.batch(bios);
    rig.complete_all();
    let mut results = rig.results();
    results.sort_by_key(|(cookie, _)| *cookie);
    results.into_iter().map(|(_, result)| result).collect()
}

fn all_that_alters(rig: &Rig, sector: u64) -> [Bio; 3] {
    let without = |op| Bio::without_data(op, Flags::NONE, Sector(sector), Sectors(8));
    [rig.write(sector, 8, 1), without(Op::WriteZeroes), without(Op::Discard)]
}

#[test]
fn when_a_read_has_come_to_the_end_nothing_is_written_behind_it() {
    for told in [true, false] {
        let mut rig = shrunk(told);
        let read = rig.read(END + 8, 8);
        assert_eq!(ends(&mut rig, [read]), [Err(Errno::EIO)]);
        rig.clear_seen();
        for behind in [END + 8, rig::SECTORS - 8] {
            let bios = all_that_alters(&rig, behind);
            assert_eq!(ends(&mut rig, bios), [Err(Errno::EIO); 3]);
        }
        assert!(rig.seen().is_empty(), "{:?}", rig.seen());
        // Across the end, where that is known.
        let across = rig.write(END - 4, 8, 1);
        assert_eq!(ends(&mut rig, [across]), [if told { Err(Errno::EIO) } else { Ok(()) }]);
        // What is left is as good as before.
        let bios = all_that_alters(&rig, END - 8).into_iter().chain([rig.read(END - 8, 8), Bio::flush()]);
        assert_eq!(ends(&mut rig, bios.collect::<Vec<_>>()), [Ok(()); 5]);
    }
}

#[test]
fn a_flush_sees_that_it_has_become_smaller() {
    let mut rig = shrunk(true);
    assert_eq!(ends(&mut rig, [Bio::flush()]), [Ok(())]);
    let bios = all_that_alters(&rig, END);
    assert_eq!(ends(&mut rig, bios), [Err(Errno::EIO); 3]);
    assert_eq!(rig.shared.end(), Sector(END));
}

#[test]
fn a_read_that_brings_nothing_is_no_proof_where_the_size_is_as_it_was() {
    let mut rig = Rig::new(limits());
    rig.hold();
    rig.device.lock().unwrap().tells_size = true;
    let read = rig.read(END, 8);
    rig.batch([read]);
    let held = rig.next_held();
    rig.complete_with(held, 0);
    let bios = all_that_alters(&rig, END);
    assert_eq!(ends(&mut rig, bios), [Ok(()); 3]);
}
