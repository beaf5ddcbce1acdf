//! Reads a whole volume after a power cut, and lets the oracle judge every sector.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use blockwork_engine::{
    Bio, Completion, Context, Done, Flags, Op, Port, PortState, SECTOR, Sector, VolumeId,
};
use blockwork_memory::{Segment, Segments};

use crate::client::{Closing, Referee, load};
use crate::env::SimEnv;

/// Bytes of one read.
const PIECE: u64 = 64 << 10;
/// Reads at once.
const DEPTH: usize = 4;

/// A port that checks a volume once and ends. The oracle then knows what each sector holds.
pub struct SimCheck {
    volume: VolumeId,
    referee: Rc<RefCell<Referee>>,
    closing: Rc<Closing>,
    next: u64,
    in_flight: BTreeMap<u64, u64>,
    /// Sectors that may be refused.
    lost: BTreeSet<u64>,
}

impl SimCheck {
    /// Checks `volume`, on which the power was cut.
    pub fn new(volume: VolumeId, referee: Rc<RefCell<Referee>>, closing: Rc<Closing>) -> SimCheck {
        closing.enter();
        referee.borrow_mut().oracle.cut();
        SimCheck { volume, referee, closing, next: 0, in_flight: BTreeMap::new(), lost: BTreeSet::new() }
    }

    /// The same, where these sectors may be refused. Nothing else is, and who is given one of them holds it to be what it was.
    #[must_use]
    pub fn without(self, lost: BTreeSet<u64>) -> SimCheck {
        SimCheck { lost, ..self }
    }

    /// Whether some of the block at that sector may be.
    fn may_be_refused(&self, sector: u64, block: u64) -> bool {
        self.lost.range(sector..sector + block / SECTOR).next().is_some()
    }

    /// How many bytes from there on are read at once: a block of what may be refused, and nothing of that with anything else.
    fn piece(&self, offset: u64, block: u64) -> u64 {
        let sector = offset / SECTOR;
        if self.may_be_refused(sector, block) {
            return block;
        }
        let lost = self.lost.range(sector..).next().map_or(u64::MAX, |lost| lost * SECTOR / block * block);
        PIECE.min(lost - offset).max(block)
    }
}

impl Port<SimEnv> for SimCheck {
    fn open(&mut self, _: &mut Context<'_, SimEnv>) {}

    fn event(&mut self, _: &mut Context<'_, SimEnv>, _: u32, _: Completion) {}

    fn done(&mut self, cx: &mut Context<'_, SimEnv>, done: Done) {
        let block = u64::from(cx.volume(self.volume).limits().logical_block_size);
        let referee = &mut *self.referee.borrow_mut();
        let first = self.in_flight.remove(&done.cookie).expect("a bio comes back once");
        if done.result.is_err() && self.may_be_refused(first, block) {
            return;
        }
        if let Err(errno) = done.result {
            referee.accuse(format!("after the cut: sector {first} cannot be read: {errno}"));
            return;
        }
        let bytes = load(&done.data);
        let (sectors, _) = bytes.as_chunks::<512>();
        for (sector, bytes) in (first..).zip(sectors) {
            if let Err(violation) = referee.oracle.settle(sector, bytes) {
                referee.accuse(violation);
            }
        }
    }

    fn turn(&mut self, cx: &mut Context<'_, SimEnv>) -> PortState {
        let volume = cx.volume(self.volume);
        let (size, block) = (volume.sectors().bytes(), u64::from(volume.limits().logical_block_size));
        while self.next < size && self.in_flight.len() < DEPTH {
            let len = self.piece(self.next, block).min(size - self.next);
            let len_in_memory = usize::try_from(len).expect("a piece fits memory");
            let memory = Segment::new(cx.pool().get(len_in_memory), 0, len_in_memory);
            let sector = Sector(self.next / SECTOR);
            let bio = Bio::with_data(Op::Read, Flags::NONE, sector, Segments::from_iter([memory]));
            self.in_flight.insert(self.next, sector.0);
            cx.submit(self.volume, self.next, bio);
            self.next += len;
        }
        if !self.in_flight.is_empty() {
            return PortState::Open;
        }
        self.closing.leave();
        PortState::Closed
    }

    fn drain(&mut self, _: &mut Context<'_, SimEnv>) {}
}
