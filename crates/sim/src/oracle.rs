//! What each sector of a volume may hold, as its clients are entitled to believe: the reference that a run is judged by.
//!
//! It knows nothing of layers, queues or devices: only what was asked, what was answered, and in which order. For each
//! sector it keeps
//!
//! - `base`: what the sector holds if nothing is in flight on it: one value, or several where a write failed or the
//!   sector was discarded;
//! - `in_flight`: the patches of writes that have not been answered;
//! - `history`: what may be on stable storage: the newest content that is known to be durable, and everything since.
//!
//! Invariants:
//! 1. No two writes in flight overlap in any byte ([`Oracle::is_free`]); reads overlap whatever they like.
//! 2. A read returns, sector by sector, something that the sector may have held at some time between the read's
//!    submission and its answer.
//! 3. A flush that succeeds makes durable what was acknowledged before it was submitted: the history older than that
//!    is dropped. A write with FUA does the same for its own sectors.
//! 4. What a read returned of a sector at rest is what the sector holds: the next read returns the same. Not where a discard has failed, until
//!    the sector is written again: mirrors may have done it, or not, and who is read may change.
//! 5. After a cut a sector holds something of its history, or what in-flight writes make of that.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::rc::Rc;

use blockwork_engine::SECTOR;

use crate::content::SectorData;
use crate::random::split_mix;

/// A write in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct WriteId(u64);

/// A read in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ReadId(u64);

/// A flush in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlushId(u64);

/// Bytes `from..to` of a sector become those of `data`.
#[derive(Clone, Debug)]
struct Patch {
    from: usize,
    to: usize,
    data: SectorData,
}

impl Patch {
    fn apply(&self, to: &SectorData) -> SectorData {
        if self.to - self.from == 512 {
            return self.data.clone();
        }
        let mut patched = **to;
        patched[self.from..self.to].copy_from_slice(&self.data[self.from..self.to]);
        Rc::new(patched)
    }
}

#[derive(Clone, Debug)]
struct Version {
    number: u64,
    /// The sector certainly held one of these; otherwise it may as well still have held an older one.
    certain: bool,
    values: Vec<SectorData>,
}

#[derive(Clone, Debug)]
struct SectorState {
    base: Vec<SectorData>,
    /// A discard of it has failed: mirrors may hold one thing or another, and who is read may change.
    unsteady: bool,
    history: Vec<Version>,
    in_flight: Vec<(WriteId, Patch)>,
}

#[derive(Clone, Debug)]
struct Write {
    range: Range<u64>,
    /// Sectors that it patches: fewer than its range touches, for a discard.
    sectors: Range<u64>,
    discard: bool,
}

#[derive(Clone, Debug)]
struct Read {
    offset: u64,
    len: u64,
    /// Per sector, what it may have held since the read was submitted.
    seen: Vec<Vec<SectorData>>,
    /// Sectors at whose content somebody worked meanwhile.
    disturbed: BTreeSet<u64>,
}

/// The reference for one volume.
#[derive(Clone, Debug)]
pub struct Oracle {
    zero: SectorData,
    sectors: u64,
    /// Absent: zeros, durably.
    state: BTreeMap<u64, SectorState>,
    /// Sectors with more than one version in their history.
    dirty: BTreeSet<u64>,
    writes: BTreeMap<WriteId, Write>,
    reads: BTreeMap<ReadId, Read>,
    next: u64,
    version: u64,
    lost_data: bool,
}

impl Oracle {
    /// For a volume of that many sectors, all zeros.
    pub fn new(sectors: u64) -> Oracle {
        Oracle {
            zero: Rc::new([0; 512]),
            sectors,
            state: BTreeMap::new(),
            dirty: BTreeSet::new(),
            writes: BTreeMap::new(),
            reads: BTreeMap::new(),
            next: 0,
            version: 0,
            lost_data: false,
        }
    }

    /// The volume's size.
    pub fn sectors(&self) -> u64 {
        self.sectors
    }

    /// Whether a write may touch these bytes now.
    pub fn is_free(&self, offset: u64, len: u64) -> bool {
        let end = offset + len;
        self.writes.values().all(|write| end <= write.range.start || write.range.end <= offset)
    }

    /// Some device has forgotten data after a failed flush: until it is rewritten, reads may return older content.
    pub fn data_was_lost(&mut self) {
        self.lost_data = true;
    }

    /// `bytes` are about to be written at the byte `offset`.
    pub fn begin_write(&mut self, offset: u64, bytes: &[u8]) -> WriteId {
        let end = offset + bytes.len() as u64;
        let sectors = offset / SECTOR..end.div_ceil(SECTOR);
        let patch = |sector: u64| {
            let start = sector * SECTOR;
            let (from, to) = (offset.max(start) - start, end.min(start + SECTOR) - start);
            let (from, to) = (in_memory(from), in_memory(to));
            let at = in_memory(start + from as u64 - offset);
            let mut data = [0; 512];
            data[from..to].copy_from_slice(&bytes[at..at + (to - from)]);
            Patch { from, to, data: Rc::new(data) }
        };
        self.begin(offset..end, sectors, false, patch)
    }

    /// Bytes are about to be zeroed.
    pub fn begin_zeroes(&mut self, offset: u64, len: u64) -> WriteId {
        self.begin_write(offset, &vec![0; in_memory(len)])
    }

    /// Bytes are about to be discarded. Sectors that lie within them partly keep their content.
    pub fn begin_discard(&mut self, offset: u64, len: u64) -> WriteId {
        let sectors = offset.div_ceil(SECTOR)..(offset + len) / SECTOR;
        let zero = self.zero.clone();
        self.begin(offset..offset + len, sectors, true, |_| Patch { from: 0, to: 512, data: zero.clone() })
    }

    fn begin(
        &mut self,
        range: Range<u64>,
        sectors: Range<u64>,
        discard: bool,
        patch: impl Fn(u64) -> Patch,
    ) -> WriteId {
        assert!(
            self.is_free(range.start, range.end - range.start),
            "a client overlaps its own writes: {range:?}"
        );
        let id = WriteId(self.number());
        for sector in sectors.clone() {
            let patch = patch(sector);
            for read in self.reads.values_mut() {
                read.disturb(sector, &patch);
            }
            self.state_mut(sector).in_flight.push((id, patch));
        }
        self.writes.insert(id, Write { range, sectors, discard });
        id
    }

    /// A write, zeroing or discard was answered. `durable`: it had FUA.
    pub fn end_write(&mut self, id: WriteId, ok: bool, durable: bool) {
        let write = self.writes.remove(&id).expect("a write ends once");
        self.version += 1;
        let number = self.version;
        let certain = ok && !write.discard;
        if certain && durable {
            self.show_what_was_lost();
        }
        for sector in write.sectors {
            let state = self.state.get_mut(&sector).expect("it has a patch in flight");
            let at = state
                .in_flight
                .iter()
                .position(|(theirs, _)| *theirs == id)
                .expect("it has this patch in flight");
            let (_, patch) = state.in_flight.remove(at);
            let mut values: Vec<SectorData> = Vec::new();
            state.base.iter().for_each(|old| add(&mut values, patch.apply(old)));
            if !certain {
                let old = std::mem::take(&mut state.base);
                old.into_iter().for_each(|old| add(&mut values, old));
            }
            state.base = values.clone();
            state.unsteady = if write.discard { state.unsteady || !ok } else { state.unsteady && !certain };
            if certain && durable {
                state.history.clear();
            }
            state.history.push(Version { number, certain, values });
            if state.history.len() > 1 {
                self.dirty.insert(sector);
            } else {
                self.dirty.remove(&sector);
            }
        }
    }

    /// A flush is about to be submitted.
    pub fn begin_flush(&mut self) -> FlushId {
        FlushId(self.version)
    }

    /// A flush was answered.
    pub fn end_flush(&mut self, id: FlushId, ok: bool) {
        if !ok {
            return;
        }
        self.show_what_was_lost();
        let state = &mut self.state;
        self.dirty.retain(|sector| {
            let history = &mut state.get_mut(sector).expect("a dirty sector has a state").history;
            let newest = history.iter().rposition(|version| version.certain && version.number <= id.0);
            history.drain(..newest.unwrap_or(0));
            history.len() > 1
        });
    }

    /// Something becomes durable although a device has forgotten data: an array goes on without that device. Reads that were on
    /// their way to it by then may still return what it holds.
    fn show_what_was_lost(&mut self) {
        if !self.lost_data {
            return;
        }
        let mut reads = std::mem::take(&mut self.reads);
        for read in reads.values_mut() {
            for (sector, seen) in (read.offset / SECTOR..).zip(&mut read.seen) {
                self.possible(sector).into_iter().for_each(|value| add(seen, value));
            }
        }
        self.reads = reads;
    }

    /// Bytes are about to be read.
    pub fn begin_read(&mut self, offset: u64, len: u64) -> ReadId {
        let id = ReadId(self.number());
        let sectors = offset / SECTOR..(offset + len).div_ceil(SECTOR);
        let disturbed =
            sectors.clone().filter(|s| self.state.get(s).is_some_and(|s| !s.in_flight.is_empty()));
        let disturbed = disturbed.collect();
        let seen = sectors.map(|sector| self.reachable(sector)).collect();
        self.reads.insert(id, Read { offset, len, seen, disturbed });
        id
    }

    /// A read was answered, with these bytes or with an error. An `Err` is a violation.
    pub fn end_read(&mut self, id: ReadId, bytes: Option<&[u8]>) -> Result<(), String> {
        let read = self.reads.remove(&id).expect("a read ends once");
        let Some(bytes) = bytes else { return Ok(()) };
        assert_eq!(bytes.len() as u64, read.len);
        let (first, end) = (read.offset / SECTOR, read.offset + read.len);
        for (sector, seen) in (first..).zip(&read.seen) {
            let start = sector * SECTOR;
            let (from, to) =
                (in_memory(read.offset.max(start) - start), in_memory(end.min(start + SECTOR) - start));
            let at = in_memory(start + from as u64 - read.offset);
            let got = &bytes[at..at + (to - from)];
            let matches = |value: &SectorData| value[from..to] == *got;
            let lost = self.lost_data && self.possible(sector).iter().any(matches);
            if !seen.iter().any(matches) && !lost {
                return Err(violation("read", sector, got, seen));
            }
            if !read.disturbed.contains(&sector) && to - from == 512 && !self.lost_data {
                self.pin(sector, matches);
            }
        }
        Ok(())
    }

    /// What a sector at rest was found to hold is what it holds.
    fn pin(&mut self, sector: u64, matches: impl Fn(&SectorData) -> bool) {
        if let Some(state) = self.state.get_mut(&sector)
            && state.base.len() > 1
            && !state.unsteady
        {
            state.base.retain(matches);
        }
    }

    /// The power was cut: nothing in flight will be answered.
    pub fn cut(&mut self) {
        self.reads.clear();
        self.version += 1;
        for (_, write) in std::mem::take(&mut self.writes) {
            for sector in write.sectors {
                let values = self.reachable(sector);
                let state = self.state.get_mut(&sector).expect("it has a patch in flight");
                if state.in_flight.is_empty() {
                    continue; // two writes share the sector, and the other was seen first
                }
                state.in_flight.clear();
                state.history.push(Version { number: self.version, certain: false, values });
            }
        }
    }

    /// After a cut: whether a sector may hold this; an `Err` is a violation. For who finds several copies of it.
    pub fn may_hold(&self, sector: u64, bytes: &[u8; 512]) -> Result<(), String> {
        self.find(sector, bytes).map(drop)
    }

    /// After a cut: whether a sector can only hold one thing. Nothing of it was being written then, or has not been durable.
    pub fn is_certain(&self, sector: u64) -> bool {
        assert!(self.writes.is_empty(), "`cut` comes first");
        self.possible(sector).len() == 1
    }

    /// After a cut: nobody looks what sectors hold. Each holds any of what it may, and which one is not for good: who is read may change with the
    /// next cut.
    pub fn leave_open(&mut self) {
        assert!(self.writes.is_empty(), "`cut` comes first");
        let sectors: Vec<u64> = self.state.keys().copied().collect();
        for sector in sectors {
            let values = self.possible(sector);
            let state = self.state.get_mut(&sector).expect("it is one of those");
            state.base = values.clone();
            state.history = vec![Version { number: self.version, certain: true, values }];
            self.dirty.remove(&sector);
        }
        self.lost_data = false;
    }

    /// The one of the values that a sector may hold after a cut which is this.
    fn find(&self, sector: u64, bytes: &[u8; 512]) -> Result<SectorData, String> {
        assert!(self.writes.is_empty(), "`cut` comes first");
        let possible = self.possible(sector);
        let found = possible.iter().find(|value| ***value == *bytes).cloned();
        found.ok_or_else(|| violation("after the cut", sector, bytes, &possible))
    }

    /// After a cut: compares a sector's content with what it may be; that is what it holds from then on, durably.
    pub fn settle(&mut self, sector: u64, bytes: &[u8; 512]) -> Result<(), String> {
        let value = self.find(sector, bytes)?;
        self.dirty.remove(&sector);
        self.lost_data = false;
        if value == self.zero {
            self.state.remove(&sector);
        } else {
            let version = Version { number: self.version, certain: true, values: vec![value.clone()] };
            self.state.insert(
                sector,
                SectorState {
                    base: vec![value],
                    unsteady: false,
                    history: vec![version],
                    in_flight: Vec::new(),
                },
            );
        }
        Ok(())
    }

    /// What may be on stable storage.
    fn possible(&self, sector: u64) -> Vec<SectorData> {
        let mut all = Vec::new();
        match self.state.get(&sector) {
            None => all.push(self.zero.clone()),
            Some(state) => {
                state
                    .history
                    .iter()
                    .flat_map(|version| &version.values)
                    .for_each(|v| add(&mut all, v.clone()));
                self.reachable(sector).into_iter().for_each(|value| add(&mut all, value));
            }
        }
        all
    }

    /// What a read may find now: the base, with any of the patches in flight.
    fn reachable(&self, sector: u64) -> Vec<SectorData> {
        let Some(state) = self.state.get(&sector) else { return vec![self.zero.clone()] };
        let mut all = state.base.clone();
        for (_, patch) in &state.in_flight {
            extend(&mut all, patch);
        }
        all
    }

    fn state_mut(&mut self, sector: u64) -> &mut SectorState {
        assert!(sector < self.sectors, "sector {sector} of a volume of {}", self.sectors);
        let zero = &self.zero;
        self.state.entry(sector).or_insert_with(|| SectorState {
            base: vec![zero.clone()],
            unsteady: false,
            history: vec![Version { number: 0, certain: true, values: vec![zero.clone()] }],
            in_flight: Vec::new(),
        })
    }

    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }
}

impl Read {
    fn disturb(&mut self, sector: u64, patch: &Patch) {
        if let Some(at) = sector.checked_sub(self.offset / SECTOR)
            && let Some(seen) = self.seen.get_mut(in_memory(at))
        {
            extend(seen, patch);
            self.disturbed.insert(sector);
        }
    }
}

/// Adds what a patch makes of each value.
fn extend(values: &mut Vec<SectorData>, patch: &Patch) {
    for i in 0..values.len() {
        let patched = patch.apply(&values[i]);
        add(values, patched);
    }
}

fn add(values: &mut Vec<SectorData>, value: SectorData) {
    if !values.iter().any(|other| Rc::ptr_eq(other, &value) || **other == *value) {
        values.push(value);
    }
}

fn in_memory(n: u64) -> usize {
    usize::try_from(n).expect("a length in memory fits the address space")
}

fn violation(when: &str, sector: u64, got: &[u8], expected: &[SectorData]) -> String {
    let expected: Vec<String> = expected.iter().map(|value| describe(&value[..])).collect();
    format!("{when}: sector {sector} holds {}, expected {}", describe(got), expected.join(" or "))
}

const MAGIC: u64 = u64::from_le_bytes(*b"BWSECTOR");

/// Content that says who wrote it: the client's number, its own count, and where.
pub fn stamp(client: u32, sequence: u32, sector: u64) -> [u8; 512] {
    let mut bytes = [0; 512];
    let id = u64::from(client) << 32 | u64::from(sequence);
    let mut state = id ^ sector.rotate_left(20) ^ MAGIC;
    let (words, _) = bytes.as_chunks_mut::<8>();
    for (i, word) in words.iter_mut().enumerate() {
        *word = match i {
            0 => MAGIC,
            1 => id,
            2 => sector,
            _ => split_mix(&mut state),
        }
        .to_le_bytes();
    }
    bytes
}

/// Says in words what such content is.
pub fn describe(bytes: &[u8]) -> String {
    if bytes.iter().all(|byte| *byte == 0) {
        return "zeros".to_owned();
    }
    let word =
        |at: usize| bytes.get(at..at + 8).and_then(|word| word.try_into().ok()).map_or(0, u64::from_le_bytes);
    let head: Vec<String> = bytes.iter().take(8).map(|byte| format!("{byte:02x}")).collect();
    if word(0) != MAGIC {
        return format!("{} bytes {}...", bytes.len(), head.join(""));
    }
    let (client, sequence) = ((word(8) >> 32) as u32, word(8) as u32);
    let sector = word(16);
    let whole = bytes == &stamp(client, sequence, sector)[..bytes.len()];
    format!("client {client}'s write {sequence} of sector {sector}{}", if whole { "" } else { ", altered" })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sector(value: u8) -> [u8; 512] {
        [value; 512]
    }

    fn read(oracle: &mut Oracle, at: u64, value: u8) -> Result<(), String> {
        let id = oracle.begin_read(at * 512, 512);
        oracle.end_read(id, Some(&sector(value)))
    }

    fn write(oracle: &mut Oracle, at: u64, value: u8, durable: bool) {
        let id = oracle.begin_write(at * 512, &sector(value));
        oracle.end_write(id, true, durable);
    }

    /// Which of these values the oracle accepts after a cut.
    fn after_cut(oracle: &mut Oracle, at: u64) -> Vec<u8> {
        oracle.cut();
        oracle.possible(at).iter().map(|value| value[0]).collect()
    }

    #[test]
    fn a_read_under_way_while_a_device_forgets_may_return_it_also_when_a_flush_ends_meanwhile() {
        let mut oracle = Oracle::new(8);
        write(&mut oracle, 1, 7, false);
        let late = oracle.begin_read(512, 512);
        let flush = oracle.begin_flush();
        oracle.data_was_lost();
        oracle.end_flush(flush, true);
        oracle.end_read(late, Some(&sector(0))).unwrap();
        assert!(read(&mut oracle, 1, 0).is_err(), "who begins after the flush sees what it made durable");
        read(&mut oracle, 1, 7).unwrap();
    }

    #[test]
    fn a_read_must_return_what_was_acknowledged_last() {
        let mut oracle = Oracle::new(10);
        write(&mut oracle, 3, 1, false);
        assert!(read(&mut oracle, 3, 1).is_ok());
        assert!(read(&mut oracle, 3, 0).unwrap_err().contains("sector 3"));
        assert!(read(&mut oracle, 4, 1).is_err());
    }

    #[test]
    fn a_read_that_overlaps_a_write_may_return_either_and_nothing_else() {
        let mut oracle = Oracle::new(10);
        write(&mut oracle, 3, 1, false);
        let r = oracle.begin_read(3 * 512, 512);
        let w = oracle.begin_write(3 * 512, &sector(2));
        oracle.end_write(w, true, false);
        assert!(oracle.end_read(r, Some(&sector(1))).is_ok());
        for (value, ok) in [(1, false), (2, true), (3, false)] {
            assert_eq!(read(&mut oracle, 3, value).is_ok(), ok);
        }
    }

    #[test]
    fn a_flush_makes_durable_what_was_acknowledged_before_it_was_submitted() {
        let mut oracle = Oracle::new(10);
        write(&mut oracle, 3, 1, false);
        let flush = oracle.begin_flush();
        write(&mut oracle, 3, 2, false);
        oracle.end_flush(flush, true);
        assert_eq!(after_cut(&mut oracle, 3), [1, 2]);
        assert!(oracle.settle(3, &sector(0)).is_err());
        assert!(oracle.settle(3, &sector(1)).is_ok());
        assert_eq!(after_cut(&mut oracle, 3), [1]);
    }

    #[test]
    fn a_flush_that_fails_promises_nothing() {
        let mut oracle = Oracle::new(10);
        write(&mut oracle, 3, 1, false);
        let flush = oracle.begin_flush();
        oracle.end_flush(flush, false);
        assert_eq!(after_cut(&mut oracle, 3), [0, 1]);
    }

    #[test]
    fn a_fua_write_is_durable_and_one_in_flight_may_be() {
        let mut oracle = Oracle::new(10);
        write(&mut oracle, 3, 1, true);
        oracle.begin_write(3 * 512, &sector(2));
        assert_eq!(after_cut(&mut oracle, 3), [1, 2]);
    }

    #[test]
    fn a_failed_write_is_old_or_new_until_it_is_read() {
        let mut oracle = Oracle::new(10);
        write(&mut oracle, 3, 1, false);
        let id = oracle.begin_write(3 * 512, &sector(2));
        oracle.end_write(id, false, false);
        assert!(read(&mut oracle, 3, 2).is_ok());
        assert!(read(&mut oracle, 3, 1).is_err(), "it was new, and is old again");
    }

    #[test]
    fn a_discarded_sector_is_old_or_zero() {
        let mut oracle = Oracle::new(10);
        write(&mut oracle, 3, 1, true);
        let id = oracle.begin_discard(3 * 512 - 100, 700);
        oracle.end_write(id, true, false);
        assert_eq!(after_cut(&mut oracle, 3), [1, 0]);
        assert!(oracle.settle(3, &sector(9)).is_err());
    }

    #[test]
    fn two_unaligned_writes_to_one_sector_must_both_survive() {
        let mut oracle = Oracle::new(10);
        let a = oracle.begin_write(512, &[1; 100]);
        let b = oracle.begin_write(512 + 100, &[2; 50]);
        oracle.end_write(a, true, false);
        oracle.end_write(b, true, false);
        let mut both = [0; 512];
        both[..100].fill(1);
        both[100..150].fill(2);
        let mut only_b = both;
        only_b[..100].fill(0);
        for (bytes, ok) in [(both, true), (only_b, false)] {
            let id = oracle.begin_read(512, 512);
            assert_eq!(oracle.end_read(id, Some(&bytes)).is_ok(), ok);
        }
    }

    #[test]
    fn a_stamp_describes_itself() {
        assert_eq!(describe(&stamp(3, 77, 12)), "client 3's write 77 of sector 12");
        let mut torn = stamp(3, 77, 12);
        torn[400] ^= 1;
        assert_eq!(describe(&torn), "client 3's write 77 of sector 12, altered");
        assert_eq!(describe(&[0; 512]), "zeros");
    }
}
