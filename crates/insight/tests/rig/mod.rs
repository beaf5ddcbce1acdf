//! A stack over simulated devices, with clients at work on it, for tests that look at what they leave behind: two volumes,
//! one striped over two disks, one on a disk of its own.

use std::rc::Rc;
use std::sync::Arc;

use blockwork_engine::{
    CounterTable, Layer, LeafId, LeafLayer, LeafSource, NodeId, NodeInfo, NodeKind, Sector, Sectors, Tracer,
    Volume, VolumeId, Wait, Worker, WorkerConfig, WriteTap,
};
use blockwork_layer::{Stripe, Striped};
use blockwork_sim::{ClientConfig, Closing, DeviceModel, Referee, SimClient, SimEnv, World};

pub const DISK_SECTORS: Sectors = Sectors(4096);

pub struct Rig {
    pub world: World,
    pub nodes: Vec<NodeInfo>,
    pub volumes: Arc<[Volume]>,
    leaves: Arc<[(NodeId, Arc<dyn LeafSource>)]>,
}

impl Rig {
    /// Disks that a power cut robs of their cache, and whose limits give every reason to split and bounce.
    pub fn new(seed: u64) -> Rig {
        let world = World::new(seed);
        let mut leaves = Vec::new();
        let mut layers: Vec<Arc<dyn Layer>> = Vec::new();
        let mut nodes = Vec::new();
        for n in 0..3u16 {
            let mut model = DeviceModel::ssd_sata(DISK_SECTORS);
            model.limits.max_sectors = Sectors(16);
            model.limits.max_segments = 4;
            model.limits.dma_alignment = 512;
            let source = world.source(world.add_device(model));
            let layer = LeafLayer::new(LeafId(n), NodeId(n), DISK_SECTORS, source.limits().clone());
            layers.push(Arc::new(layer));
            leaves.push((NodeId(n), source));
            let name = format!("disk {n}\n");
            nodes.push(NodeInfo { name, kind: NodeKind::Leaf, device: (259, u32::from(n)) });
        }
        nodes.push(NodeInfo { name: "dm/test".into(), kind: NodeKind::Striped, device: (253, 0) });
        let stripes = layers[..2].iter().map(|below| Stripe { below: below.clone(), start: Sector(0) });
        let size = Sectors(2 * DISK_SECTORS.0);
        let striped = Striped::new(NodeId(3), Sectors(8), stripes.collect(), size).unwrap();
        let volumes = [
            Volume::new("dm/test", Arc::new(striped), false),
            Volume::new("disk/2", layers[2].clone(), false),
        ];
        Rig { world, nodes, volumes: volumes.into(), leaves: leaves.into() }
    }

    /// Lets two clients a worker do `bios` bios each; `weights` as in [`ClientConfig`]. Their views are checked.
    pub fn work(&self, tracers: Vec<Tracer>, tap: Option<Arc<dyn WriteTap>>, bios: u64, weights: [u32; 5]) {
        let mut workers: Vec<Worker<SimEnv>> = (0..)
            .zip(tracers)
            .map(|(index, tracer)| {
                let counters = Arc::new(CounterTable::new(self.nodes.len()));
                let mut config = WorkerConfig::new(self.volumes.clone(), self.leaves.clone(), counters);
                (config.index, config.tracer, config.tap) = (index, tracer, tap.clone());
                Worker::new(self.world.env(), config)
            })
            .collect();
        let closing = Closing::new(workers.iter().map(Worker::handle).collect());
        let referees: Vec<_> = self.volumes.iter().map(|volume| Referee::new(volume.sectors().0)).collect();
        for (number, n) in (0..).zip(0..2 * workers.len()) {
            let volume = n % 2;
            let id = VolumeId(u16::try_from(volume).unwrap());
            let config = ClientConfig { weights, ..ClientConfig::new(number, id, bios, 8, 7) };
            let client = SimClient::new(config, referees[volume].clone(), closing.clone());
            workers[n / 2].add_port(Box::new(client));
        }
        self.run(&mut workers, &closing);
        for referee in referees {
            assert_eq!(referee.borrow().violations, Vec::<String>::new());
        }
    }

    fn run(&self, workers: &mut [Worker<SimEnv>], closing: &Rc<Closing>) {
        if let [only] = workers {
            only.run().unwrap();
            return;
        }
        while closing.left() > 0 {
            workers.iter_mut().for_each(|worker| worker.turn(Wait::Poll));
            self.world.step();
        }
    }
}
