//! A ring's ledger: the requests that were taken and whose answers the front end does not know of, in memory that outlives
//! the back end. The next one does them again.
//!
//! The ring itself does not tell: answers come in any order and lie over requests, so that of a request which is not answered
//! nothing may be left there. Doing a request twice is harmless as long as its front end waits for the answer.
//!
//! Invariants:
//! 1. A request is in the ledger before anything is done about it, and until after its answer was published. So wherever we may be
//!    killed, what was taken is as much as was published and what is open here.
//! 2. Before an answer is put into the ring, the ledger says at which index: whether it was published is seen by the ring's own
//!    index.
//! 3. The state of a record is stored after what it is about, and loaded before it.

use std::sync::atomic::Ordering;

use blockwork_format::blkif::{Abi, Direct, Kind, REQUEST_BYTES_MAX};
use blockwork_memory::Buffer;

use super::rings::Entry;

/// Bytes of a record.
const RECORD_BYTES: usize = 128;
/// Words of a record: its state, the index of its answer; then the request.
const STATE: usize = 0;
const INDEX: usize = 4;
const REQUEST: usize = 8;

const FREE: u32 = 0;
const OPEN: u32 = 1;
const ANSWERED: u32 = 2;

/// Where a request is recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Record(u32);

impl Record {
    /// Nowhere: there is no ledger.
    pub(super) const NONE: Record = Record(u32::MAX);
}

/// A ledger that was not written by us.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "record {record} of the ring's ledger has state {found}, expected 0 (free), 1 (open) or 2 (answered)"
)]
pub struct NotALedger {
    /// Which record.
    pub record: u32,
    /// Its state.
    pub found: u32,
}

/// A ring's ledger. See the module's head.
#[derive(Debug)]
pub struct Ledger {
    memory: Buffer,
    free: Vec<u32>,
    /// Answers that are in the ring, and not published.
    answered: Vec<u32>,
    /// What an earlier back end has left, the next one last.
    left: Vec<(Record, Entry)>,
}

impl Ledger {
    /// Bytes of the ledger of a ring with so many slots.
    pub fn bytes(slots: u32) -> usize {
        slots as usize * RECORD_BYTES
    }

    /// An empty one of a ring with so many slots, in memory of [`Ledger::bytes`].
    ///
    /// # Panics
    /// If the memory is smaller.
    pub fn new(memory: Buffer, slots: u32) -> Ledger {
        assert!(memory.len() >= Ledger::bytes(slots), "memory for {slots} records");
        let ledger =
            Ledger { memory, free: (0..slots).rev().collect(), answered: Vec::new(), left: Vec::new() };
        (0..slots).for_each(|record| ledger.set(record, STATE, FREE));
        ledger
    }

    /// What an earlier back end has left of a ring that has published answers up to `rsp_prod`.
    ///
    /// # Errors
    /// It is none.
    ///
    /// # Panics
    /// If the memory is smaller than [`Ledger::bytes`].
    pub fn resume(memory: Buffer, abi: Abi, slots: u32, rsp_prod: u32) -> Result<Ledger, NotALedger> {
        assert!(memory.len() >= Ledger::bytes(slots), "memory for {slots} records");
        let mut ledger = Ledger { memory, free: Vec::new(), answered: Vec::new(), left: Vec::new() };
        for record in (0..slots).rev() {
            let is_open = match ledger.get(record, STATE) {
                FREE => false,
                OPEN => true,
                // Indices wrap: what lies behind is less than a ring ahead.
                ANSWERED => ledger.get(record, INDEX).wrapping_sub(rsp_prod) < slots,
                found => return Err(NotALedger { record, found }),
            };
            if is_open {
                let mut bytes = [0; REQUEST_BYTES_MAX];
                ledger.memory.read_at(at(record, REQUEST), &mut bytes);
                ledger.left.push((Record(record), Entry::new(abi, bytes)));
            } else {
                ledger.free.push(record);
            }
            ledger.set(record, STATE, if is_open { OPEN } else { FREE });
        }
        // Nothing was taken behind a barrier, so it is done when all others are. There is one at most.
        ledger.left.sort_by_key(|(_, entry)| !is_barrier(entry));
        Ok(ledger)
    }

    /// Requests that were left, and are to be done again.
    pub fn left(&self) -> u32 {
        u32::try_from(self.left.len()).expect("at most the ring's slots")
    }

    /// The next of those that were left.
    pub(super) fn next_left(&mut self) -> Option<(Record, Entry)> {
        self.left.pop()
    }

    /// Notes a request that was taken.
    #[inline]
    pub(super) fn take(&mut self, entry: &Entry) -> Record {
        let record = self.free.pop().expect("no more are under way than the ring has slots");
        self.memory.write_at(at(record, REQUEST), entry.bytes());
        self.set(record, STATE, OPEN);
        Record(record)
    }

    /// Its answer goes to the ring at this index next.
    #[inline]
    pub(super) fn answer(&mut self, Record(record): Record, index: u32) {
        self.set(record, INDEX, index);
        self.set(record, STATE, ANSWERED);
        self.answered.push(record);
    }

    /// The front end has been told of all answers.
    #[inline]
    pub(super) fn published(&mut self) {
        while let Some(record) = self.answered.pop() {
            self.set(record, STATE, FREE);
            self.free.push(record);
        }
    }

    fn get(&self, record: u32, word: usize) -> u32 {
        self.memory.load_u32(at(record, word), Ordering::Acquire)
    }

    #[inline]
    fn set(&self, record: u32, word: usize, value: u32) {
        self.memory.store_u32(at(record, word), value, Ordering::Release);
    }
}

fn at(record: u32, word: usize) -> usize {
    record as usize * RECORD_BYTES + word
}

fn is_barrier(entry: &Entry) -> bool {
    entry.decode().is_ok_and(|request| matches!(request.kind, Kind::Direct(Direct::Barrier, _)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use blockwork_format::blkif::{Request, Segments};

    const SLOTS: u32 = 4;

    fn entry(id: u64, direct: Direct) -> Entry {
        let kind = Kind::Direct(direct, Segments::default());
        Entry::new(Abi::NATIVE, Request { id, handle: 0, sector: 0, kind }.encode(Abi::NATIVE).0)
    }

    fn memory() -> Buffer {
        Buffer::new(Ledger::bytes(SLOTS))
    }

    fn left(memory: &Buffer, rsp_prod: u32) -> Vec<u64> {
        let mut ledger = Ledger::resume(memory.clone(), Abi::NATIVE, SLOTS, rsp_prod).unwrap();
        std::iter::from_fn(|| ledger.next_left()).map(|(_, entry)| entry.decode().unwrap().id).collect()
    }

    #[test]
    fn what_was_taken_is_left_until_its_answer_is_published() {
        let memory = memory();
        let mut ledger = Ledger::new(memory.clone(), SLOTS);
        let records = [10, 11, 12].map(|id| ledger.take(&entry(id, Direct::Flush)));
        // The ring's indices are about to wrap.
        ledger.answer(records[1], u32::MAX);
        ledger.answer(records[0], 0);
        for (rsp_prod, expected) in [(u32::MAX, &[10, 11, 12][..]), (0, &[10, 12]), (1, &[12])] {
            // Looking takes note of what it finds, so each looks at a copy.
            let copy = Buffer::new(memory.len());
            copy.copy_from(0, &memory, 0, memory.len());
            let mut found = left(&copy, rsp_prod);
            found.sort_unstable();
            assert_eq!(found, expected, "published up to {rsp_prod}");
        }
        ledger.published();
        assert_eq!(left(&memory, 1), [12]);
    }

    #[test]
    fn records_are_used_again_and_none_is_lost() {
        let memory = memory();
        let mut ledger = Ledger::new(memory.clone(), SLOTS);
        for round in 0..10 {
            let records: Vec<_> = (0..4).map(|n| ledger.take(&entry(round * 4 + n, Direct::Flush))).collect();
            let index = u32::try_from(round).unwrap() * 4;
            (index..).zip(&records).for_each(|(index, record)| ledger.answer(*record, index));
            ledger.published();
        }
        ledger.take(&entry(99, Direct::Flush));
        let mut resumed = Ledger::resume(memory, Abi::NATIVE, SLOTS, 40).unwrap();
        assert_eq!(resumed.left(), 1);
        let (record, _) = resumed.next_left().unwrap();
        (0..3).for_each(|n| assert_ne!(resumed.take(&entry(n, Direct::Flush)), record));
    }

    #[test]
    fn a_barrier_is_done_last() {
        let memory = memory();
        let mut ledger = Ledger::new(memory.clone(), SLOTS);
        let first = ledger.take(&entry(1, Direct::Flush));
        ledger.take(&entry(2, Direct::Flush));
        ledger.answer(first, 0);
        ledger.published();
        ledger.take(&entry(3, Direct::Barrier));
        assert_eq!(left(&memory, 1), [2, 3]);
    }

    #[test]
    fn what_is_no_ledger_is_refused() {
        let memory = memory();
        memory.store_u32(2 * RECORD_BYTES, 7, Ordering::Relaxed);
        let error = Ledger::resume(memory, Abi::NATIVE, SLOTS, 0).unwrap_err();
        assert_eq!(error, NotALedger { record: 2, found: 7 });
    }
}
