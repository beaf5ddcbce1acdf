//! Guests that break the protocol: each is answered with an error, or loses its ring and is told in the log; the back end
//! goes on, and touches nothing that it was not granted.

use std::sync::atomic::Ordering;

use blockwork_export::blkif::in_process::GrantTable;
use blockwork_export::blkif::{Access, BackEnd, Ended, Offers};
use blockwork_format::blkif::{
    Abi, Data, Direct, Kind, PAGE_BYTES, Request, Response, Segment as PageSegment, Segments, Status, ring,
};
use blockwork_memory::{Buffer, Segment};

use crate::rig::Rig;

/// A guest that writes to its ring what it likes.
struct Guest {
    rig: Rig,
    grants: GrantTable,
    pages: Vec<Segment>,
    end: BackEnd,
    put: u32,
    seen: u32,
}

const ABI: Abi = Abi::Bits64;

impl Guest {
    fn new() -> Guest {
        let mut rig = Rig::new(1);
        let grants = GrantTable::default();
        let fresh = rig.fresh_ring();
        let pages = fresh.pages.clone();
        let end = rig.serve(fresh, &grants);
        rig.settle();
        Guest { rig, grants, pages, end, put: 0, seen: 0 }
    }

    fn word(&self, at: usize, value: u32) {
        self.pages[0].buffer().store_u32(at, value, Ordering::Release);
    }

    /// Puts bytes into the next slot, without telling.
    fn raw(&mut self, bytes: &[u8]) {
        let at = ABI.slot_at(self.put, 32);
        self.pages[0].write_at(at, bytes);
        self.put += 1;
    }

    fn request(&mut self, id: u64, kind: Kind) {
        let request = Request { id, handle: 0, sector: 0, kind };
        let (bytes, len) = request.encode(ABI);
        self.raw(&bytes[..len]);
    }

    /// Tells of what was put in, and gives the back end a turn.
    fn ring(&mut self) {
        self.word(ring::REQ_PROD, self.put);
        self.turn();
    }

    fn turn(&mut self) {
        let port = blockwork_engine::PortId(0);
        self.rig.worker.handle().run(move |worker| worker.poke(port));
        self.rig.settle();
    }

    /// What was answered since the last time.
    fn answers(&mut self) -> Vec<(u64, Status)> {
        let end = self.pages[0].buffer().load_u32(ring::RSP_PROD, Ordering::Acquire);
        let mut answers = Vec::new();
        while self.seen != end {
            let mut bytes = [0; 12];
            self.pages[0].read_at(ABI.slot_at(self.seen, 32), &mut bytes);
            let response = Response::decode(&bytes);
            answers.push((response.id, response.status));
            self.seen += 1;
        }
        answers
    }

    fn page(&mut self, access: Access) -> (u32, Segment) {
        let page = Segment::new(Buffer::new(PAGE_BYTES), 0, PAGE_BYTES);
        (self.grants.grant(page.clone(), access), page)
    }

    fn broken(&self) -> String {
        match self.end.ended() {
            Some(Ended::Broken(reason)) => reason.clone(),
            other => panic!("expected a ring that is broken, found {other:?}"),
        }
    }

    /// It still serves: a good request is answered.
    fn is_well(&mut self) {
        let (gref, _) = self.page(Access::Write);
        self.request(77, read(gref));
        self.ring();
        assert_eq!(self.answers(), [(77, Status::Okay)]);
    }
}

fn segment(gref: u32) -> PageSegment {
    PageSegment { gref, first_sect: 0, last_sect: 7 }
}

fn read(gref: u32) -> Kind {
    Kind::Direct(Direct::Read, Segments::new(&[segment(gref)]).unwrap())
}

#[test]
fn an_index_that_runs_away_ends_the_ring() {
    for (first, then) in [(33, 0), (u32::MAX, 0), (1 << 31, 5)] {
        let mut guest = Guest::new();
        guest.word(ring::REQ_PROD, first);
        guest.turn();
        assert!(guest.broken().contains("entries ahead of 0, expected at most 32"), "{}", guest.broken());
        guest.word(ring::REQ_PROD, then);
        guest.turn();
        assert_eq!(guest.answers(), []);
    }
}

/// While a barrier is under way, nothing behind it is taken.
#[test]
fn an_index_that_goes_back_ends_the_ring_also_where_nothing_was_taken_and_counts_no_requests() {
    let mut guest = Guest::new();
    (0..6).for_each(|id| guest.request(id, Kind::Direct(Direct::Barrier, Segments::default())));
    let port = blockwork_engine::PortId(0);
    for index in [6, 4] {
        guest.word(ring::REQ_PROD, index);
        guest.rig.worker.handle().run(move |worker| worker.poke(port));
        guest.rig.worker.turn(blockwork_engine::Wait::Poll);
    }
    let figures = guest.rig.stats[0].snapshot(guest.rig.worker.now());
    assert_eq!((figures.requests, figures.high_water), (6, 6));
    guest.rig.settle();
    assert_eq!(guest.broken(), "req_prod is 4, 4294967294 entries ahead of 6, expected at most 32");
}

#[test]
fn an_id_that_is_under_way_twice_ends_the_ring() {
    let mut guest = Guest::new();
    let (gref, _) = guest.page(Access::Write);
    for id in [5, 6, 5] {
        guest.request(id, read(gref));
    }
    guest.ring();
    assert_eq!(
        guest.broken(),
        "id 0x5 is used by two requests at a time, expected one that is not under way"
    );
}

#[test]
fn an_id_may_be_used_again_when_it_is_answered() {
    let mut guest = Guest::new();
    let (gref, _) = guest.page(Access::Write);
    for _ in 0..100 {
        guest.request(u64::MAX, read(gref));
        guest.ring();
        assert_eq!(guest.answers(), [(u64::MAX, Status::Okay)]);
    }
}

#[test]
fn bad_requests_are_answered_with_an_error_and_the_next_is_served() {
    let mut guest = Guest::new();
    let (read_only, page) = guest.page(Access::Read);
    let mut count = Request { id: 1, handle: 0, sector: 0, kind: read(read_only) }.encode(ABI).0;
    count[1] = 200;
    guest.raw(&count);
    let mut operation = count;
    (operation[0], operation[8]) = (99, 2);
    guest.raw(&operation);
    let mut bounds = Request { id: 3, handle: 0, sector: 0, kind: read(read_only) }.encode(ABI).0;
    (bounds[28], bounds[29]) = (7, 8);
    guest.raw(&bounds);
    guest.request(4, read(read_only)); // what is read would have to be written there
    guest.request(5, read(0xffff_ffff));
    guest.request(6, Kind::Discard { nr_sectors: 8, secure: true });
    guest.request(7, Kind::Discard { nr_sectors: u64::MAX, secure: false });
    guest.request(8, Kind::Discard { nr_sectors: 0, secure: false });
    guest.ring();
    let mut answers = guest.answers();
    answers.sort_by_key(|(id, _)| *id);
    let expected = [
        (1, Status::Error),
        (2, Status::NotSupported),
        (3, Status::Error),
        (4, Status::Error),
        (5, Status::Error),
        (6, Status::NotSupported),
        (7, Status::Error),
        (8, Status::Okay),
    ];
    assert_eq!(answers, expected);
    let mut bytes = [0; PAGE_BYTES];
    page.read_at(0, &mut bytes);
    assert!(bytes.iter().all(|byte| *byte == 0), "a page that is granted to read was not written to");
    guest.is_well();
}

#[test]
fn indirect_requests_are_bounded_and_their_segments_checked() {
    let mut guest = Guest::new();
    let (list, page) = guest.page(Access::Read);
    let (data, _) = guest.page(Access::Write);
    let indirect = |nr_segments, list| Kind::Indirect { data: Data::Read, nr_segments, grefs: [list; 8] };
    let good = segment(data);
    let bytes = |segments: &[PageSegment]| blockwork_format::blkif::encode_segments(segments);
    page.write_at(0, &bytes(&[good; 256]));
    guest.request(1, indirect(257, list)); // more than was offered
    guest.request(2, indirect(3, 4)); // a list that was not granted
    guest.request(3, indirect(256, list));
    guest.ring();
    assert_eq!(guest.answers(), [(1, Status::Error), (2, Status::Error), (3, Status::Okay)]);
    page.write_at(8 * 200, &bytes(&[PageSegment { first_sect: 6, last_sect: 5, ..good }]));
    guest.request(4, indirect(256, list));
    guest.request(5, indirect(200, list));
    guest.ring();
    assert_eq!(guest.answers(), [(4, Status::Error), (5, Status::Okay)]);
    guest.is_well();
}

#[test]
fn a_ring_that_is_closed_answers_what_it_took_and_takes_no_more() {
    let mut guest = Guest::new();
    let (gref, _) = guest.page(Access::Write);
    guest.request(1, read(gref));
    guest.word(ring::REQ_PROD, 1);
    let port = blockwork_engine::PortId(0);
    guest.rig.worker.handle().run(move |worker| worker.poke(port));
    guest.rig.worker.turn(blockwork_engine::Wait::Poll);
    guest.end.close();
    guest.request(2, read(gref));
    guest.ring();
    assert_eq!(guest.answers(), [(1, Status::Okay)]);
    assert_eq!(guest.end.ended(), Some(&Ended::Closed));
}

#[test]
fn one_guest_that_breaks_its_ring_leaves_the_others_alone() {
    let mut guest = Guest::new();
    let other = guest.rig.fresh_ring();
    let (other_pages, mut grants) = (other.pages.clone(), guest.grants.clone());
    let other_end = guest.rig.serve(other, &guest.grants);
    guest.word(ring::REQ_PROD, 1000);
    guest.turn();
    guest.broken();
    let page = Segment::new(Buffer::new(PAGE_BYTES), 0, PAGE_BYTES);
    let gref = grants.grant(page, Access::Write);
    let (bytes, len) = Request { id: 9, handle: 0, sector: 0, kind: read(gref) }.encode(ABI);
    other_pages[0].write_at(ring::SLOTS, &bytes[..len]);
    other_pages[0].buffer().store_u32(ring::REQ_PROD, 1, Ordering::Release);
    guest.rig.worker.handle().run(|worker| worker.poke(blockwork_engine::PortId(1)));
    guest.rig.settle();
    assert_eq!(other_pages[0].buffer().load_u32(ring::RSP_PROD, Ordering::Acquire), 1);
    assert_eq!(other_end.ended(), None);
}
