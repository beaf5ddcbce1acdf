//! A pool on simulated devices, and scripts that play on it.

use std::cell::RefCell;
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;

use blockwork_engine::{
    Bio, CounterTable, Errno, FileId, Flags, Fua, Layer, LeafId, LeafLayer, LeafSource, NodeId, Op, Sector,
    Sectors, TaskContext, Volume, Worker, WorkerConfig,
};
use blockwork_format::Source;
use blockwork_format::thin::build::{Contents, Device, Mappings, build};
use blockwork_format::thin::{BLOCK_SECTORS, BlockTime, DeviceDetails, Superblock, read_block};
use blockwork_layer::Linear;
use blockwork_layer::md::{Array, ArrayConfig, Geometry, MemberConfig, Unrecorded};
use blockwork_layer::thin::check::{Report, check};
use blockwork_layer::thin::{
    CACHE_BYTES, METADATA_KEPT, OpenDevice, Pool, PoolConfig, PoolFeatures, Thin, ThinConfig,
};
use blockwork_memory::{Segment, Segments};
use blockwork_sim::{DeviceModel, SimEnv, World};

pub const METADATA: FileId = FileId(0);
pub const DATA: FileId = FileId(1);
pub const ORIGIN: FileId = FileId(2);
/// The other half of the data device, where that is a mirror.
pub const MIRROR: FileId = FileId(3);

/// Sectors of a block.
pub const BLOCK: u64 = 128;

/// What a pool is like when a script begins.
#[derive(Clone, Debug)]
pub struct Make {
    /// Blocks that the pool counts, and that its devices have.
    pub data_blocks: (u64, u64),
    pub metadata_blocks: (u64, u64),
    /// It is served on the whole devices: they have grown.
    pub has_grown: bool,
    pub features: PoolFeatures,
    /// Blocks of its volumes, whose numbers are 0, 1, ...
    pub volumes: Vec<u64>,
    /// So many blocks of volume 0 are mapped, every other one, to the first ones of the data.
    pub mapped: u64,
    /// So far from each other.
    pub stride: u64,
    /// Sectors of the external origin of volume 0, if it has one: full of 0x77.
    pub origin: Option<u64>,
    pub needs_check: bool,
    pub cache_bytes: usize,
    pub metadata_kept: usize,
    /// The data device holds nothing from before, and takes no memory for that.
    pub is_blank: bool,
    /// The data device is a RAID1 of two.
    pub is_mirrored: bool,
    /// How its disks make single writes durable.
    pub fua: Fua,
}

impl Default for Make {
    fn default() -> Make {
        Make {
            data_blocks: (64, 128),
            metadata_blocks: (256, 512),
            has_grown: false,
            features: PoolFeatures::default(),
            volumes: vec![64],
            mapped: 0,
            stride: 1,
            origin: None,
            needs_check: false,
            cache_bytes: CACHE_BYTES,
            metadata_kept: METADATA_KEPT,
            is_blank: false,
            is_mirrored: false,
            fua: Fua::Dsync,
        }
    }
}

/// A metadata device, as it would be read now.
pub struct Bytes<'a>(pub &'a World);

impl Source for Bytes<'_> {
    fn size(&self) -> u64 {
        512 * BLOCK_SECTORS * 512
    }
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        for (sector, piece) in (offset / 512..).zip(buf.chunks_mut(512)) {
            piece.copy_from_slice(&self.0.peek(METADATA, sector)[..piece.len()]);
        }
        Ok(())
    }
}

/// A pool that is served.
#[derive(Clone)]
pub struct Stand {
    pub world: World,
    pub pool: Arc<Pool>,
    pub thins: Vec<Arc<dyn Layer>>,
    /// The whole devices.
    pub disks: Vec<Arc<dyn Layer>>,
    pub cx: TaskContext,
}

impl Make {
    fn contents(&self) -> Contents {
        let device = |id: u64| {
            let mapped = if id == 0 { self.mapped } else { 0 };
            let to = |nth| BlockTime { block: nth * self.stride, time: 0 };
            let own = (0..mapped).map(|nth| (2 * nth, to(nth))).collect();
            (id, Device { details: DeviceDetails::default(), mappings: Mappings::Own(own) })
        };
        Contents {
            data_block_sectors: BLOCK as u32,
            data_blocks: self.data_blocks.0,
            metadata_blocks: self.metadata_blocks.0,
            devices: (0..self.volumes.len() as u64).map(device).collect(),
            ..Contents::default()
        }
    }

    fn world(&self) -> World {
        let world = World::new(1);
        let data = self.data_blocks.1 * BLOCK;
        let sizes = [self.metadata_blocks.1 * BLOCK_SECTORS, data, self.origin.unwrap_or(8), data];
        for sectors in sizes {
            let mut model = DeviceModel::null(Sectors(sectors));
            model.cache_bytes = 64 << 20;
            (model.limits.write_cache, model.limits.fua) = (true, self.fua);
            world.add_device(model);
        }
        for piece in build(&self.contents()).unwrap() {
            world.preload(METADATA, piece.offset / 512, &piece.bytes);
        }
        if self.needs_check {
            let superblock = superblock(&world);
            world.preload(METADATA, 0, &Superblock { needs_check: true, ..superblock }.encode(0)[..]);
        }
        for half in [DATA, MIRROR].into_iter().filter(|_| !self.is_blank) {
            world.preload(half, 0, &vec![0xee; (data * 512) as usize]);
        }
        world.preload(ORIGIN, 0, &vec![0x77; (sizes[2] * 512) as usize]);
        world
    }

    /// Plays a script on the pool; afterwards all is closed, and the pool's metadata passes its check. The world then.
    pub fn play<F: Future<Output = ()> + 'static>(self, script: impl FnOnce(Stand) -> F) -> World {
        let world = self.world();
        let mut leaves: Vec<(NodeId, Arc<dyn LeafSource>)> = Vec::new();
        let mut disks: Vec<Arc<dyn Layer>> = Vec::new();
        for device in 0..world.devices() as u16 {
            let source = world.source(FileId(device.into()));
            let (sectors, limits) = (source.sectors(), source.limits().clone());
            disks.push(Arc::new(LeafLayer::new(LeafId(device), NodeId(device), sectors, limits)));
            leaves.push((NodeId(device), source));
        }
        let size = |(counted, there): (u64, u64)| if self.has_grown { there } else { counted };
        let metadata = part(&disks[0], size(self.metadata_blocks) * BLOCK_SECTORS);
        let data = part(&disks[1], size(self.data_blocks) * BLOCK);
        let data = if self.is_mirrored { mirror([&disks[1], &disks[3]]) } else { data };
        let (superblock, name) = (superblock(&world), "pool".to_owned());
        let (features, cache_bytes, metadata_kept) = (self.features, self.cache_bytes, self.metadata_kept);
        let config = PoolConfig { name, data, metadata, superblock, cache_bytes, metadata_kept, features };
        let pool = Pool::new(config).unwrap();
        let thins: Vec<Arc<dyn Layer>> = (0..)
            .zip(&self.volumes)
            .map(|(id, blocks)| {
                let device = pool.device_now(&Bytes(&world), id).unwrap();
                let external_origin = self.origin.filter(|_| id == 0).map(|_| disks[2].clone());
                thin(&pool, device, *blocks, external_origin)
            })
            .collect();
        let volumes: Vec<_> = thins.iter().map(|thin| Volume::new("thin", thin.clone(), false)).collect();
        let (volumes, leaves): (Arc<[Volume]>, Arc<[_]>) = (volumes.into(), leaves.into());
        let serve = || {
            let counters = Arc::new(CounterTable::new(100));
            Worker::new(world.env(), WorkerConfig::new(volumes.clone(), leaves.clone(), counters))
        };
        let mut worker: Worker<SimEnv> = serve();
        let (handle, ended) = (worker.handle(), Rc::new(RefCell::new(false)));
        let told = ended.clone();
        let stand = |cx| Stand { world: world.clone(), pool: pool.clone(), thins, disks, cx };
        worker.spawn(|cx| {
            let script = script(stand(cx));
            async move {
                script.await;
                *told.borrow_mut() = true;
                handle.stop();
            }
        });
        let _ = worker.run();
        assert!(*ended.borrow(), "the script has come to its end");
        let _ = serve().close();
        let report = check(&Bytes(&world));
        assert!(report.is_good(), "{:?}", report.problems);
        world
    }
}

/// `thin_check` finds nothing in what is on the metadata device.
#[allow(clippy::disallowed_methods, reason = "another program reads what was simulated")]
pub fn expect_checked(world: &World, name: &str) {
    let mut image = vec![0; (512 * BLOCK_SECTORS * 512) as usize];
    Bytes(world).read_at(0, &mut image).unwrap();
    let file = format!("{}/{name}", env!("CARGO_TARGET_TMPDIR"));
    std::fs::write(&file, &image).unwrap();
    let judged = std::process::Command::new("thin_check").arg(&file).output();
    let judged = judged.unwrap_or_else(|error| {
        panic!(
            "thin_check cannot be run ({error}): this test needs the Debian package thin-provisioning-tools"
        )
    });
    assert!(judged.status.success(), "{}", String::from_utf8_lossy(&judged.stderr));
    std::fs::remove_file(&file).unwrap();
}

/// What is on the metadata device.
pub fn report(world: &World) -> Report {
    check(&Bytes(world))
}

pub fn superblock(world: &World) -> Superblock {
    Superblock::decode(&read_block(&Bytes(world), 0).unwrap()).unwrap().unwrap()
}

/// A RAID1 of two, as large as the first.
pub fn mirror(halves: [&Arc<dyn Layer>; 2]) -> Arc<dyn Layer> {
    let member = |n: usize| MemberConfig {
        name: format!("half {n}"),
        layer: halves[n].clone(),
        data_start: Sector(0),
        recovered: None,
        write_mostly: false,
        bad: Vec::new(),
    };
    let config = ArrayConfig {
        name: "mirror".into(),
        geometry: Geometry::raid1(2, halves[0].sectors()),
        members: vec![Some(member(0)), Some(member(1))],
        resync_from: None,
        intent: None,
        record: Some(Box::new(Unrecorded)),
    };
    Array::new(NodeId(20), config).unwrap()
}

/// The first sectors of a device.
pub fn part(disk: &Arc<dyn Layer>, sectors: u64) -> Arc<dyn Layer> {
    let node = NodeId(disk.node().0 + 10);
    Arc::new(Linear::new(node, disk.clone(), Sector(0), Sectors(sectors)).unwrap())
}

pub fn thin(
    pool: &Arc<Pool>,
    device: OpenDevice,
    blocks: u64,
    external_origin: Option<Arc<dyn Layer>>,
) -> Arc<dyn Layer> {
    let (pool, sectors) = (pool.clone(), Sectors(blocks * BLOCK));
    let config = ThinConfig { pool, device, sectors, external_origin };
    Arc::new(Thin::new(NodeId(50), config))
}

impl Stand {
    /// A volume on a device that was made meanwhile.
    pub async fn open(&self, id: u64, blocks: u64) -> Arc<dyn Layer> {
        thin(&self.pool, self.pool.device(&self.cx, id).await.unwrap(), blocks, None)
    }

    pub async fn write(&self, layer: &Arc<dyn Layer>, at: u64, nr: u64, fill: u8) -> Result<(), Errno> {
        self.write_with(layer, at, nr, fill, Flags::NONE).await
    }

    pub async fn write_with(
        &self,
        layer: &Arc<dyn Layer>,
        at: u64,
        nr: u64,
        fill: u8,
        flags: Flags,
    ) -> Result<(), Errno> {
        let len = nr as usize * 512;
        let memory = Segment::new(self.cx.pool().get(len), 0, len);
        memory.fill(fill);
        let bio = Bio::with_data(Op::Write, flags, Sector(at), Segments::from_iter([memory]));
        self.cx.bio(layer, bio).await.0
    }

    /// What sectors hold: the byte that each is full of.
    pub async fn read(&self, layer: &Arc<dyn Layer>, at: u64, nr: u64) -> Vec<u8> {
        self.try_read(layer, at, nr).await.unwrap()
    }

    pub async fn try_read(&self, layer: &Arc<dyn Layer>, at: u64, nr: u64) -> Result<Vec<u8>, Errno> {
        let len = nr as usize * 512;
        let memory = Segment::new(self.cx.pool().get(len), 0, len);
        memory.fill(0xab);
        let bio = Bio::with_data(Op::Read, Flags::NONE, Sector(at), Segments::from_iter([memory.clone()]));
        self.cx.bio(layer, bio).await.0?;
        let mut bytes = vec![0; len];
        memory.read_at(0, &mut bytes);
        let (sectors, _) = bytes.as_chunks::<512>();
        let byte_of = |sector: &[u8; 512]| {
            assert!(sector.iter().all(|byte| *byte == sector[0]), "a sector is full of one byte");
            sector[0]
        };
        Ok(sectors.iter().map(byte_of).collect())
    }

    pub async fn flush(&self, layer: &Arc<dyn Layer>) -> Result<(), Errno> {
        self.cx.bio(layer, Bio::flush()).await.0
    }

    pub async fn range(&self, layer: &Arc<dyn Layer>, op: Op, at: u64, nr: u64) -> Result<(), Errno> {
        self.cx.bio(layer, Bio::without_data(op, Flags::NONE, Sector(at), Sectors(nr))).await.0
    }
}

/// One of several that run at once.
pub type Task<'a, T> = Pin<Box<dyn Future<Output = T> + 'a>>;

/// Runs all of them at once, and gives their results in order.
pub async fn together<T>(futures: Vec<impl Future<Output = T>>) -> Vec<T> {
    let mut running: Vec<(Pin<Box<_>>, Option<T>)> =
        futures.into_iter().map(|future| (Box::pin(future), None)).collect();
    poll_fn(|cx| {
        for (future, result) in running.iter_mut().filter(|(_, result)| result.is_none()) {
            if let Poll::Ready(done) = future.as_mut().poll(cx) {
                *result = Some(done);
            }
        }
        if running.iter().all(|(_, result)| result.is_some()) { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    running.into_iter().filter_map(|(_, result)| result).collect()
}
