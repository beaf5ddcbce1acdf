//! Queue limits and settings, with the names and units of sysfs' `queue/` folder, and how they stack.
//!
//! Sources: the kernel's `Documentation/ABI/stable/sysfs-block` and the behaviour of `blk_stack_limits`.

use crate::choice::{Fixed, Fua, Linearize};
use crate::units::{Nanos, SECTOR, Sectors};

/// What a queue may merge (sysfs `nomerges`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Merges {
    /// 0: everything that is contiguous.
    All,
    /// 1: only with the newest request, in order of arrival: no sorting, no searching.
    Simple,
    /// 2: nothing.
    None,
}

/// Limits and settings of a queue, a layer or a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Smallest unit that can be addressed, bytes (sysfs `logical_block_size`).
    pub logical_block_size: u32,
    /// Smallest unit that is written without read-modify-write, bytes.
    pub physical_block_size: u32,
    /// Preferred smallest I/O, bytes (`minimum_io_size`).
    pub io_min: u32,
    /// Preferred I/O, bytes; 0: not known (`optimal_io_size`).
    pub io_opt: u32,
    /// Largest request the device takes (`max_hw_sectors_kb`).
    pub max_hw_sectors: Sectors,
    /// Largest request the queue makes (`max_sectors_kb`).
    pub max_sectors: Sectors,
    /// Most memory segments in a request that the device takes.
    pub max_hw_segments: u32,
    /// Most memory segments in a request that the queue makes (`max_segments`).
    pub max_segments: u32,
    /// A request must not cross a multiple of this; zero: no such boundary (`chunk_sectors`).
    pub chunk_sectors: Sectors,
    /// Discards smaller than, or not aligned to this do nothing, bytes; 0: no discards.
    pub discard_granularity: u32,
    /// Largest discard the device takes (`discard_max_hw_bytes`); zero: none.
    pub max_hw_discard: Sectors,
    /// Largest discard the queue makes (`discard_max_bytes`).
    pub max_discard: Sectors,
    /// Largest write-zeroes (`write_zeroes_max_bytes`); zero: zeros must be written.
    pub max_write_zeroes: Sectors,
    /// What the device demands of memory addresses and lengths, bytes, a power of two (`dma_alignment` + 1).
    pub dma_alignment: u32,
    /// A completed write may be lost in a power cut until a flush (`write_cache`: write back).
    pub write_cache: bool,
    /// What is written may be lost in a power cut whatever is flushed: flushes do nothing.
    pub lossy: bool,
    /// Whatever alters the volume is to be durable when it completes, though nobody asked for that.
    pub sync: bool,
    /// The device can make a single write durable; where it cannot, `fua` is flush.
    pub hw_fua: bool,
    /// How a single write is made durable (`fua`).
    pub fua: Fua,
    /// A disk with heads.
    pub rotational: bool,
    /// Refuses writes (`ro`).
    pub read_only: bool,
    /// Requests in flight at most (`nr_requests`).
    pub nr_requests: u32,
    /// What a small request may take because of large ones, which are held back for that; zero: they are not (`wbt_lat_usec`).
    pub wbt_lat: Nanos,
    /// What to merge (`nomerges`).
    pub merges: Merges,
    /// How far to read ahead of a sequential reader; zero: not (`read_ahead_kb`).
    pub read_ahead: Sectors,
    /// What to do with requests whose memory is in several pieces (`linearize`). Leaves do it; above
    /// them it says what some leaf below does.
    pub linearize: Linearize,
    /// Requests become operations of the environment that may go by memory which the kernel knows; where they do not, `fixed` is off.
    pub hw_fixed: bool,
    /// Whether they do where they may (`fixed`). As with `linearize`, leaves do it.
    pub fixed: Fixed,
}

/// The usual `wbt_lat_usec`, as in Linux for what has no heads. Whether a disk has some is not asked: virtio-blk says so of all its disks.
pub const WBT_LAT: Nanos = Nanos::millis(2);
/// And the largest.
const WBT_LAT_MAX: Nanos = Nanos::secs(10);

impl Default for Limits {
    /// A device without limits or features: what stacking starts with.
    fn default() -> Limits {
        Limits {
            logical_block_size: 512,
            physical_block_size: 512,
            io_min: 512,
            io_opt: 0,
            max_hw_sectors: Sectors::MAX,
            max_sectors: Sectors::MAX,
            max_hw_segments: 1024,
            max_segments: 1024,
            chunk_sectors: Sectors::ZERO,
            discard_granularity: 0,
            max_hw_discard: Sectors::MAX,
            max_discard: Sectors::MAX,
            max_write_zeroes: Sectors::MAX,
            dma_alignment: 1,
            write_cache: false,
            lossy: false,
            sync: false,
            hw_fua: true,
            fua: Fua::Dsync,
            rotational: false,
            read_only: false,
            nr_requests: 128,
            wbt_lat: Nanos(0),
            merges: Merges::All,
            read_ahead: Sectors::ZERO,
            linearize: Linearize::Off,
            hw_fixed: true,
            fixed: Fixed::Off,
        }
    }
}

/// Why a setting was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SettingError {
    /// No setting has that name.
    #[error("no queue setting is called {key:?}; there are: {}", Limits::SETTINGS.join(", "))]
    Unknown {
        /// The name given.
        key: String,
    },
    /// Its value is not possible.
    #[error("{key}={value}: expected {expected}")]
    Value {
        /// The name.
        key: String,
        /// The value given.
        value: String,
        /// What is possible.
        expected: String,
    },
}

impl Limits {
    /// Names that [`Limits::set`] takes.
    pub const SETTINGS: &'static [&'static str] = &[
        "nomerges",
        "max_sectors_kb",
        "max_segments",
        "discard_max_bytes",
        "write_zeroes_max_bytes",
        "nr_requests",
        "wbt_lat_usec",
        "read_ahead_kb",
        "linearize",
        "fua",
        "fixed",
    ];

    /// Makes these the limits of something that lies over `below` as well: the strictest of both; the optimal size is
    /// the least common multiple; a feature is there if any member has it (discards) or every member (zeroes).
    pub fn stack(&mut self, below: &Limits) {
        self.logical_block_size = self.logical_block_size.max(below.logical_block_size);
        self.physical_block_size = self.physical_block_size.max(below.physical_block_size);
        self.io_min = self.io_min.max(below.io_min);
        self.io_opt = least_common_multiple(self.io_opt, below.io_opt);
        self.max_hw_sectors = self.max_hw_sectors.min(below.max_hw_sectors);
        self.max_sectors = self.max_sectors.min(below.max_sectors);
        self.max_hw_segments = self.max_hw_segments.min(below.max_hw_segments);
        self.max_segments = self.max_segments.min(below.max_segments);
        self.chunk_sectors = match (self.chunk_sectors.0, below.chunk_sectors.0) {
            (0, n) | (n, 0) => Sectors(n),
            (a, b) => Sectors(greatest_common_divisor(a, b)),
        };
        self.discard_granularity = self.discard_granularity.max(below.discard_granularity);
        self.max_hw_discard = self.max_hw_discard.min(below.max_hw_discard);
        self.max_discard = self.max_discard.min(below.max_discard);
        self.max_write_zeroes = self.max_write_zeroes.min(below.max_write_zeroes);
        self.dma_alignment = self.dma_alignment.max(below.dma_alignment);
        self.write_cache |= below.write_cache;
        self.lossy |= below.lossy;
        self.sync |= below.sync;
        self.hw_fua &= below.hw_fua;
        self.fua = self.fua.over(below.fua);
        self.rotational |= below.rotational;
        self.read_only |= below.read_only;
        self.nr_requests = self.nr_requests.min(below.nr_requests);
        self.wbt_lat = self.wbt_lat.max(below.wbt_lat);
        self.read_ahead = Sectors(self.read_ahead.0.max(below.read_ahead.0));
        if self.linearize == Linearize::Off || below.linearize == Linearize::Auto {
            self.linearize = below.linearize;
        }
        self.hw_fixed &= below.hw_fixed;
        if self.fixed == Fixed::Off || below.fixed == Fixed::Auto {
            self.fixed = below.fixed;
        }
    }

    /// The limits of something over all of `below`.
    pub fn stacked<'a>(below: impl IntoIterator<Item = &'a Limits>) -> Limits {
        let mut all = Limits::default();
        below.into_iter().for_each(|limits| all.stack(limits));
        all
    }

    /// Addressed in blocks of `block` bytes at least, a power of two: smaller ones are not read, written or discarded.
    pub fn widen_blocks(&mut self, block: u32) {
        let whole = |sectors: Sectors| Sectors(sectors.0 - sectors.0 % (u64::from(block) / SECTOR).max(1));
        let sectors = Sectors::from_bytes_ceil(block.into());
        self.logical_block_size = self.logical_block_size.max(block);
        self.physical_block_size = self.physical_block_size.max(block);
        self.io_min = self.io_min.max(block);
        self.max_hw_sectors = whole(self.max_hw_sectors).max(sectors);
        self.max_sectors = whole(self.max_sectors).max(sectors);
        if self.discard_granularity > 0 {
            self.discard_granularity = self.discard_granularity.max(block);
        }
        self.max_hw_discard = whole(self.max_hw_discard);
        self.max_discard = whole(self.max_discard);
        self.max_write_zeroes = whole(self.max_write_zeroes);
    }

    /// What sysfs calls `write_cache`: `write through` where all that is written is durable when it completes, as on a disk without a volatile cache.
    pub fn write_cache_name(&self) -> &'static str {
        if self.lossy || (self.write_cache && !self.sync) { "write back" } else { "write through" }
    }

    /// Whether discards do anything.
    pub fn discards(&self) -> bool {
        self.max_discard > Sectors::ZERO && self.discard_granularity > 0
    }

    /// Alters a setting by its sysfs name.
    pub fn set(&mut self, key: &str, value: &str) -> Result<(), SettingError> {
        let refuse = |expected: &str| SettingError::Value {
            key: key.to_owned(),
            value: value.to_owned(),
            expected: expected.to_owned(),
        };
        let number = || value.parse::<u64>().map_err(|_| refuse("a whole number"));
        match key {
            "nomerges" => {
                self.merges = match value {
                    "0" => Merges::All,
                    "1" => Merges::Simple,
                    "2" => Merges::None,
                    _ => return Err(refuse("0 (all merges), 1 (simple ones) or 2 (none)")),
                }
            }
            "max_sectors_kb" => {
                let sectors = number()?.saturating_mul(2);
                let least = u64::from(self.logical_block_size.max(4096)) / SECTOR;
                if sectors < least || sectors > self.max_hw_sectors.0 {
                    return Err(refuse(&format!(
                        "{} to {} (max_hw_sectors_kb)",
                        least / 2,
                        self.max_hw_sectors.0 / 2
                    )));
                }
                self.max_sectors = Sectors(sectors);
            }
            "max_segments" => {
                let (n, most) = (number()?, self.max_hw_segments);
                self.max_segments = u32::try_from(n)
                    .ok()
                    .filter(|n| (1..=most).contains(n))
                    .ok_or_else(|| refuse(&format!("1 to {most}")))?;
            }
            "discard_max_bytes" => {
                let sectors = Sectors::from_bytes_floor(number()?);
                if sectors > self.max_hw_discard {
                    return Err(refuse(&format!("0 to {}", self.max_hw_discard.bytes())));
                }
                let unit = u64::from(self.discard_granularity) / SECTOR;
                self.max_discard = Sectors(if unit > 1 { sectors.0 / unit * unit } else { sectors.0 });
            }
            "write_zeroes_max_bytes" => {
                let block = u64::from(self.logical_block_size);
                self.max_write_zeroes = Sectors::from_bytes_floor(number()? / block * block);
            }
            "nr_requests" => {
                let n = number()?;
                self.nr_requests = u32::try_from(n)
                    .ok()
                    .filter(|n| (1..=65536).contains(n))
                    .ok_or_else(|| refuse("1 to 65536"))?;
            }
            "wbt_lat_usec" => {
                let us = if value == "-1" { WBT_LAT.0 / 1000 } else { number()? };
                if us > WBT_LAT_MAX.0 / 1000 {
                    return Err(refuse("0 (off), 1 to 10000000, or -1 (the default)"));
                }
                self.wbt_lat = Nanos::micros(us);
            }
            "read_ahead_kb" => {
                let kb = number()?;
                if kb > 65536 {
                    return Err(refuse("0 to 65536"));
                }
                self.read_ahead = Sectors(kb * 2);
            }
            "linearize" => {
                self.linearize = Linearize::parse(value).ok_or_else(|| refuse("auto, on or off"))?;
            }
            "fua" => {
                let fua = Fua::parse(value).ok_or_else(|| refuse("auto, dsync or flush"))?;
                match (self.hw_fua, fua) {
                    (true, fua) => self.fua = fua,
                    (false, Fua::Auto | Fua::Flush) => {}
                    (false, Fua::Dsync) => {
                        return Err(refuse(
                            "auto or flush: the device has no other way, or goes through the page cache, where a lost write might be \
                             told to a DSYNC write of something else",
                        ));
                    }
                }
            }
            "fixed" => match Fixed::parse(value).ok_or_else(|| refuse("auto, on or off"))? {
                Fixed::On if !self.hw_fixed => {
                    return Err(refuse(
                        "auto or off: only files and block devices are reached by registered buffers",
                    ));
                }
                fixed if self.hw_fixed => self.fixed = fixed,
                Fixed::Auto | Fixed::On | Fixed::Off => {}
            },
            _ => return Err(SettingError::Unknown { key: key.to_owned() }),
        }
        Ok(())
    }
}

fn greatest_common_divisor(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { greatest_common_divisor(b, a % b) }
}

fn least_common_multiple(a: u32, b: u32) -> u32 {
    match (a, b) {
        (0, n) | (n, 0) => n,
        _ => {
            let lcm = u64::from(a) / greatest_common_divisor(a.into(), b.into()) * u64::from(b);
            // Where no multiple fits, the larger one is the better hint than none.
            u32::try_from(lcm).unwrap_or(a.max(b))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_strictest_member_rules() {
        let a = Limits {
            logical_block_size: 512,
            max_sectors: Sectors(512),
            io_opt: 3 << 16,
            write_cache: true,
            ..Limits::default()
        };
        let b = Limits {
            logical_block_size: 4096,
            max_sectors: Sectors(2560),
            io_opt: 2 << 16,
            fua: Fua::Flush,
            ..Limits::default()
        };
        let both = Limits::stacked([&a, &b]);
        assert_eq!(both.logical_block_size, 4096);
        assert_eq!(both.max_sectors, Sectors(512));
        assert_eq!(both.io_opt, 6 << 16);
        assert!(both.write_cache);
        assert_eq!(both.fua, Fua::Flush);
        assert_eq!(both, Limits::stacked([&b, &a]));
    }

    #[test]
    fn settings_go_by_their_sysfs_names() {
        let mut limits =
            Limits { max_hw_sectors: Sectors(2560), discard_granularity: 4096, ..Limits::default() };
        limits.set("nomerges", "2").unwrap();
        assert_eq!(limits.merges, Merges::None);
        limits.set("max_sectors_kb", "256").unwrap();
        assert_eq!(limits.max_sectors, Sectors(512));
        limits.set("discard_max_bytes", "524789").unwrap();
        assert_eq!(limits.max_discard, Sectors(1024));
        limits.logical_block_size = 4096;
        for (bytes, sectors) in [("10000", 16), ("4095", 0), ("0", 0)] {
            limits.set("write_zeroes_max_bytes", bytes).unwrap();
            assert_eq!(limits.max_write_zeroes, Sectors(sectors), "{bytes}, by whole blocks");
        }
        limits.set("read_ahead_kb", "128").unwrap();
        assert_eq!(limits.read_ahead, Sectors(256));
        limits.set("wbt_lat_usec", "75000").unwrap();
        assert_eq!(limits.wbt_lat, Nanos::millis(75));
        limits.set("wbt_lat_usec", "-1").unwrap();
        assert_eq!(limits.wbt_lat, WBT_LAT);
        limits.set("linearize", "auto").unwrap();
        assert_eq!(limits.linearize, Linearize::Auto);
        limits.set("fua", "auto").unwrap();
        limits.set("fua", "flush").unwrap();
        assert_eq!(limits.fua, Fua::Flush);
        limits.set("fua", "dsync").unwrap();
        assert_eq!(limits.fua, Fua::Dsync);
        (limits.hw_fua, limits.fua) = (false, Fua::Flush);
        limits.set("fua", "auto").unwrap();
        assert_eq!(limits.fua, Fua::Flush);
        limits.set("fixed", "on").unwrap();
        assert_eq!(limits.fixed, Fixed::On);
        (limits.hw_fixed, limits.fixed) = (false, Fixed::Off);
        limits.set("fixed", "auto").unwrap();
        assert_eq!(limits.fixed, Fixed::Off, "it reaches no file");
        assert!(limits.set("fixed", "on").is_err());
        for (key, value) in [
            ("linearize", "perhaps"),
            ("fixed", "perhaps"),
            ("fua", "dsync"),
            ("nomerges", "3"),
            ("max_sectors_kb", "4000"),
            ("max_sectors_kb", "0"),
            ("nr_requests", "0"),
            ("wbt_lat_usec", "10000001"),
        ] {
            assert!(limits.set(key, value).is_err(), "{key}={value}");
        }
        let error = limits.set("no_merges", "1").unwrap_err().to_string();
        assert!(error.contains("nomerges"), "{error}");
    }
}
