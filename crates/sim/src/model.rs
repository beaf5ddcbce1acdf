//! What a simulated device is like: how big, how fast, within which limits, and what it forgets in a power cut.
//!
//! A request waits for one of `parallelism` channels (a discard for one of `discards_at_once`, which others do not use),
//! then for each cap's tokens and for what its elements cost (`Elements`), and is then served for `overhead + latency + bytes / channel_bandwidth`. All of it is
//! arithmetic on virtual nanoseconds.
//!
//! Sources of the presets' figures (all public):
//! - `nvme`: Intel P4500 2.0 TB in Lenovo's product guide "Intel P4500 NVMe Entry PCIe 3.0 SSDs": 490,000 random reads
//!   and 38,000 random writes of 4 KiB a second, 3.2 and 1.05 GB/s, random read 85 us, random write 20 us.
//! - `ssd-sata`: Samsung 860 EVO data sheet: 98,000 and 90,000 IOPS at depth 32, 550 and 520 MB/s; NCQ has 32 tags.
//! - `hdd`: HGST Ultrastar 7K4000 specification: 7,200 rpm (half a turn is 4.17 ms), average seek 8.2 ms, 171 MB/s.
//! - `ebs-gp2`: Amazon EBS user guide, "General Purpose SSD volumes": 3 IOPS per GiB, at least 100 and at most 16,000,
//!   bursts of 3,000 from a bucket of 5.4 million credits, I/O counted in units of 256 KiB, 250 MiB/s (128 MiB/s up to
//!   170 GiB), single-digit millisecond latency.
//! - `i3-nvme`: Amazon EC2 user guide, "Storage optimized instances", i3.2xlarge, which has one such device of 1.9 TB: 412,500
//!   random reads and 180,000 random writes of 4 KiB a second. Reads in sequence: the 16 GB/s that are announced for the
//!   eight devices of an i3.16xlarge. Writes in sequence are not published: what the writes of 4 KiB come to. The largest
//!   discard is in Launchpad 1896578. How long a discard takes is nowhere: `I3_DISCARD` is calibrated, see there.
//! - `p320h`: Micron's data sheet "P320h HHHL PCIe NAND SSD", 700 GB: up to 256 commands outstanding, 785,000 random reads and
//!   205,000 random writes of 4 KiB a second, 3.2 and 1.9 GB/s, read latency below 47 us, write latency below 311 us. The write
//!   cache is protected: posted writes are quick, 311 us is what one costs that is not.
//! - Latency distributions around those figures are log-normal, with a slow tail of one in a thousand: a plain
//!   assumption, marked so.

use blockwork_engine::{Fua, Limits, Nanos, SECTOR, Sectors, WBT_LAT};

use crate::elements::Elements;
use crate::random::{Random, exp};

/// How long an operation takes.
#[derive(Clone, Debug, PartialEq)]
pub enum Latency {
    /// Always the same.
    Fixed(Nanos),
    /// Anything from the first to the second, equally likely.
    Uniform(Nanos, Nanos),
    /// Log-normal.
    LogNormal {
        /// Half of all take less.
        median: Nanos,
        /// Deviation of the logarithm: 0.1 is narrow, 1.0 is wide.
        sigma: f64,
    },
    /// Mostly the one, now and then the other: a tail.
    Tail {
        /// The usual.
        usual: Box<Latency>,
        /// The rare.
        rare: Box<Latency>,
        /// How rare.
        per_million: u32,
    },
}

impl Latency {
    /// None at all.
    pub const ZERO: Latency = Latency::Fixed(Nanos(0));

    /// Log-normal with a tail of one in a thousand that is ten times slower.
    pub fn with_tail(median: Nanos, sigma: f64) -> Latency {
        Latency::Tail {
            usual: Box::new(Latency::LogNormal { median, sigma }),
            rare: Box::new(Latency::LogNormal { median: Nanos(median.0 * 10), sigma }),
            per_million: 1_000,
        }
    }

    /// Draws one.
    pub fn draw(&self, random: &mut Random) -> Nanos {
        match self {
            Latency::Fixed(time) => *time,
            Latency::Uniform(low, high) => Nanos(random.between(low.0, high.0)),
            Latency::LogNormal { median, sigma } => {
                let factor = exp((random.normal() * sigma).clamp(-20.0, 20.0));
                Nanos((median.0 as f64 * factor) as u64)
            }
            Latency::Tail { usual, rare, per_million } => {
                if random.rate(*per_million) {
                    rare.draw(random)
                } else {
                    usual.draw(random)
                }
            }
        }
    }
}

/// Latencies by operation.
#[derive(Clone, Debug, PartialEq)]
pub struct Latencies {
    /// Of reads.
    pub read: Latency,
    /// Of writes, and of write-zeroes.
    pub write: Latency,
    /// Of flushes, and what a write with FUA takes in addition if there is a volatile cache.
    pub flush: Latency,
    /// Of discards.
    pub discard: Latency,
    /// Of a read or write that begins where the one before ended, in place of the above: a disk's head is there.
    pub sequential: Option<Latency>,
}

/// What a cap counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CapUnit {
    /// Requests; one of more than `split_bytes` counts as several.
    Requests {
        /// Bytes that count as one request.
        split_bytes: u64,
    },
    /// Bytes.
    Bytes,
}

/// Which operations a cap counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CapOn {
    /// Reads.
    Reads,
    /// Writes.
    Writes,
    /// Both.
    Both,
}

/// A bucket of tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cap {
    /// Of which operations.
    pub on: CapOn,
    /// What a token pays for.
    pub unit: CapUnit,
    /// Tokens that flow in every second.
    pub per_second: u64,
    /// Tokens that the bucket holds, and has at the start.
    pub burst: u64,
}

/// What a simulated device is like.
#[derive(Clone, Debug, PartialEq)]
pub struct DeviceModel {
    /// The model's name, such as `nvme`.
    pub name: String,
    /// Size.
    pub sectors: Sectors,
    /// Latencies.
    pub latency: Latencies,
    /// Requests served at once; the others wait in the device.
    pub parallelism: u32,
    /// Discards served at once, beside the others.
    pub discards_at_once: u32,
    /// Added to every request.
    pub overhead: Nanos,
    /// Bytes a second that one channel transfers; 0: no time at all.
    pub channel_bandwidth: u64,
    /// Caps, all of which must be met.
    pub caps: Vec<Cap>,
    /// What the elements of a request's memory cost, one request after the other, before the rest; none: nothing.
    pub elements: Option<Elements>,
    /// Bytes of completed writes that the volatile cache holds before it destages the oldest; 0: no volatile cache,
    /// a write is durable when it completes.
    pub cache_bytes: u64,
    /// What a power cut cannot tear, bytes: 512, 4096 ...
    pub atomic_write_unit: u32,
    /// Limits as its driver would report them. `write_cache` is set from `cache_bytes`.
    pub limits: Limits,
    /// Whether content is kept. Without, reads give zeros: for questions about speed on devices of any size.
    pub keeps_content: bool,
}

impl DeviceModel {
    /// Names of the presets.
    pub const PRESETS: &'static [&'static str] =
        &["nvme", "i3-nvme", "p320h", "ssd-sata", "hdd", "ebs-gp2", "null"];

    /// A preset of that name and size; `None` if there is no such preset.
    pub fn preset(name: &str, sectors: Sectors) -> Option<DeviceModel> {
        match name {
            "nvme" => Some(DeviceModel::nvme(sectors)),
            "i3-nvme" => Some(DeviceModel::i3_nvme(sectors)),
            "p320h" => Some(DeviceModel::p320h(sectors)),
            "ssd-sata" => Some(DeviceModel::ssd_sata(sectors)),
            "hdd" => Some(DeviceModel::hdd(sectors)),
            "ebs-gp2" => Some(DeviceModel::ebs_gp2(sectors)),
            "null" => Some(DeviceModel::null(sectors)),
            _ => None,
        }
    }

    /// Takes no time and has no limits worth the name.
    pub fn null(sectors: Sectors) -> DeviceModel {
        DeviceModel {
            name: "null".to_owned(),
            sectors,
            latency: Latencies {
                read: Latency::ZERO,
                write: Latency::ZERO,
                flush: Latency::ZERO,
                discard: Latency::ZERO,
                sequential: None,
            },
            parallelism: 65_536,
            discards_at_once: 65_536,
            overhead: Nanos(0),
            channel_bandwidth: 0,
            caps: Vec::new(),
            elements: None,
            cache_bytes: 0,
            atomic_write_unit: 512,
            limits: Limits {
                discard_granularity: 512,
                max_hw_sectors: Sectors(2560),
                max_sectors: Sectors(2560),
                max_segments: 128,
                nr_requests: 1023,
                wbt_lat: WBT_LAT,
                ..Limits::default()
            },
            keeps_content: true,
        }
    }

    /// A data-centre NVMe drive: fast, parallel, protected against power loss as such drives are.
    pub fn nvme(sectors: Sectors) -> DeviceModel {
        let mut model = DeviceModel::null(sectors);
        model.name = "nvme".to_owned();
        model.latency = Latencies {
            read: Latency::with_tail(Nanos::micros(80), 0.15),
            write: Latency::with_tail(Nanos::micros(18), 0.2),
            flush: Latency::Fixed(Nanos::micros(10)),
            discard: Latency::Fixed(Nanos::micros(200)),
            sequential: None,
        };
        model.parallelism = 64;
        model.discards_at_once = 64;
        model.overhead = Nanos::micros(2);
        model.channel_bandwidth = 1_600_000_000;
        model.caps = vec![
            cap(CapOn::Reads, ANY_SIZE, 490_000, 64),
            cap(CapOn::Writes, ANY_SIZE, 38_000, 4096),
            cap(CapOn::Reads, CapUnit::Bytes, 3_200_000_000, 1 << 20),
            cap(CapOn::Writes, CapUnit::Bytes, 1_050_000_000, 16 << 20),
        ];
        model.limits = Limits {
            max_hw_sectors: Sectors(512),
            max_sectors: Sectors(512),
            max_segments: 127,
            max_hw_discard: Sectors(1 << 32),
            max_discard: Sectors(1 << 32),
            dma_alignment: 4,
            ..model.limits
        };
        model
    }

    /// A device of Amazon's i3 instances. Discards are served one after the other, and one takes as long as any other, whatever
    /// its size: the simplest device of which the report on RAID10 could have been made.
    pub fn i3_nvme(sectors: Sectors) -> DeviceModel {
        let mut model = DeviceModel::nvme(sectors);
        model.name = "i3-nvme".to_owned();
        model.latency.discard = Latency::Fixed(I3_DISCARD);
        model.discards_at_once = 1;
        model.channel_bandwidth = 2_000_000_000;
        model.caps = vec![
            cap(CapOn::Reads, ANY_SIZE, 412_500, 64),
            cap(CapOn::Writes, ANY_SIZE, 180_000, 64),
            cap(CapOn::Reads, CapUnit::Bytes, 2_000_000_000, 1 << 20),
            cap(CapOn::Writes, CapUnit::Bytes, 180_000 * 4096, 1 << 20),
        ];
        // Of the largest number of logical blocks that a range of a deallocation can have.
        let most = Sectors((1 << 32) - 1);
        model.limits.max_hw_discard = most;
        model.limits.max_discard = most;
        model.limits.max_write_zeroes = Sectors::ZERO;
        model
    }

    /// A PCIe drive of SLC flash from before NVMe.
    pub fn p320h(sectors: Sectors) -> DeviceModel {
        let mut model = DeviceModel::nvme(sectors);
        model.name = "p320h".to_owned();
        model.latency.read = Latency::with_tail(Nanos::micros(42), 0.1);
        model.latency.write = Latency::with_tail(Nanos::micros(300), 0.1);
        model.parallelism = 256;
        model.channel_bandwidth = 3_200_000_000;
        model.caps = vec![
            cap(CapOn::Reads, ANY_SIZE, 785_000, 64),
            cap(CapOn::Writes, ANY_SIZE, 205_000, 4096),
            cap(CapOn::Reads, CapUnit::Bytes, 3_200_000_000, 1 << 20),
            cap(CapOn::Writes, CapUnit::Bytes, 1_900_000_000, 16 << 20),
        ];
        model.limits.nr_requests = 256;
        model
    }

    /// A consumer's SATA drive, with a volatile cache.
    pub fn ssd_sata(sectors: Sectors) -> DeviceModel {
        let mut model = DeviceModel::null(sectors);
        model.name = "ssd-sata".to_owned();
        model.latency = Latencies {
            read: Latency::with_tail(Nanos::micros(90), 0.2),
            write: Latency::with_tail(Nanos::micros(35), 0.3),
            flush: Latency::with_tail(Nanos::millis(2), 0.4),
            discard: Latency::Fixed(Nanos::millis(1)),
            sequential: None,
        };
        model.parallelism = 32;
        model.discards_at_once = 32;
        model.overhead = Nanos::micros(5);
        model.channel_bandwidth = 550_000_000;
        model.caps = vec![
            cap(CapOn::Reads, ANY_SIZE, 98_000, 32),
            cap(CapOn::Writes, ANY_SIZE, 90_000, 32),
            cap(CapOn::Reads, CapUnit::Bytes, 550_000_000, 1 << 20),
            cap(CapOn::Writes, CapUnit::Bytes, 520_000_000, 1 << 20),
        ];
        model.cache_bytes = 512 << 20;
        model.limits = Limits {
            physical_block_size: 4096,
            max_segments: 168,
            discard_granularity: 4096,
            max_hw_discard: Sectors(4_194_240),
            max_discard: Sectors(4_194_240),
            write_cache: true,
            hw_fua: false,
            fua: Fua::Flush,
            max_write_zeroes: Sectors::ZERO,
            nr_requests: 32,
            wbt_lat: WBT_LAT,
            ..model.limits
        };
        model
    }

    /// A disk with heads and a volatile cache.
    pub fn hdd(sectors: Sectors) -> DeviceModel {
        let mut model = DeviceModel::null(sectors);
        model.name = "hdd".to_owned();
        // Seek and rotation together: from a short seek that meets its sector to a long one and a whole turn.
        let head = Latency::Uniform(Nanos::millis(5), Nanos(19_700_000));
        model.latency = Latencies {
            read: head.clone(),
            write: head,
            flush: Latency::Uniform(Nanos::millis(8), Nanos::millis(30)),
            discard: Latency::ZERO,
            sequential: Some(Latency::Fixed(Nanos::micros(20))),
        };
        model.parallelism = 1;
        model.discards_at_once = 1;
        model.overhead = Nanos::micros(50);
        model.channel_bandwidth = 171_000_000;
        model.cache_bytes = 64 << 20;
        model.limits = Limits {
            physical_block_size: 4096,
            max_segments: 168,
            discard_granularity: 0,
            max_hw_discard: Sectors::ZERO,
            max_discard: Sectors::ZERO,
            max_write_zeroes: Sectors::ZERO,
            write_cache: true,
            hw_fua: false,
            fua: Fua::Flush,
            rotational: true,
            nr_requests: 32,
            wbt_lat: WBT_LAT,
            ..model.limits
        };
        model
    }

    /// A gp2 volume of that size: its baseline and its burst bucket follow from the size.
    pub fn ebs_gp2(sectors: Sectors) -> DeviceModel {
        let mut model = DeviceModel::null(sectors);
        model.name = "ebs-gp2".to_owned();
        let gib = sectors.bytes() >> 30;
        let baseline = (3 * gib).clamp(100, 16_000);
        let throughput = if gib > 170 { 250 << 20 } else { 128 << 20 };
        let split = CapUnit::Requests { split_bytes: 256 << 10 };
        model.latency = Latencies {
            read: Latency::with_tail(Nanos::micros(600), 0.25),
            write: Latency::with_tail(Nanos::micros(900), 0.25),
            flush: Latency::Fixed(Nanos::micros(500)),
            discard: Latency::Fixed(Nanos::millis(1)),
            sequential: None,
        };
        model.parallelism = 64;
        model.discards_at_once = 64;
        model.overhead = Nanos::micros(20);
        model.caps = vec![
            cap(CapOn::Both, split, baseline.max(3_000), 32),
            cap(CapOn::Both, split, baseline, 5_400_000),
            cap(CapOn::Both, CapUnit::Bytes, throughput, 1 << 20),
        ];
        model.limits = Limits {
            max_hw_sectors: Sectors(512),
            max_sectors: Sectors(512),
            max_hw_discard: Sectors::ZERO,
            max_discard: Sectors::ZERO,
            discard_granularity: 0,
            max_write_zeroes: Sectors::ZERO,
            nr_requests: 64,
            wbt_lat: WBT_LAT,
            ..model.limits
        };
        model
    }

    /// The limits, made consistent with the rest of the model.
    pub fn limits(&self) -> Limits {
        Limits { write_cache: self.cache_bytes > 0, ..self.limits.clone() }
    }

    /// Whether completed writes may be lost in a power cut.
    pub fn volatile(&self) -> bool {
        self.cache_bytes > 0
    }

    /// Sectors that a power cut cannot tear.
    pub(crate) fn atomic_sectors(&self) -> u64 {
        (u64::from(self.atomic_write_unit) / SECTOR).max(1)
    }
}

/// What a discard takes on an `i3-nvme`, besides its overhead. Calibrated: with it, mkfs.xfs on RAID10 before Linux was mended
/// takes as long as Launchpad 1896578 says: 674.7 s for 3,623,704 discards on each device and 1.4 s of writes. No other
/// result of that report is in any model.
const I3_DISCARD: Nanos = Nanos(183_800);

const ANY_SIZE: CapUnit = CapUnit::Requests { split_bytes: u64::MAX };

fn cap(on: CapOn, unit: CapUnit, per_second: u64, burst: u64) -> Cap {
    Cap { on, unit, per_second, burst }
}

/// A cap's bucket while the device runs: the time at which it would be full again, as cell rate algorithms keep it.
#[derive(Clone, Debug)]
pub(crate) struct Bucket {
    cap: Cap,
    full_at: u64,
}

impl Bucket {
    pub(crate) fn new(cap: Cap) -> Bucket {
        Bucket { cap, full_at: 0 }
    }

    /// When a request of `bytes` that is ready at `from` may start; takes its tokens.
    pub(crate) fn admit(&mut self, write: bool, bytes: u64, from: Nanos) -> Nanos {
        let counted = match self.cap.on {
            CapOn::Reads => !write,
            CapOn::Writes => write,
            CapOn::Both => true,
        };
        if !counted {
            return from;
        }
        let tokens = match self.cap.unit {
            CapUnit::Requests { split_bytes } => bytes.div_ceil(split_bytes).max(1),
            CapUnit::Bytes => bytes,
        };
        let start = from.0.max(self.full_at.saturating_sub(self.time(self.cap.burst)));
        self.full_at = self.full_at.max(start).saturating_add(self.time(tokens));
        Nanos(start)
    }

    /// How long `tokens` take to flow in.
    fn time(&self, tokens: u64) -> u64 {
        let nanos = u128::from(tokens) * 1_000_000_000 / u128::from(self.cap.per_second.max(1));
        u64::try_from(nanos).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_gives_its_burst_at_once_and_then_its_rate() {
        let mut bucket = Bucket::new(cap(CapOn::Both, ANY_SIZE, 100, 5));
        let starts: Vec<u64> = (0..8).map(|_| bucket.admit(false, 4096, Nanos(0)).0 / 1_000_000).collect();
        assert_eq!(starts, [0, 0, 0, 0, 0, 0, 10, 20]);
    }

    #[test]
    fn a_gp2_volume_bursts_to_3000_and_falls_to_its_baseline() {
        let model = DeviceModel::ebs_gp2(Sectors(100 << 21));
        let mut bucket: Vec<Bucket> = model.caps.iter().copied().map(Bucket::new).collect();
        let mut at = Nanos(0);
        let mut time_of = Vec::new();
        for n in 0..6_200_001u64 {
            at = bucket.iter_mut().fold(at, |at, b| b.admit(false, 4096, at));
            if n % 100_000 == 0 {
                time_of.push(at.0 / 1_000_000_000);
            }
        }
        assert_eq!(time_of[10], 1_000_000 / 3_000, "the burst");
        // 5.4 million credits, spent at 3000 and earned at 300 a second, last 2,000 s: six million requests.
        assert_eq!(time_of[62] - time_of[61], 100_000 / 300, "the baseline");
    }

    #[test]
    fn half_of_a_log_normal_latency_lies_below_its_median() {
        let latency = Latency::LogNormal { median: Nanos::micros(80), sigma: 0.5 };
        let mut random = Random::new(11);
        let below = (0..10_000).filter(|_| latency.draw(&mut random) < Nanos::micros(80)).count();
        assert!((4_800..5_200).contains(&below), "{below}");
    }

    #[test]
    fn every_preset_exists_under_its_name() {
        for name in DeviceModel::PRESETS {
            let model = DeviceModel::preset(name, Sectors(1 << 21)).unwrap();
            assert_eq!(model.name, *name);
            assert_eq!(model.limits().write_cache, model.volatile());
        }
        assert!(DeviceModel::preset("floppy", Sectors(2880)).is_none());
    }
}
