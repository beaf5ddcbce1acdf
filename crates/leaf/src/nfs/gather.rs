//! Which writes go together, where one call may have several (version 4).
//!
//! A server does for a call of four 64 KiB writes little more than half of what it does for four calls (nfs-ganesha on two processors: 18 us
//! of the machine's time a write instead of 30). So each connection has one call of writes under way, and what comes meanwhile waits for the
//! next: all that wait and are under way are shared out among the connections, and a connection that has nothing under way waits for its
//! share, or until the server has answered another one's. Where little is under way a share is one write, and nobody waits.
//!
//! Writes that the server is to make durable at once go alone: what one of them tells must not depend on another.
//!
//! Invariant: while a write waits, some call is under way, whose answer lets it go.

use std::collections::VecDeque;

use blockwork_engine::{Ended, Env, Nanos};
use blockwork_format::nfs3::{Verifier, WriteReply};

use super::call::{Kind, Read, Reader, Write, Writer};
use super::client::{COMPANY, NfsLeaf};
use super::trust::{Check, Size};

/// Writes of the first call of several.
const TRIED_AT_ONCE: usize = 2;

/// Writes that wait to be asked for, and since when.
#[derive(Default)]
pub(super) struct Waiting {
    writes: VecDeque<(Write, Nanos)>,
    /// The server has answered a call of writes, since it was looked at who waits.
    has_heard: bool,
}

impl Waiting {
    pub(super) fn extend(&mut self, writes: Vec<Write>, since: Nanos) {
        self.writes.extend(writes.into_iter().map(|write| (write, since)));
    }

    /// The server has answered a call of writes.
    pub(super) fn hear(&mut self) {
        self.has_heard = true;
    }

    /// Takes out those that were asked first before then.
    pub(super) fn older_than(&mut self, time: Nanos) -> Vec<Write> {
        let (old, young) = std::mem::take(&mut self.writes).into_iter().partition(|(_, since)| *since < time);
        self.writes = young;
        let old: VecDeque<(Write, Nanos)> = old;
        old.into_iter().map(|(write, _)| write).collect()
    }

    /// The first of them, so many writes and bytes at most, but at least one; and since when the first of them waits.
    fn take(&mut self, writes_max: usize, bytes_max: u32) -> Option<(Vec<Write>, Nanos)> {
        let mut since = self.writes.front()?.1;
        let (mut out, mut bytes) = (Vec::new(), 0);
        while let Some((write, begun)) = self.writes.front() {
            let count = write.left().count;
            if !out.is_empty() && (out.len() == writes_max || count > bytes_max.saturating_sub(bytes)) {
                break;
            }
            (bytes, since) = (bytes + count, since.min(*begun));
            out.extend(self.writes.pop_front().map(|(write, _)| write));
        }
        Some((out, since))
    }
}

impl NfsLeaf {
    /// Asks for writes that wait, as far as it is their time.
    pub(super) fn ask_for_waiting(&mut self, env: &mut dyn Env) {
        if self.waiting.writes.is_empty() {
            return;
        }
        let (writes_max, is_untried) = {
            let trust = self.trust();
            (trust.writes_max(), trust.is_untried())
        };
        if writes_max > 1 && !is_untried {
            return self.ask_for_shares(env, writes_max);
        }
        loop {
            // What a server does not do right is tried with as little as can be.
            let tried = if self.calls.try_several() { 1 } else { writes_max.min(TRIED_AT_ONCE) };
            let Some((writes, since)) = self.waiting.take(tried, self.shared.write_max) else { break };
            self.ask_alone(env, Kind::Writes(writes), since);
        }
    }

    /// Shares them out among the connections.
    fn ask_for_shares(&mut self, env: &mut dyn Env, writes_max: usize) {
        let has_heard = std::mem::take(&mut self.waiting.has_heard);
        while !self.waiting.writes.is_empty() {
            let under_way =
                self.connections.iter().map(|connection| connection.gathered).sum::<u32>() as usize;
            let all = under_way + self.waiting.writes.len();
            let share = all.div_ceil(self.connections.len()).min(writes_max);
            let is_share = has_heard || self.waiting.writes.len() >= share;
            let Some(number) = self.connection_for_writes(under_way > 0) else { break };
            if under_way > 0 && !is_share {
                break;
            }
            let Some((writes, since)) = self.waiting.take(share, self.shared.write_max) else { break };
            self.ask_on(env, number, Kind::Writes(writes), since);
        }
    }

    /// The connection that has least to do of those that have no call of writes under way; where one can be waited for, not one that has much
    /// else to do.
    fn connection_for_writes(&self, may_wait: bool) -> Option<usize> {
        let least = self.connections.iter().map(|connection| connection.load).min()?;
        let numbered = self.connections.iter().enumerate();
        let free = numbered.filter(|(_, connection)| {
            connection.gathered == 0 && (!may_wait || connection.load <= least + COMPANY)
        });
        free.min_by_key(|(_, connection)| connection.load).map(|(number, _)| number)
    }
}

/// Looking for what was written together with others, while the server is not believed.
impl NfsLeaf {
    /// A call of writes goes out on that connection, for the first time or again: those are suspected of which the server may make something
    /// else, until it is known better.
    pub(super) fn suspect(&self, number: usize, writes: &[Write]) {
        let heard = self.connections[number].heard;
        if writes.len() == 1 || self.trust().believes(Size::of(writes), heard) {
            return;
        }
        let mut ledger = self.ledger();
        for write in writes {
            // What is sent again is in the ledger until then as well, and perhaps newer.
            if let (Writer::Client(_), Some(block)) = (write.writer, &write.block) {
                ledger.suspect(write.flight, block.clone());
            }
        }
    }

    /// Whether to believe what the server says on that connection of a call of that size.
    pub(super) fn believes(&mut self, number: usize, size: Size, done: &[WriteReply]) -> bool {
        done.iter().for_each(|reply| self.hear_life(number, reply.verifier));
        self.trust().believes(size, self.connections[number].heard)
    }

    /// The server has answered on that connection in that life of it.
    pub(super) fn hear_life(&mut self, number: usize, verifier: Verifier) {
        self.connections[number].heard = Some(verifier);
        self.trust().hear(verifier);
    }

    /// The server does not take a call of so many writes: they are asked for in smaller ones.
    pub(super) fn refused(&mut self, env: &mut dyn Env, writes: Vec<Write>, since: Nanos) {
        self.trust().refuses(writes.len());
        self.ask_since(env, Kind::Writes(writes), since);
    }

    /// Calls of several writes whose connection has ended behind them, when they had been asked before, are not asked again as they are:
    /// the server may not take them. Only then: what they become has new xids, by which no server knows what it still has to do.
    pub(super) fn take_apart(&mut self, env: &mut dyn Env, lost: &[u32]) {
        for xid in lost {
            let Some(call) = self.take(*xid) else { continue };
            self.connections[call.connection].forget(*xid);
            if let Kind::Writes(writes) = call.kind {
                self.refused(env, writes, call.since);
            }
        }
    }

    /// Reads back what the server says it has written, on the connection on which it has said so.
    pub(super) fn check(&mut self, env: &mut dyn Env, number: usize, check: Check, since: Nanos) {
        let left = check.write.left();
        if check.reply.count < left.count {
            // By itself, in which case it is known what a part is worth.
            return self.ask_alone(env, Kind::Writes(vec![check.write]), since);
        }
        let read = Read {
            data: std::iter::once(self.memory(left.count as usize)).collect(),
            offset: left.offset,
            len: left.count,
            got: 0,
            stuck: 0,
            kept: Vec::new(),
            began: 0,
            reader: Reader::Check(Box::new(check)),
        };
        self.ask_on(env, number, Kind::Read(read), since);
    }

    /// What was written was read back on that connection.
    pub(super) fn checked(
        &mut self,
        env: &mut dyn Env,
        number: usize,
        check: Check,
        is_right: bool,
        since: Nanos,
        ended: &mut Vec<Ended>,
    ) {
        let Check { write, reply, size, is_first } = check;
        if is_right {
            if !is_first {
                self.trust().found_good(reply.verifier, size);
            }
            return self.has_written(env, write, reply, since, ended);
        }
        // It may have read what another one has written there meanwhile, or what a server has that has restarted meanwhile.
        let is_its = self.connections[number].heard == Some(reply.verifier);
        if is_its && self.ledger().is_alone(write.flight) && self.trust().found_bad() {
            log::warn!(
                "{}: the server says that it has written {} bytes at {}, and has other data there: it does {} writes of one call wrong, as \
                 Linux's nfsd before 6.16. They are written again, and all go by themselves from now on",
                self.shared.name,
                reply.count,
                write.left().offset,
                size.writes
            );
        }
        self.ask_alone(env, Kind::Writes(vec![write]), since);
    }
}
