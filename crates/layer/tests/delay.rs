//! dm-delay in virtual time: how long a bio takes through it, and how long many at once.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use blockwork_engine::{
    Bio, Completion, Context, CounterTable, Done, Env, FileId, FileOp, Flags, Layer, LeafId, LeafLayer,
    LeafSource, Nanos, NodeId, Notify, Op, Port, PortState, Sector, Sectors, TaskContext, Token, Volume,
    VolumeId, Wait, Worker, WorkerConfig, WorkerHandle,
};
use blockwork_layer::{Delay, Linear, Stripe, Striped};
use blockwork_memory::{Buffer, Segment, Segments};
use blockwork_sim::{DeviceModel, SimEnv, World};

const DELAY: Nanos = Nanos::millis(3);

/// Runs a script on what `stack` makes of a device of 1,024 sectors that takes no time.
fn play<F: Future<Output = ()> + 'static>(
    stack: impl FnOnce(Arc<dyn Layer>) -> Arc<dyn Layer>,
    script: impl FnOnce(TaskContext, Arc<dyn Layer>) -> F,
) -> World {
    let world = World::new(1);
    world.add_device(DeviceModel::null(Sectors(1024)));
    let source = world.source(FileId(0));
    let leaf = LeafLayer::new(LeafId(0), NodeId(0), source.sectors(), source.limits().clone());
    let root = stack(Arc::new(leaf));
    let volumes: Arc<[Volume]> = Arc::new([Volume::new("slow", root.clone(), false)]);
    let leaves: Arc<[(NodeId, Arc<dyn LeafSource>)]> = Arc::new([(NodeId(0), source)]);
    let config = WorkerConfig::new(volumes, leaves, Arc::new(CounterTable::new(10)));
    let mut worker = Worker::new(world.env(), config);
    let (handle, ended) = (worker.handle(), Rc::new(RefCell::new(false)));
    let told = ended.clone();
    worker.spawn(|cx| {
        let script = script(cx, root);
        async move {
            script.await;
            *told.borrow_mut() = true;
            handle.stop();
        }
    });
    assert_eq!(worker.run(), Ok(()));
    assert!(*ended.borrow(), "the script has come to its end");
    world
}

fn delayed(below: Arc<dyn Layer>) -> Arc<dyn Layer> {
    Arc::new(Delay::new(NodeId(1), below, Sector(8), Sectors(1016), DELAY).unwrap())
}

/// One sector; the time it took.
async fn transfer(
    cx: &TaskContext,
    root: &Arc<dyn Layer>,
    op: Op,
    sector: u64,
    byte: u8,
) -> (Nanos, Segments) {
    let buffer = Buffer::new(512);
    buffer.fill(0, 512, byte);
    let data = Segments::from_iter([Segment::new(buffer, 0, 512)]);
    let bio = Bio { op, flags: Flags::NONE, sector: Sector(sector), nr: Sectors(1), data };
    let start = cx.now();
    let (result, data) = cx.bio(root, bio).await;
    assert_eq!(result, Ok(()));
    (cx.now().since(start), data)
}

#[test]
fn each_bio_comes_back_after_the_delay_from_where_it_is_mapped_to() {
    let world = play(delayed, |cx, root| async move {
        let (took, _) = transfer(&cx, &root, Op::Write, 5, 0x5a).await;
        assert_eq!(took, DELAY);
        let (took, data) = transfer(&cx, &root, Op::Read, 5, 0).await;
        assert_eq!(took, DELAY);
        let mut byte = [0];
        data[0].read_at(511, &mut byte);
        assert_eq!(byte, [0x5a]);
        let start = cx.now();
        assert_eq!(cx.bio(&root, Bio::flush()).await.0, Ok(()));
        assert_eq!(cx.now().since(start), DELAY);
    });
    assert_eq!(world.peek(FileId(0), 13), [0x5a; 512], "8 sectors on");
}

#[test]
fn many_at_once_take_no_longer_than_one() {
    play(delayed, |cx, root| async move {
        let done = Rc::new(RefCell::new(Vec::new()));
        for sector in 0..256 {
            let (task, root, done) = (cx.clone(), root.clone(), done.clone());
            cx.spawn(async move {
                let (took, _) = transfer(&task, &root, Op::Read, sector, 0).await;
                done.borrow_mut().push(took);
            });
        }
        cx.sleep(Nanos::millis(4)).await;
        assert_eq!(*done.borrow(), vec![DELAY; 256]);
    });
}

/// An environment that notes how it was waited in.
struct Noting {
    env: SimEnv,
    waits: Rc<RefCell<Vec<Wait>>>,
}

impl Env for Noting {
    fn now(&self) -> Nanos {
        self.env.now()
    }
    fn random(&mut self) -> u64 {
        self.env.random()
    }
    fn start(&mut self, token: Token, op: FileOp<'_>) {
        self.env.start(token, op);
    }
    fn wait(&mut self, wait: Wait, out: &mut Vec<Completion>) {
        self.waits.borrow_mut().push(wait);
        self.env.wait(wait, out);
    }
    fn notifier(&self) -> Arc<dyn Notify> {
        self.env.notifier()
    }
}

/// A client that keeps [`DEPTH`] reads going until it has had [`READS`], then ends its worker.
struct Loop {
    worker: WorkerHandle<Noting>,
    started: u64,
    done: u64,
}

const DEPTH: u64 = 24;
/// Enough for pauses to be tried that would make larger batches.
const READS: u64 = 200 * DEPTH;

impl Loop {
    fn fill(&mut self, cx: &mut Context<'_, Noting>) {
        while self.started < READS.min(self.done + DEPTH) {
            let data = Segments::from_iter([Segment::new(cx.pool().get(512), 0, 512)]);
            let sector = Sector(self.started % DEPTH * 16);
            cx.submit(VolumeId(0), 0, Bio::with_data(Op::Read, Flags::NONE, sector, data));
            self.started += 1;
        }
    }
}

impl Port<Noting> for Loop {
    fn open(&mut self, cx: &mut Context<'_, Noting>) {
        self.fill(cx);
    }
    fn event(&mut self, _cx: &mut Context<'_, Noting>, _local: u32, _completion: Completion) {}
    fn done(&mut self, _cx: &mut Context<'_, Noting>, done: Done) {
        assert_eq!(done.result, Ok(()));
        self.done += 1;
    }
    fn turn(&mut self, cx: &mut Context<'_, Noting>) -> PortState {
        self.fill(cx);
        if self.done < READS {
            return PortState::Open;
        }
        self.worker.stop();
        PortState::Closed
    }
    fn drain(&mut self, _cx: &mut Context<'_, Noting>) {}
}

#[test]
fn bios_that_wait_for_their_time_come_by_themselves_and_nothing_is_gathered_meanwhile() {
    let world = World::new(1);
    world.add_device(DeviceModel::null(Sectors(1024)));
    let source = world.source(FileId(0));
    let leaf = LeafLayer::new(LeafId(0), NodeId(0), source.sectors(), source.limits().clone());
    let volumes: Arc<[Volume]> = Arc::new([Volume::new("slow", delayed(Arc::new(leaf)), false)]);
    let leaves: Arc<[(NodeId, Arc<dyn LeafSource>)]> = Arc::new([(NodeId(0), source)]);
    let config = WorkerConfig::new(volumes, leaves, Arc::new(CounterTable::new(10)));
    let waits = Rc::new(RefCell::new(Vec::new()));
    let mut worker = Worker::new(Noting { env: world.env(), waits: waits.clone() }, config);
    let handle = worker.handle();
    worker.add_port(Box::new(Loop { worker: handle, started: 0, done: 0 }));
    assert_eq!(worker.run(), Ok(()));
    let is_gathering = |wait: &&Wait| matches!(wait, Wait::Gather { .. });
    assert_eq!(waits.borrow().iter().find(is_gathering), None);
    let took = worker.env.now();
    assert!(took >= Nanos(DELAY.0 * READS / DEPTH), "{took:?}");
}

#[test]
fn a_bio_that_comes_through_in_two_pieces_waits_once() {
    let two_stripes_over_one_delay = |below| -> Arc<dyn Layer> {
        let slow = delayed(below);
        let half = |start| Stripe { below: slow.clone(), start: Sector(start) };
        Arc::new(Striped::new(NodeId(2), Sectors(8), vec![half(0), half(400)], Sectors(800)).unwrap())
    };
    play(two_stripes_over_one_delay, |cx, root| async move {
        let data = Segments::from_iter([Segment::new(Buffer::new(16 * 512), 0, 16 * 512)]);
        let bio = Bio { op: Op::Write, flags: Flags::NONE, sector: Sector(0), nr: Sectors(16), data };
        let start = cx.now();
        assert_eq!(cx.bio(&root, bio).await.0, Ok(()));
        assert_eq!(cx.now().since(start), DELAY);
    });
}

#[test]
fn a_range_that_its_device_does_not_have_is_none() {
    let leaf = || -> Arc<dyn Layer> {
        let linear = LeafLayer::new(LeafId(0), NodeId(0), Sectors(64), Default::default());
        Arc::new(Linear::new(NodeId(1), Arc::new(linear), Sector(0), Sectors(64)).unwrap())
    };
    for (start, sectors) in [(0, 0), (1, 64), (u64::MAX, 2)] {
        assert!(Delay::new(NodeId(2), leaf(), Sector(start), Sectors(sectors), DELAY).is_none());
    }
}
