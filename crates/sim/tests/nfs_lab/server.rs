//! A model of an NFS server: one file, what of it is durable, and what it would forget. It decodes calls and encodes answers by
//! itself, from the RFCs, so that the leaf is not judged by its own encoding.

use std::collections::{BTreeMap, VecDeque};

use blockwork_engine::{Nanos, StreamId};
use blockwork_sim::{Host, Random, Reaction};

/// The handle of its file.
pub const FILE: &[u8] = b"the file";

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
    /// It asks for patience.
    pub jukebox: u32,
    /// It closes the connection instead.
    pub closes: u32,
    /// COMMITs and stable WRITEs by which it finds that its disk has lost what it has cached. It says so once, as fsync(2) does, and
    /// goes on as if nothing was.
    pub loses: u32,
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
    pub asked: Asked,
    /// By which connection each call came, and which procedure it is of.
    pub calls: Vec<(u32, u32)>,
    pub restarts: u64,
    /// The next COMMITs find a loss, which they tell after so long.
    pub losses: VecDeque<Nanos>,
    /// And the next stable WRITEs.
    pub write_losses: VecDeque<Nanos>,
    /// How many have.
    pub lost: u64,
    /// What it says to the next WRITEs and COMMITs, but for 0.
    pub status: u32,
    /// It has another verifier each time.
    pub fickle: bool,
    /// READs and WRITEs do so many bytes at most.
    pub at_most: usize,
    /// It does not answer at all.
    pub mute: bool,
}

struct Call<'a> {
    xid: u32,
    procedure: u32,
    arguments: &'a [u8],
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
            asked: Asked::default(),
            calls: Vec::new(),
            restarts: 0,
            losses: VecDeque::new(),
            write_losses: VecDeque::new(),
            lost: 0,
            status: 0,
            fickle: false,
            at_most: usize::MAX,
            mute: false,
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

    /// Takes the call apart, and does it. Returns what it says, and how long it takes to.
    fn answer(&mut self, record: &[u8]) -> (Vec<u8>, Nanos) {
        let call = decode(record);
        let mut after = Nanos(self.random.below(self.habits.slowness.0 + 1));
        let result = match call.procedure {
            _ if self.strikes(self.habits.jukebox) => units(&[10008, 0, 0]),
            6 => self.read(call.arguments),
            7 => self.write(call.arguments, &mut after),
            21 => {
                self.asked.commits += 1;
                let loses = self.strikes(self.habits.loses).then_some(after);
                match self.status {
                    0 if let Some(told) = self.losses.pop_front().or(loses) => {
                        (self.lost, after) = (self.lost + 1, told);
                        self.cached.clear();
                        units(&[5, 0, 0])
                    }
                    0 => {
                        self.commit();
                        self.verifier += u64::from(self.fickle);
                        [units(&[0, 0, 0]), self.verifier.to_be_bytes().to_vec()].concat()
                    }
                    status => units(&[status, 0, 0]),
                }
            }
            other => panic!("a leaf does not call procedure {other}"),
        };
        let body = [units(&[call.xid, 1, 0, 0, 0, 0]), result].concat();
        ([units(&[1 << 31 | body.len() as u32]), body].concat(), after)
    }

    fn read(&mut self, arguments: &[u8]) -> Vec<u8> {
        self.asked.reads += 1;
        let (offset, mut count) = (u32_at(arguments, 4) as usize, u32_at(arguments, 8) as usize);
        assert_eq!(u32_at(arguments, 0), 0, "small files only");
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
        let eof = u32::from(end == self.durable.len());
        let len = data.len() as u32;
        data.resize(data.len().next_multiple_of(4), 0);
        [units(&[0, 0, len, eof, len]), data].concat()
    }

    fn write(&mut self, arguments: &[u8], after: &mut Nanos) -> Vec<u8> {
        let (offset, mut count) = (u32_at(arguments, 4) as usize, u32_at(arguments, 8) as usize);
        let stable = u32_at(arguments, 12);
        assert_eq!(count, u32_at(arguments, 16) as usize, "count and length");
        let data = &arguments[20..];
        assert_eq!(data.len(), count, "the record is as long as it says");
        self.asked.writes += 1;
        self.asked.stable_writes += u64::from(stable > 0);
        if self.status != 0 {
            return units(&[self.status, 0, 0]);
        }
        let loses = (stable > 0 && self.strikes(self.habits.loses)).then_some(*after);
        if stable > 0
            && let Some(told) = self.write_losses.pop_front().or(loses)
        {
            (self.lost, *after) = (self.lost + 1, told);
            self.cached.clear();
            return units(&[5, 0, 0]);
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
        [units(&[0, 0, 0, count as u32, stable]), self.verifier.to_be_bytes().to_vec()].concat()
    }

    fn react(&mut self, stream: StreamId, record: &[u8], out: &mut Vec<Reaction>) {
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
        self.calls.push((stream.0, decode(record).procedure));
        let (answer, after) = self.answer(record);
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

fn decode(record: &[u8]) -> Call<'_> {
    assert_eq!(u32_at(record, 4), 0, "a call");
    assert_eq!([u32_at(record, 8), u32_at(record, 12), u32_at(record, 16)], [2, 100_003, 3]);
    assert_eq!(u32_at(record, 24), 1, "AUTH_SYS");
    let credential = u32_at(record, 28) as usize;
    let handle_at = 32 + credential + 8;
    let len = u32_at(record, handle_at) as usize;
    assert_eq!(&record[handle_at + 4..][..len], FILE);
    let arguments = &record[handle_at + 4 + len.next_multiple_of(4)..];
    Call { xid: u32_at(record, 0), procedure: u32_at(record, 20), arguments }
}

impl Host for Server {
    fn connected(&mut self, stream: StreamId) -> bool {
        self.streams.insert(stream.0, Vec::new());
        true
    }

    fn received(&mut self, _: Nanos, stream: StreamId, bytes: &[u8]) -> Vec<Reaction> {
        let mut out = Vec::new();
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
                self.react(stream, &record, &mut out);
            }
        }
        out
    }

    fn closed(&mut self, stream: StreamId) {
        self.streams.remove(&stream.0);
    }

    fn faults(&self) -> u64 {
        self.lost
    }
}
