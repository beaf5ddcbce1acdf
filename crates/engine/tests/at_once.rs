//! Bios that are done while they are submitted: which, that they are counted and answered like all others, and that what cannot be done so goes
//! the usual way.

mod rig;

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

use blockwork_engine::*;
use blockwork_memory::{Segment, Segments};
use rig::{Rig, limits};

/// What a layer does besides handing on.
#[derive(Debug, Default)]
struct Tricks {
    /// The first half of it is zeros.
    hole: bool,
    /// Its last sector is an error.
    error: bool,
    /// It defers what comes next, once.
    defers: AtomicBool,
    /// It watches bios; how they have ended.
    watches: AtomicBool,
    ends: Mutex<Vec<Result<(), Errno>>>,
    /// It cuts in two what is longer than eight sectors.
    cuts: bool,
}

impl Watch for Tricks {
    fn done(&self, result: Result<(), Errno>) {
        self.ends.lock().unwrap().push(result);
    }
}

#[derive(Debug)]
struct Top {
    shape: Shape,
    below: Arc<dyn Layer>,
    tricks: Arc<Tricks>,
}

impl Layer for Top {
    fn shape(&self) -> &Shape {
        &self.shape
    }
    fn resolve(&self, span: Span, cx: &mut Resolver<'_>) -> Result<(), Defer> {
        let node = self.shape.node;
        if self.tricks.defers.swap(false, Relaxed) {
            return Err(Defer { node, span, reason: Reason::ReadMap });
        }
        if self.tricks.watches.load(Relaxed) {
            cx.watch(self.tricks.clone());
        }
        if self.tricks.hole && span.end().0 <= rig::SECTORS / 2 {
            cx.zero(span);
            return Ok(());
        }
        if self.tricks.error && span.end().0 == rig::SECTORS {
            cx.error(span, Errno::EIO);
            return Ok(());
        }
        if self.tricks.cuts && span.nr > Sectors(8) {
            let (first, rest) = (Sectors(8), Sectors(span.nr.0 - 8));
            cx.pass(node, span.sector, &*self.below, span.piece(Sectors::ZERO, first))?;
            return cx.pass(node, span.sector, &*self.below, span.piece(first, rest));
        }
        cx.pass(node, span.sector, &*self.below, span)
    }
    fn prepare(&self, _: Defer, _: TaskContext) -> Preparation {
        Box::pin(async { Ok(()) })
    }
    fn below(&self) -> Vec<Arc<dyn Layer>> {
        vec![self.below.clone()]
    }
}

fn stacked(tricks: &Arc<Tricks>, instant: bool, config: impl FnOnce(WorkerConfig) -> WorkerConfig) -> Rig {
    let tricks = tricks.clone();
    let top = |below: Arc<dyn Layer>| -> Arc<dyn Layer> {
        let shape = Shape { node: NodeId(1), sectors: below.sectors(), limits: below.limits().clone() };
        Arc::new(Top { shape, below, tricks })
    };
    Rig::with(limits(), top, instant, config)
}

/// One whose device is known to do things at once.
fn warm(mut rig: Rig) -> Rig {
    let (far, other) = (rig.read(rig::SECTORS - 64, 8), rig.read(rig::SECTORS - 256, 8));
    assert_eq!(rig.run([far]), [false], "nothing is known of the volume yet");
    assert_eq!(rig.run([other]), [true]);
    rig
}

fn instant(limits: Limits) -> Rig {
    warm(Rig::with(limits, |leaf| leaf, true, |config| config))
}

#[test]
fn what_is_done_at_once_does_and_counts_what_requests_would() {
    let tricks = Arc::default();
    let mut rigs = [true, false].map(|instant| stacked(&tricks, instant, |config| config));
    for round in 0..40_u64 {
        for rig in &mut rigs {
            // No two of them adjoin.
            let at = |n: u64| (round * 8 + n) * 37 % 400 * 24;
            let bios = (0..8).map(|n| {
                let nr = 1 + (round + n) % 16;
                if n % 3 == 0 { rig.write(at(n), nr, (round + n) as u8) } else { rig.read(at(n), nr) }
            });
            let bios: Vec<_> = bios.collect();
            let ran = rig.run(bios);
            let is_instant = rig.device.lock().unwrap().instant;
            assert!(ran.iter().all(|ran| *ran == (is_instant && round > 0)), "round {round}: {ran:?}");
        }
    }
    let [instant, usual] = rigs;
    assert_eq!(instant.device.lock().unwrap().at_once, 39 * 8);
    for rig in [&instant, &usual] {
        rig.all_succeeded(40 * 8);
    }
    for cookie in 0..40 * 8 {
        assert!(instant.data_of(cookie) == usual.data_of(cookie), "bio {cookie}");
    }
    assert!(instant.bytes(0, rig::SECTORS) == usual.bytes(0, rig::SECTORS));
    for (instant, usual) in instant.stats.snapshot().iter().zip(usual.stats.snapshot()) {
        assert_eq!((&instant.counts, &instant.latency), (&usual.counts, &usual.latency));
    }
}

#[test]
fn what_would_not_be_one_request_as_it_is_goes_the_usual_way() {
    let memory = |rig: &Rig, pieces: u64| -> Segments {
        (0..pieces).map(|_| Segment::new(rig.pool.get(512), 0, 512)).collect()
    };
    let in_pieces = |rig: &Rig, pieces| Bio::with_data(Op::Read, Flags::NONE, Sector(8), memory(rig, pieces));
    let fua = |rig: &Rig| Bio { flags: Flags::FUA, ..rig.write(8, 8, 3) };
    let plain = |rig: &Rig| rig.read(8, 8);
    type Make<'a> = &'a dyn Fn(&Rig) -> Bio;
    // What is set, the bio, whether it is done at once, and how many requests it is if not.
    let l = limits;
    let cases: [(&str, Limits, Make<'_>, bool, usize); 11] = [
        ("plain", l(), &plain, true, 0),
        ("no write is known to be durable", l(), &fua, false, 1),
        ("every write is durable", Limits { write_cache: false, ..l() }, &fua, true, 0),
        ("too long", Limits { max_sectors: Sectors(8), ..l() }, &|rig| rig.read(8, 24), false, 3),
        ("over a boundary", Limits { chunk_sectors: Sectors(16), ..l() }, &|rig| rig.read(8, 16), false, 2),
        ("few pieces", Limits { max_segments: 3, ..l() }, &|rig| in_pieces(rig, 3), true, 0),
        ("many pieces", Limits { max_segments: 2, ..l() }, &|rig| in_pieces(rig, 3), false, 2),
        ("to be copied", Limits { linearize: Linearize::On, ..l() }, &|rig| in_pieces(rig, 2), false, 1),
        ("not a read or write", l(), &|_| Bio::flush(), false, 1),
        ("nothing", l(), &|_| Bio::with_data(Op::Read, Flags::NONE, Sector(8), Segments::new()), false, 0),
        ("read only", Limits { read_only: true, ..l() }, &|rig| rig.write(8, 8, 1), false, 0),
    ];
    for (name, limits, make, at_once, requests) in cases {
        let read_only = limits.read_only;
        let mut rig = instant(limits);
        rig.clear_seen();
        let bio = make(&rig);
        assert_eq!(rig.run([bio]), [at_once], "{name}");
        assert_eq!(rig.seen().len(), requests, "{name}");
        let expected = if read_only { Err(Errno::EROFS) } else { Ok(()) };
        assert_eq!(rig.results().last(), Some(&(2, expected)), "{name}");
    }
    let never = [
        Limits { dma_alignment: 512, ..l() },
        Limits { read_ahead: Sectors(256), ..l() },
        Limits { fixed: Fixed::On, ..l() },
    ];
    for limits in never {
        let mut rig = Rig::with(limits.clone(), |leaf| leaf, true, |config| config);
        for n in 0..4 {
            let bio = rig.read(n * 128, 8);
            assert_eq!(rig.run([bio]), [false], "{limits:?}");
        }
        rig.all_succeeded(4);
    }
}

#[test]
fn what_adjoins_is_merged_all_the_same() {
    for (merges, expected) in [(Merges::All, [true, false, false, false]), (Merges::None, [true; 4])] {
        let mut rig = instant(Limits { merges, ..limits() });
        rig.clear_seen();
        let bios: Vec<_> = (0..4).map(|n| rig.read(8 * n, 8)).collect();
        assert_eq!(rig.run(bios), expected, "{merges:?}");
        let merged = u64::from(merges == Merges::All) * 2;
        assert_eq!(rig.count(Counter::BackMerged), merged, "those behind the first");
        // A stream goes on as it has begun.
        let bios: Vec<_> = (4..8).map(|n| rig.read(8 * n, 8)).collect();
        rig.run(bios);
        assert_eq!(rig.count(Counter::BackMerged), merged / 2 * 5, "and the next four");
        rig.all_succeeded(10);
    }
}

#[test]
fn what_fails_is_asked_for_again_and_told_in_the_usual_way() {
    let mut rig = instant(limits());
    rig.device.lock().unwrap().bad = vec![12];
    let (bad, good) = (rig.read(8, 8), rig.read(24, 8));
    assert_eq!(rig.run([bad, good]), [false; 2], "the second one waits with the first");
    assert_eq!(rig.results()[2..], [(2, Err(Errno::EIO)), (3, Ok(()))]);
    assert_eq!((rig.count(Counter::Errors), rig.count(Counter::Reads)), (1, 4));
    // Beyond the end.
    let bios = [rig.read(rig::SECTORS - 4, 8), rig.write(rig::SECTORS, 8, 1)];
    assert_eq!(rig.run(bios), [false; 2]);
    assert_eq!(rig.results()[4..], [(4, Err(Errno::EINVAL)), (5, Err(Errno::ENOSPC))]);
    // A leaf that has lost writes takes no more of them.
    rig.shared.fail();
    let bios = [rig.read(8 * 16, 8), rig.write(8 * 32, 8, 1)];
    assert_eq!(rig.run(bios), [true, false]);
    assert_eq!(rig.results()[6..], [(6, Ok(())), (7, Err(Errno::EIO))]);
}

#[test]
fn whoever_listens_is_told_of_everything() {
    struct Nothing;
    impl EventSink for Nothing {
        fn take(&mut self, _: u16, events: &mut Vec<Event>) {
            events.clear();
        }
    }
    struct Deaf;
    impl WriteTap for Deaf {
        fn altered(&self, _: LeafId, _: Op, _: Flags, _: Sector, _: Sectors, _: &[Segment]) {}
        fn flush_started(&self, _: LeafId) -> u64 {
            0
        }
        fn flushed(&self, _: LeafId, _: u64) {}
    }
    let wanted = Arc::new(AtomicBool::new(false));
    let tracer = Tracer::new(wanted.clone(), Box::new(Nothing));
    let mut rig = warm(Rig::with(limits(), |leaf| leaf, true, |config| WorkerConfig { tracer, ..config }));
    wanted.store(true, Relaxed);
    let bio = rig.read(0, 8);
    assert_eq!(rig.run([bio]), [false], "while it is traced");
    wanted.store(false, Relaxed);
    let bio = rig.read(64, 8);
    assert_eq!(rig.run([bio]), [true]);
    let tap = |config| WorkerConfig { tap: Some(Arc::new(Deaf)), ..config };
    let mut rig = Rig::with(limits(), |leaf| leaf, true, tap);
    for n in 0..3 {
        let bio = rig.write(n * 64, 8, 1);
        assert_eq!(rig.run([bio]), [false], "while writes are logged");
    }
    rig.all_succeeded(3);
}

#[test]
fn a_layer_may_end_a_bio_or_have_it_wait() {
    let tricks = Arc::new(Tricks { hole: true, error: true, cuts: true, ..Tricks::default() });
    let mut rig = warm(stacked(&tricks, true, |config| config));
    let before = rig.device.lock().unwrap().at_once;
    let bios = [rig.read(0, 8), rig.write(64, 8, 7)];
    assert_eq!(rig.run(bios), [true, true], "where nothing is");
    assert_eq!(rig.device.lock().unwrap().at_once, before);
    assert!(rig.data_of(2) == [0; 8 * 512]);
    let bio = rig.read(rig::SECTORS - 8, 8);
    assert_eq!(rig.run([bio]), [false]);
    assert_eq!(rig.results().last(), Some(&(4, Err(Errno::EIO))));
    let mut rig = warm(stacked(&tricks, true, |config| config));
    let write = rig.write(rig::SECTORS - 512, 16, 5);
    assert_eq!(rig.run([write]), [false], "in two");
    assert!(rig.bytes(rig::SECTORS - 512, 16) == [5; 16 * 512]);
    let mut rig = warm(stacked(&tricks, true, |config| config));
    tricks.defers.store(true, Relaxed);
    let bios = [rig.write(rig::SECTORS - 1024, 8, 6), rig.write(rig::SECTORS - 800, 8, 6)];
    assert_eq!(rig.run(bios), [false; 2], "the first is deferred, and the second comes behind it");
    assert!(rig.bytes(rig::SECTORS - 1024, 8) == [6; 8 * 512]);
    rig.all_succeeded(4);
    let mut rig = warm(stacked(&tricks, true, |config| config));
    tricks.watches.store(true, Relaxed);
    let bio = rig.read(rig::SECTORS - 1024, 8);
    assert_eq!(rig.run([bio]), [false]);
    assert_eq!(*tricks.ends.lock().unwrap(), [Ok(())], "it hears of the end, once");
    rig.all_succeeded(3);
}

#[test]
fn what_was_written_at_once_is_flushed_in_the_end() {
    for writes in [true, false] {
        let mut rig = instant(limits());
        rig.clear_seen();
        let bio = if writes { rig.write(0, 8, 1) } else { rig.read(0, 8) };
        assert_eq!(rig.run([bio]), [true]);
        rig.worker.handle().stop();
        assert_eq!(rig.worker.run(), Ok(()));
        let flushes = rig.seen().iter().filter(|seen| seen.op == Op::Flush).count();
        assert_eq!(flushes, usize::from(writes));
    }
}

#[test]
fn a_worker_knows_a_lone_client_by_what_was_done_at_once() {
    for instant in [true, false] {
        let mut rig = Rig::with(limits(), |leaf| leaf, instant, |config| config);
        let (handle, client) = (rig.worker.handle(), rig.client.clone());
        let (ready, token) = (rig.ready.clone(), rig.token);
        let bios: Vec<_> = (0..4000).map(|n| rig.read(n % 100 * 64, 8)).collect();
        let mut bios = (0..).zip(bios);
        (rig.worker.env.waits, rig.worker.env.sleeps) = (Some(Vec::new()), Nanos(60_000));
        rig.worker.env.waiting = Some(Box::new(move || match bios.next() {
            Some(bio) => {
                client.borrow_mut().to_run.push(bio);
                ready.borrow_mut().push(Completion { token, result: 0, flags: 0 });
            }
            None => handle.stop(),
        }));
        assert_eq!(rig.worker.run(), Ok(()));
        rig.all_succeeded(4000);
        assert_eq!(rig.client.borrow().ran.len(), if instant { 3999 } else { 0 });
        let waits = rig.worker.env.waits.take().unwrap();
        let is_soon = |wait: &Wait| matches!(wait, Wait::Soon { of: Awaited::Measured, .. });
        let looks = waits[3000..4000].iter().filter(|wait| is_soon(wait)).count();
        assert_eq!(
            (looks, waits.iter().filter(|wait| **wait == Wait::Until(None)).count() > 30),
            (1000, true)
        );
    }
}
