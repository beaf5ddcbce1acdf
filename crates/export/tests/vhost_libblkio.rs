//! libblkio's driver on a vhost-user disk: a front end that somebody else has written. It puts the three parts of a request into the ring
//! itself, without indirect tables, asks for memory to be added region by region, and sleeps or looks for answers.
//!
//! What its completions say lies in memory that only unsafe code may read; so each operation is judged by what it did, to the file behind
//! the disk or to the driver's memory, and every one of them by that it ends.

mod vhost_support;

use std::fs::File;
use std::mem::MaybeUninit;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use blkio::{Blkio, BlkioStartOutcome, Blkioq, MemoryRegion, ReqFlags};
use blockwork_engine::Counter;
use rustix::fs::{SeekFrom, seek};
use vhost_support::Rig;

const DISK: u64 = 16 << 20;
const BLOCK: usize = 4096;

/// A disk over a file, with libblkio's driver on it.
struct Stand {
    rig: Rig,
    path: PathBuf,
    driver: Blkio,
    queues: Vec<Blkioq>,
    region: MemoryRegion,
    /// The memory of that region.
    memory: File,
}

impl Stand {
    fn new(queues: i32, queue_size: i32, looks: bool) -> Stand {
        let folder = tempfile::tempdir().unwrap().keep();
        let path = folder.join("disk.img");
        File::create(&path).unwrap().set_len(DISK).unwrap();
        let rig = Rig::new(path.to_str().unwrap(), 2);
        let mut driver = Blkio::new("virtio-blk-vhost-user").unwrap();
        driver.set_str("path", rig.socket().to_str().unwrap()).unwrap();
        driver.connect().unwrap();
        assert_eq!(driver.get_u64("capacity").unwrap(), DISK);
        assert!(driver.get_i32("max-queues").unwrap() >= queues);
        assert!(!driver.get_bool("read-only").unwrap() && driver.get_bool("needs-mem-region-fd").unwrap());
        driver.set_i32("queue-size", queue_size).unwrap();
        let (sleeping, looking) = if looks { (0, queues) } else { (queues, 0) };
        driver.set_i32("num-queues", sleeping).unwrap();
        driver.set_i32("num-poll-queues", looking).unwrap();
        let BlkioStartOutcome { mut queues, poll_queues } = driver.start().unwrap();
        queues.extend(poll_queues);
        let region = driver.alloc_mem_region(64 * BLOCK).unwrap();
        driver.map_mem_region(&region).unwrap();
        // Anew, so that closing it leaves the driver's own alone.
        let memory =
            File::options().read(true).write(true).open(format!("/proc/self/fd/{}", region.fd)).unwrap();
        Stand { rig, path, driver, queues, region, memory }
    }

    /// The driver's memory for the request of that number.
    fn at(&self, number: usize) -> *mut u8 {
        (self.region.addr + number * BLOCK) as *mut u8
    }

    fn fill(&self, number: usize, byte: u8) {
        let offset = self.region.fd_offset as u64 + (number * BLOCK) as u64;
        self.memory.write_all_at(&[byte; BLOCK], offset).unwrap();
    }

    fn holds(&self, number: usize, byte: u8) -> bool {
        let (mut found, offset) = ([0; BLOCK], self.region.fd_offset as u64 + (number * BLOCK) as u64);
        self.memory.read_exact_at(&mut found, offset).unwrap();
        found.iter().all(|one| *one == byte)
    }

    /// Waits until so many requests of a queue have ended.
    fn ends(&mut self, queue: usize, requests: usize) {
        let mut completions: Vec<_> = (0..requests).map(|_| MaybeUninit::uninit()).collect();
        let ended = self.queues[queue].do_io(&mut completions, requests, None, None).unwrap();
        assert_eq!(ended, requests);
    }

    /// What is in the file at that block.
    fn file_holds(&self, block: usize, byte: u8) -> bool {
        let mut found = [0; BLOCK];
        let file = File::open(&self.path).unwrap();
        file.read_exact_at(&mut found, (block * BLOCK) as u64).unwrap();
        found.iter().all(|one| *one == byte)
    }

    fn end(self) {
        let Stand { rig, path, driver, queues, .. } = self;
        drop((queues, driver));
        rig.stop();
        std::fs::remove_dir_all(path.parent().unwrap()).unwrap();
    }
}

fn place(block: usize) -> u64 {
    (block * BLOCK) as u64
}

#[test]
fn libblkio_writes_reads_flushes_discards_and_zeroes_by_queues_of_several_sizes() {
    for (queues, queue_size, looks) in [(1, 16, false), (2, 128, false), (4, 256, true)] {
        let mut stand = Stand::new(queues, queue_size, looks);
        // As many as fit: a request takes three descriptors.
        let many = (queue_size as usize / 3).min(64);
        for queue in 0..queues as usize {
            let (first, byte) = (queue * 64, queue as u8 + 1);
            for number in 0..many {
                stand.fill(number, byte + number as u8);
                let at = stand.at(number);
                stand.queues[queue].write(place(first + number), at, BLOCK, number, ReqFlags::empty());
            }
            stand.ends(queue, many);
            let flushes = stand.rig.count(Counter::Flushes);
            stand.queues[queue].flush(0, ReqFlags::empty());
            stand.ends(queue, 1);
            assert_eq!(stand.rig.count(Counter::Flushes), flushes + 1);
            for number in 0..many {
                assert!(
                    stand.file_holds(first + number, byte + number as u8),
                    "queue {queue}, block {number}"
                );
                stand.fill(number, 0xee);
                let at = stand.at(number);
                stand.queues[queue].read(place(first + number), at, BLOCK, number, ReqFlags::empty());
            }
            stand.ends(queue, many);
            assert!((0..many).all(|number| stand.holds(number, byte + number as u8)));
            stand.queues[queue].write_zeroes(place(first), 2 * BLOCK as u64, 0, ReqFlags::NO_UNMAP);
            stand.ends(queue, 1);
            stand.queues[queue].discard(place(first + 2), 2 * BLOCK as u64, 0, ReqFlags::empty());
            stand.ends(queue, 1);
            assert!((0..4).all(|number| stand.file_holds(first + number, 0)));
            let file = File::open(&stand.path).unwrap();
            assert_eq!(
                seek(&file, SeekFrom::Hole(place(first + 2))),
                Ok(place(first + 2)),
                "it is not zeros"
            );
            assert_eq!(seek(&file, SeekFrom::Data(place(first + 2))), Ok(place(first + 4)));
        }
        stand.end();
    }
}
