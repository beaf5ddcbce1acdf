//! One worker's events as records, for one subscriber.

use std::fmt::Write;
use std::sync::{PoisonError, RwLock};
use std::time::SystemTime;

use blockwork_engine::{
    ADDED_NODES_MAX, Action, Event, Flags, NodeId, NodeInfo, Op, Payload, Reason, SECTOR, Sectors,
};
use blockwork_format::blktrace::{Act, Category, Device, Record, Remap};
use blockwork_format::escape;

/// The name of our process in traces.
const PROCESS: &str = "blockwork";

/// Longest name in a message, characters, so that what follows it is not cut off.
const NAME_CHARS_MAX: usize = 200;

/// Longest range that a record can tell: what fits 32 bits in bytes.
const RANGE_MAX: Sectors = Sectors(u32::MAX as u64 / SECTOR);

/// What a node is called in records, and in messages.
type Name = (Device, String);

/// What is the same for all records.
pub(super) struct Names {
    pid: u32,
    /// By number; none: it may come later.
    nodes: Box<[RwLock<Option<Name>>]>,
}

impl Names {
    pub(super) fn new(nodes: &[NodeInfo]) -> Names {
        let known = nodes.iter().map(|node| RwLock::new(Some(name_of(node))));
        let added = (0..ADDED_NODES_MAX).map(|_| RwLock::default());
        Names { pid: std::process::id(), nodes: known.chain(added).collect() }
    }

    /// Names a node that came later, that goes by another name, or that has become another one.
    pub(super) fn name(&self, node: NodeId, info: &NodeInfo) {
        if let Some(slot) = self.nodes.get(usize::from(node.0)) {
            *slot.write().unwrap_or_else(PoisonError::into_inner) = Some(name_of(info));
        }
    }

    fn look<T>(&self, node: NodeId, act: impl FnOnce(&Name) -> T) -> T {
        let known = self.nodes[usize::from(node.0)].read().unwrap_or_else(PoisonError::into_inner);
        act(known.as_ref().expect("a node is named before anything happens to it"))
    }

    fn device(&self, node: NodeId) -> Device {
        self.look(node, |(device, _)| *device)
    }
}

fn name_of(node: &NodeInfo) -> (Device, String) {
    // Numbers that do not fit a record (12 and 20 bits) cannot come from the kernel, only from a caller that made them
    // up; they lose their upper bits.
    let (major, minor) = node.device;
    (Device::new(major & 0xfff, minor & 0xf_ffff), harmless(&node.name))
}

/// A name for a message, which blkparse prints as it is: whatever could command a terminal is a question mark, and a name
/// without end ends.
fn harmless(name: &str) -> String {
    let is_good = |c: char| c == '\\' || escape(c.encode_utf8(&mut [0; 4])).chars().eq([c]);
    name.chars().take(NAME_CHARS_MAX).map(|c| if is_good(c) { c } else { '?' }).collect()
}

/// What one worker has told one subscriber so far.
#[derive(Clone, Debug)]
pub(super) struct Lane {
    cpu: u32,
    sequence: u32,
    newest_ns: u64,
    begun: bool,
}

impl Lane {
    pub(super) fn new(worker: u16) -> Lane {
        Lane { cpu: u32::from(worker), sequence: 0, newest_ns: 0, begun: false }
    }

    pub(super) fn cpu(&self) -> u32 {
        self.cpu
    }

    /// Appends what a trace begins with, unless it has begun: the wall clock's time, and our name.
    pub(super) fn begin(&mut self, names: &Names, first: &Event, out: &mut Vec<u8>) {
        if std::mem::replace(&mut self.begun, true) {
            return;
        }
        self.newest_ns = first.time.0;
        let since_epoch = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
        // Seconds have 32 bits in a record, until 2106.
        let seconds = u32::try_from(since_epoch.as_secs()).unwrap_or(u32::MAX);
        self.write(Record::timestamp(seconds, since_epoch.subsec_nanos()), out);
        self.write(Record::process(names.pid, PROCESS), out);
    }

    /// Appends the record of an event, and the message that belongs to it.
    pub(super) fn event(&mut self, names: &Names, event: &Event, out: &mut Vec<u8>) {
        self.newest_ns = self.newest_ns.max(event.time.0);
        let device = names.device(event.node);
        if let Some(record) = record(names, event, device) {
            self.sequence = self.sequence.wrapping_add(1);
            self.write(Record { sequence: self.sequence, pid: names.pid, ..record }, out);
        }
        if let Some(text) = names.look(event.node, |(_, name)| message(name, event)) {
            self.message(names, device, &text, out);
        }
    }

    /// Appends the message that events are missing here.
    pub(super) fn dropped(&mut self, names: &Names, event: &Event, count: u64, out: &mut Vec<u8>) {
        let text = format!("blockwork: {count} events dropped: the reader was too slow");
        self.message(names, names.device(event.node), &text, out);
    }

    fn message(&mut self, names: &Names, device: Device, text: &str, out: &mut Vec<u8>) {
        self.write(Record { pid: names.pid, ..Record::message(device, text) }, out);
    }

    fn write(&self, record: Record<'_>, out: &mut Vec<u8>) {
        Record { time_ns: self.newest_ns, cpu: self.cpu, ..record }.encode(out);
    }
}

/// The record of an event; none for what blktrace has no letter for.
fn record(names: &Names, event: &Event, device: Device) -> Option<Record<'static>> {
    let act = act(event.action)?;
    let sector = event.sector.0;
    let bytes = u32::try_from(event.nr.min(RANGE_MAX).bytes()).expect("RANGE_MAX fits 32 bits");
    let io = categories(event.op, event.flags);
    Some(match (event.action, event.payload) {
        (Action::Plug, _) => Record::new(act, Category::READ, device, 0, 0),
        (_, Payload::Unplug { requests }) => Record::unplug(device, u64::from(requests)),
        (_, Payload::Split { new_sector }) => Record::split(io, device, sector, bytes, new_sector.0),
        (_, Payload::Remap { from, sector: sector_from }) => {
            let from = names.device(from);
            Record::remap(io, bytes, sector, Remap { from, to: device, sector_from: sector_from.0 })
        }
        // As the kernel stores it: the negative errno, cut to 16 bits.
        (Action::Complete, _) => {
            Record { error: event.errno.wrapping_neg(), ..Record::new(act, io, device, sector, bytes) }
        }
        _ => Record::new(act, io, device, sector, bytes),
    })
}

fn act(action: Action) -> Option<Act> {
    Some(match action {
        Action::Queue => Act::Queue,
        Action::BackMerge => Act::BackMerge,
        Action::FrontMerge => Act::FrontMerge,
        Action::GetRequest => Act::GetRequest,
        Action::Sleep => Act::SleepRequest,
        Action::Requeue => Act::Requeue,
        Action::Issue => Act::Issue,
        Action::Complete => Act::Complete,
        Action::Plug => Act::Plug,
        Action::Unplug => Act::UnplugIo,
        Action::Insert => Act::Insert,
        Action::Split => Act::Split,
        Action::Bounce => Act::Bounce,
        Action::Remap => Act::Remap,
        Action::Defer => return None,
    })
}

/// See the table in the head of `trace`.
fn categories(op: Op, flags: Flags) -> Category {
    let mut io = Category::FS
        | match op {
            Op::Read => Category::READ,
            Op::Write | Op::WriteZeroes => Category::WRITE,
            Op::Flush => Category::WRITE | Category::FLUSH,
            Op::Discard => Category::WRITE | Category::DISCARD,
        };
    for (flag, category) in
        [(Flags::FUA, Category::FUA), (Flags::SYNC, Category::SYNC), (Flags::READ_AHEAD, Category::AHEAD)]
    {
        if flags.has(flag) {
            io |= category;
        }
    }
    io
}

/// What a record cannot tell: why, and lengths beyond [`RANGE_MAX`].
fn message(name: &str, event: &Event) -> Option<String> {
    let reason = event.reason.word();
    // That it is read ahead is said by the letter A already; and what all requests of a disk may have is no message each.
    let has_reason = !reason.is_empty() && !matches!(event.reason, Reason::ReadAhead | Reason::Fixed);
    let is_long = event.nr > RANGE_MAX;
    if event.action != Action::Defer && !has_reason && !is_long {
        return None;
    }
    if let Payload::Ring { in_flight, size, full } = event.payload {
        let before = full.0 as f64 / 1e9;
        return Some(format!(
            "blockwork: {name}: ring full: {in_flight} requests in flight, size {size}; full before for {before:.6} s"
        ));
    }
    let mut text = format!("blockwork: {name}: {} {} + {}", past_tense(event.action), event.sector, event.nr);
    if has_reason {
        write!(text, " ({reason})").expect("a String takes all");
    }
    Some(text)
}

fn past_tense(action: Action) -> &'static str {
    match action {
        Action::Queue => "queued",
        Action::BackMerge => "merged behind",
        Action::FrontMerge => "merged in front",
        Action::GetRequest => "got a request",
        Action::Sleep => "waits",
        Action::Requeue => "requeued",
        Action::Issue => "issued",
        Action::Complete => "completed",
        Action::Plug => "plugged",
        Action::Unplug => "unplugged",
        Action::Insert => "inserted",
        Action::Split => "split",
        Action::Bounce => "bounced",
        Action::Remap => "mapped",
        Action::Defer => "deferred",
    }
}
