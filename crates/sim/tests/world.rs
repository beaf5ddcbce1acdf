//! The simulated environment by itself, without the engine: time, devices' speed, and the contract of `Env`.

use blockwork_engine::{Completion, Env, Errno, FileId, FileOp, FileOpKind, Nanos, Sectors, Token, Wait};
use blockwork_memory::{Buffer, Segment};
use blockwork_sim::{DeviceModel, Fault, Latency, SimEnv, World};

fn memory(len: usize, value: u8) -> Segment {
    let buffer = Buffer::new(len);
    buffer.fill(0, len, value);
    Segment::new(buffer, 0, len)
}

fn start(env: &mut SimEnv, token: u64, kind: FileOpKind, sector: u64, data: &Segment) {
    let len = if kind == FileOpKind::Sync { 0 } else { data.len() as u64 };
    let carries = matches!(kind, FileOpKind::Read | FileOpKind::Write { .. });
    let data = if carries { std::slice::from_ref(data) } else { &[] };
    env.start(Token(token), FileOp { file: FileId(0), kind, offset: sector * 512, len, data, fixed: false });
}

fn wait(env: &mut SimEnv, how: Wait) -> Vec<Completion> {
    let mut out = Vec::new();
    env.wait(how, &mut out);
    out
}

/// Runs one operation to its end.
fn run(env: &mut SimEnv, kind: FileOpKind, sector: u64, data: &Segment) -> Result<u32, Errno> {
    start(env, 1, kind, sector, data);
    let done = wait(env, Wait::Until(None));
    assert_eq!(done.len(), 1);
    done[0].outcome()
}

const WRITE: FileOpKind = FileOpKind::Write { dsync: false };
const FUA: FileOpKind = FileOpKind::Write { dsync: true };

fn device(cache_bytes: u64) -> DeviceModel {
    let mut model = DeviceModel::null(Sectors(1 << 12));
    model.cache_bytes = cache_bytes;
    model.latency.read = Latency::Fixed(Nanos::micros(100));
    model.latency.write = Latency::Fixed(Nanos::micros(30));
    model
}

fn world(model: DeviceModel) -> (World, SimEnv) {
    let world = World::new(1);
    world.add_device(model);
    let env = world.env();
    (world, env)
}

#[test]
fn time_passes_only_while_waiting_and_goes_to_the_next_completion() {
    let (world, mut env) = world(device(0));
    let data = memory(512, 1);
    start(&mut env, 1, FileOpKind::Read, 0, &memory(512, 2));
    start(&mut env, 2, WRITE, 8, &data);
    assert_eq!(world.now(), Nanos(0));
    assert!(wait(&mut env, Wait::Poll).is_empty());
    let tokens: Vec<u64> = wait(&mut env, Wait::Until(None)).iter().map(|done| done.token.0).collect();
    assert_eq!((tokens, world.now()), (vec![2], Nanos::micros(30)));
    assert!(wait(&mut env, Wait::Until(Some(Nanos::micros(50)))).is_empty());
    assert_eq!(world.now(), Nanos::micros(50));
    assert_eq!(wait(&mut env, Wait::Until(None)).len(), 1);
    assert_eq!(world.now(), Nanos::micros(100));
}

#[test]
fn gathering_ends_with_enough_completions_or_with_its_time() {
    let (world, mut env) = world(device(0));
    let data = memory(512, 1);
    for n in 0..3 {
        start(&mut env, n, WRITE, n, &data);
    }
    start(&mut env, 9, FileOpKind::Read, 0, &memory(512, 2));
    let enough = wait(&mut env, Wait::Gather { completions: 3, for_at_most: Nanos::millis(1) });
    assert_eq!((enough.len(), world.now()), (3, Nanos::micros(30)));
    let late = wait(&mut env, Wait::Gather { completions: 2, for_at_most: Nanos::micros(40) });
    assert_eq!((late.len(), world.now()), (0, Nanos::micros(70)));
    let rest = wait(&mut env, Wait::Gather { completions: 2, for_at_most: Nanos::micros(40) });
    assert_eq!((rest.len(), world.now()), (1, Nanos::micros(110)));
}

#[test]
fn a_notification_and_a_timer_end_a_wait() {
    let (world, mut env) = world(device(0));
    let notifier = env.notifier();
    notifier.notify();
    assert!(wait(&mut env, Wait::Until(None)).is_empty());
    env.timeout(Token(5), Nanos::millis(7));
    assert_eq!(wait(&mut env, Wait::Until(None))[0].token, Token(5));
    assert_eq!(world.now(), Nanos::millis(7));
}

#[test]
#[should_panic(expected = "waits for ever")]
fn a_wait_for_what_will_never_come_is_a_failure_and_no_hang() {
    let (_, mut env) = world(device(0));
    wait(&mut env, Wait::Until(None));
}

#[test]
#[should_panic(expected = "spins")]
fn a_worker_that_polls_for_ever_is_a_failure_and_no_hang() {
    let (_, mut env) = world(device(0));
    loop {
        wait(&mut env, Wait::Poll);
    }
}

#[test]
fn a_power_cut_takes_what_was_not_flushed_and_leaves_what_was() {
    let (mut kept, mut lost) = (false, false);
    for seed in 0..40 {
        let world = World::new(seed);
        world.add_device(device(1 << 20));
        let mut env = world.env();
        run(&mut env, WRITE, 0, &memory(512, 1)).unwrap();
        run(&mut env, FileOpKind::Sync, 0, &memory(0, 0)).unwrap();
        run(&mut env, FUA, 1, &memory(512, 2)).unwrap();
        run(&mut env, WRITE, 2, &memory(512, 3)).unwrap();
        let after = world.power_cut();
        assert_eq!([after.peek(FileId(0), 0)[0], after.peek(FileId(0), 1)[0]], [1, 2], "seed {seed}");
        let cached = after.peek(FileId(0), 2)[0];
        kept |= cached == 3;
        lost |= cached == 0;
        assert!(world.is_off());
        assert_eq!(run(&mut env, FileOpKind::Read, 0, &memory(512, 0)), Err(Errno::EIO));
        let mut env = after.env();
        assert_eq!(run(&mut env, FileOpKind::Read, 0, &memory(512, 0)), Ok(512));
    }
    assert!(kept, "no cut kept a cached write");
    assert!(lost, "no cut lost a cached write");
}

#[test]
fn a_latent_sector_error_lasts_until_the_sector_is_written_and_a_permanent_one_for_ever() {
    for (fault, heals) in [(Fault::Latent, true), (Fault::ForEver, false)] {
        let (world, mut env) = world(device(0));
        let data = memory(512, 7);
        world.fail_nth(FileId(0), 1, fault);
        assert_eq!(run(&mut env, FileOpKind::Read, 3, &data), Ok(512));
        for _ in 0..3 {
            assert_eq!(run(&mut env, FileOpKind::Read, 3, &data), Err(Errno::EIO));
        }
        assert_eq!(run(&mut env, FileOpKind::Read, 4, &data), Ok(512), "its neighbour is well");
        assert_eq!(run(&mut env, WRITE, 3, &data).is_ok(), heals);
        assert_eq!(run(&mut env, FileOpKind::Read, 3, &data).is_ok(), heals);
        world.heal();
        assert_eq!(run(&mut env, FileOpKind::Read, 3, &data), Ok(512));
    }
}

#[test]
fn the_nth_request_is_the_one_that_fails() {
    let (world, mut env) = world(device(1 << 20));
    world.fail_nth(FileId(0), 1, Fault::Error(Errno::ENOSPC));
    world.fail_nth(FileId(0), 2, Fault::Short);
    world.fail_nth(FileId(0), 3, Fault::Stall);
    world.fail_nth(FileId(0), 4, Fault::LostFlush);
    let data = memory(4096, 7);
    assert_eq!(run(&mut env, WRITE, 0, &data), Ok(4096));
    assert_eq!(run(&mut env, WRITE, 0, &data), Err(Errno::ENOSPC));
    let short = run(&mut env, WRITE, 8, &data).unwrap();
    assert!(short > 0 && short < 4096 && short.is_multiple_of(512), "{short}");
    let before = world.now();
    assert_eq!(run(&mut env, FileOpKind::Read, 0, &data), Ok(4096));
    assert!(world.now().since(before) > Nanos::secs(31));
    assert_eq!(run(&mut env, FileOpKind::Sync, 0, &data), Err(Errno::EIO));
    assert_eq!(run(&mut env, FileOpKind::Sync, 0, &data), Ok(0), "the next flush claims that all is well");
    assert_eq!(world.faults(), 4);
}

/// Requests of 4 KiB a second at a depth, over a second of virtual time.
fn rate(model: DeviceModel, kind: FileOpKind, depth: u64, stride: u64) -> u64 {
    let sectors = model.sectors.0;
    let (world, mut env) = world(DeviceModel { keeps_content: false, ..model });
    let data = memory(4096, 0);
    let mut issued = 0;
    let mut place = |env: &mut SimEnv| {
        start(env, issued, kind, issued * stride % (sectors - 8) / 8 * 8, &data);
        issued += 1;
    };
    (0..depth).for_each(|_| place(&mut env));
    let mut done = 0;
    while world.now() < Nanos::secs(1) {
        let n = wait(&mut env, Wait::Until(None)).len() as u64;
        done += n;
        (0..n).for_each(|_| place(&mut env));
    }
    done
}

#[test]
fn the_presets_are_as_fast_as_their_sources_say() {
    let big = Sectors(200 << 21);
    let random = 7_919 * 8;
    let cases = [
        // At depth 1 the rate is the latency: 80 us and 2 us overhead, 2.6 us transfer; the rest is the tail.
        ("nvme", FileOpKind::Read, 1, random, 11_000..12_500),
        ("nvme", FileOpKind::Read, 256, random, 480_000..491_000),
        ("nvme", WRITE, 256, random, 38_000..43_000),
        ("ssd-sata", FileOpKind::Read, 32, random, 97_000..98_100),
        ("ssd-sata", WRITE, 32, random, 89_000..90_100),
        ("hdd", FileOpKind::Read, 1, random, 70..95),
        ("hdd", FileOpKind::Read, 1, 8, 9_000..13_000),
        ("ebs-gp2", FileOpKind::Read, 64, random, 3_000..3_100),
    ];
    for (name, kind, depth, stride, expected) in cases {
        let rate = rate(DeviceModel::preset(name, big).unwrap(), kind, depth, stride);
        assert!(
            expected.contains(&rate),
            "{name} {kind:?} at depth {depth}: {rate} a second, not {expected:?}"
        );
    }
}

#[test]
fn a_device_serves_as_many_requests_at_once_as_it_has_channels() {
    for channels in [1, 4] {
        let mut model = device(0);
        model.parallelism = channels;
        assert_eq!(rate(model, FileOpKind::Read, 64, 8), 10_000 * u64::from(channels));
    }
}

#[test]
fn a_stripe_of_content_written_before_can_be_read_without_a_request() {
    let (world, _) = world(device(0));
    world.preload(FileId(0), 5, &[9; 1024]);
    let source = world.source(FileId(0));
    let mut bytes = [1; 1536];
    source.read_now(5 * 512 - 256, &mut bytes).unwrap();
    assert!(bytes[..256].iter().all(|byte| *byte == 0) && bytes[256..1280].iter().all(|byte| *byte == 9));
    assert!(source.read_now((1 << 12) * 512 - 100, &mut bytes).is_err());
    assert_eq!(world.counters(FileId(0)).requests(), 0);
}
