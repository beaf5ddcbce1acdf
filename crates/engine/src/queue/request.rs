//! Requests: contiguous parts of bios that go to the device as one. Kept in a slab whose entries keep their memory.

use std::ops::{Index, IndexMut};

use blockwork_memory::{Pool, Segment, Segments, bytes_in, copy_between, slice_segments};

use crate::bio::{Errno, Flags, Op};
use crate::choice::Watched;
use crate::units::{Nanos, Sector, Sectors};

/// A bio's share of a request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Part {
    pub(super) bio: u32,
    /// What is asked of the device: not always what the request does (zeros are written where there is no write-zeroes), nor what the bio
    /// asks of its volume (a snapshot's discard is a write-zeroes of its store).
    pub(super) op: Op,
    /// Where the share starts within the bio.
    pub(super) at: Sectors,
    pub(super) nr: Sectors,
}

/// What a request is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// Not in use.
    Free,
    /// Bios wait for it.
    Client,
    /// It fills a slot of what is read ahead.
    ReadAhead(u32),
    /// The flush that all waiters share.
    Flush(u64),
}

#[derive(Debug)]
pub(super) struct Request {
    pub(super) stage: Stage,
    pub(super) op: Op,
    pub(super) flags: Flags,
    pub(super) sector: Sector,
    pub(super) nr: Sectors,
    pub(super) parts: Vec<Part>,
    /// The parts' memory, in order.
    pub(super) data: Vec<Segment>,
    /// What the device works on instead of `data`: a bounce buffer, or what is left after a short transfer.
    instead: Option<Segments>,
    bounced: Option<Segment>,
    /// What the comparison of ways wants to know when this submission is done.
    pub(super) watched: Option<Watched>,
    /// A FUA write that a flush makes durable: the device is not asked to.
    pub(super) flush_follows: bool,
    /// The device's answer to this FUA write, where that leaves open whether the data or a flush has failed (see `flush`).
    pub(super) doubt: Option<Errno>,
    /// What the comparison of ways wants to know when this FUA write is durable.
    pub(super) watched_fua: Option<Watched>,
    /// Bytes of a copy that the device did not demand.
    pub(super) copied: usize,
    /// Sectors transferred before the current submission.
    pub(super) done: Sectors,
    pub(super) issued: Nanos,
    /// It had to wait, so that small ones need not.
    pub(super) held: bool,
    /// What it weighs among the large ones in flight, bytes.
    pub(super) weight: u64,
    /// It was the only large one in flight when it was issued.
    pub(super) alone: bool,
    in_flight: bool,
}

impl Default for Request {
    fn default() -> Request {
        Request {
            stage: Stage::Free,
            op: Op::Read,
            flags: Flags::NONE,
            sector: Sector(0),
            nr: Sectors::ZERO,
            parts: Vec::new(),
            data: Vec::new(),
            instead: None,
            bounced: None,
            watched: None,
            flush_follows: false,
            doubt: None,
            watched_fua: None,
            copied: 0,
            done: Sectors::ZERO,
            issued: Nanos(0),
            held: false,
            weight: 0,
            alone: false,
            in_flight: false,
        }
    }
}

impl Request {
    pub(super) fn end(&self) -> Sector {
        self.sector + self.nr
    }
    pub(super) fn what(&self) -> (Op, Flags, Sector, Sectors) {
        (self.op, self.flags, self.sector, self.nr)
    }
    /// The flags as far as they are the device's business.
    pub(super) fn device_flags(&self) -> Flags {
        if self.flush_follows { self.flags.without(Flags::FUA) } else { self.flags }
    }
    pub(super) fn state_issue(&mut self) {
        assert!(!self.in_flight, "a request was issued twice");
        self.in_flight = true;
    }
    pub(super) fn state_done(&mut self) {
        assert!(self.in_flight, "a request completed twice");
        self.in_flight = false;
    }

    /// What the device transfers now.
    pub(super) fn io_data(&self) -> &[Segment] {
        match &self.instead {
            Some(data) => data,
            None => &self.data,
        }
    }

    /// Whether the device, with that mask of address bits that must be zero, cannot work on this memory.
    #[inline]
    pub(super) fn is_misaligned(&self, mask: u64) -> bool {
        self.io_data()
            .iter()
            .any(|segment| (segment.as_ptr().addr() as u64 | segment.len() as u64) & mask != 0)
    }

    /// Puts a page-aligned buffer between the device and the data.
    pub(super) fn bounce(&mut self, pool: &Pool) {
        debug_assert!(self.bounced.is_none());
        let len = bytes_in(self.io_data());
        let buffer = Segment::new(pool.get(len), 0, len);
        if self.op == Op::Write {
            copy_between(self.io_data(), std::slice::from_ref(&buffer));
        }
        self.bounced = Some(buffer.clone());
        self.instead = Some(Segments::from_iter([buffer]));
    }

    /// The current submission is over, and has transferred so much: of a read, that is copied from the bounce buffer to where it belongs.
    /// What else the buffer holds is what somebody else left in it, and the memory may be a guest's.
    pub(super) fn unbounce(&mut self, transferred: Sectors) {
        let Some(buffer) = self.bounced.take() else { return };
        if self.op == Op::Read && transferred > Sectors::ZERO {
            let len = transferred.byte_len();
            let mut target = Segments::new();
            slice_segments(&self.data, self.done.byte_len(), len, &mut target);
            copy_between(&[buffer.slice(0, len)], &target);
        }
        self.instead = None;
        if self.done > Sectors::ZERO {
            // It was the rest after a short transfer that was bounced; that rest is still to be done.
            self.submit_rest();
        }
    }

    /// The first `sectors` of the current submission are done: what remains is to be submitted again.
    pub(super) fn advance(&mut self, sectors: Sectors) {
        self.unbounce(sectors);
        self.done += sectors;
        self.sector = self.sector + sectors;
        self.nr = self.nr - sectors;
        self.submit_rest();
    }

    /// All of it is to be submitted again, whatever was transferred.
    pub(super) fn restart(&mut self) {
        (self.sector, self.nr) = self.whole();
        (self.done, self.instead, self.bounced) = (Sectors::ZERO, None, None);
    }

    fn submit_rest(&mut self) {
        let mut rest = Segments::new();
        slice_segments(&self.data, self.done.byte_len(), self.nr.byte_len(), &mut rest);
        self.instead = Some(rest);
    }

    /// Sector and length as they were before any short transfer.
    pub(super) fn whole(&self) -> (Sector, Sectors) {
        (self.sector - self.done, self.nr + self.done)
    }

    /// Adds memory at the end, joined to the last segment where it adjoins.
    #[inline]
    pub(super) fn push_data(&mut self, segments: &[Segment]) {
        for segment in segments {
            if !self.data.last_mut().is_some_and(|last| last.extend(segment)) {
                self.data.push(segment.clone());
            }
        }
    }

    /// Takes all the memory there is, of a request that has none.
    #[inline]
    pub(super) fn take_data(&mut self, mut segments: Segments) {
        debug_assert!(self.data.is_empty());
        match segments.len() {
            // The usual case: one buffer a bio.
            1 => self.data.extend(segments.pop()),
            _ => self.push_data(&segments),
        }
    }

    fn reset(&mut self) {
        assert!(!self.in_flight);
        self.stage = Stage::Free;
        self.parts.clear();
        self.data.clear();
        self.instead = None;
        self.bounced = None;
        self.flush_follows = false;
        self.doubt = None;
        self.done = Sectors::ZERO;
        self.held = false;
    }
}

/// All requests of a queue.
#[derive(Debug, Default)]
pub(super) struct Requests {
    all: Vec<Request>,
    free: Vec<u32>,
    /// The newest request of the batch that is being made, to merge with.
    pub(super) newest: Option<u32>,
}

impl Requests {
    pub(super) fn start_batch(&mut self) {
        self.newest = None;
    }

    /// A fresh request.
    #[inline]
    pub(super) fn take(&mut self, stage: Stage, op: Op, flags: Flags, sector: Sector, nr: Sectors) -> u32 {
        let id = self.free.pop().unwrap_or_else(|| {
            self.all.push(Request::default());
            u32::try_from(self.all.len() - 1).expect("requests are bounded")
        });
        let request = &mut self.all[id as usize];
        debug_assert_eq!(request.stage, Stage::Free);
        (request.stage, request.op, request.flags) = (stage, op, flags);
        (request.sector, request.nr) = (sector, nr);
        id
    }

    /// Gives one back; its memory is kept for the next.
    #[inline]
    pub(super) fn give_back(&mut self, id: u32) {
        self.all[id as usize].reset();
        self.free.push(id);
    }
}

impl Index<u32> for Requests {
    type Output = Request;
    #[inline]
    fn index(&self, id: u32) -> &Request {
        &self.all[id as usize]
    }
}
impl IndexMut<u32> for Requests {
    #[inline]
    fn index_mut(&mut self, id: u32) -> &mut Request {
        &mut self.all[id as usize]
    }
}
