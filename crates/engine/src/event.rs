//! Events: everything that alters an I/O says so, in blktrace's terms, where somebody listens.
//!
//! Tracing that is off costs one predictable branch per place ([`Tracer::on`]).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::bio::{Flags, Op};
use crate::layer::{NodeId, Span};
use crate::ring::RingSnapshot;
use crate::units::{Nanos, Sector, Sectors};

/// What happened, by blktrace's letters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// Q: a bio arrived at a device.
    Queue,
    /// M: it was added to the end of a request.
    BackMerge,
    /// F: it was added to the front of a request.
    FrontMerge,
    /// G: a request was made for it.
    GetRequest,
    /// S: no request was free; it waits.
    Sleep,
    /// R: a request went back to the queue.
    Requeue,
    /// D: a request was given to the device.
    Issue,
    /// C: a request or bio completed.
    Complete,
    /// P: the queue holds requests back to gather more.
    Plug,
    /// U: it lets them go.
    Unplug,
    /// I: a request entered the queue.
    Insert,
    /// X: a bio was cut.
    Split,
    /// B: data goes through another buffer.
    Bounce,
    /// A: a bio was mapped to a lower device.
    Remap,
    /// A bio waits for a layer's slow path (blktrace has no letter; written as a message).
    Defer,
}

/// Why it happened, where that is worth a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reason {
    /// Nothing to add.
    None,
    /// A stripe's or RAID's chunk ended.
    Chunk,
    /// A target of the table ended.
    TargetEnd,
    /// max_sectors_kb.
    MaxSectors,
    /// max_segments.
    MaxSegments,
    /// The device's chunk_sectors boundary.
    ChunkSectors,
    /// discard_max_bytes.
    DiscardMax,
    /// write_zeroes_max_bytes.
    WriteZeroesMax,
    /// Memory that the device's dma_alignment does not allow.
    Alignment,
    /// Memory in several pieces, which costs more than a copy: `linearize`.
    Linearize,
    /// Memory in several pieces that is copied, or goes as it is, to see what that costs: `linearize=auto`.
    LinearizeTrial,
    /// A range that is not whole logical blocks: read, modified, written.
    Unaligned,
    /// A device without write-zeroes: zeros are written instead.
    NoWriteZeroes,
    /// A FUA write goes as a plain one, and a flush follows it: `fua`.
    FlushFollows,
    /// A FUA write goes the other way to see what that costs: `fua=auto`.
    FuaTrial,
    /// Its memory is known to the kernel: `fixed`.
    Fixed,
    /// It goes the other way, by known memory or not, to see what that costs: `fixed=auto`.
    FixedTrial,
    /// A large request that has waited so that small ones need not: `wbt_lat_usec`.
    Held,
    /// A merged request failed: its parts are tried one by one.
    Retry,
    /// The device transferred less than asked: the rest is asked for again.
    Short,
    /// Sequential reads: what comes next is read ahead.
    ReadAhead,
    /// An array notes what is about to be written in its write-intent bitmap.
    WriteIntent,
    /// An array notes in its superblocks that it is being written to.
    Activate,
    /// A copy could not be read: it is written anew from another one.
    ReadError,
    /// A member of an array has failed: the others note it.
    MemberFailed,
    /// What is about to be overwritten is copied to the stores of snapshots.
    CopyOut,
    /// A snapshot is merged into its origin: what is being copied back is not written meanwhile.
    Merge,
    /// An array copies that range between its members: a write waits for that.
    Resync,
    /// Where blocks of a thin volume lie is read from the metadata of its pool.
    ReadMap,
    /// A write of a thin volume needs blocks of its own.
    Provision,
    /// Blocks of a thin volume are being filled by other writes.
    Fill,
    /// Blocks of a thin volume are given back to its pool.
    Unmap,
    /// A transaction of a thin pool is made durable.
    Commit,
    /// A client's ring holds no more: what the client has besides waits on its side.
    RingFull,
    /// A delay target holds it back.
    Delay,
    /// The volume is suspended: what it lies on is being changed.
    Suspended,
    /// Bad blocks of a member of an array were written: a flush takes them off its list.
    BadBlocks,
    /// It is computed from what is left of an array and its parity.
    Parity,
}

impl Reason {
    /// A word for it; empty for `None`.
    pub fn word(self) -> &'static str {
        match self {
            Reason::None => "",
            Reason::Chunk => "chunk",
            Reason::TargetEnd => "target end",
            Reason::MaxSectors => "max_sectors_kb",
            Reason::MaxSegments => "max_segments",
            Reason::ChunkSectors => "chunk_sectors",
            Reason::DiscardMax => "discard_max_bytes",
            Reason::WriteZeroesMax => "write_zeroes_max_bytes",
            Reason::Alignment => "dma_alignment",
            Reason::Linearize => "linearize",
            Reason::LinearizeTrial => "linearize trial",
            Reason::Unaligned => "logical_block_size",
            Reason::NoWriteZeroes => "no write zeroes",
            Reason::FlushFollows => "flush follows",
            Reason::FuaTrial => "fua trial",
            Reason::Fixed => "fixed",
            Reason::FixedTrial => "fixed trial",
            Reason::Held => "held",
            Reason::Retry => "retry",
            Reason::Short => "short transfer",
            Reason::ReadAhead => "read ahead",
            Reason::WriteIntent => "write intent",
            Reason::Activate => "activate",
            Reason::ReadError => "read error",
            Reason::MemberFailed => "member failed",
            Reason::CopyOut => "copy out",
            Reason::Merge => "merge",
            Reason::Resync => "resync",
            Reason::ReadMap => "read map",
            Reason::Provision => "provision",
            Reason::Fill => "fill",
            Reason::Unmap => "unmap",
            Reason::Commit => "commit",
            Reason::RingFull => "ring full",
            Reason::Delay => "delay",
            Reason::Suspended => "suspended",
            Reason::BadBlocks => "bad blocks",
            Reason::Parity => "parity",
        }
    }
}

/// What some actions carry besides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Payload {
    /// Nothing.
    None,
    /// X: where the second part starts.
    Split {
        /// Its first sector.
        new_sector: Sector,
    },
    /// U: how many requests are let go.
    Unplug {
        /// Requests.
        requests: u32,
    },
    /// A: where it came from.
    Remap {
        /// The device above.
        from: NodeId,
        /// The sector there.
        sector: Sector,
    },
    /// S: figures of a ring that is full.
    Ring {
        /// Requests that were taken and are not answered: no more than descriptors fit any ring, 32,768.
        in_flight: u16,
        /// Requests that fit, where each takes one descriptor.
        size: u32,
        /// For how long it was full before.
        full: Nanos,
    },
}

/// One event.
#[derive(Clone, Copy, Debug)]
pub struct Event {
    /// When, by the worker's clock.
    pub time: Nanos,
    /// On which device or layer.
    pub node: NodeId,
    /// What happened.
    pub action: Action,
    /// To what kind of I/O.
    pub op: Op,
    /// Its flags.
    pub flags: Flags,
    /// Where.
    pub sector: Sector,
    /// How long.
    pub nr: Sectors,
    /// What else.
    pub payload: Payload,
    /// Why.
    pub reason: Reason,
    /// For C: the error, as a positive errno, or 0.
    pub errno: u16,
}

impl Event {
    /// An event of a span on that node, with nothing to add.
    pub(crate) fn on(time: Nanos, node: NodeId, action: Action, span: Span) -> Event {
        let Span { op, flags, sector, nr, .. } = span;
        Event {
            time,
            node,
            action,
            op,
            flags,
            sector,
            nr,
            payload: Payload::None,
            reason: Reason::None,
            errno: 0,
        }
    }
}

impl Event {
    /// A client's ring on the volume of that node is full.
    pub(crate) fn ring_full(time: Nanos, node: NodeId, ring: &RingSnapshot) -> Event {
        let in_flight = u16::try_from(ring.in_flight).unwrap_or(u16::MAX);
        Event {
            time,
            node,
            action: Action::Sleep,
            op: Op::Read,
            flags: Flags::NONE,
            sector: Sector(0),
            nr: Sectors::ZERO,
            payload: Payload::Ring { in_flight, size: ring.size, full: ring.full },
            reason: Reason::RingFull,
            errno: 0,
        }
    }
}

/// Takes a worker's events, a batch at a time, on the worker's thread: it must not block.
pub trait EventSink: Send {
    /// Takes all of `events`, in order of time; leaves the vector empty.
    fn take(&mut self, worker: u16, events: &mut Vec<Event>);
}

/// A worker's event buffer.
#[derive(Default)]
pub struct Tracer {
    on: bool,
    wanted: Arc<AtomicBool>,
    events: Vec<Event>,
    sink: Option<Box<dyn EventSink>>,
}

impl Tracer {
    /// A tracer that gives its events to `sink` while `wanted` is set.
    pub fn new(wanted: Arc<AtomicBool>, sink: Box<dyn EventSink>) -> Tracer {
        Tracer { on: false, wanted, events: Vec::new(), sink: Some(sink) }
    }

    /// Whether anybody listens.
    #[inline]
    pub fn on(&self) -> bool {
        self.on
    }

    /// Adds an event; call only if [`Tracer::on`].
    pub fn push(&mut self, event: Event) {
        self.events.push(event);
    }

    /// At the start of a turn: looks whether anybody listens, so that whoever begins to misses nothing of what follows.
    #[inline]
    pub(crate) fn look(&mut self) {
        self.on = self.wanted.load(Ordering::Relaxed);
    }

    /// At the end of a turn: gives its events away.
    pub(crate) fn hand_over(&mut self, worker: u16) {
        if self.events.is_empty() {
            return;
        }
        match &mut self.sink {
            Some(sink) => sink.take(worker, &mut self.events),
            None => self.events.clear(),
        }
    }
}
