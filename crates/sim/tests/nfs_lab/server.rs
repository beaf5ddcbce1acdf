//! A model of an NFS server of versions 3 and 4.0: one file, what of it is durable, and what it would forget. It decodes calls and encodes
//! answers by itself, from the RFCs, so that the leaf is not judged by its own encoding.

use std::collections::{BTreeMap, VecDeque};

use blockwork_engine::{Nanos, StreamId};
use blockwork_sim::{Host, Random, Reaction};

/// The handle of its file.
pub const FILE: &[u8] = b"the file";

/// Longest that a call waits in its queue.
const WAIT_MAX: Nanos = Nanos::millis(300);

/// How it misbehaves: of a million calls, how many.
#[derive(Clone, Debug, Default)]
pub struct Habits {
    /// Before this one it restarts, and forgets what it may.
    pub restarts: u32,
    /// Answered, but the answer is lost.
    pub lost: u32,
    /// Answered twice.
    pub doubled: u32,
    /// READs and WRITEs that do less than asked, down to a byte.
    pub short: u32,
    /// WRITEs that it makes durable though it need not.
    pub promoted: u32,
    /// READs, WRITEs and COMMITs for which it asks for patience; in version 4 those behind it in a call are not looked at.
    pub jukebox: u32,
    /// It closes the connection instead.
    pub closes: u32,
    /// Calls that wait in its queue, and are done later, whatever has become of their connection by then.
    pub waits: u32,
    /// COMMITs and stable WRITEs by which it finds that its disk has lost what it has cached. It says so once, as fsync(2) does, and
    /// goes on as if nothing was.
    pub loses: u32,
    /// Lives in which of several WRITEs in a call it does all but the first wrong.
    pub garbles: u32,
    /// Longest time for an answer.
    pub slowness: Nanos,
}

/// What it was asked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Asked {
    pub reads: u64,
    pub writes: u64,
    pub stable_writes: u64,
    pub commits: u64,
}

pub struct Server {
    random: Random,
    pub habits: Habits,
    durable: Vec<u8>,
    /// Sectors that it would forget.
    cached: BTreeMap<u64, [u8; 512]>,
    verifier: u64,
    streams: BTreeMap<u32, Vec<u8>>,
    /// From which port each stream comes.
    ports: BTreeMap<u32, u16>,
    /// From which ports connections were asked for, one after the other.
    pub came_from: Vec<u16>,
    /// Nobody gets through from this port.
    pub kept_off: Option<u16>,
    /// It has a reply cache, as servers do: what changes something and comes again, from the same port under the same xid, is not
    /// done again.
    pub remembers: bool,
    /// Its answers to that, by port and xid; `None`: it is still to be done.
    replies: BTreeMap<(u16, u32), Option<Vec<u8>>>,
    /// What waits, and until when.
    queue: Vec<(Nanos, StreamId, Vec<u8>)>,
    pub asked: Asked,
    /// By which connection each call came, and which procedure of version 3 it is of, or what it has of those.
    pub calls: Vec<(u32, u32)>,
    /// How many WRITEs each call of such had.
    pub gathered: Vec<u32>,
    pub restarts: u64,
    /// The next COMMITs find a loss, which they tell after so long.
    pub losses: VecDeque<Nanos>,
    /// And the next stable WRITEs.
    pub write_losses: VecDeque<Nanos>,
    /// How many have.
    pub lost: u64,
    /// What it says to the next WRITEs and COMMITs, but for 0.
    pub status: u32,
    /// After so many more of them it says that, once.
    pub refuses_once: Option<(u32, u32)>,
    /// It has another verifier each time.
    pub fickle: bool,
    /// READs and WRITEs do so many bytes at most.
    pub at_most: usize,
    /// It does not answer at all.
    pub mute: bool,
    /// It does one call after the other, each in that time; if it is 0, all beside each other.
    pub pace: Nanos,
    /// What each byte takes on the way to it.
    pub line: Nanos,
    /// Until when it has to do.
    busy: Nanos,
    /// Of several WRITEs in a call it takes the data of all but the first from the start of the page of the message in which it begins, as nfsd
    /// of Linux 6.1.
    pub garbles: bool,
    /// How often it has.
    pub garbled: u64,
    /// It takes no call of more WRITEs, and says RESOURCE, or closes the connection.
    pub writes_max: u32,
    pub says_resource: bool,
}

/// READ, WRITE and COMMIT, by their procedures in version 3.
pub const READ: u32 = 6;
pub const WRITE: u32 = 7;
pub const COMMIT: u32 = 21;

/// What is asked about the file.
enum Asks<'a> {
    Read { offset: usize, count: usize },
    Write { offset: usize, stable: u32, data: &'a [u8], page: &'a [u8] },
    Commit,
}

/// What is done of that.
enum Does {
    Read { data: Vec<u8>, eof: bool },
    Write { count: u32, stable: u32 },
    Commit,
}

struct Call<'a> {
    xid: u32,
    version: u32,
    /// In version 3 one.
    asks: Vec<Asks<'a>>,
}

impl Asks<'_> {
    fn procedure(&self) -> u32 {
        match self {
            Asks::Read { .. } => READ,
            Asks::Write { .. } => WRITE,
            Asks::Commit => COMMIT,
        }
    }

    /// Its number in version 4.
    fn operation(&self) -> u32 {
        match self {
            Asks::Read { .. } => 25,
            Asks::Write { .. } => 38,
            Asks::Commit => 5,
        }
    }
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(bytes[at..at + 4].try_into().unwrap())
}

fn units(values: &[u32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_be_bytes()).collect()
}

impl Server {
    /// A server of a file of zeros.
    pub fn new(seed: u64, bytes: usize) -> Server {
        Server {
            random: Random::part(seed, 77),
            habits: Habits { slowness: Nanos::millis(1), ..Habits::default() },
            durable: vec![0; bytes],
            cached: BTreeMap::new(),
            verifier: 1,
            streams: BTreeMap::new(),
            ports: BTreeMap::new(),
            came_from: Vec::new(),
            kept_off: None,
            remembers: false,
            replies: BTreeMap::new(),
            queue: Vec::new(),
            asked: Asked::default(),
            calls: Vec::new(),
            gathered: Vec::new(),
            restarts: 0,
            losses: VecDeque::new(),
            write_losses: VecDeque::new(),
            lost: 0,
            status: 0,
            refuses_once: None,
            fickle: false,
            at_most: usize::MAX,
            mute: false,
            pace: Nanos(0),
            line: Nanos(0),
            busy: Nanos(0),
            garbles: false,
            garbled: 0,
            writes_max: u32::MAX,
            says_resource: false,
        }
    }

    pub fn size(&self) -> u64 {
        self.durable.len() as u64
    }

    /// What is on its disk.
    pub fn durable(&self, offset: usize, len: usize) -> &[u8] {
        &self.durable[offset..offset + len]
    }

    /// It loses its memory, but for what it happens to have written back.
    pub fn restart(&mut self, writes_back: u32) {
        self.restarts += 1;
        self.verifier += 1;
        self.replies.clear();
        self.queue.clear();
        self.garbles = self.strikes(self.habits.garbles);
        for (sector, bytes) in std::mem::take(&mut self.cached) {
            if self.random.chance(writes_back, 100) {
                let at = sector as usize * 512;
                self.durable[at..at + 512].copy_from_slice(&bytes);
            }
        }
    }

    /// Cuts the file.
    pub fn shrink(&mut self, bytes: usize) {
        self.durable.truncate(bytes);
        self.cached.retain(|sector, _| (*sector as usize) < bytes / 512);
    }

    fn commit(&mut self) {
        for (sector, bytes) in std::mem::take(&mut self.cached) {
            let at = sector as usize * 512;
            self.durable[at..at + 512].copy_from_slice(&bytes);
        }
    }

    fn strikes(&mut self, rate: u32) -> bool {
        self.random.chance(rate, 1_000_000)
    }

    /// Does what a call asks. Returns what it says, and how long it takes to.
    fn answer(&mut self, call: &Call<'_>) -> (Vec<u8>, Nanos) {
        let mut after = Nanos(self.random.below(self.habits.slowness.0 + 1));
        let result = match &call.asks[..] {
            [asks] if call.version == 3 => match self.does(asks, &mut after) {
                Ok(does) => self.said_in_3(&does),
                Err(status) => units(&[status, 0, 0]),
            },
            all => self.said_in_4(all, &mut after),
        };
        let body = [units(&[call.xid, 1, 0, 0, 0, 0]), result].concat();
        ([units(&[1 << 31 | body.len() as u32]), body].concat(), after)
    }

    fn said_in_3(&self, does: &Does) -> Vec<u8> {
        match does {
            Does::Read { data, eof } => {
                let len = data.len() as u32;
                [units(&[0, 0, len, u32::from(*eof), len]), padded(data)].concat()
            }
            Does::Write { count, stable } => {
                [units(&[0, 0, 0, *count, *stable]), self.verifier.to_be_bytes().to_vec()].concat()
            }
            Does::Commit => [units(&[0, 0, 0]), self.verifier.to_be_bytes().to_vec()].concat(),
        }
    }

    /// One operation after the other, until one is not done.
    fn said_in_4(&mut self, all: &[Asks<'_>], after: &mut Nanos) -> Vec<u8> {
        let (mut status, mut results, mut said) = (0, 1, units(&[22, 0]));
        if all.len() > self.writes_max as usize {
            return units(&[10018, 0, 0]);
        }
        for asks in all {
            results += 1;
            said.extend(units(&[asks.operation()]));
            match self.does(asks, after) {
                Ok(does) => {
                    said.extend(units(&[0]));
                    said.extend(match &does {
                        Does::Read { data, eof } => {
                            [units(&[u32::from(*eof), data.len() as u32]), padded(data)].concat()
                        }
                        Does::Write { count, stable } => {
                            [units(&[*count, *stable]), self.verifier.to_be_bytes().to_vec()].concat()
                        }
                        Does::Commit => self.verifier.to_be_bytes().to_vec(),
                    });
                }
                Err(found) => {
                    // DELAY, GRACE and RESOURCE all ask for patience.
                    let by_habit = found == 10008 && self.status == 0;
                    status = if by_habit { *self.random.choose(&[found, 10013, 10018]) } else { found };
                    said.extend(units(&[status]));
                    break;
                }
            }
        }
        // The tag that it was asked with: none.
        [units(&[status, 0, results]), said].concat()
    }

    fn does(&mut self, asks: &Asks<'_>, after: &mut Nanos) -> Result<Does, u32> {
        if self.strikes(self.habits.jukebox) {
            return Err(10008);
        }
        match asks {
            Asks::Read { offset, count } => Ok(self.read(*offset, *count)),
            Asks::Write { offset, stable, data, page } => {
                let written = if self.garbles { page } else { data };
                self.garbled += u64::from(written != data);
                self.write(*offset, *stable, written, after)
            }
            Asks::Commit => self.commits(after),
        }
    }

    /// What it says instead of doing that.
    fn refusal(&mut self) -> Result<(), u32> {
        if let Some((after, status)) = self.refuses_once.take() {
            match after.checked_sub(1) {
                None => return Err(status),
                Some(after) => self.refuses_once = Some((after, status)),
            }
        }
        if self.status == 0 { Ok(()) } else { Err(self.status) }
    }

    fn commits(&mut self, after: &mut Nanos) -> Result<Does, u32> {
        self.asked.commits += 1;
        let loses = self.strikes(self.habits.loses).then_some(*after);
        self.refusal()?;
        if let Some(told) = self.losses.pop_front().or(loses) {
            (self.lost, *after) = (self.lost + 1, told);
            self.cached.clear();
            return Err(5);
        }
        self.commit();
        self.verifier += u64::from(self.fickle);
        Ok(Does::Commit)
    }

    fn read(&mut self, offset: usize, mut count: usize) -> Does {
        self.asked.reads += 1;
        if self.strikes(self.habits.short) {
            count = self.random.between(1, count as u64) as usize;
        }
        count = count.min(self.at_most);
        let end = (offset + count).min(self.durable.len());
        let mut data = self.durable.get(offset..end).unwrap_or_default().to_vec();
        for (i, byte) in data.iter_mut().enumerate() {
            if let Some(sector) = self.cached.get(&((offset + i) as u64 / 512)) {
                *byte = sector[(offset + i) % 512];
            }
        }
        Does::Read { data, eof: end == self.durable.len() }
    }

    fn write(&mut self, offset: usize, stable: u32, data: &[u8], after: &mut Nanos) -> Result<Does, u32> {
        let mut count = data.len();
        self.asked.writes += 1;
        self.asked.stable_writes += u64::from(stable > 0);
        self.refusal()?;
        let loses = (stable > 0 && self.strikes(self.habits.loses)).then_some(*after);
        if stable > 0
            && let Some(told) = self.write_losses.pop_front().or(loses)
        {
            (self.lost, *after) = (self.lost + 1, told);
            self.cached.clear();
            return Err(5);
        }
        if self.strikes(self.habits.short) {
            count = self.random.between(1, count as u64) as usize;
        }
        count = count.min(self.at_most);
        let stable = if self.strikes(self.habits.promoted) { 2 } else { stable };
        // Of the last sector it may say less than it does: what who reads meanwhile would find of half of one, nobody promises.
        let touched = count.div_ceil(512);
        for (i, bytes) in data.as_chunks::<512>().0.iter().take(touched).enumerate() {
            let sector = (offset / 512 + i) as u64;
            if stable > 0 {
                self.cached.remove(&sector);
                let at = sector as usize * 512;
                self.durable[at..at + 512].copy_from_slice(bytes);
            } else {
                self.cached.insert(sector, *bytes);
            }
        }
        Ok(Does::Write { count: count as u32, stable })
    }

    /// What a call is known by that comes again, if it changes something.
    fn key(&self, stream: StreamId, call: &Call<'_>) -> Option<(u16, u32)> {
        let changes = call.asks.iter().any(|asks| asks.procedure() != READ);
        (self.remembers && changes).then(|| (self.ports[&stream.0], call.xid))
    }

    /// Does what has waited long enough.
    fn do_late(&mut self, now: Nanos, out: &mut Vec<Reaction>) {
        self.queue.sort_by_key(|(due, ..)| *due);
        let due = self.queue.partition_point(|(due, ..)| *due <= now);
        for (_, stream, record) in self.queue.drain(..due).collect::<Vec<_>>() {
            self.carry_out(now, stream, &decode(&record), out);
        }
    }

    fn react(&mut self, now: Nanos, stream: StreamId, record: &[u8], out: &mut Vec<Reaction>) {
        if self.strikes(self.habits.restarts) {
            let writes_back = *self.random.choose(&[0, 50, 100]);
            self.restart(writes_back);
            let streams = std::mem::take(&mut self.streams);
            let close = |stream| Reaction { after: Nanos(0), stream: StreamId(stream), bytes: None };
            out.extend(streams.into_keys().map(close));
            return;
        }
        if self.strikes(self.habits.closes) {
            self.streams.remove(&stream.0);
            out.push(Reaction { after: Nanos(0), stream, bytes: None });
            return;
        }
        let call = decode(record);
        let key = self.key(stream, &call);
        if let Some(known) = key.and_then(|key| self.replies.get(&key)) {
            out.extend(known.clone().map(|bytes| Reaction { after: Nanos(0), stream, bytes: Some(bytes) }));
            return;
        }
        if self.strikes(self.habits.waits) {
            self.replies.extend(key.map(|key| (key, None)));
            self.queue.push((Nanos(now.0 + self.random.below(WAIT_MAX.0)), stream, record.to_vec()));
            return;
        }
        self.carry_out(now, stream, &call, out);
    }

    fn carry_out(&mut self, now: Nanos, stream: StreamId, call: &Call<'_>, out: &mut Vec<Reaction>) {
        self.calls.extend(call.asks.iter().map(|asks| (stream.0, asks.procedure())));
        let writes = call.asks.iter().filter(|asks| asks.procedure() == WRITE).count() as u32;
        self.gathered.extend(Some(writes).filter(|writes| *writes > 0));
        if writes > self.writes_max && !self.says_resource {
            self.streams.remove(&stream.0);
            out.push(Reaction { after: Nanos(0), stream, bytes: None });
            return;
        }
        let (answer, mut after) = self.answer(call);
        if self.pace > Nanos(0) {
            self.busy = Nanos(self.busy.max(now).0 + self.pace.0);
            after = self.busy.since(now);
        }
        self.replies.extend(self.key(stream, call).map(|key| (key, Some(answer.clone()))));
        if self.mute || self.strikes(self.habits.lost) {
            return;
        }
        let copies = if self.strikes(self.habits.doubled) { 2 } else { 1 };
        for copy in 0..copies {
            let after = Nanos(after.0 + copy * self.random.below(self.habits.slowness.0 + 1));
            out.push(Reaction { after, stream, bytes: Some(answer.clone()) });
        }
    }
}

fn padded(data: &[u8]) -> Vec<u8> {
    let mut out = data.to_vec();
    out.resize(data.len().next_multiple_of(4), 0);
    out
}

/// Takes a message apart, from its front.
struct Units<'a>(&'a [u8]);

impl<'a> Units<'a> {
    fn bytes(&mut self, len: usize) -> &'a [u8] {
        let (out, rest) = self.0.split_at(len);
        self.0 = rest;
        out
    }
    fn u32(&mut self) -> u32 {
        u32_at(self.bytes(4), 0)
    }
    fn expect(&mut self, values: &[u32]) {
        for value in values {
            assert_eq!(self.u32(), *value);
        }
    }
    /// Of a length that comes first.
    fn opaque(&mut self) -> &'a [u8] {
        let len = self.u32() as usize;
        &self.bytes(len.next_multiple_of(4))[..len]
    }
    fn offset(&mut self) -> usize {
        assert_eq!(self.u32(), 0, "small files only");
        self.u32() as usize
    }
    fn read(&mut self) -> Asks<'a> {
        Asks::Read { offset: self.offset(), count: self.u32() as usize }
    }
    /// COMMIT of all.
    fn commit(&mut self) -> Asks<'a> {
        self.expect(&[0, 0, 0]);
        Asks::Commit
    }
}

fn decode(record: &[u8]) -> Call<'_> {
    let mut rest = Units(record);
    let xid = rest.u32();
    rest.expect(&[0, 2, 100_003]);
    let (version, procedure) = (rest.u32(), rest.u32());
    assert_eq!(rest.u32(), 1, "AUTH_SYS");
    rest.opaque();
    rest.expect(&[0, 0]);
    let asks = match version {
        3 => vec![decode_3(&mut rest, procedure)],
        4 => {
            assert_eq!(procedure, 1, "COMPOUND");
            decode_4(&mut rest, record)
        }
        other => panic!("a leaf does not speak version {other}"),
    };
    assert!(rest.0.is_empty(), "the record is as long as it says");
    Call { xid, version, asks }
}

fn decode_3<'a>(rest: &mut Units<'a>, procedure: u32) -> Asks<'a> {
    assert_eq!(rest.opaque(), FILE);
    match procedure {
        READ => rest.read(),
        WRITE => {
            let (offset, count, stable) = (rest.offset(), rest.u32() as usize, rest.u32());
            let data = rest.opaque();
            assert_eq!(data.len(), count, "count and length");
            Asks::Write { offset, stable, data, page: data }
        }
        COMMIT => rest.commit(),
        other => panic!("a leaf does not call procedure {other}"),
    }
}

fn decode_4<'a>(rest: &mut Units<'a>, record: &'a [u8]) -> Vec<Asks<'a>> {
    rest.expect(&[0, 0]); // no tag, minor version 0
    let operations = rest.u32();
    rest.expect(&[22]);
    assert_eq!(rest.opaque(), FILE);
    let one = |number| match rest.u32() {
        25 => {
            rest.expect(&[0; 4]);
            rest.read()
        }
        38 => {
            rest.expect(&[0; 4]);
            let (offset, stable, data) = (rest.offset(), rest.u32(), rest.opaque());
            let begins = record.len() - rest.0.len() - data.len();
            let page = if number == 1 { data } else { &record[begins / 4096 * 4096..][..data.len()] };
            Asks::Write { offset, stable, data, page }
        }
        5 => rest.commit(),
        other => panic!("a leaf does not ask for operation {other}"),
    };
    (1..operations).map(one).collect()
}

impl Host for Server {
    fn connected(&mut self, stream: StreamId, port: u16) -> bool {
        self.came_from.push(port);
        if self.kept_off == Some(port) {
            return false;
        }
        self.streams.insert(stream.0, Vec::new());
        self.ports.insert(stream.0, port);
        true
    }

    fn received(&mut self, now: Nanos, stream: StreamId, bytes: &[u8]) -> Vec<Reaction> {
        let mut out = Vec::new();
        self.do_late(now, &mut out);
        // Of a connection that it has closed itself it hears nothing any more.
        let Some(input) = self.streams.get_mut(&stream.0) else { return out };
        input.extend(bytes);
        let mut records = Vec::new();
        while input.len() >= 4 {
            let mark = u32_at(input, 0);
            assert!(mark >> 31 == 1, "calls are one fragment");
            let end = 4 + (mark & 0x7fff_ffff) as usize;
            if input.len() < end {
                break;
            }
            records.push(input[4..end].to_vec());
            input.drain(..end);
        }
        for record in records {
            if self.streams.contains_key(&stream.0) {
                self.react(now, stream, &record, &mut out);
            }
        }
        out
    }

    fn closed(&mut self, stream: StreamId) {
        self.streams.remove(&stream.0);
    }

    fn per_byte(&self) -> Nanos {
        self.line
    }

    fn faults(&self) -> u64 {
        self.lost
    }
}
