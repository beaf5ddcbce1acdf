//! The limits of a file's queue: from sysfs for a block device, from experience and the device underneath for a file.

use std::fs;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use blockwork_engine::{Fixed, Fua, Limits, Linearize, SECTOR, Sectors, WBT_LAT};
use blockwork_memory::lockable;
use rustix::fs::{Stat, ioctl_blkpbszget, ioctl_blksszget, major, minor};

use super::direct::OpenedFile;

/// What sysfs says about a block device's queue. All of it is optional: there may be no such device, or no sysfs.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Queue {
    pub logical_block_size: Option<u32>,
    pub physical_block_size: Option<u32>,
    pub io_min: Option<u32>,
    pub io_opt: Option<u32>,
    pub max_hw_sectors_kb: Option<u64>,
    pub max_sectors_kb: Option<u64>,
    pub max_segments: Option<u32>,
    pub discard_granularity: Option<u32>,
    pub discard_max_bytes: Option<u64>,
    pub discard_max_hw_bytes: Option<u64>,
    pub write_zeroes_max_bytes: Option<u64>,
    pub nr_requests: Option<u32>,
    pub rotational: bool,
    pub write_through: bool,
    /// A FUA write is one command of the device.
    pub fua: bool,
    pub read_only: bool,
}

/// The largest request made of a file: a megabyte, where device throughput has long levelled off, and the most that 256
/// page-sized pieces make; less where the device underneath would have it cut (see `file_max_sectors`).
const FILE_MAX_SECTORS: Sectors = Sectors(2048);
/// But never less than this: cutting is cheaper in the kernel than here.
const FILE_MIN_SECTORS: Sectors = Sectors(512);
/// The largest that `max_sectors_kb` may be set to for a file: more is only delayed in pieces by the kernel.
const FILE_MAX_HW_SECTORS: Sectors = Sectors(32768);
/// What a device claims beyond this is not believed (virtio-blk says 2 TiB).
const DEVICE_MAX_HW_SECTORS: Sectors = Sectors(65536);
const FILE_MAX_SEGMENTS: u32 = 256;
/// Most segments that one system call takes.
const SEGMENTS_MAX: u32 = 1024;
/// How far to read ahead of a sequential reader, where the page cache does not do it.
const READ_AHEAD: Sectors = Sectors(1024);
/// Requests in flight on one leaf, by one worker: never fewer than a client's usual depth.
const NR_REQUESTS_MIN: u32 = 128;
const NR_REQUESTS_MAX: u32 = 1024;

/// The queue of the device itself, or of the device that a file lies on.
pub(super) fn of(stat: &Stat, is_device: bool, file: &OwnedFd) -> Queue {
    let device = if is_device { stat.st_rdev } else { stat.st_dev };
    let place = PathBuf::from(format!("/sys/dev/block/{}:{}", major(device), minor(device)));
    let mut queue = from_sysfs(&place);
    if is_device {
        queue.logical_block_size = ioctl_blksszget(file).ok().or(queue.logical_block_size);
        queue.physical_block_size = ioctl_blkpbszget(file).ok().or(queue.physical_block_size);
    } else {
        // That the device of a read-only mount is read-only is the file system's affair.
        queue.read_only = false;
    }
    queue
}

/// Reads a device's folder in sysfs; a partition has the queue of its disk.
fn from_sysfs(device: &Path) -> Queue {
    let Ok(device) = device.canonicalize() else {
        return Queue::default();
    };
    let read_only = text(&device.join("ro")).as_deref() == Some("1");
    let is_partition = device.join("partition").exists();
    let disk = if is_partition { device.parent().unwrap_or(&device) } else { &device };
    let folder = disk.join("queue");
    let get = |name: &str| text(&folder.join(name));
    fn number<T: std::str::FromStr>(text: Option<String>) -> Option<T> {
        text?.parse().ok()
    }
    Queue {
        logical_block_size: number(get("logical_block_size")),
        physical_block_size: number(get("physical_block_size")),
        io_min: number(get("minimum_io_size")),
        io_opt: number(get("optimal_io_size")),
        max_hw_sectors_kb: number(get("max_hw_sectors_kb")),
        max_sectors_kb: number(get("max_sectors_kb")),
        max_segments: number(get("max_segments")),
        discard_granularity: number(get("discard_granularity")),
        discard_max_bytes: number(get("discard_max_bytes")),
        discard_max_hw_bytes: number(get("discard_max_hw_bytes")),
        write_zeroes_max_bytes: number(get("write_zeroes_max_bytes")),
        nr_requests: number(get("nr_requests")),
        rotational: get("rotational").as_deref() == Some("1"),
        write_through: get("write_cache").as_deref() == Some("write through"),
        // What is put together from other devices (dm, md) may have to make its own records durable first, and what they tell of: a thin
        // pool flushes its data before it commits, and the FUA write that asked for it has the error.
        fua: get("fua").as_deref() == Some("1") && !has_devices_below(disk),
        read_only,
    }
}

/// Likewise where that is not known.
fn has_devices_below(disk: &Path) -> bool {
    fs::read_dir(disk.join("slaves")).map_or(true, |mut below| below.next().is_some())
}

fn text(path: &Path) -> Option<String> {
    Some(fs::read_to_string(path).ok()?.trim().to_owned())
}

/// The limits to work with. What fallocate can do for a file is added by `probe`.
pub(super) fn limits(queue: &Queue, is_device: bool, opened: &OpenedFile) -> Limits {
    let smallest = match opened.direct {
        Some(direct) => direct.offset,
        None => 512,
    };
    // A device's own block holds through the page cache too: its last block cannot be written in part.
    let logical = if is_device { smallest.max(queue.logical_block_size.unwrap_or(512)) } else { smallest };
    let physical = queue.physical_block_size.filter(|n| n.is_power_of_two()).unwrap_or(512).max(logical);
    let nr_requests = queue.nr_requests.unwrap_or(0).clamp(NR_REQUESTS_MIN, NR_REQUESTS_MAX);
    let common = Limits {
        logical_block_size: logical,
        physical_block_size: physical,
        io_min: physical,
        dma_alignment: opened.direct.map_or(1, |direct| direct.memory),
        rotational: queue.rotational,
        nr_requests,
        wbt_lat: WBT_LAT,
        // The page cache reads ahead by itself.
        read_ahead: if opened.direct.is_some() { READ_AHEAD } else { Sectors::ZERO },
        linearize: Linearize::Auto,
        hw_fixed: true,
        // Through the page cache data is copied, and no page has to be found for a device. Where locked memory is limited, rings count against it too
        // (Linux 6.18 does so again): what one server locked without being asked would leave the next without.
        fixed: if opened.direct.is_some() && lockable().is_none() { Fixed::Auto } else { Fixed::Off },
        // A lost page is told to one fsync or DSYNC write of the file only, whichever comes first. In turns, and alone, flushes hear of
        // it; a DSYNC write beside them would take the report for an error of its own.
        hw_fua: opened.direct.is_some(),
        fua: if opened.direct.is_some() { Fua::Auto } else { Fua::Flush },
        // Through the page cache nothing is durable until a flush, whatever the device does.
        write_cache: !(is_device && opened.direct.is_some() && queue.write_through),
        max_discard: Sectors::ZERO,
        max_hw_discard: Sectors::ZERO,
        max_write_zeroes: Sectors::ZERO,
        ..Limits::default()
    };
    if is_device { device_limits(common, queue) } else { file_limits(common, queue) }
}

fn device_limits(common: Limits, queue: &Queue) -> Limits {
    let sectors = |kb: Option<u64>, or: Sectors| {
        kb.map_or(or, |kb| Sectors(kb.saturating_mul(2).min(DEVICE_MAX_HW_SECTORS.0)))
    };
    let bytes = |bytes: Option<u64>| Sectors(bytes.unwrap_or(0) / SECTOR);
    let max_hw_sectors =
        sectors(queue.max_hw_sectors_kb, FILE_MAX_SECTORS).max(block(common.logical_block_size));
    let max_discard = bytes(queue.discard_max_bytes);
    Limits {
        io_min: queue.io_min.unwrap_or(0).max(common.logical_block_size),
        io_opt: queue.io_opt.unwrap_or(0),
        max_hw_sectors,
        max_sectors: sectors(queue.max_sectors_kb, FILE_MAX_SECTORS)
            .min(max_hw_sectors)
            .max(block(common.logical_block_size)),
        max_segments: queue.max_segments.unwrap_or(FILE_MAX_SEGMENTS).clamp(1, SEGMENTS_MAX),
        discard_granularity: queue.discard_granularity.unwrap_or(0).max(if max_discard > Sectors::ZERO {
            512
        } else {
            0
        }),
        max_discard,
        max_hw_discard: bytes(queue.discard_max_hw_bytes).max(max_discard),
        max_write_zeroes: bytes(queue.write_zeroes_max_bytes),
        ..common
    }
}

fn block(bytes: u32) -> Sectors {
    Sectors::from_bytes_ceil(u64::from(bytes))
}

fn file_limits(common: Limits, queue: &Queue) -> Limits {
    Limits {
        max_hw_sectors: FILE_MAX_HW_SECTORS,
        max_sectors: file_max_sectors(queue),
        max_segments: FILE_MAX_SEGMENTS,
        ..common
    }
}

/// The largest power of two that the device underneath takes in one request, even if each page of memory is a segment of
/// its own. (A virtio disk of 254 segments cuts a megabyte into 1,016 KiB and a useless 8 KiB: 512 MiB read in sequence
/// are 1,024 reads either way, but these are half as long.)
fn file_max_sectors(queue: &Queue) -> Sectors {
    let by_length = queue.max_sectors_kb.map_or(u64::MAX, |kb| kb.saturating_mul(2));
    let by_segments = queue.max_segments.map_or(u64::MAX, |n| u64::from(n) * (4096 / SECTOR));
    let fits = by_length.min(by_segments).min(FILE_MAX_SECTORS.0);
    Sectors(1 << fits.max(1).ilog2()).max(FILE_MIN_SECTORS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_files_requests_are_those_that_the_device_takes_whole() {
        let of = |kb, segments| {
            let queue = Queue { max_sectors_kb: kb, max_segments: segments, ..Queue::default() };
            file_max_sectors(&queue).0 / 2
        };
        assert_eq!(of(None, None), 1024);
        assert_eq!(of(Some(4096), Some(254)), 512);
        assert_eq!(of(Some(1280), Some(1024)), 1024);
        assert_eq!(of(Some(512), Some(127)), 256);
        assert_eq!(of(Some(0), Some(1)), 256);
    }

    #[test]
    fn a_partition_has_its_disks_queue() {
        let folder = tempfile::tempdir().unwrap();
        let disk = folder.path().join("sdx");
        fs::create_dir_all(disk.join("queue")).unwrap();
        fs::create_dir_all(disk.join("sdx1")).unwrap();
        let put = |name: &str, value: &str| fs::write(disk.join(name), format!("{value}\n")).unwrap();
        put("ro", "0");
        put("sdx1/ro", "1");
        put("sdx1/partition", "1");
        put("queue/max_sectors_kb", "1280");
        put("queue/discard_max_bytes", "2199023255040");
        put("queue/write_cache", "write through");
        put("queue/rotational", "nonsense");
        put("queue/fua", "1");
        assert!(!from_sysfs(&disk).fua, "nobody knows what it is made of");
        fs::create_dir_all(disk.join("slaves")).unwrap();
        let whole = from_sysfs(&disk);
        let part = from_sysfs(&disk.join("sdx1"));
        assert_eq!(part, Queue { read_only: true, ..from_sysfs(&disk) });
        assert_eq!(whole.max_sectors_kb, Some(1280));
        assert_eq!(whole.discard_max_bytes, Some(2199023255040));
        assert!(whole.write_through && whole.fua);
        assert!(!whole.rotational);
        assert_eq!(whole.nr_requests, None);
        assert_eq!(from_sysfs(&disk.join("sdx2")), Queue::default());
        put("slaves/sdy", "");
        assert!(!from_sysfs(&disk).fua, "a volume of other devices");
        fs::remove_file(disk.join("slaves/sdy")).unwrap();
        put("queue/fua", "0");
        assert!(!from_sysfs(&disk).fua);
    }
}
