//! One connection and its thread: keeps `depth` requests in flight, takes the answers, counts and checks them.
//!
//! The turn of the loop is what makes it cheap: one receive takes all replies that have arrived, all of them are
//! parsed, and only then are the free slots refilled and sent by one call. The clock is read twice a turn.
//!
//! (1) A cookie is the slot's number and a sequence that grows with each use, so a reply that comes twice or to
//! nothing is seen. (2) A read is complete only when exactly its bytes have arrived. (3) An unanswered or failed flush promises
//! nothing: its writes never enter the log.

use std::collections::BTreeMap;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::time::Instant;

use anyhow::{Result, bail, ensure};

use crate::cli::{Job, Verify};
use crate::durable_log::DurableLog;
use crate::handshake::Export;
use crate::histogram::Histogram;
use crate::ledger::Ledger;
use crate::link::{Link, Payload, Payloads};
use crate::pattern::{self, Expected, mix};
use crate::proto::*;
use crate::replies::{At, Event, Replies};

/// What one connection counted.
#[derive(Clone)]
pub struct Tally {
    /// Reads that succeeded.
    pub reads: u64,
    /// Writes, trims and write-zeroes that succeeded.
    pub writes: u64,
    /// Flushes that succeeded.
    pub flushes: u64,
    /// Latency of the I/Os that succeeded.
    pub latency: Histogram,
    /// Latency of the flushes.
    pub flush_latency: Histogram,
    /// Failed requests by NBD error number.
    pub errors: BTreeMap<u32, u64>,
    /// Blocks compared with what they should be.
    pub checked: u64,
    /// Blocks that were wrong.
    pub wrong: u64,
    /// Blocks that were right, with sectors of different generations.
    pub torn: u64,
    /// The first failure, in words.
    pub first_failure: Option<String>,
    /// Send calls.
    pub sends: u64,
    /// Receive calls.
    pub receives: u64,
}

impl Tally {
    /// Nothing counted yet.
    pub fn new() -> Self {
        Tally {
            reads: 0,
            writes: 0,
            flushes: 0,
            latency: Histogram::new(),
            flush_latency: Histogram::new(),
            errors: BTreeMap::new(),
            checked: 0,
            wrong: 0,
            torn: 0,
            first_failure: None,
            sends: 0,
            receives: 0,
        }
    }

    /// Adds another connection's counts.
    pub fn add(&mut self, other: &Tally) {
        self.reads += other.reads;
        self.writes += other.writes;
        self.flushes += other.flushes;
        self.latency.add(&other.latency);
        self.flush_latency.add(&other.flush_latency);
        for (errno, count) in &other.errors {
            *self.errors.entry(*errno).or_default() += count;
        }
        self.checked += other.checked;
        self.wrong += other.wrong;
        self.torn += other.torn;
        self.first_failure = self.first_failure.take().or(other.first_failure.clone());
        self.sends += other.sends;
        self.receives += other.receives;
    }

    fn fail(&mut self, what: impl FnOnce() -> String) {
        self.first_failure.get_or_insert_with(what);
    }
}

#[derive(Clone)]
struct Slot {
    kind: Kind,
    block: u64,
    sequence: u32,
    busy: bool,
    issued_ns: u64,
    received: u64,
    errno: u32,
}

/// Where the next I/O comes from.
enum Source {
    Random(u64),
    Sequential(u64),
    ReadBack(Option<u64>),
}

/// One connection at work.
pub struct Worker<'a> {
    job: &'a Job,
    log: Option<&'a DurableLog>,
    link: Link,
    replies: Replies,
    slots: Vec<Slot>,
    free: Vec<usize>,
    payloads: Payloads,
    ledger: Option<Ledger>,
    /// The blocks this connection may use.
    part: Range<u64>,
    ios_max: u64,
    random: u64,
    started: Instant,
    /// Acknowledged writes that no flush covers yet, those that the flush in flight covers, and those to be logged.
    unflushed: Vec<(u64, u32)>,
    flushing: Vec<(u64, u32)>,
    durable: Vec<(u64, u32)>,
    writes_since_flush: u64,
    /// What was counted so far.
    pub tally: Tally,
}

impl<'a> Worker<'a> {
    /// Connection number `index` of the job, in the transmission phase.
    pub fn new(
        job: &'a Job,
        index: usize,
        socket: OwnedFd,
        export: Export,
        log: Option<&'a DurableLog>,
    ) -> Result<Self> {
        let part = part_of(&job.blocks, index, job.connections);
        let verifying = !matches!(job.verify, Verify::No);
        let bs = usize::try_from(job.bs)?;
        let idle = Slot {
            kind: Kind::Read,
            block: 0,
            sequence: 0,
            busy: false,
            issued_ns: 0,
            received: 0,
            errno: 0,
        };
        let slot_buffers = if verifying { job.depth } else { 0 };
        let shared = (0..bs).map(|n| mix(n as u64 / 8).to_le_bytes()[n % 8]).collect();
        // Random offsets range over the whole disk; what is sequential or verified has its own part.
        let own_part = verifying || !job.random;
        let ios = part_of(&(0..job.ios.unwrap_or(u64::MAX)), index, job.connections);
        Ok(Worker {
            job,
            log,
            link: Link::new(socket, job.timeout)?,
            replies: Replies::new(export.structured),
            // The last slot is the flush's.
            slots: vec![idle; job.depth + 1],
            free: (0..job.depth).rev().collect(),
            payloads: Payloads { shared, slots: vec![vec![0; bs]; slot_buffers] },
            ledger: if verifying { Some(ledger_of(job, part.clone())?) } else { None },
            part: if own_part { part } else { job.blocks.clone() },
            ios_max: if job.ios.is_some() { ios.end - ios.start } else { u64::MAX },
            random: mix(job.seed ^ (index as u64) << 40),
            started: Instant::now(),
            unflushed: Vec::new(),
            flushing: Vec::new(),
            durable: Vec::new(),
            writes_since_flush: 0,
            tally: Tally::new(),
        })
    }

    /// The load itself, until its time or number of I/Os is over and all is answered.
    pub fn load(&mut self) -> Result<()> {
        self.started = Instant::now();
        let source =
            if self.job.random { Source::Random(self.random) } else { Source::Sequential(self.part.start) };
        self.run(source)
    }

    /// Reads back every block about which something is known. Not timed.
    pub fn read_back(&mut self) -> Result<()> {
        self.run(Source::ReadBack(Some(self.part.start)))
    }

    /// Ends the session.
    pub fn disconnect(&mut self) {
        self.link.disconnect();
    }

    fn run(&mut self, mut source: Source) -> Result<()> {
        let timed = !matches!(source, Source::ReadBack(_));
        let deadline_ns = match self.job.length {
            Some(length) if timed => u64::try_from(length.as_nanos())?,
            _ => u64::MAX,
        };
        let mut left = if timed { self.ios_max } else { u64::MAX };
        loop {
            let now = self.now_ns();
            if now >= deadline_ns {
                left = 0;
            }
            let idle = self.free.len() == self.job.depth;
            if self.link.drained() && left > 0 && (idle || self.free.len() >= self.job.refill) {
                self.refill(&mut source, &mut left, now);
            }
            if timed {
                self.flush_if_due(left == 0, now);
            }
            if self.free.len() == self.job.depth && !self.slots[self.job.depth].busy {
                break;
            }
            self.link.push(&self.payloads)?;
            self.link.receive(&mut self.replies, &self.payloads)?;
            self.take_replies()?;
        }
        (self.tally.sends, self.tally.receives) = (self.link.sends, self.link.receives);
        Ok(())
    }

    fn now_ns(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_nanos()).expect("a run shorter than 584 years")
    }

    fn refill(&mut self, source: &mut Source, left: &mut u64, now: u64) {
        while *left > 0 {
            let Some(slot) = self.free.pop() else { return };
            let Some((kind, block)) = self.draw(source) else {
                self.free.push(slot);
                // Only a read-back comes to an end.
                *left = 0;
                return;
            };
            *left -= 1;
            self.issue(slot, kind, block, now);
        }
    }

    fn draw(&mut self, source: &mut Source) -> Option<(Kind, u64)> {
        let count = self.part.end - self.part.start;
        let (kind, block) = match source {
            Source::Random(state) => {
                let block = self.part.start + scale(step(state), count);
                (pick_kind(self.job, state), block)
            }
            Source::Sequential(next) => {
                let block = *next;
                *next = if block + 1 == self.part.end { self.part.start } else { block + 1 };
                (pick_kind(self.job, &mut self.random), block)
            }
            Source::ReadBack(next) => {
                let ledger = self.ledger.as_ref().expect("a read-back has a ledger");
                let block = ledger.next_known((*next)?)?;
                *next = Some(block + 1).filter(|next| *next < self.part.end);
                (Kind::Read, block)
            }
        };
        match &mut self.ledger {
            Some(ledger) => Some((kind, ledger.claim(block).expect("more blocks than requests in flight"))),
            None => Some((kind, block)),
        }
    }

    fn issue(&mut self, slot: usize, kind: Kind, block: u64, now: u64) {
        let offset = block * u64::from(self.job.bs);
        let payload = match (kind, &mut self.ledger) {
            (Kind::Write, Some(ledger)) => {
                let generation = ledger.issue(block);
                pattern::fill(&mut self.payloads.slots[slot], self.job.seed, offset, generation);
                Payload::Slot(slot)
            }
            (Kind::Write, None) => Payload::Shared,
            _ => Payload::None,
        };
        let fua = self.job.fua && kind != Kind::Read;
        let flags = if fua { CMD_FLAG_FUA } else { 0 };
        self.enqueue(slot, kind, block, now, request_of(flags, kind, offset, self.job.bs), payload);
    }

    fn enqueue(
        &mut self,
        index: usize,
        kind: Kind,
        block: u64,
        now: u64,
        make: impl Fn(u64) -> [u8; REQUEST_BYTES],
        payload: Payload,
    ) {
        let slot = &mut self.slots[index];
        assert!(!slot.busy, "slot {index} issued twice");
        let sequence = slot.sequence.wrapping_add(1);
        *slot = Slot { kind, block, sequence, busy: true, issued_ns: now, received: 0, errno: 0 };
        let cookie = u64::from(sequence) << 32 | index as u64;
        self.link.enqueue(make(cookie), payload);
    }

    /// Sends a flush when enough writes wait for one, or at the end if anyone needs to know that they are durable.
    fn flush_if_due(&mut self, ending: bool, now: u64) {
        let every = self.job.flush_every.unwrap_or(u64::MAX);
        let wanted_at_end = self.job.flush_every.is_some() || (self.log.is_some() && self.job.can_flush);
        let last = ending && wanted_at_end && self.free.len() == self.job.depth;
        let due = self.writes_since_flush >= every || (last && self.writes_since_flush > 0);
        let index = self.job.depth;
        if !due || self.slots[index].busy {
            return;
        }
        self.writes_since_flush = 0;
        self.flushing = std::mem::take(&mut self.unflushed);
        self.enqueue(index, Kind::Flush, 0, now, request_of(0, Kind::Flush, 0, 0), Payload::None);
    }

    fn take_replies(&mut self) -> Result<()> {
        let now = self.now_ns();
        loop {
            let (slots, bs) = (&self.slots, self.job.bs);
            let Some(event) = self.replies.next(|cookie| payload_bytes(slots, cookie, bs))? else { break };
            match event {
                Event::Data { cookie, at, range } => {
                    let (index, start) = self.place(cookie, at, range.len() as u64)?;
                    if let Some(buffer) = self.payloads.slots.get_mut(index) {
                        buffer[start..start + range.len()].copy_from_slice(self.replies.bytes(range));
                    }
                }
                Event::Hole { cookie, offset, length } => {
                    let (index, start) = self.place(cookie, At::Absolute(offset), u64::from(length))?;
                    if let Some(buffer) = self.payloads.slots.get_mut(index) {
                        buffer[start..start + usize::try_from(length)?].fill(0);
                    }
                }
                Event::Fault { cookie, errno } => {
                    let index = find(&self.slots, cookie)?;
                    self.slots[index].errno = errno;
                }
                Event::Done { cookie } => {
                    let index = find(&self.slots, cookie)?;
                    self.complete(index, now)?;
                }
            }
        }
        if !self.durable.is_empty() {
            if let Some(log) = self.log {
                log.append(&self.durable)?;
            }
            self.durable.clear();
        }
        Ok(())
    }

    /// The slot and the place in its block for `length` bytes that arrived.
    fn place(&mut self, cookie: u64, at: At, length: u64) -> Result<(usize, usize)> {
        let index = find(&self.slots, cookie)?;
        let slot = &mut self.slots[index];
        let bs = u64::from(self.job.bs);
        ensure!(slot.kind == Kind::Read, "payload in the reply to a request that is no read");
        let start = match at {
            At::Relative(start) => Some(start),
            At::Absolute(offset) => offset.checked_sub(slot.block * bs),
        };
        let inside = start.filter(|start| start.checked_add(length).is_some_and(|end| end <= bs));
        let Some(start) = inside else { bail!("{length} bytes at {at:?}: outside of the read they answer") };
        slot.received += length;
        Ok((index, usize::try_from(start)?))
    }

    fn complete(&mut self, index: usize, now: u64) -> Result<()> {
        let bs = u64::from(self.job.bs);
        let slot = &mut self.slots[index];
        slot.busy = false;
        let Slot { kind, block, errno, received, issued_ns, .. } = *slot;
        let latency_ns = now.saturating_sub(issued_ns);
        if kind != Kind::Flush {
            self.free.push(index);
        }
        if errno != 0 {
            *self.tally.errors.entry(errno).or_default() += 1;
            let offset = block * bs;
            self.tally.fail(|| {
                format!("{kind:?} at byte {offset}: the server answered {} ({errno})", error_name(errno))
            });
        } else {
            ensure!(
                kind != Kind::Read || received == bs,
                "a read of {bs} bytes was answered with {received}"
            );
            match kind {
                Kind::Flush => {
                    self.tally.flushes += 1;
                    self.tally.flush_latency.record(latency_ns);
                    self.durable.append(&mut self.flushing);
                }
                Kind::Read => {
                    self.tally.reads += 1;
                    self.tally.latency.record(latency_ns);
                    self.check(index, block);
                }
                Kind::Write | Kind::Trim | Kind::Zero => {
                    self.tally.writes += 1;
                    self.tally.latency.record(latency_ns);
                    self.writes_since_flush += 1;
                    self.acknowledge(block);
                }
            }
        }
        if kind == Kind::Flush {
            // After a failed flush these writes are promised to no one, whatever a later flush says.
            self.flushing.clear();
        }
        if let Some(ledger) = self.ledger.as_mut().filter(|_| kind != Kind::Flush) {
            ledger.release(block);
        }
        Ok(())
    }

    fn acknowledge(&mut self, block: u64) {
        let Some(ledger) = &mut self.ledger else { return };
        let generation = ledger.acknowledge(block);
        if self.log.is_some() {
            let promise = (block * u64::from(self.job.bs), generation);
            if self.job.fua { self.durable.push(promise) } else { self.unflushed.push(promise) }
        }
    }

    fn check(&mut self, index: usize, block: u64) {
        let Some(generations) = self.ledger.as_ref().and_then(|ledger| ledger.expected(block)) else {
            return;
        };
        let expected = Expected { seed: self.job.seed, generations };
        self.tally.checked += 1;
        let offset = block * u64::from(self.job.bs);
        match pattern::check(&self.payloads.slots[index], offset, &expected) {
            Ok(torn) => self.tally.torn += u64::from(torn),
            Err(mismatch) => {
                self.tally.wrong += 1;
                self.tally.fail(|| mismatch.to_string());
            }
        }
    }
}

fn request_of(flags: u16, kind: Kind, offset: u64, length: u32) -> impl Fn(u64) -> [u8; REQUEST_BYTES] {
    move |cookie| request(flags, kind.command(), cookie, offset, length)
}

fn find(slots: &[Slot], cookie: u64) -> Result<usize> {
    let index = usize::try_from(cookie & 0xffff_ffff)?;
    match slots.get(index) {
        Some(slot) if slot.busy && u64::from(slot.sequence) == cookie >> 32 => Ok(index),
        _ => bail!("a reply to cookie {cookie:#x}, which is not in flight"),
    }
}

fn payload_bytes(slots: &[Slot], cookie: u64, bs: u32) -> Result<usize> {
    let slot = &slots[find(slots, cookie)?];
    Ok(if slot.kind == Kind::Read { usize::try_from(bs)? } else { 0 })
}

fn ledger_of(job: &Job, part: Range<u64>) -> Result<Ledger> {
    let mut ledger = Ledger::new(part.clone())?;
    match &job.verify {
        Verify::No | Verify::Own => {}
        Verify::All => part.for_each(|block| ledger.expect_at_least(block, 1)),
        Verify::Log(promises) => {
            for (offset, generation) in &promises.latest {
                ledger.expect_at_least(offset / u64::from(job.bs), *generation);
            }
        }
    }
    Ok(ledger)
}

/// Connection `index`'s share of a range, in equal contiguous parts.
fn part_of(range: &Range<u64>, index: usize, connections: usize) -> Range<u64> {
    let count = u128::from(range.end - range.start);
    let edge = |n: usize| {
        let share = count * n as u128 / connections as u128;
        range.start + u64::try_from(share).expect("at most the count")
    };
    edge(index)..edge(index + 1)
}

/// A read or the job's other kind; a load of only one sort draws no number.
fn pick_kind(job: &Job, state: &mut u64) -> Kind {
    match job.read_percent {
        0 => job.kind,
        100 => Kind::Read,
        percent if scale(step(state), 100) < u64::from(percent) => Kind::Read,
        _ => job.kind,
    }
}

fn step(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    mix(*state)
}

/// A number below `count` from 64 random bits.
fn scale(random: u64, count: u64) -> u64 {
    u64::try_from((u128::from(random) * u128::from(count)) >> 64).expect("below count")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn the_connections_parts_cover_the_range_once(start in 0u64..1000, count in 1u64..5000, n in 1usize..20) {
            let range = start..start + count;
            let mut at = start;
            for index in 0..n {
                let part = part_of(&range, index, n);
                prop_assert_eq!(part.start, at);
                at = part.end;
            }
            prop_assert_eq!(at, range.end);
        }
    }
}
