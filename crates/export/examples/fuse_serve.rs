//! Serves disks over FUSE with one worker and nothing else, for measuring this export alone:
//! `fuse_serve MOUNTPOINT DISK...`, where DISK is as `blockwork serve --disk` takes it. Prints `ready`, and ends when its
//! standard input does.

use std::io::Read;
use std::path::Path;
use std::sync::{Arc, mpsc};

use blockwork_engine::{
    LeafId, LeafLayer, NodeId, NodeInfo, NodeKind, Stats, Volume, VolumeId, Worker, WorkerConfig,
};
use blockwork_export::fuse::{self, Files, Options, Served};
use blockwork_leaf::OpenOptions;
use blockwork_uring::{Uring, UringConfig};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let mount_point = arguments.next().ok_or("usage: fuse_serve MOUNTPOINT DISK...")?;
    let sources = arguments
        .map(|disk| blockwork_leaf::open(&disk, &OpenOptions::default()).map(|opened| opened.source))
        .collect::<Result<Vec<_>, _>>()?;

    let node = |name: &str| NodeInfo { name: name.into(), kind: NodeKind::Leaf, device: (0, 0) };
    let stats = Stats::new(sources.iter().map(|source| node(source.name())).collect());
    let volume = |(i, source): (u16, &Arc<dyn blockwork_engine::LeafSource>)| {
        let layer = LeafLayer::new(LeafId(i), NodeId(i), source.sectors(), source.limits().clone());
        let name = Path::new(source.name()).file_name().map_or("disk".into(), |name| name.to_string_lossy());
        Volume::new(format!("disk/{name}"), Arc::new(layer), source.limits().read_only)
    };
    let volumes: Arc<[Volume]> = (0u16..).zip(&sources).map(volume).collect();
    let leaves = (0u16..).zip(sources).map(|(i, source)| (NodeId(i), source)).collect();
    let served = |(i, volume)| Served::new(VolumeId(i), volume, false);
    let files = Files::of((0u16..).zip(volumes.iter()).map(served))?;
    let (session, mount) = fuse::mount(Path::new(&mount_point), &files, Options::default())?;

    let config = WorkerConfig::new(volumes.clone(), leaves, stats.worker());
    let (send, receive) = mpsc::channel();
    let worker = std::thread::spawn(move || {
        let mut worker = Worker::new(Uring::new(&UringConfig::default()).expect("io_uring"), config);
        send.send(worker.handle()).expect("main waits for it");
        worker.add_port(Box::new(session.into_port()));
        worker.run()
    });
    let handle = receive.recv()?;
    println!("ready {}", mount.path().display());
    std::io::stdin().read_to_end(&mut Vec::new())?;
    mount.unmount()?;
    handle.stop();
    worker.join().expect("the worker does not panic")?;
    Ok(())
}
