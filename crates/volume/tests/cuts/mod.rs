//! Power cuts: what happened to disks while something was written to them, and the disks as they are if the power goes in the midst of it.
#![allow(dead_code, reason = "each test file uses a part of it")]

use std::collections::BTreeSet;
use std::future::Future;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use blockwork_engine::{Flags, LeafId, Op, Sector, Sectors, TaskContext, Worker, WorkerConfig, WriteTap};
use blockwork_memory::Segment;
use blockwork_uring::{Uring, UringConfig};
use blockwork_volume::{Assembly, Plan};

/// Something that happened to a disk.
#[derive(Clone)]
pub enum Event {
    Write { leaf: usize, offset: u64, bytes: Vec<u8>, is_durable: bool },
    Flush { leaf: usize },
}

/// All that happened, in order.
#[derive(Default)]
struct Log(Mutex<Vec<Event>>);

impl WriteTap for Log {
    fn altered(&self, leaf: LeafId, op: Op, flags: Flags, sector: Sector, nr: Sectors, data: &[Segment]) {
        assert_eq!(op, Op::Write, "metadata is data");
        let mut bytes = vec![0; nr.byte_len()];
        let mut at = 0;
        for segment in data {
            segment.read_at(0, &mut bytes[at..at + segment.len()]);
            at += segment.len();
        }
        let (leaf, is_durable) = (usize::from(leaf.0), flags.has(Flags::FUA));
        self.0.lock().unwrap().push(Event::Write { leaf, offset: sector.bytes(), bytes, is_durable });
    }
    fn flush_started(&self, leaf: LeafId) -> u64 {
        leaf.0.into()
    }
    fn flushed(&self, leaf: LeafId, _ticket: u64) {
        self.0.lock().unwrap().push(Event::Flush { leaf: usize::from(leaf.0) });
    }
}

/// Does something with an assembly's disks; what happened.
pub fn logged<F: Future<Output = ()> + 'static>(
    assembly: &Assembly,
    act: impl FnOnce(TaskContext) -> F + Send + 'static,
) -> Vec<Event> {
    let log = Arc::new(Log::default());
    let mut config = WorkerConfig::new(Arc::from([]), assembly.leaves(), assembly.stats().worker());
    config.tap = Some(log.clone());
    let mut worker = Worker::new(Uring::new(&UringConfig::default()).unwrap(), config);
    worker.spawn(act);
    worker.handle().stop();
    worker.run().unwrap();
    drop(worker);
    std::mem::take(&mut *log.0.lock().unwrap())
}

fn is_flushed(leaf: usize, later: &[Event]) -> bool {
    later.iter().any(|event| matches!(event, Event::Flush { leaf: flushed } if *flushed == leaf))
}

/// Whether all that was written is durable.
pub fn are_durable(events: &[Event]) -> bool {
    (0..).zip(events).all(|(nth, event)| match event {
        Event::Write { leaf, is_durable, .. } => *is_durable || is_flushed(*leaf, &events[nth..]),
        Event::Flush { .. } => true,
    })
}

/// Whether each disk is flushed before anything is written to it: what was read there may be in the kernel's cache only.
pub fn begin_with_flushes(events: &[Event]) -> bool {
    let mut flushed = BTreeSet::new();
    events.iter().all(|event| match event {
        Event::Flush { leaf } => {
            flushed.insert(*leaf);
            true
        }
        Event::Write { leaf, .. } => flushed.contains(leaf),
    })
}

/// What of unfinished writes is there: a bit after the other, the same in each run.
pub struct Chance(u64);

impl Default for Chance {
    fn default() -> Chance {
        Chance(0x9e37_79b9_7f4a_7c15)
    }
}

impl Chance {
    pub fn bit(&mut self) -> bool {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 & 1 == 0
    }
}

/// Disks as they are after some of what happened to them.
pub struct Cut {
    _folder: tempfile::TempDir,
    pub paths: Vec<PathBuf>,
}

impl Cut {
    /// After a power cut behind the first `count` events. What was under way then may be there or not.
    pub fn at(before: &[Vec<u8>], events: &[Event], count: usize, kept: &mut impl FnMut() -> bool) -> Cut {
        let mut happened = events[..count].to_vec();
        if let Some(Event::Write { leaf, offset, bytes, .. }) = events.get(count) {
            let (leaf, offset, bytes) = (*leaf, *offset, bytes.clone());
            happened.push(Event::Write { leaf, offset, bytes, is_durable: false });
        }
        Cut::of(before, &happened, kept)
    }

    /// After these events: what was durable by then, and of the rest what `kept` says, sector by sector.
    pub fn of(before: &[Vec<u8>], events: &[Event], kept: &mut impl FnMut() -> bool) -> Cut {
        let mut images = before.to_vec();
        for (nth, event) in events.iter().enumerate() {
            let Event::Write { leaf, offset, bytes, is_durable } = event else { continue };
            let is_safe = *is_durable || is_flushed(*leaf, &events[nth..]);
            for (n, sector) in bytes.chunks(512).enumerate() {
                if is_safe || kept() {
                    let at = usize::try_from(*offset).unwrap() + n * 512;
                    images[*leaf][at..at + sector.len()].copy_from_slice(sector);
                }
            }
        }
        let folder = tempfile::tempdir().unwrap();
        let write = |(nth, image): (usize, &Vec<u8>)| {
            let path = folder.path().join(format!("disk{nth}"));
            std::fs::write(&path, image).unwrap();
            path
        };
        let paths = images.iter().enumerate().map(write).collect();
        Cut { _folder: folder, paths }
    }

    pub fn open(&self) -> Assembly {
        let disks = self.paths.iter().map(|path| path.to_str().unwrap().to_owned()).collect();
        let plan = Plan { disks, read_only: true, ..Default::default() };
        Assembly::open(plan).unwrap()
    }
}
