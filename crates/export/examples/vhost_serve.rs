//! Serves a disk by vhost-user-blk with one worker and nothing else, for measuring this export alone: `vhost_serve SOCKET DISK`,
//! where DISK is as `blockwork serve --disk` takes it. Prints `ready`, and ends when its standard input does; then it says how
//! often the kernel was called.

use std::io::Read;
use std::path::Path;
use std::sync::{Arc, mpsc};

use blockwork_engine::{
    LeafId, LeafLayer, NodeId, NodeInfo, NodeKind, Stats, Volume, VolumeId, Worker, WorkerConfig,
};
use blockwork_export::vhost::{GuestPages, VhostOptions, VhostServer};
use blockwork_leaf::OpenOptions;
use blockwork_uring::{Uring, UringConfig};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let (Some(socket), Some(disk)) = (arguments.next(), arguments.next()) else {
        return Err("usage: vhost_serve SOCKET DISK".into());
    };
    let source = blockwork_leaf::open(&disk, &OpenOptions::default())?.source;
    let info = NodeInfo { name: source.name().into(), kind: NodeKind::Leaf, device: (0, 0) };
    let stats = Arc::new(Stats::new(vec![info]));
    let layer = LeafLayer::new(LeafId(0), NodeId(0), source.sectors(), source.limits().clone());
    let volumes: Arc<[Volume]> =
        Arc::new([Volume::new("disk/0", Arc::new(layer), source.limits().read_only)]);
    let config = WorkerConfig::new(volumes.clone(), Arc::new([(NodeId(0), source)]), stats.worker());
    let (send, receive) = mpsc::channel();
    let worker = std::thread::spawn(move || {
        let mut worker = Worker::new(Uring::new(&UringConfig::default()).expect("io_uring"), config);
        send.send(worker.handle()).expect("main waits for it");
        (worker.run(), worker.env.enters())
    });
    let handle = receive.recv()?;
    let options = VhostOptions { queues: 8, first_worker: 0, pages: GuestPages::AsIs };
    let volume = (VolumeId(0), &volumes[0]);
    let server =
        VhostServer::start(Path::new(&socket), volume, options, std::slice::from_ref(&handle), stats)?;
    println!("ready {}", server.address());
    std::io::stdin().read_to_end(&mut Vec::new())?;
    server.stop();
    handle.stop();
    let (result, enters) = worker.join().expect("the worker does not panic");
    println!("io_uring_enter was called {enters} times");
    Ok(result?)
}
