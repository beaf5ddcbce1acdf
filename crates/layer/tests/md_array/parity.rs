//! Writes to rows with a parity: how much is read for them, and that what is remembered of rows is never what they do not have.

use blockwork_engine::{Bio, Errno, FileId, Flags, Nanos, Op, Sector, Sectors};
use blockwork_layer::md::SyncAction;
use blockwork_sim::{Fault, Latencies, Latency};

use crate::rig::{DATA_START, Make, Rig};

/// Sectors that all members have been told to read, and to write.
fn moved(rig: &Rig) -> (u64, u64) {
    let of = |device: u16| rig.world.counters(FileId(device.into()));
    let sum = |bytes: &dyn Fn(u16) -> u64| (0..rig.make.members).map(bytes).sum::<u64>() / 512;
    (sum(&|device| of(device).read_bytes), sum(&|device| of(device).written_bytes))
}

/// An array whose superblocks say that it is written.
fn active(make: Make) -> Rig {
    let latency = Latency::Fixed(Nanos::micros(80));
    let mut rig = Rig::of(make.of_sectors(4096), |device| {
        device.latency =
            Latencies { read: latency.clone(), write: latency.clone(), ..device.latency.clone() };
        device.cache_bytes = 8 << 20;
    });
    let last = rig.make.geometry().sectors().0 - 1;
    rig.write(last, 1, 1).unwrap();
    rig
}

/// Each parity fits.
fn check(rig: &mut Rig) {
    rig.start_sync(SyncAction::Check).unwrap();
    assert_eq!(rig.wait_sync().mismatches, Sectors::ZERO);
}

/// What `count` writes of `nr` sectors in order, `depth` at a time, have the members read and write, sectors.
fn in_order(make: Make, count: u64, nr: u64, depth: usize) -> (u64, u64) {
    let mut rig = active(make);
    let before = moved(&rig);
    let fill = |at: u64| at as u8 | 1;
    let mut left = 0..count;
    let mut send = |rig: &mut Rig, count: usize| {
        for at in left.by_ref().take(count) {
            rig.submit(rig.write_bio(at * nr, nr, fill(at), Flags::NONE));
        }
    };
    send(&mut rig, depth);
    for _ in 0..count {
        rig.finish().result.unwrap();
        send(&mut rig, 1);
    }
    let after = moved(&rig);
    for at in 0..count {
        assert_eq!(rig.read(at * nr, nr), Ok(vec![fill(at); Sectors(nr).byte_len()]));
    }
    check(&mut rig);
    (after.0 - before.0, after.1 - before.1)
}

#[test]
fn one_write_after_the_other_reads_what_is_not_written_once_for_a_row() {
    // 40 rows: of 3 members' data, two are read when the first is written; of 4, three.
    assert_eq!(in_order(Make::raid5(4), 40 * 6, 8, 1), (40 * 2 * 16, 40 * 3 * 2 * 16));
    assert_eq!(in_order(Make::raid6(6), 40 * 8, 8, 1), (40 * 3 * 16, 40 * 4 * 3 * 16));
    // Where the others are many: what is written over, and the parity once.
    assert_eq!(in_order(Make::raid5(9), 40 * 16, 8, 1).1, 40 * 8 * 2 * 16);
    assert!(in_order(Make::raid5(9), 40 * 16, 8, 1).0 <= 40 * 9 * 16);
    // Parts of blocks, too.
    assert_eq!(in_order(Make::raid5(4), 40 * 48, 1, 1).1, 40 * 3 * 2 * 16);
}

#[test]
fn a_stream_with_more_than_a_row_in_flight_writes_rows_as_a_whole() {
    // Chunk by chunk, 16 at a time, of rows of 3; the first of all is not yet part of a stream.
    let (read, written) = in_order(Make::raid5(4), 40 * 3, 16, 16);
    assert!(read <= 2 * 2 * 16 && written <= (40 + 2) * 4 * 16, "{read} {written}");
    let (read, written) = in_order(Make::raid5(4), 40 * 3, 16, 4);
    assert!(read <= 3 * 2 * 16 && written <= (40 + 3) * 4 * 16, "{read} {written}");
    let (read, written) = in_order(Make::raid6(6), 20 * 4, 16, 8);
    assert!(read <= 3 * 3 * 16 && written <= (20 + 3) * 6 * 16, "{read} {written}");
    // One and a half chunks.
    let (read, written) = in_order(Make::raid5(4), 40 * 2, 24, 8);
    assert!(read <= 6 * 2 * 16 && written <= (40 + 6) * 4 * 16, "{read} {written}");
}

#[test]
fn a_client_whose_writes_are_all_answered_before_it_sends_more_has_a_moment_for_each() {
    let mut rig = active(Make::raid6(6));
    let before = moved(&rig);
    // Half a row at a time.
    let mut sectors = (0..40 * 32).step_by(32);
    for _ in 0..10 {
        for at in sectors.by_ref().take(4) {
            rig.submit(rig.write_bio(at, 32, 1, Flags::NONE));
            rig.rest(Nanos::micros(40));
        }
        (0..4).for_each(|_| rig.finish().result.unwrap());
    }
    let (read, written) = (moved(&rig).0 - before.0, moved(&rig).1 - before.1);
    assert!(read <= 2 * 2 * 16 && written <= (20 + 2) * 6 * 16, "{read} {written}");
    // Which does not come is not waited for all the time.
    let begun = rig.world.now();
    for at in sectors {
        rig.run(rig.write_bio(at, 32, 1, Flags::NONE)).0.unwrap();
    }
    for at in (0..100 * 32).step_by(32) {
        rig.run(rig.write_bio(at, 32, 1, Flags::NONE)).0.unwrap();
    }
    assert!(rig.world.now().since(begun) < Nanos::micros(100 * (80 + 80) + 8 * 208));
    check(&mut rig);
}

#[test]
fn what_is_written_again_and_again_is_read_once() {
    let mut rig = active(Make::raid5(6));
    let before = moved(&rig);
    for fill in 2..102 {
        rig.write(8 * (u64::from(fill) % 5), 8, fill).unwrap();
    }
    let (read, written) = moved(&rig);
    assert_eq!(
        (read - before.0, written - before.1),
        (7 * 8, 100 * 2 * 8),
        "five of data, which have two of parity"
    );
    check(&mut rig);
}

#[test]
fn what_is_not_there_any_more_is_not_remembered() {
    let mut rig = active(Make::raid5(6));
    let row = 5 * 16;
    // Zeros.
    rig.write(row + 16, 8, 6).unwrap();
    rig.write(row, 8, 7).unwrap();
    let zeroes = |sector, nr| Bio::without_data(Op::WriteZeroes, Flags::NONE, Sector(sector), Sectors(nr));
    rig.run(zeroes(0, 10 * row)).0.unwrap();
    rig.write(row, 8, 8).unwrap();
    check(&mut rig);
    // A row as a whole, in pieces that have other borders than what is known.
    rig.write(row + 4, 8, 9).unwrap();
    rig.write(row, row, 10).unwrap();
    rig.write(row, 16, 11).unwrap();
    check(&mut rig);
}

/// An array with a parity of a row that does not fit in its first sector, though nobody knows it, and has been written since.
fn with_a_parity_that_does_not_fit(row: u64) -> Rig {
    let mut rig = active(Make::raid5(6));
    let (member, _) = rig.make.parity_layout().parity(row);
    rig.world.preload(FileId(member.into()), DATA_START + row * 16, &[0x55; 512]);
    rig.write(row * 5 * 16, 8, 12).unwrap();
    rig
}

#[test]
fn what_a_repair_has_written_is_not_remembered_otherwise() {
    let mut rig = with_a_parity_that_does_not_fit(2);
    rig.start_sync(SyncAction::Repair).unwrap();
    assert_eq!(rig.wait_sync().mismatches, Sectors(8));
    rig.write(2 * 5 * 16, 8, 13).unwrap();
    check(&mut rig);
}

#[test]
fn what_was_mended_is_not_remembered_otherwise() {
    let mut rig = with_a_parity_that_does_not_fit(2);
    rig.flush().unwrap();
    let device = FileId(rig.make.parity_layout().member(2, 0).into());
    let so_far = rig.world.counters(device).requests();
    rig.world.fail_nth(device, so_far, Fault::Latent);
    // The parity was to be trusted, as far as anybody knew.
    let read = rig.read(2 * 5 * 16, 8).unwrap();
    assert_eq!(([read[0], read[511]], [read[512], read[4095]]), ([12 ^ 0x55; 2], [12; 2]));
    rig.rest(Nanos::millis(100));
    assert_eq!(rig.read(2 * 5 * 16, 8), Ok(read));
    assert_eq!(rig.world.faults(), 1);
    rig.write(2 * 5 * 16, 8, 13).unwrap();
    check(&mut rig);
}

#[test]
fn nothing_is_remembered_of_a_write_that_failed() {
    let mut rig = active(Make::raid5(6));
    for fill in [3, 4] {
        rig.write(0, 8, fill).unwrap();
    }
    // No room: of data and parity one is written, and the other is not.
    let layout = rig.make.parity_layout();
    for member in [layout.member(0, 0), layout.parity(0).0] {
        let device = FileId(member.into());
        let so_far = rig.world.counters(device).requests();
        rig.world.fail_nth(device, so_far, Fault::Error(Errno::ENOSPC));
        assert_eq!(rig.write(0, 8, 5), Err(Errno::ENOSPC));
        rig.write(0, 8, 6).unwrap();
        rig.wait_sync();
        assert_eq!(rig.read(0, 8), Ok(vec![6; 4096]));
        check(&mut rig);
        rig.write(0, 8, 7).unwrap();
        check(&mut rig);
    }
}
