//! Arrays on simulated devices: made as mdadm makes them, assembled from what lies on the devices, and served by workers.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;

use blockwork_engine::{
    Bio, Completion, Context, CounterTable, Done, Errno, FileId, Flags, Layer, LeafId, LeafLayer, LeafSource,
    Nanos, NodeId, Op, Port, PortState, Quiescence, Sector, Sectors, TaskContext, Volume, VolumeId, Wait,
    Worker, WorkerConfig,
};
use blockwork_format::md::bitmap::{BITMAP_SUPERBLOCK_BYTES, BitmapSuperblock, Bits};
use blockwork_format::md::raid0::Raid0Layout;
use blockwork_format::md::v1::{Features, Minor, Reshape, SUPERBLOCK_BYTES_MAX, Superblock};
use blockwork_format::md::{
    IN_SYNC, Level, ParityLayout, Raid10Layout, Role, SetName, Time, Uuid, bad_blocks,
};
use blockwork_layer::md::{
    Added, Array, ArrayConfig, Geometry, IntentConfig, MdRecord, MdSite, MemberConfig, MemberState,
    NewMember, Record, SyncAction, SyncStatus, VerbError,
};
use blockwork_memory::{Segment, Segments};
use blockwork_sim::{DeviceModel, SimEnv, World};

/// Bytes that each of so many devices was told to write.
pub fn written(world: &World, devices: u16) -> Vec<u64> {
    (0..devices).map(|device| world.counters(FileId(device.into())).written_bytes).collect()
}

/// Of RAID5 and RAID6: left symmetric, as superblocks have it.
const PARITY_LAYOUT: u32 = 2;

/// Where the data starts on each member.
pub const DATA_START: u64 = 64;
/// The superblock, and the bitmap behind it.
pub const SUPERBLOCK: u64 = 8;
pub const BITMAP: u64 = 16;
/// The list of bad blocks behind that.
pub const BAD_BLOCKS: u64 = 48;

/// Behind the room for data, where the superblock is at the end: the bitmap, and the superblock; the list of bad blocks is
/// right before that.
const BITMAP_AT_END: u64 = 0;
const SUPERBLOCK_AT_END: u64 = 32;

/// What an array is like when it is made.
#[derive(Clone, Debug)]
pub struct Make {
    pub level: Level,
    /// As mdadm has it: `n2`; nothing for RAID0 and RAID1.
    pub layout: &'static str,
    pub members: u16,
    pub spares: u16,
    pub chunk: u64,
    /// Data of each member.
    pub sectors: u64,
    /// Bytes of a bitmap's chunk, if there is a bitmap.
    pub bitmap: Option<u32>,
    /// Seconds between looks for bits to clear.
    pub daemon_sleep: u32,
    /// Devices that belong to nothing.
    pub blank: u16,
    /// Members have lists of bad blocks.
    pub bad_blocks: bool,
    /// Superblock 1.0: data, and behind it so many sectors of room, the bitmap, the list of bad blocks, and the superblock.
    pub room_at_end: Option<u64>,
}

impl Make {
    pub fn raid1(members: u16) -> Make {
        let level = Level::Raid1;
        Make {
            level,
            layout: "",
            members,
            spares: 0,
            chunk: 0,
            sectors: 512,
            bitmap: Some(4096),
            daemon_sleep: 5,
            blank: 0,
            bad_blocks: false,
            room_at_end: None,
        }
    }
    pub fn raid10(layout: &'static str, members: u16) -> Make {
        Make { level: Level::Raid10, layout, chunk: 16, ..Make::raid1(members) }
    }
    /// Left symmetric.
    pub fn raid5(members: u16) -> Make {
        Make { level: Level::Raid5, chunk: 16, bitmap: None, ..Make::raid1(members) }
    }
    pub fn raid6(members: u16) -> Make {
        Make { level: Level::Raid6, ..Make::raid5(members) }
    }
    pub fn raid0(members: u16) -> Make {
        Make { level: Level::Raid0, chunk: 16, bitmap: None, ..Make::raid1(members) }
    }
    pub fn without_bitmap(self) -> Make {
        Make { bitmap: None, ..self }
    }
    pub fn with_bad_blocks(self) -> Make {
        Make { bad_blocks: true, ..self }
    }
    pub fn with_blank(self, blank: u16) -> Make {
        Make { blank, ..self }
    }
    pub fn with_spares(self, spares: u16) -> Make {
        Make { spares, ..self }
    }
    /// With superblocks at the end, and so much room before them.
    pub fn with_room_at_end(self, sectors: u64) -> Make {
        Make { room_at_end: Some(sectors), ..self }
    }
    /// Data of each member.
    pub fn of_sectors(self, sectors: u64) -> Make {
        Make { sectors, ..self }
    }

    fn raid10_layout(&self) -> Raid10Layout {
        Raid10Layout::from_short_name(self.layout, self.members.into()).unwrap()
    }

    pub fn parity_layout(&self) -> ParityLayout {
        ParityLayout::new(self.level, PARITY_LAYOUT, self.members).unwrap()
    }

    pub fn geometry(&self) -> Geometry {
        let (chunk, sectors) = (Sectors(self.chunk), Sectors(self.sectors));
        match self.level {
            Level::Raid0 => {
                let members = vec![sectors; self.members.into()];
                Geometry::raid0(chunk, &members, Raid0Layout::Alternate).unwrap()
            }
            Level::Raid1 => Geometry::raid1(self.members, sectors),
            Level::Raid5 | Level::Raid6 => Geometry::parity(self.parity_layout(), chunk, sectors).unwrap(),
            _ => Geometry::raid10(self.raid10_layout(), chunk, sectors).unwrap(),
        }
    }

    /// Puts superblocks and bitmaps on the first devices of a world.
    pub fn put(&self, world: &World) {
        for slot in 0..self.members + self.spares {
            let superblock = self.superblock(slot);
            world.preload(FileId(slot.into()), superblock.super_offset, &superblock.encode());
            if let Some(log) = superblock.bad_block_log() {
                world.preload(FileId(slot.into()), log.start, &[0xff; 4096]);
            }
            if let Some(chunk_bytes) = self.bitmap {
                let bitmap = self.bitmap_superblock(chunk_bytes);
                let mut bytes = bitmap.encode().to_vec();
                bytes.extend_from_slice(Bits::clean(bitmap.chunks()).as_bytes());
                bytes.resize(bytes.len().next_multiple_of(512), 0xff);
                world.preload(FileId(slot.into()), superblock.bitmap_sector().unwrap(), &bytes);
            }
        }
    }

    fn superblock(&self, slot: u16) -> Superblock {
        let layout = match self.level {
            Level::Raid10 => self.raid10_layout().encode(),
            Level::Raid5 | Level::Raid6 => PARITY_LAYOUT,
            _ => 0,
        };
        let mut roles: Vec<_> = (0..self.members).map(Role::Active).collect();
        roles.resize(128, Role::Spare);
        let superblock = Superblock {
            minor: Minor::V1_2,
            features: Features::default().with(Features::BITMAP, self.bitmap.is_some()),
            set_uuid: Uuid([3; 16]),
            set_name: SetName::new("host:a").unwrap(),
            ctime: Time::new(1_700_000_000, 0),
            level: self.level,
            layout,
            size: self.sectors,
            chunk_sectors: u32::try_from(self.chunk).unwrap(),
            raid_disks: self.members.into(),
            bitmap_offset: i32::try_from(BITMAP - SUPERBLOCK).unwrap(),
            reshape: Reshape::default(),
            data_offset: DATA_START,
            data_size: self.sectors,
            super_offset: SUPERBLOCK,
            recovery_offset: 0,
            dev_number: slot.into(),
            corrected_errors: 0,
            device_uuid: Uuid([u8::try_from(slot).unwrap(); 16]),
            devflags: 0,
            bblog_shift: 0,
            bblog_sectors: if self.bad_blocks { 8 } else { 0 },
            bblog_offset: if self.bad_blocks { i32::try_from(BAD_BLOCKS - SUPERBLOCK).unwrap() } else { 0 },
            utime: Time::new(1_700_000_000, 0),
            events: 17,
            resync_offset: IN_SYNC,
            logical_block_size: 0,
            roles,
            reserved: [0; 32],
        };
        let Some(room) = self.room_at_end else { return superblock };
        let bitmap_to_superblock = SUPERBLOCK_AT_END - BITMAP_AT_END;
        Superblock {
            minor: Minor::V1_0,
            bitmap_offset: -i32::try_from(bitmap_to_superblock).unwrap(),
            data_offset: 0,
            data_size: self.sectors + room,
            super_offset: self.sectors + room + SUPERBLOCK_AT_END,
            bblog_offset: if self.bad_blocks { -8 } else { 0 },
            ..superblock
        }
    }

    fn bitmap_superblock(&self, chunk_bytes: u32) -> BitmapSuperblock {
        BitmapSuperblock {
            version: 4,
            uuid: Uuid([3; 16]),
            events: 17,
            events_cleared: 17,
            sync_size: self.geometry().sync_sectors().0,
            state: 0,
            chunk_bytes,
            daemon_sleep: self.daemon_sleep,
            write_behind: 0,
            sectors_reserved: 0,
            nodes: 0,
            cluster_name: [0; 64],
            reserved: [0; 120],
        }
    }

    /// Those with a superblock.
    pub fn devices(&self) -> u16 {
        self.members + self.spares
    }
    pub fn device_sectors(&self) -> Sectors {
        match self.room_at_end {
            // The superblock's own room is twice its largest size.
            Some(room) => Sectors(self.sectors + room + SUPERBLOCK_AT_END + 16),
            None => Sectors(DATA_START + self.sectors),
        }
    }
}

/// What lies on a device.
#[derive(Clone, Debug)]
pub struct Found {
    pub device: u16,
    pub superblock: Superblock,
    pub bitmap: Option<(BitmapSuperblock, Bits)>,
    /// From the start of its data.
    pub bad: Vec<(Sector, Sectors)>,
}

/// Reads superblock, bitmap and list of bad blocks of a device as they are now.
pub fn examine(world: &World, device: u16, sectors: Sectors) -> Found {
    try_examine(world, device, sectors).expect("a superblock")
}

/// The same, if there is a superblock.
pub fn try_examine(world: &World, device: u16, sectors: Sectors) -> Option<Found> {
    let bytes = |first: u64, nr: u64| -> Vec<u8> {
        (first..first + nr).flat_map(|sector| world.peek(FileId(device.into()), sector)).collect()
    };
    let superblock = [Minor::V1_2, Minor::V1_0].into_iter().find_map(|minor| {
        let head = bytes(minor.sector(sectors.0)?, SUPERBLOCK_BYTES_MAX as u64 / 512);
        Superblock::decode(&head, minor, sectors.0).ok()
    })?;
    let bitmap = superblock.bitmap_sector().map(|start| {
        let head = bytes(start, 1);
        let bitmap = BitmapSuperblock::decode(&head, start * 512).unwrap();
        let all = bytes(start, bitmap.disk_sectors());
        let bits = Bits::decode(&bitmap, &all[BITMAP_SUPERBLOCK_BYTES..], 0).unwrap();
        (bitmap, bits)
    });
    let mut bad = Vec::new();
    if superblock.features.has(Features::BAD_BLOCKS) {
        let log = superblock.bad_block_log().unwrap();
        let list = bad_blocks::decode(&bytes(log.start, log.sectors), 0, 0, sectors.0).unwrap();
        let start = superblock.data_offset;
        bad.extend(list.iter().map(|it| (Sector(it.start - start), Sectors(it.sectors))));
    }
    Some(Found { device, superblock, bitmap, bad })
}

/// An array as it would be assembled: the freshest superblock, who is in sync, what may differ.
#[derive(Clone, Debug)]
pub struct Assembled {
    pub freshest: Superblock,
    /// By role.
    pub members: Vec<Option<Found>>,
    /// With the role whose member they are to replace.
    pub replacements: Vec<(u16, Found)>,
    pub spares: Vec<Found>,
    /// All bits that any member has set; all, where a bitmap is stale.
    pub bits: Option<(BitmapSuperblock, Bits)>,
}

impl Assembled {
    pub fn read(world: &World, make: &Make, absent: &[u16]) -> Assembled {
        let devices = (0..make.devices() + make.blank).filter(|device| !absent.contains(device));
        let found: Vec<_> =
            devices.filter_map(|device| try_examine(world, device, make.device_sectors())).collect();
        let freshest = found.iter().max_by_key(|found| found.superblock.events).unwrap().superblock.clone();
        let mut members: Vec<Option<Found>> = vec![None; make.members.into()];
        let (mut spares, mut replacements) = (Vec::new(), Vec::new());
        for found in found {
            let role = freshest.roles[found.superblock.dev_number as usize];
            // One event behind is fresh enough, unless the others say that it failed, or see it elsewhere.
            let fresh = found.superblock.events + 1 >= freshest.events;
            match (role, found.superblock.role()) {
                (Role::Active(role), Role::Active(own)) if fresh && role == own => {
                    if found.superblock.features.has(Features::REPLACEMENT) {
                        replacements.push((role, found));
                    } else {
                        members[usize::from(role)] = Some(found);
                    }
                }
                (Role::Spare, Role::Spare) if fresh => spares.push(found),
                _ => {}
            }
        }
        let mut bits: Option<(BitmapSuperblock, Bits)> = None;
        for (bitmap, theirs) in members.iter().flatten().filter_map(|found| found.bitmap.as_ref()) {
            let (newest, merged) = bits.get_or_insert_with(|| (bitmap.clone(), theirs.clone()));
            merged.merge(theirs);
            if bitmap.events > newest.events {
                *newest = bitmap.clone();
            }
        }
        Assembled { freshest, members, replacements, spares, bits }
    }

    /// Whether mirrors may differ at this sector.
    pub fn may_differ(&self, sector: u64) -> bool {
        if self.freshest.resync_offset == IN_SYNC {
            return false;
        }
        match &self.bits {
            Some((bitmap, bits)) => bits.is_dirty(sector / bitmap.chunk_sectors()),
            None => sector >= self.freshest.resync_offset,
        }
    }

    fn config(&self, make: &Make, layers: &[Arc<dyn Layer>], writable: bool) -> ArrayConfig {
        let member = |found: &Found| MemberConfig {
            name: format!("d{}", found.device),
            layer: layers[usize::from(found.device)].clone(),
            data_start: Sector(found.superblock.data_offset),
            recovered: Some(found.superblock.recovered_sectors()).filter(|end| *end != IN_SYNC).map(Sector),
            write_mostly: found.superblock.devflags & Superblock::WRITE_MOSTLY != 0,
            bad: found.bad.clone(),
        };
        let resync = self.freshest.resync_offset;
        let intent = self.bits.clone().map(|(superblock, bits)| IntentConfig {
            superblock,
            bits,
            may_differ: resync != IN_SYNC,
        });
        let site = |role: Option<u16>, found: &Found| MdSite {
            role,
            name: format!("d{}", found.device),
            layer: layers[usize::from(found.device)].clone(),
            superblock: found.superblock.clone(),
            bad: found.bad.clone(),
        };
        let members = (0..).zip(&self.members);
        let mut sites: Vec<_> =
            members.filter_map(|(role, found)| Some(site(Some(role), found.as_ref()?))).collect();
        sites.extend(self.replacements.iter().map(|(role, found)| site(Some(*role), found)));
        sites.extend(self.spares.iter().map(|found| site(None, found)));
        let bitmap = self.bits.as_ref().map(|(superblock, _)| superblock);
        let record = (writable && make.level != Level::Raid0).then(|| -> Box<dyn Record> {
            Box::new(MdRecord::new(sites, bitmap, Time::new(1_700_000_100, 0)).unwrap())
        });
        ArrayConfig {
            name: "a".into(),
            geometry: make.geometry(),
            members: self.members.iter().map(|found| found.as_ref().map(member)).collect(),
            resync_from: Some(Sector(resync)).filter(|_| resync != IN_SYNC),
            intent,
            record,
        }
    }
}

/// An array over a world's devices, and what workers need to serve it.
#[derive(Clone)]
pub struct Served {
    pub array: Arc<Array>,
    pub layers: Vec<Arc<dyn Layer>>,
    volumes: Arc<[Volume]>,
    leaves: Arc<[(NodeId, Arc<dyn LeafSource>)]>,
    quiescence: Quiescence,
}

impl Served {
    pub fn assemble(world: &World, make: &Make, absent: &[u16], writable: bool) -> Served {
        let assembled = Assembled::read(world, make, absent);
        Served::with(world, |layers| {
            Array::new(NodeId(100), assembled.config(make, layers, writable)).unwrap()
        })
    }

    /// Serves what `array` makes of the devices.
    pub fn with(world: &World, array: impl FnOnce(&[Arc<dyn Layer>]) -> Arc<Array>) -> Served {
        let leaves: Vec<(NodeId, Arc<dyn LeafSource>)> = (0..world.devices())
            .map(|n| (NodeId(u16::try_from(n).unwrap()), world.source(FileId(n))))
            .collect();
        let layer = |(n, (node, source)): (u16, &(NodeId, Arc<dyn LeafSource>))| -> Arc<dyn Layer> {
            let limits = source.limits().clone();
            Arc::new(LeafLayer::new(LeafId(n), *node, source.sectors(), limits))
        };
        let layers: Vec<_> = (0..).zip(&leaves).map(layer).collect();
        let array = array(&layers);
        let volumes = Arc::new([Volume::new("md/a", array.clone(), false)]);
        Served { array, layers, volumes, leaves: leaves.into(), quiescence: Quiescence::default() }
    }

    pub fn worker(&self, env: SimEnv, index: u16) -> Worker<SimEnv> {
        let counters = Arc::new(CounterTable::new(101));
        let mut config = WorkerConfig::new(self.volumes.clone(), self.leaves.clone(), counters);
        config.index = index;
        config.pool_bytes = 1 << 20;
        config.quiescence = self.quiescence.clone();
        Worker::new(env, config)
    }
}

#[derive(Default)]
struct Queue {
    waiting: VecDeque<Bio>,
    done: VecDeque<Done>,
    close: bool,
}

struct QueuePort(Rc<RefCell<Queue>>);

impl Port<SimEnv> for QueuePort {
    fn open(&mut self, _: &mut Context<'_, SimEnv>) {}
    fn event(&mut self, _: &mut Context<'_, SimEnv>, _: u32, _: Completion) {}
    fn done(&mut self, _: &mut Context<'_, SimEnv>, done: Done) {
        self.0.borrow_mut().done.push_back(done);
    }
    fn turn(&mut self, cx: &mut Context<'_, SimEnv>) -> PortState {
        let mut queue = self.0.borrow_mut();
        for bio in queue.waiting.drain(..) {
            cx.submit(VolumeId(0), 0, bio);
        }
        if queue.close { PortState::Closed } else { PortState::Open }
    }
    fn drain(&mut self, _: &mut Context<'_, SimEnv>) {
        self.0.borrow_mut().close = true;
    }
}

/// One worker on an array, driven step by step.
pub struct Rig {
    pub world: World,
    pub make: Make,
    pub served: Served,
    worker: Worker<SimEnv>,
    queue: Rc<RefCell<Queue>>,
    port: blockwork_engine::PortId,
}

impl Rig {
    /// A new array on fast devices with a volatile cache.
    pub fn new(make: Make) -> Rig {
        Rig::of(make, |_| {})
    }

    /// As `new`, on devices that are changed by `model`.
    pub fn of(make: Make, model: impl Fn(&mut DeviceModel)) -> Rig {
        let world = World::new(1);
        world.keep_journal();
        for _ in 0..make.devices() + make.blank {
            let mut device = DeviceModel::null(make.device_sectors());
            device.cache_bytes = 1 << 20;
            model(&mut device);
            world.add_device(device);
        }
        make.put(&world);
        Rig::on(world, make, &[], true)
    }

    /// The array that lies on the devices, without some of them.
    pub fn on(world: World, make: Make, absent: &[u16], writable: bool) -> Rig {
        let served = Served::assemble(&world, &make, absent, writable);
        Rig::serving(world, make, served)
    }

    pub fn serving(world: World, make: Make, served: Served) -> Rig {
        let mut worker = served.worker(world.env(), 0);
        let queue = Rc::new(RefCell::new(Queue::default()));
        let port = worker.add_port(Box::new(QueuePort(queue.clone())));
        Rig { world, make, served, worker, queue, port }
    }

    /// Begins to serve: what is due begins.
    pub fn open(&mut self) {
        self.worker.open();
    }

    /// Begins something on the worker; what comes of it is there when it has ended.
    pub fn begin<T: 'static, F: Future<Output = T>>(
        &mut self,
        verb: impl FnOnce(Arc<Array>, TaskContext) -> F + 'static,
    ) -> Rc<RefCell<Option<T>>> {
        let done = Rc::new(RefCell::new(None));
        let (told, array) = (done.clone(), self.served.array.clone());
        self.worker.spawn(|cx| async move {
            let result = verb(array, cx).await;
            *told.borrow_mut() = Some(result);
        });
        done
    }

    /// Runs something on the worker, and waits for its end.
    pub fn verb<T: 'static, F: Future<Output = T>>(
        &mut self,
        verb: impl FnOnce(Arc<Array>, TaskContext) -> F + 'static,
    ) -> T {
        let done = self.begin(verb);
        for _ in 0..10_000_000 {
            if let Some(result) = done.borrow_mut().take() {
                return result;
            }
            self.step();
        }
        panic!("a verb never ends");
    }

    /// Adds a device; as one that comes back if it has a superblock.
    pub fn add(&mut self, device: u16) -> Result<Added, VerbError> {
        let new = self.new_member(device);
        self.verb(|array, cx| async move { array.add(new, &cx).await })
    }
    /// A device as it is added, with the superblock that it has now.
    pub fn new_member(&self, device: u16) -> NewMember {
        let found = try_examine(&self.world, device, self.make.device_sectors());
        NewMember {
            name: format!("/dev/d{device}"),
            layer: self.served.layers[usize::from(device)].clone(),
            superblock: found.map(|found| Box::new(found.superblock)),
            device_uuid: Uuid([0xd0 + u8::try_from(device).unwrap(); 16]),
        }
    }
    pub fn fail(&mut self, device: &'static str) -> Result<String, VerbError> {
        self.verb(move |array, cx| async move { array.fail(device, &cx).await })
    }
    pub fn remove(&mut self, device: &'static str) -> Result<Vec<String>, VerbError> {
        self.verb(move |array, cx| async move { array.remove(device, &cx).await })
    }
    pub fn replace(&mut self, device: &'static str, with: Option<&'static str>) -> Result<(), VerbError> {
        self.verb(move |array, cx| async move { array.replace(device, with, &cx).await })
    }
    pub fn resume_sync(&mut self) -> Result<SyncAction, VerbError> {
        self.verb(move |array, cx| async move { array.resume_sync(&cx).await })
    }
    pub fn start_sync(&mut self, action: SyncAction) -> Result<(), VerbError> {
        self.verb(move |array, cx| async move { array.start_sync(action, &cx).await })
    }
    pub fn wait_sync(&mut self) -> SyncStatus {
        self.verb(|array, cx| async move { array.wait_sync(&cx).await })
    }

    /// Its volume is no more. Bytes that each device had been told to write in the moment in which that was done.
    pub fn retire(&mut self) -> Vec<u64> {
        let done = Rc::new(RefCell::new(Vec::new()));
        let (told, array, world) = (done.clone(), self.served.array.clone(), self.world.clone());
        let devices = self.make.members;
        self.worker.spawn(move |cx| async move {
            array.retire(cx).expect("it has something to end").await.unwrap();
            *told.borrow_mut() = written(&world, devices);
        });
        let end = self.world.now() + Nanos::secs(60);
        while done.borrow().is_empty() && self.world.now() < end {
            self.rest(Nanos::millis(1));
        }
        done.take()
    }

    /// Submits a bio; what comes of it is for [`Rig::run`].
    pub fn submit(&mut self, bio: Bio) {
        self.queue.borrow_mut().waiting.push_back(bio);
        self.worker.poke(self.port);
    }

    /// Runs until the next bio is done.
    pub fn finish(&mut self) -> Done {
        for _ in 0..100_000 {
            if let Some(done) = self.queue.borrow_mut().done.pop_front() {
                return done;
            }
            self.step();
        }
        panic!("a bio never ends");
    }

    /// Bios that are done, and were not asked for.
    pub fn done(&self) -> usize {
        self.queue.borrow().done.len()
    }

    pub fn step(&mut self) {
        let before = self.world.events();
        self.worker.turn(Wait::Poll);
        if self.queue.borrow().done.is_empty() && before == self.world.events() && !self.world.step() {
            let soon = self.world.now() + Nanos::millis(1);
            self.worker.turn(Wait::Until(Some(soon)));
        }
    }

    pub fn run(&mut self, bio: Bio) -> (Result<(), Errno>, Vec<u8>) {
        self.submit(bio);
        let done = self.finish();
        let mut bytes = Vec::new();
        for segment in &done.data {
            let mut part = vec![0; segment.len()];
            segment.read_at(0, &mut part);
            bytes.extend(part);
        }
        (done.result, bytes)
    }

    /// Lets the array be for so long.
    pub fn rest(&mut self, time: Nanos) {
        let end = self.world.now() + time;
        while self.world.now() < end {
            self.worker.turn(Wait::Until(Some(end.min(self.world.now() + Nanos::millis(1)))));
        }
    }

    pub fn memory(bytes: &[u8]) -> Segments {
        let pool = blockwork_memory::Pool::new(0);
        let segment = Segment::new(pool.get(bytes.len()), 0, bytes.len());
        segment.write_at(0, bytes);
        Segments::from_iter([segment])
    }

    pub fn write_bio(&self, sector: u64, nr: u64, fill: u8, flags: Flags) -> Bio {
        let data = Rig::memory(&vec![fill; Sectors(nr).byte_len()]);
        Bio::with_data(Op::Write, flags, Sector(sector), data)
    }
    pub fn write(&mut self, sector: u64, nr: u64, fill: u8) -> Result<(), Errno> {
        let bio = self.write_bio(sector, nr, fill, Flags::NONE);
        self.run(bio).0
    }
    pub fn read(&mut self, sector: u64, nr: u64) -> Result<Vec<u8>, Errno> {
        let data = Rig::memory(&vec![0xab; Sectors(nr).byte_len()]);
        let (result, bytes) = self.run(Bio::with_data(Op::Read, Flags::NONE, Sector(sector), data));
        result.map(|()| bytes)
    }
    pub fn flush(&mut self) -> Result<(), Errno> {
        self.run(Bio::flush()).0
    }

    /// Ends the clients and the worker.
    pub fn stop(&mut self) {
        self.worker.handle().stop();
        let _ = self.worker.run();
    }

    /// The device that has a role.
    pub fn device_of(&self, role: u16) -> u16 {
        let name = self.served.array.status().members[usize::from(role)].name.clone().expect("a member");
        name.trim_start_matches("/dev/").trim_start_matches('d').parse().unwrap()
    }
    pub fn is_syncing(&self) -> bool {
        let status = self.served.array.status();
        status.sync.action != SyncAction::Idle || status.degraded > 0
    }
    pub fn states(&self) -> Vec<MemberState> {
        self.served.array.status().members.iter().map(|member| member.state).collect()
    }

    /// The first byte of a sector of a member's data.
    pub fn on_member(&self, device: u16, sector: u64) -> u8 {
        self.world.peek(FileId(device.into()), DATA_START + sector)[0]
    }
    pub fn superblock(&self, device: u16) -> Superblock {
        examine(&self.world, device, self.make.device_sectors()).superblock
    }
    /// Bits that are set in a member's bitmap.
    pub fn dirty(&self, device: u16) -> Vec<u64> {
        let found = examine(&self.world, device, self.make.device_sectors());
        let (_, bits) = found.bitmap.expect("a bitmap");
        (0..bits.chunks()).filter(|chunk| bits.is_dirty(*chunk)).collect()
    }

    /// Ends the clients and the worker, and closes the array.
    pub fn close(mut self) -> (World, Make) {
        self.stop();
        drop(self.worker);
        self.served.worker(self.world.env(), 1).close().unwrap();
        (self.world, self.make)
    }
}
