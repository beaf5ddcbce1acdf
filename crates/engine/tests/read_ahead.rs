//! What is read ahead where a stack cuts a volume into pieces: as far as a piece goes, and the next one before the reader is there.

mod rig;

use std::sync::Arc;

use blockwork_engine::*;
use rig::{Rig, SECTORS, limits};

/// Slots of what is read ahead, sectors.
const WINDOW: u64 = 512;

/// A volume of half the leaf: every other run of it lies in the leaf's second half, one behind the other, as in a store.
#[derive(Debug)]
struct Alternating {
    leaf: Arc<dyn Layer>,
    run: u64,
    shape: Shape,
}

impl Alternating {
    fn over(leaf: Arc<dyn Layer>, run: u64) -> Arc<dyn Layer> {
        let limits = leaf.limits().clone();
        let shape = Shape { node: NodeId(1), sectors: Sectors(SECTORS / 2), limits };
        Arc::new(Alternating { leaf, run, shape })
    }
}

/// Where a sector of it lies.
fn place(sector: u64, run: u64) -> u64 {
    let (nth, within) = (sector / run, sector % run);
    if nth.is_multiple_of(2) { sector } else { SECTORS / 2 + nth / 2 * run + within }
}

impl Layer for Alternating {
    fn shape(&self) -> &Shape {
        &self.shape
    }
    fn resolve(&self, span: Span, cx: &mut Resolver<'_>) -> Result<(), Defer> {
        let mut rest = span;
        while rest.nr > Sectors::ZERO {
            let nr = rest.nr.min(Sectors(self.run - rest.sector.0 % self.run));
            let piece = rest.piece(Sectors::ZERO, nr).moved_to(Sector(place(rest.sector.0, self.run)));
            cx.pass(NodeId(1), rest.sector, &*self.leaf, piece)?;
            rest = rest.piece(nr, rest.nr - nr);
        }
        Ok(())
    }
    fn below(&self) -> Vec<Arc<dyn Layer>> {
        vec![self.leaf.clone()]
    }
}

fn rig(run: u64) -> Rig {
    let mut ahead = limits();
    ahead.read_ahead = Sectors(WINDOW);
    let rig = Rig::with_stack(ahead, |leaf| Alternating::over(leaf, run));
    let content = (0..SECTORS).flat_map(|sector| [(sector % 251) as u8; 512]).collect();
    rig.device.lock().unwrap().bytes = content;
    rig
}

/// Reads the whole volume, 4 KiB at a time; gives the number of device reads, and of sectors that they had.
fn read_all(rig: &mut Rig, run: u64) -> (u64, u64) {
    for sector in (0..SECTORS / 2).step_by(8) {
        let bio = rig.read(sector, 8);
        rig.batch([bio]);
        let wanted: Vec<u8> = (0..8).flat_map(|n| [(place(sector + n, run) % 251) as u8; 512]).collect();
        assert_eq!(rig.data_of(0), wanted, "sector {sector}");
        rig.client.borrow_mut().done.clear();
    }
    let seen = rig.seen();
    (seen.len() as u64, seen.iter().map(|seen| seen.nr).sum())
}

#[test]
fn nothing_is_read_in_vain_behind_the_end_of_a_piece() {
    for run in [128, 1024, 1536, 2048] {
        let (reads, sectors) = read_all(&mut rig(run), run);
        let wanted = SECTORS / 2;
        // Before a stream is seen as one, nobody knows where it goes on.
        assert!(sectors <= wanted + WINDOW, "runs of {run}: {sectors} sectors for {wanted}");
        let most = wanted / run.min(WINDOW) + 8;
        assert!(reads <= most, "runs of {run}: {reads} device reads, expected {most} at most");
    }
}

#[test]
fn gaps_as_large_as_the_readers_requests_are_read_with_what_is_around_them() {
    let (reads, sectors) = read_all(&mut rig(8), 8);
    let wanted = SECTORS / 2;
    assert!(sectors <= wanted * 3 / 2 + 2 * WINDOW, "{sectors} sectors for {wanted}");
    assert!(reads <= wanted * 3 / 2 / WINDOW + 16, "{reads} device reads");
}

#[test]
fn the_next_piece_is_read_before_its_reader_comes_to_it() {
    let run = 2 * WINDOW;
    let mut rig = rig(run);
    for sector in (0..SECTORS / 2).step_by(8) {
        let asked = rig.seen().len();
        let bio = rig.read(sector, 8);
        rig.batch([bio]);
        if sector.is_multiple_of(run) && sector > 0 {
            let first = rig.seen()[..asked]
                .iter()
                .find(|seen| (seen.sector..seen.sector + seen.nr).contains(&place(sector, run)))
                .cloned();
            assert!(first.is_some(), "nobody has read ahead at sector {sector}: {:?}", rig.seen());
        }
    }
}

#[test]
fn a_reader_that_has_come_to_the_end_of_the_volume_asks_for_nothing_more() {
    let run = SECTORS;
    let mut rig = rig(run);
    for sector in (SECTORS / 2 - 256..SECTORS / 2).step_by(8) {
        let bio = rig.read(sector, 8);
        rig.batch([bio]);
    }
    rig.all_succeeded(32);
    assert!(rig.seen().iter().all(|seen| seen.sector < SECTORS / 2), "{:?}", rig.seen());
}

#[test]
fn what_a_stream_has_gone_by_makes_room_but_for_the_last_of_it() {
    let mut rig = rig(SECTORS);
    for sector in (0..6 * WINDOW).step_by(8) {
        let bio = rig.read(sector, 8);
        rig.batch([bio]);
    }
    let asked = rig.seen().len();
    // A stream is one from its fourth read on.
    let mut reads_at = |slot| {
        let bio = rig.read(3 * 8 + slot * WINDOW, 8);
        rig.batch([bio]);
        rig.seen().len() - asked
    };
    assert_eq!(reads_at(5), 0, "the slot that it reads");
    assert_eq!(reads_at(4), 0, "the one before");
    assert_eq!(reads_at(3), 1, "the memory of what lies further back is used again");
}
