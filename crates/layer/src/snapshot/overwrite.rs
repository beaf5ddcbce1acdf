//! Who waits for a family's turn, and the chunks of snapshots that are about to be overwritten as a whole.
//!
//! What a snapshot's writers write to all of a chunk is written to the store in the place of what the origin has there, which
//! nobody needs to read: the snapshot then has the content of writes that are under way, as after any write. The writes
//! themselves follow when the chunk is settled, as all do.
//!
//! Invariant: no more than [`KEPT_MAX`] bytes of what writers write are kept; where there is more, chunks are copied.

use std::collections::BTreeMap;
use std::task::Waker;

use blockwork_engine::{SECTOR, Sector, TaskContext};
use blockwork_memory::{Segment, bytes_in};

use super::copy::Destination;
use super::family::{Family, Want, Writer};
use super::give_out::Share;
use super::store::Store;

/// What is kept of writes that wait, bytes.
const KEPT_MAX: usize = 8 << 20;

/// What is written to stores in the place of what the origin has, by where it goes: whole chunks.
pub(super) type Overwritten = BTreeMap<Destination, Vec<u8>>;

/// Who waits.
#[derive(Debug, Default)]
pub(super) struct Wanted {
    all: Vec<Waiting>,
    /// How many have come.
    came: u64,
}

impl Wanted {
    pub(super) fn ranges(&self) -> Vec<Want> {
        self.all.iter().map(|waiting| waiting.want).collect()
    }
}

/// A write that waits.
#[derive(Debug)]
pub(super) struct Waiting {
    pub(super) want: Want,
    /// Its number among all that have come.
    ticket: u64,
    waker: Option<Waker>,
    /// What it writes, of snapshots' writers; nothing where that is not known, or too much.
    data: Vec<u8>,
}

impl Family {
    /// Notes that a write waits; its ticket.
    pub(super) fn wait(&self, want: Want, cx: &TaskContext) -> u64 {
        let is_whole = |data: &&[Segment]| bytes_in(data) as u64 == want.end.since(want.start).bytes();
        let data = cx.written().filter(|_| want.by != Writer::Origin).filter(is_whole);
        let mut wanted = self.wanted();
        let kept: usize = wanted.all.iter().map(|waiting| waiting.data.len()).sum();
        let data = data.filter(|data| kept + bytes_in(data) <= KEPT_MAX).map(bytes_of).unwrap_or_default();
        wanted.came += 1;
        let ticket = wanted.came;
        wanted.all.push(Waiting { want, ticket, waker: None, data });
        ticket
    }

    /// A write waits no more.
    pub(super) fn leave(&self, ticket: u64) {
        self.wanted().all.retain(|waiting| waiting.ticket != ticket);
    }

    /// Whom to wake when what a write waits for is settled.
    pub(super) fn wake_when_settled(&self, ticket: u64, waker: &Waker) {
        let mut wanted = self.wanted();
        if let Some(waiting) = wanted.all.iter_mut().find(|waiting| waiting.ticket == ticket) {
            waiting.waker = Some(waker.clone());
        }
    }

    /// Wakes those whose chunks are settled.
    pub(super) fn wake_settled(&self) {
        let mut due = Vec::new();
        for waiting in self.wanted().all.iter_mut().filter(|waiting| self.verdict(&waiting.want).is_some()) {
            due.extend(waiting.waker.take());
        }
        due.into_iter().for_each(Waker::wake);
    }

    /// What need not be copied of these shares.
    pub(super) fn overwritten(&self, shares: &[Share]) -> Overwritten {
        let wanted = self.wanted();
        let mut overwritten = Overwritten::new();
        for (nth, (store, share)) in self.stores.iter().zip(shares).enumerate() {
            let is_its =
                |waiting: &&Waiting| waiting.want.by == Writer::Snapshot(nth) && !waiting.data.is_empty();
            let writes: Vec<_> = wanted.all.iter().filter(is_its).collect();
            if writes.is_empty() {
                continue;
            }
            for exception in &share.exceptions {
                if let Some(bytes) = whole(store, exception.old, &writes) {
                    let at = Sector(exception.new * store.layout.chunk_sectors());
                    overwritten.insert((nth, at), bytes);
                }
            }
        }
        overwritten
    }
}

fn bytes_of(data: &[Segment]) -> Vec<u8> {
    let mut bytes = vec![0; bytes_in(data)];
    let mut at = 0;
    for segment in data {
        segment.read_at(0, &mut bytes[at..at + segment.len()]);
        at += segment.len();
    }
    bytes
}

/// The content of a chunk, if writes cover all that the snapshot has of it. Where they overlap, the one that came last counts.
fn whole(store: &Store, chunk: u64, writes: &[&Waiting]) -> Option<Vec<u8>> {
    let sectors = store.layout.chunk_sectors();
    let start = chunk * sectors;
    let end = (start + sectors).min(store.sectors.0);
    let touches = |waiting: &&&Waiting| waiting.want.start.0 < end && start < waiting.want.end.0;
    let writes: Vec<_> = writes.iter().filter(touches).collect();
    let mut ranges: Vec<_> =
        writes.iter().map(|waiting| (waiting.want.start.0, waiting.want.end.0)).collect();
    ranges.sort_unstable();
    let covered = ranges
        .iter()
        .fold(start, |covered, (from, to)| if *from <= covered { covered.max(*to) } else { covered });
    if covered < end {
        return None;
    }
    let mut bytes = vec![0; (sectors * SECTOR) as usize];
    for waiting in writes {
        let (from, to) = (waiting.want.start.0.max(start), waiting.want.end.0.min(end));
        let skip = (from - waiting.want.start.0) * SECTOR;
        let data = &waiting.data[skip as usize..][..((to - from) * SECTOR) as usize];
        bytes[((from - start) * SECTOR) as usize..][..data.len()].copy_from_slice(data);
    }
    Some(bytes)
}
