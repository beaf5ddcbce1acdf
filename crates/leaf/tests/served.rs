//! Regular files under a worker of the engine: what its queue makes of what the file can and cannot do.

mod lab;

use std::cell::RefCell;
use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;

use blockwork_engine::{
    Bio, Env, Errno, Flags, Layer, LeafId, LeafLayer, LeafSource, Nanos, NodeId, NodeInfo, NodeKind, Op,
    Sector, Sectors, Stats, Volume, Wait, Worker, WorkerConfig,
};
use blockwork_leaf::{Direct, FileOptions, FileSource};
use blockwork_memory::{Buffer, Segment, Segments};
use blockwork_uring::{Uring, UringConfig};
use lab::{LoopDevice, Mount, run};

const MIB: u64 = 1 << 20;

struct Served {
    worker: Worker<Uring>,
    root: Arc<dyn Layer>,
    path: PathBuf,
}

impl Served {
    fn new(path: &Path, direct: Direct) -> Served {
        let source = FileSource::open(path, &FileOptions { direct, ..FileOptions::default() }).unwrap();
        let source: Arc<dyn LeafSource> = Arc::new(source);
        let layer = LeafLayer::new(LeafId(0), NodeId(0), source.sectors(), source.limits().clone());
        let root: Arc<dyn Layer> = Arc::new(layer);
        let stats =
            Stats::new(vec![NodeInfo { name: "disk".into(), kind: NodeKind::Leaf, device: (259, 0) }]);
        let volumes = Arc::new([Volume::new("disk", root.clone(), false)]);
        let config = WorkerConfig::new(volumes, Arc::new([(NodeId(0), source)]), stats.worker());
        let worker = Worker::new(Uring::new(&UringConfig::default()).unwrap(), config);
        Served { worker, root, path: path.to_owned() }
    }

    fn bio(&mut self, bio: Bio) -> Result<(), Errno> {
        let answer = Rc::new(RefCell::new(None));
        let (root, told) = (self.root.clone(), answer.clone());
        self.worker.spawn(|cx| async move { *told.borrow_mut() = Some(cx.bio(&root, bio).await.0) });
        let deadline = self.worker.env.now() + Nanos::secs(60);
        loop {
            if let Some(result) = answer.borrow_mut().take() {
                return result;
            }
            assert!(self.worker.env.now() < deadline, "it does not complete");
            let soon = self.worker.env.now() + Nanos::millis(100);
            let wait = if self.worker.is_settled() { Wait::Until(Some(soon)) } else { Wait::Poll };
            self.worker.turn(wait);
        }
    }

    fn write(&mut self, sector: u64) -> Result<(), Errno> {
        self.bio(Bio::with_data(Op::Write, Flags::NONE, Sector(sector), memory()))
    }
    fn read(&mut self, sector: u64) -> Result<(), Errno> {
        self.bio(Bio::with_data(Op::Read, Flags::NONE, Sector(sector), memory()))
    }
    fn zeroes(&mut self, flags: Flags, sectors: u64) {
        self.bio(Bio::without_data(Op::WriteZeroes, flags, Sector(0), Sectors(sectors))).unwrap();
    }

    fn len(&self) -> u64 {
        fs::metadata(&self.path).unwrap().len()
    }
    fn blocks(&self) -> u64 {
        fs::metadata(&self.path).unwrap().blocks()
    }
    fn cut(&self, len: u64) {
        File::options().write(true).open(&self.path).unwrap().set_len(len).unwrap();
    }
}

fn memory() -> Segments {
    Segments::from_iter([Segment::new(Buffer::new(4096), 0, 4096)])
}

fn image(folder: &Path, bytes: u64) -> PathBuf {
    let path = folder.join("disk.img");
    File::create(&path).unwrap().set_len(bytes).unwrap();
    path
}

#[test]
fn zeroes_that_must_not_unmap_leave_the_others_what_they_are_where_a_file_system_has_only_those() {
    let _alone = lab::alone();
    let folder = tempfile::tempdir_in("/dev/shm").unwrap();
    let mut disk = Served::new(&image(folder.path(), 64 * MIB), Direct::Off);
    // tmpfs punches holes and has no ZERO_RANGE: zeros are written.
    disk.zeroes(Flags::NO_UNMAP, 8);
    assert_eq!(disk.blocks(), 8);
    disk.zeroes(Flags::NONE, 64 * MIB / 512);
    assert_eq!(disk.blocks(), 0, "holes are punched as before");
    disk.zeroes(Flags::NO_UNMAP, 16);
    assert_eq!(disk.blocks(), 16);
}

#[test]
fn a_file_that_was_cut_off_does_not_grow_again_once_a_read_has_come_to_its_end() {
    let _alone = lab::alone();
    let folder = tempfile::tempdir_in("/dev/shm").unwrap();
    let mut disk = Served::new(&image(folder.path(), 8 * MIB), Direct::Off);
    disk.write(12288).unwrap();
    disk.cut(4 * MIB);
    assert_eq!(disk.read(8192), Err(Errno::EIO));
    assert_eq!(disk.write(12288), Err(Errno::EIO));
    assert_eq!(disk.read(12288), Err(Errno::EIO));
    assert_eq!(disk.len(), 4 * MIB);
    disk.write(8184).unwrap();
    disk.read(8184).unwrap();
}

#[test]
fn on_a_disk_of_this_machine_a_flush_sees_that_a_file_was_cut_off() {
    let _alone = lab::alone();
    let device = LoopDevice::new(64 * MIB, &[]);
    run("mkfs.ext4", &["-q", device.path.to_str().unwrap()]);
    let mount = Mount::new(&[device.path.to_str().unwrap()]);
    let mut disk = Served::new(&image(mount.at.path(), 8 * MIB), Direct::Auto);
    disk.write(0).unwrap();
    disk.cut(4 * MIB);
    disk.bio(Bio::flush()).unwrap();
    assert_eq!(disk.write(12288), Err(Errno::EIO));
    assert_eq!(disk.len(), 4 * MIB);
    disk.write(8184).unwrap();
}
