//! The ledger of one file, shared by all workers: which writes are under way, and which the server may still forget.
//!
//! An unstable write that was answered is *uncommitted*: a server that restarts forgets it. Its data is kept here until a COMMIT
//! of the same life of the server (the same verifier) has covered it; if the verifier is another one, it is sent again.
//!
//! Sending again must not overtake newer data. No worker waits for another one; what might have been overtaken goes again:
//!
//! * Every write has a rank, in the order in which they began; what is sent again after a restart has the lowest.
//! * If two overlapping writes were under way at the same time, nobody knows which the server did last. The one with the higher
//!   rank goes again when it is answered, until it was alone with lower ranks gone. Then it is what the server has.
//! * Only then is it answered, and entered here; it takes the place of what it overlaps. What a flush owed of that, it owes of this, until a
//!   COMMIT has covered the one or the other.
//!
//! Invariants:
//! 1. Uncommitted ranges do not overlap; each holds what was answered last there.
//! 2. A read of an uncommitted range is answered from here: a server that has restarted, and has not been told, would give
//!    what it had before.
//!    So is one of what is under way, where the server may have something there that nobody has written ([`Ledger::suspect`], see `trust`).
//! 3. `Ledger::committed` with nothing left up to `cutoff` means: all that was answered before `cutoff` is durable. A COMMIT covers only
//!    what the server had, in that life of it, before the COMMIT was sent: of what was sent again, what came back before.
//! 4. Nor does it cover what the server had when a stable write failed, or when something that makes durable was answered that had to be
//!    asked twice: a server that asks its file system to do that is told once of all that was lost, by whatever call comes next, and may keep its
//!    verifier. That is sent again. So nothing is covered either before all stable writes have ended that were under way when the COMMIT
//!    was answered ([`Ledger::may_still_tell`]).

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::sync::Arc;

use blockwork_format::nfs3::Verifier;

use super::arena::Block;
use super::habit::Habit;

/// A write that is under way.
struct Flight {
    id: u64,
    rank: u64,
    start: u64,
    end: u64,
    is_stable: bool,
    /// It may have been overtaken.
    again: bool,
    /// Its data, where the server may have something else in its place that nobody has written.
    suspected: Option<Arc<Block>>,
}

/// What a server may forget.
struct Uncommitted {
    end: u64,
    /// When it was answered.
    number: u64,
    /// Or what it has taken the place of, of which `before` does not tell: when the first of that was.
    since: u64,
    /// What it has taken the place of, and a COMMIT may cover that was sent before that.
    before: Option<Before>,
    /// When the server had it, in the life of that verifier.
    taken: u64,
    /// None: nobody knows whether it still has it.
    verifier: Option<Verifier>,
    block: Arc<Block>,
    /// Where in the block it starts.
    at: usize,
}

/// What was superseded before it was durable. A flush that had to cover it has to cover what is newer there, unless a COMMIT covered this.
#[derive(Clone, Copy)]
struct Before {
    /// When the first of it was answered.
    since: u64,
    /// The life of the server that had the last of it; see [`Uncommitted::verifier`].
    verifier: Option<Verifier>,
}

impl Uncommitted {
    /// Flushes from then on have to cover it.
    fn owed_since(&self) -> u64 {
        self.before.map_or(self.since, |before| before.since.min(self.since))
    }

    /// It takes the place of `old`; the last COMMIT was sent at `asked`.
    fn supersedes(&mut self, old: &Uncommitted, asked: u64) {
        let before = if old.taken <= asked {
            Some(Before { since: old.owed_since(), verifier: old.verifier })
        } else {
            self.since = self.since.min(old.since);
            old.before
        };
        // Of several, it is known only whether a COMMIT covers all.
        self.before = match (self.before, before) {
            (Some(one), Some(other)) => Some(Before {
                since: one.since.min(other.since),
                verifier: one.verifier.filter(|_| one.verifier == other.verifier),
            }),
            (one, other) => one.or(other),
        };
    }
}

/// Data of a range, in memory.
pub(super) struct Piece {
    /// First byte, in the file.
    pub(super) start: u64,
    pub(super) len: usize,
    pub(super) block: Arc<Block>,
    /// Where in the block.
    pub(super) at: usize,
}

/// A piece that must be sent again, and is under way from now on.
pub(super) struct Resend {
    pub(super) flight: u64,
    /// When it was answered.
    pub(super) number: u64,
    pub(super) piece: Piece,
}

/// How a write that was answered stands.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Landing {
    /// It is done.
    Done,
    /// It may have been overtaken: it must be sent once more, and is under way again.
    Again,
}

/// How many writes that were suspected are remembered.
const SUSPECTED_MAX: usize = 256;

pub(super) struct Ledger {
    flights: Vec<Flight>,
    uncommitted: BTreeMap<u64, Uncommitted>,
    last: u64,
    /// When it was last doubted what the server has.
    doubted: u64,
    /// Writes that were suspected of late, and when: the last ones.
    suspected: VecDeque<(u64, Range<u64>)>,
    /// When a COMMIT was sent last.
    asked: u64,
    /// How much is written between flushes.
    pub(super) habit: Habit,
}

impl Ledger {
    /// Of a file that nobody has written to; so many bytes may be uncommitted.
    pub(super) fn new(uncommitted_bytes: usize) -> Ledger {
        let habit = Habit::new(uncommitted_bytes);
        Ledger {
            flights: Vec::new(),
            uncommitted: BTreeMap::new(),
            last: 0,
            doubted: 0,
            suspected: VecDeque::new(),
            asked: 0,
            habit,
        }
    }

    fn next(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    /// A write of `start..end` begins. Returns its name.
    pub(super) fn begin(&mut self, start: u64, end: u64, is_stable: bool) -> u64 {
        let id = self.next();
        self.depart(id, id, start..end, is_stable);
        id
    }

    fn depart(&mut self, id: u64, rank: u64, Range { start, end }: Range<u64>, is_stable: bool) {
        let mut again = false;
        for other in self.flights.iter_mut().filter(|other| other.start < end && start < other.end) {
            if other.rank < rank {
                again = true;
            } else {
                other.again = true;
            }
        }
        self.flights.push(Flight { id, rank, start, end, is_stable, again, suspected: None });
    }

    fn arrive(&mut self, id: u64) -> Flight {
        let place =
            self.flights.iter().position(|flight| flight.id == id).expect("a write that is under way");
        self.flights.swap_remove(place)
    }

    /// Until it is answered the server may have something else where a client writes this, which no read may give.
    pub(super) fn suspect(&mut self, id: u64, block: Arc<Block>) {
        let now = self.next();
        let flight = self.flights.iter_mut().find(|flight| flight.id == id);
        let flight = flight.expect("a write that is under way");
        flight.suspected = Some(block);
        if self.suspected.len() == SUSPECTED_MAX {
            self.suspected.pop_front();
        }
        self.suspected.push_back((now, flight.start..flight.end));
    }

    /// Whether a write of that range may have been suspected since then.
    pub(super) fn has_suspected_since(&self, time: u64, Range { start, end }: Range<u64>) -> bool {
        let is_long_ago = self.suspected.len() == SUSPECTED_MAX
            && self.suspected.front().is_some_and(|first| first.0 > time);
        let since = self.suspected.iter().rev().take_while(|(when, _)| *when > time);
        is_long_ago || since.into_iter().any(|(_, other)| other.start < end && start < other.end)
    }

    /// Whether no other write of what it writes is under way, nor was one that it may have been overtaken by.
    pub(super) fn is_alone(&self, id: u64) -> bool {
        let this = self.flights.iter().find(|flight| flight.id == id).expect("a write that is under way");
        let others = self.flights.iter().filter(|other| other.start < this.end && this.start < other.end);
        others.count() == 1 && !this.again
    }

    /// The write has failed.
    pub(super) fn fail(&mut self, id: u64) {
        self.arrive(id);
    }

    /// The server has answered the write: durable, or under `kept` with its data.
    pub(super) fn land(&mut self, id: u64, kept: Option<(Verifier, Arc<Block>)>) -> Landing {
        let flight = self.arrive(id);
        if flight.again {
            self.depart(id, flight.rank, flight.start..flight.end, flight.is_stable);
            return Landing::Again;
        }
        let old = self.supersede(flight.start, flight.end);
        if let Some((verifier, block)) = kept {
            self.habit.writes(flight.end - flight.start);
            let number = self.next();
            let verifier = self.trusted(&flight, verifier);
            let (since, taken) = (number, number);
            let mut entry =
                Uncommitted { end: flight.end, number, since, before: None, taken, verifier, block, at: 0 };
            old.iter().for_each(|old| entry.supersedes(old, self.asked));
            self.uncommitted.insert(flight.start, entry);
        }
        Landing::Done
    }

    /// The life of the server that still has what was under way: none, if it may have lost that since.
    fn trusted(&self, flight: &Flight, verifier: Verifier) -> Option<Verifier> {
        (flight.id > self.doubted).then_some(verifier)
    }

    /// The server may have told of all that it has lost until now by something else than a COMMIT that was heard of: none covers
    /// what it had until now.
    pub(super) fn doubt(&mut self) {
        self.doubted = self.next();
        for entry in self.uncommitted.values_mut() {
            entry.verifier = None;
            if let Some(before) = &mut entry.before {
                before.verifier = None;
            }
        }
    }

    /// Whether stable writes are under way that had begun by then: one of them may tell of what the server had lost before.
    pub(super) fn may_still_tell(&self, time: u64) -> bool {
        self.flights.iter().any(|flight| flight.is_stable && flight.id <= time)
    }

    /// Starts of the entries that overlap a range.
    fn overlapping(&self, start: u64, end: u64) -> impl Iterator<Item = (u64, &Uncommitted)> {
        let before = self.uncommitted.range(..start).next_back().filter(|(_, entry)| entry.end > start);
        before.into_iter().chain(self.uncommitted.range(start..end)).map(|(start, entry)| (*start, entry))
    }

    /// Something newer is in `start..end`. Returns what was there.
    fn supersede(&mut self, start: u64, end: u64) -> Vec<Uncommitted> {
        let starts: Vec<u64> = self.overlapping(start, end).map(|(start, _)| start).collect();
        let take = |first| {
            let old = self.uncommitted.remove(&first).expect("just found");
            if old.end > end {
                let at = old.at + length(end - first);
                let rest = Uncommitted { at, block: old.block.clone(), ..old };
                self.uncommitted.insert(end, rest);
            }
            if first < start {
                let rest = Uncommitted { end: start, block: old.block.clone(), ..old };
                self.uncommitted.insert(first, rest);
            }
            old
        };
        starts.into_iter().map(take).collect()
    }

    /// What is kept of `start..end`, in order.
    pub(super) fn kept(&self, start: u64, end: u64) -> Vec<Piece> {
        if self.uncommitted.is_empty() {
            return Vec::new();
        }
        let cut = |(first, entry): (u64, &Uncommitted)| {
            let from = first.max(start);
            Piece {
                start: from,
                len: length(entry.end.min(end) - from),
                block: entry.block.clone(),
                at: entry.at + length(from - first),
            }
        };
        self.overlapping(start, end).map(cut).collect()
    }

    /// What is under way in `start..end` and suspected, the later writes behind the earlier ones.
    pub(super) fn kept_of_suspected(&self, start: u64, end: u64) -> Vec<Piece> {
        let there = self.flights.iter().filter(|flight| flight.start < end && start < flight.end);
        let mut found: Vec<_> =
            there.filter_map(|flight| Some((flight, flight.suspected.as_ref()?))).collect();
        found.sort_unstable_by_key(|(flight, _)| flight.rank);
        let cut = |(flight, block): (&Flight, &Arc<Block>)| {
            let from = flight.start.max(start);
            let (len, at) = (length(flight.end.min(end) - from), length(from - flight.start));
            Piece { start: from, len, block: block.clone(), at }
        };
        found.into_iter().map(cut).collect()
    }

    /// Whether all that was answered is durable.
    pub(super) fn is_clean(&self) -> bool {
        self.uncommitted.is_empty()
    }

    /// What is answered or taken from now on has a larger number.
    pub(super) fn now(&self) -> u64 {
        self.last
    }

    /// A COMMIT is sent. Returns when.
    pub(super) fn asks(&mut self) -> u64 {
        self.asked = self.last;
        self.asked
    }

    /// The COMMIT that was sent last has been answered: forgets what it covers. Bytes that are left of what was answered up to
    /// `cutoff`, since another life of the server had them, or this one later; or what is newer in their place.
    pub(super) fn committed(&mut self, cutoff: u64, verifier: Verifier) -> u64 {
        let (asked, life) = (self.asked, Some(verifier));
        self.uncommitted.retain(|_, entry| entry.taken > asked || entry.verifier != life);
        for entry in self.uncommitted.values_mut() {
            entry.before = entry.before.filter(|before| before.verifier != life);
        }
        let left = self.uncommitted.iter().filter(|(_, entry)| entry.owed_since() <= cutoff);
        left.map(|(start, entry)| entry.end - start).sum()
    }

    /// The first entry at `from` or behind it that is owed since `cutoff` at the latest, and is not of this life of the server. It is under way
    /// from now on.
    pub(super) fn resend(&mut self, from: u64, cutoff: u64, verifier: Verifier) -> Option<Resend> {
        let wanted = |entry: &Uncommitted| entry.owed_since() <= cutoff && entry.verifier != Some(verifier);
        let (start, entry) = self.uncommitted.range(from..).find(|(_, entry)| wanted(entry))?;
        let (start, end, number) = (*start, entry.end, entry.number);
        let piece = Piece { start, len: length(end - start), block: entry.block.clone(), at: entry.at };
        let flight = self.next();
        self.depart(flight, 0, start..end, false);
        Some(Resend { flight, number, piece })
    }

    /// What was sent again was answered.
    pub(super) fn resent(&mut self, flight: u64, number: u64, verifier: Verifier) {
        let flight = self.arrive(flight);
        let (taken, verifier) = (self.next(), self.trusted(&flight, verifier));
        for (_, entry) in self.uncommitted.range_mut(flight.start..flight.end) {
            if entry.number == number {
                (entry.verifier, entry.taken) = (verifier, taken);
            }
        }
    }
}

/// A length within a request.
fn length(n: u64) -> usize {
    usize::try_from(n).expect("no longer than a request")
}

#[cfg(test)]
mod tests {
    use super::super::arena::Arena;
    use super::*;

    const ONE: Verifier = [1; 8];
    const TWO: Verifier = [2; 8];

    struct Rig {
        ledger: Ledger,
        arena: Arc<Arena>,
    }

    impl Rig {
        fn new() -> Rig {
            Rig { ledger: Ledger::new(1 << 20), arena: Arena::new(1 << 20).unwrap() }
        }
        fn block(&self, value: u8) -> Arc<Block> {
            let block = self.arena.take(4096).unwrap();
            block.segment(0, 4096).fill(value);
            block
        }
        fn land(&mut self, id: u64, value: u8) -> Landing {
            let block = self.block(value);
            self.ledger.land(id, Some((ONE, block)))
        }
        fn write(&mut self, start: u64, end: u64, value: u8) {
            let id = self.ledger.begin(start, end, false);
            assert_eq!(self.land(id, value), Landing::Done);
        }
        /// What is kept of 0..16, a letter a byte.
        fn text(&self) -> String {
            let mut text = vec![b'.'; 16];
            for piece in self.ledger.kept(0, 16) {
                let at = usize::try_from(piece.start).unwrap();
                piece.block.segment(piece.at, piece.len).read_at(0, &mut text[at..at + piece.len]);
            }
            String::from_utf8(text).unwrap()
        }
    }

    #[test]
    fn what_is_kept_is_what_was_answered_last() {
        let mut rig = Rig::new();
        rig.write(2, 10, b'a');
        rig.write(4, 6, b'b');
        rig.write(9, 12, b'c');
        rig.write(0, 3, b'd');
        assert_eq!(rig.text(), "dddabbaaaccc....");
        let durable = rig.ledger.begin(5, 11, true);
        assert_eq!(rig.ledger.land(durable, None), Landing::Done);
        assert_eq!(rig.text(), "dddab......c....");
        assert!(rig.ledger.kept(5, 11).is_empty());
        assert_eq!(rig.ledger.kept(4, 12).len(), 2);
    }

    #[test]
    fn of_two_that_overlap_the_later_goes_again_until_the_earlier_is_gone() {
        let mut rig = Rig::new();
        let first = rig.ledger.begin(0, 8, false);
        let second = rig.ledger.begin(4, 12, false);
        let apart = rig.ledger.begin(12, 16, false);
        assert_eq!(rig.land(apart, b'x'), Landing::Done);
        assert_eq!(rig.land(second, b'b'), Landing::Again);
        assert_eq!(rig.land(second, b'b'), Landing::Again);
        assert_eq!(rig.land(first, b'a'), Landing::Done);
        // It was under way beside the first one until now.
        assert_eq!(rig.land(second, b'b'), Landing::Again);
        assert_eq!(rig.land(second, b'b'), Landing::Done);
        assert_eq!(rig.text(), "aaaabbbbbbbbxxxx");
    }

    #[test]
    fn a_commit_of_the_same_life_covers_what_was_answered_before_it() {
        let mut rig = Rig::new();
        rig.write(0, 4, b'a');
        let cutoff = rig.ledger.asks();
        rig.write(8, 12, b'b');
        assert_eq!(rig.ledger.committed(cutoff, ONE), 0);
        assert_eq!(rig.text(), "........bbbb....");
        assert!(!rig.ledger.is_clean());
    }

    #[test]
    fn after_a_restart_all_of_the_other_life_is_sent_again_and_newer_data_wins() {
        let mut rig = Rig::new();
        rig.write(0, 8, b'a');
        rig.write(12, 16, b'b');
        let cutoff = rig.ledger.asks();
        assert_eq!(rig.ledger.committed(cutoff, TWO), 12);
        let newer = rig.ledger.begin(4, 6, false);
        let old = rig.ledger.resend(0, cutoff, TWO).unwrap();
        assert_eq!((old.piece.start, old.piece.len), (0, 8));
        let other = rig.ledger.resend(old.piece.start + 1, cutoff, TWO).unwrap();
        assert_eq!(other.piece.start, 12);
        assert!(rig.ledger.resend(13, cutoff, TWO).is_none());
        // It may have come before what was sent again.
        assert_eq!(rig.land(newer, b'n'), Landing::Again);
        rig.ledger.resent(old.flight, old.number, TWO);
        assert_eq!(rig.land(newer, b'n'), Landing::Again);
        assert_eq!(rig.land(newer, b'n'), Landing::Done);
        rig.ledger.resent(other.flight, other.number, TWO);
        assert_eq!(rig.text(), "aaaannaa....bbbb");
        rig.ledger.asks();
        assert_eq!(
            rig.ledger.committed(cutoff, TWO),
            2,
            "what is newer is owed in place of what it superseded"
        );
        assert_eq!(rig.text(), "....nn..........");
    }

    #[test]
    fn a_commit_that_was_sent_before_something_was_sent_again_does_not_cover_that() {
        let mut rig = Rig::new();
        rig.write(0, 8, b'a');
        let asked = rig.ledger.asks();
        // Its answer is late: meanwhile the other life is known, and has been told.
        let old = rig.ledger.resend(0, asked, TWO).unwrap();
        rig.ledger.resent(old.flight, old.number, TWO);
        assert_eq!(rig.ledger.committed(asked, TWO), 8);
        assert_eq!(rig.text(), "aaaaaaaa........");
        rig.ledger.asks();
        assert_eq!(rig.ledger.committed(asked, TWO), 0);
        assert!(rig.ledger.is_clean());
    }

    #[test]
    fn what_the_server_had_when_it_failed_to_make_something_durable_is_sent_again() {
        let mut rig = Rig::new();
        rig.write(0, 4, b'a');
        let beside = rig.ledger.begin(4, 8, false);
        let stable = rig.ledger.begin(8, 12, true);
        rig.ledger.doubt();
        rig.ledger.fail(stable);
        assert_eq!(rig.land(beside, b'b'), Landing::Done);
        rig.write(12, 16, b'c');
        let cutoff = rig.ledger.asks();
        assert_eq!(rig.ledger.committed(cutoff, ONE), 8, "the last came after that");
        assert_eq!(rig.text(), "aaaabbbb........");
        let first = rig.ledger.resend(0, cutoff, ONE).unwrap();
        let second = rig.ledger.resend(first.piece.start + 1, cutoff, ONE).unwrap();
        assert!(rig.ledger.resend(second.piece.start + 1, cutoff, ONE).is_none());
        rig.ledger.resent(first.flight, first.number, ONE);
        // It fails again, and the second may have been there already.
        let stable = rig.ledger.begin(8, 12, true);
        rig.ledger.doubt();
        rig.ledger.fail(stable);
        rig.ledger.resent(second.flight, second.number, ONE);
        rig.ledger.asks();
        assert_eq!(rig.ledger.committed(cutoff, ONE), 8);
        for from in [0, 4] {
            let again = rig.ledger.resend(from, cutoff, ONE).unwrap();
            rig.ledger.resent(again.flight, again.number, ONE);
        }
        rig.ledger.asks();
        assert_eq!(rig.ledger.committed(cutoff, ONE), 0);
        assert!(rig.ledger.is_clean());
    }

    #[test]
    fn stable_writes_may_still_tell_of_what_was_lost_before_they_have_ended() {
        let mut rig = Rig::new();
        let stable = rig.ledger.begin(0, 4, true);
        let unstable = rig.ledger.begin(4, 8, false);
        let answered = rig.ledger.now();
        let later = rig.ledger.begin(8, 12, true);
        assert!(rig.ledger.may_still_tell(answered));
        assert_eq!(rig.ledger.land(stable, None), Landing::Done);
        assert!(!rig.ledger.may_still_tell(answered));
        assert!(rig.ledger.may_still_tell(rig.ledger.now()));
        rig.ledger.fail(later);
        assert!(!rig.ledger.may_still_tell(rig.ledger.now()));
        rig.ledger.fail(unstable);
    }

    #[test]
    fn what_was_superseded_is_not_sent_again_but_what_is_newer() {
        let mut rig = Rig::new();
        rig.write(0, 8, b'a');
        let cutoff = rig.ledger.asks();
        rig.write(2, 4, b'n');
        let first = rig.ledger.resend(0, cutoff, TWO).unwrap();
        assert_eq!((first.piece.start, first.piece.len), (0, 2));
        let newer = rig.ledger.resend(1, cutoff, TWO).unwrap();
        assert_eq!((newer.piece.start, newer.piece.len, newer.piece.at), (2, 2, 0));
        let last = rig.ledger.resend(3, cutoff, TWO).unwrap();
        assert_eq!((last.piece.start, last.piece.len, last.piece.at), (4, 4, 4));
        rig.ledger.fail(last.flight);
        for one in [first, newer] {
            rig.ledger.resent(one.flight, one.number, TWO);
        }
        rig.ledger.asks();
        assert_eq!(rig.ledger.committed(cutoff, TWO), 4);
    }

    #[test]
    fn a_flush_owes_what_is_newer_where_a_commit_did_not_cover_what_that_superseded() {
        let mut rig = Rig::new();
        rig.write(0, 8, b'a');
        let cutoff = rig.ledger.asks();
        rig.write(0, 4, b'n');
        // Another life answers: neither is there.
        assert_eq!(rig.ledger.committed(cutoff, TWO), 8);
        let newer = rig.ledger.resend(0, cutoff, TWO).unwrap();
        assert_eq!((newer.piece.start, newer.piece.len), (0, 4));
        let older = rig.ledger.resend(1, cutoff, TWO).unwrap();
        assert_eq!((older.piece.start, older.piece.len), (4, 4));
        rig.ledger.resent(newer.flight, newer.number, TWO);
        rig.ledger.resent(older.flight, older.number, TWO);
        rig.ledger.asks();
        assert_eq!(rig.ledger.committed(cutoff, TWO), 0);
        assert!(rig.ledger.is_clean());
    }

    #[test]
    fn what_is_newer_is_owed_where_it_is_not_sure_that_all_it_superseded_was_covered() {
        let mut rig = Rig::new();
        rig.write(0, 4, b'a');
        let cutoff = rig.ledger.asks();
        rig.write(0, 4, b'n');
        rig.ledger.doubt();
        assert_eq!(rig.ledger.committed(cutoff, ONE), 4, "the server may have lost the first");
        // Of two that one supersedes, it may have lost one.
        let mut rig = Rig::new();
        rig.write(4, 8, b'b');
        rig.ledger.doubt();
        rig.write(0, 4, b'a');
        let cutoff = rig.ledger.asks();
        rig.write(0, 8, b'n');
        assert_eq!(rig.ledger.committed(cutoff, ONE), 8);
    }

    #[test]
    fn what_is_written_again_and_again_does_not_keep_a_flush() {
        let mut rig = Rig::new();
        rig.write(0, 4, b'a');
        let cutoff = rig.ledger.asks();
        (0..5).for_each(|_| rig.write(0, 4, b'n'));
        assert_eq!(rig.ledger.committed(cutoff, ONE), 0, "it covered the first");
        assert_eq!(rig.text(), "nnnn............");
        // Nor after a loss, if only one of them was there when it was asked.
        rig.ledger.doubt();
        let cutoff = rig.ledger.asks();
        (0..5).for_each(|_| rig.write(0, 4, b'm'));
        assert_eq!(rig.ledger.committed(cutoff, ONE), 4);
        rig.ledger.asks();
        (0..5).for_each(|_| rig.write(0, 4, b'o'));
        assert_eq!(rig.ledger.committed(cutoff, ONE), 0);
    }
}
