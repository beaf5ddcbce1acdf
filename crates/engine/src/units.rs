//! Units as types: a place on a device, a length, a time. Conversions have names and say how they round.

use std::fmt;
use std::ops::{Add, AddAssign, Sub};

/// Bytes in a sector: always 512, whatever the device's logical block size, as everywhere in Linux.
pub const SECTOR: u64 = 512;

/// A position, in 512-byte sectors from the start of a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Sector(pub u64);

/// A length, in 512-byte sectors.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Sectors(pub u64);

/// A time since the environment's start, or a length of time, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Nanos(pub u64);

impl Sector {
    /// Byte offset. Sectors of a device lie below 2^55, so this cannot overflow.
    #[inline]
    pub const fn bytes(self) -> u64 {
        self.0 * SECTOR
    }
    /// The distance from `earlier` to here.
    #[inline]
    pub fn since(self, earlier: Sector) -> Sectors {
        debug_assert!(earlier <= self);
        Sectors(self.0 - earlier.0)
    }
}

impl Sectors {
    /// None at all.
    pub const ZERO: Sectors = Sectors(0);
    /// The largest device: byte counts fit u64.
    pub const MAX: Sectors = Sectors((1 << 55) - 1);

    /// Bytes.
    #[inline]
    pub const fn bytes(self) -> u64 {
        self.0 * SECTOR
    }
    /// Bytes, for lengths of memory.
    #[inline]
    pub fn byte_len(self) -> usize {
        usize::try_from(self.bytes()).expect("a length in memory fits the address space")
    }
    /// Whole sectors in `bytes`, the rest cut off.
    #[inline]
    pub fn from_bytes_floor(bytes: u64) -> Sectors {
        Sectors(bytes / SECTOR)
    }
    /// Sectors that hold `bytes`, rounded up.
    #[inline]
    pub fn from_bytes_ceil(bytes: u64) -> Sectors {
        Sectors(bytes.div_ceil(SECTOR))
    }
    /// The smaller of two.
    #[inline]
    pub fn min(self, other: Sectors) -> Sectors {
        Sectors(self.0.min(other.0))
    }
}

impl Add<Sectors> for Sector {
    type Output = Sector;
    #[inline]
    fn add(self, n: Sectors) -> Sector {
        Sector(self.0 + n.0)
    }
}
impl Sub<Sectors> for Sector {
    type Output = Sector;
    #[inline]
    fn sub(self, n: Sectors) -> Sector {
        Sector(self.0 - n.0)
    }
}
impl Add for Sectors {
    type Output = Sectors;
    #[inline]
    fn add(self, n: Sectors) -> Sectors {
        Sectors(self.0 + n.0)
    }
}
impl AddAssign for Sectors {
    #[inline]
    fn add_assign(&mut self, n: Sectors) {
        self.0 += n.0;
    }
}
impl Sub for Sectors {
    type Output = Sectors;
    #[inline]
    fn sub(self, n: Sectors) -> Sectors {
        Sectors(self.0 - n.0)
    }
}
impl fmt::Display for Sector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
impl fmt::Display for Sectors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Nanos {
    /// From microseconds.
    pub const fn micros(us: u64) -> Nanos {
        Nanos(us * 1_000)
    }
    /// From milliseconds.
    pub const fn millis(ms: u64) -> Nanos {
        Nanos(ms * 1_000_000)
    }
    /// From whole seconds.
    pub const fn secs(s: u64) -> Nanos {
        Nanos(s * 1_000_000_000)
    }
    /// The time from `earlier` to here; zero if that is later.
    #[inline]
    pub fn since(self, earlier: Nanos) -> Nanos {
        Nanos(self.0.saturating_sub(earlier.0))
    }
}
impl Add for Nanos {
    type Output = Nanos;
    #[inline]
    fn add(self, n: Nanos) -> Nanos {
        Nanos(self.0 + n.0)
    }
}
