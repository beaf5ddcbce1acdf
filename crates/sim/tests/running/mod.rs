//! What the labs have in common: random devices, workers that run until their clients have ended, plans that are run one after the other.
#![allow(dead_code, reason = "each test file uses its part")]

pub mod bytes;
pub mod devices;
pub mod plans;

use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use blockwork_engine::{
    CounterTable, Event, EventSink, LeafSource, Nanos, NodeId, Quiescence, Tracer, Volume, Wait, Worker,
    WorkerConfig,
};
use blockwork_sim::{SimEnv, World};

/// What a worker is built on.
pub struct Stack {
    pub volumes: Arc<[Volume]>,
    pub leaves: Arc<[(NodeId, Arc<dyn LeafSource>)]>,
    pub nodes: usize,
}

/// Numbers the nodes of a stack.
#[derive(Default)]
pub struct Nodes(pub u16);

impl Nodes {
    pub fn next(&mut self) -> NodeId {
        self.0 += 1;
        NodeId(self.0 - 1)
    }
}

/// A worker on a stack; those of one server share `quiescence`.
pub fn worker(
    stack: &Stack,
    env: SimEnv,
    index: u16,
    trace: bool,
    quiescence: &Quiescence,
) -> Worker<SimEnv> {
    let counters = Arc::new(CounterTable::new(stack.nodes));
    let mut config = WorkerConfig::new(stack.volumes.clone(), stack.leaves.clone(), counters);
    config.index = index;
    config.quiescence = quiescence.clone();
    config.pool_bytes = 1 << 20;
    if trace {
        config.tracer = Tracer::new(Arc::new(AtomicBool::new(true)), Box::new(Listener::default()));
    }
    Worker::new(env, config)
}

/// Takes events, and sees that their time never goes back.
#[derive(Default)]
struct Listener {
    last: Nanos,
}

impl EventSink for Listener {
    fn take(&mut self, _: u16, events: &mut Vec<Event>) {
        for event in events.drain(..) {
            assert!(
                event.time >= self.last,
                "an event of {:?} comes after one of {:?}: {event:?}",
                event.time,
                self.last
            );
            self.last = event.time;
        }
    }
}

/// So many turns of all workers in which nothing happens on any device are a wait for ever.
const IDLE_TURNS_MAX: u32 = 10_000;

/// Runs workers until every client has ended, and they have; tells whether their last flushes succeeded.
pub fn run_all(world: &World, mut workers: Vec<Worker<SimEnv>>) -> bool {
    if let [only] = &mut workers[..] {
        return only.run().is_ok();
    }
    // Several workers on one thread: let each do what it can; when none has anything to do, let time pass.
    let (mut idle_turns, mut all_is_well) = (0, true);
    loop {
        let before = world.events();
        // One that has ended is not waited for by the others.
        workers.retain_mut(|worker| {
            worker.turn(Wait::Poll);
            let ended = worker.ended();
            all_is_well &= ended.is_none_or(|result| result.is_ok());
            ended.is_none()
        });
        if workers.is_empty() {
            return all_is_well;
        }
        let alarm = workers.iter().filter_map(Worker::next_timer).min();
        // A wake-up for nothing may hide what is ready, and tasks may go on by themselves, but not for ever.
        let idle = alarm.is_none() && world.is_at_rest() && world.events() == before;
        idle_turns = if idle { idle_turns + 1 } else { 0 };
        assert!(
            idle_turns < IDLE_TURNS_MAX,
            "no worker does anything, and nothing will happen (a bio was lost)"
        );
        world.step_until(alarm);
    }
}

/// Runs something; a panic in it becomes its text.
pub fn caught(run: impl FnOnce()) -> Result<(), String> {
    catch_unwind(AssertUnwindSafe(run)).map_err(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
        format!("panic: {}", text.unwrap_or_default())
    })
}

/// Silences the messages of panics that are caught and reported as violations.
#[allow(clippy::disallowed_methods, reason = "whoever runs a test says by variables what to show")]
pub fn quietly<T>(run: impl FnOnce() -> T) -> T {
    if std::env::var_os("RUST_BACKTRACE").is_none_or(|value| value == "0") {
        std::panic::set_hook(Box::new(|_| {}));
    }
    let result = run();
    let _ = std::panic::take_hook();
    result
}

/// A number that whoever runs a test has set.
#[allow(clippy::disallowed_methods, reason = "whoever runs a test says by variables what to replay")]
pub fn from_environment(name: &str) -> Option<u64> {
    std::env::var(name)
        .ok()
        .map(|text| text.parse().unwrap_or_else(|_| panic!("{name}={text}: expected a number")))
}

/// The seeds of a test that usually runs so many of them, and how many: whoever runs it may have set `SEEDS`, and `FROM` for those
/// that nobody has tried yet.
pub fn seeds(usual: u64) -> (Range<u64>, u64) {
    let from = from_environment("FROM").unwrap_or(0);
    let number = from_environment("SEEDS").unwrap_or(usual);
    (from..from + number, number)
}
