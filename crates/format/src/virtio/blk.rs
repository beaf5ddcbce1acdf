//! The block device of virtio: its features, its configuration, and its requests.
//!
//! Source: "Virtual I/O Device (VIRTIO) Version 1.2", section 5.2. A *sector* is 512 bytes, whatever the block size.

use crate::bytes::{put, u16_le, u32_le, u64_le};

/// Features, as bits.
pub mod feature {
    /// `size_max` is valid.
    pub const SIZE_MAX: u64 = 1 << 1;
    /// `seg_max` is valid.
    pub const SEG_MAX: u64 = 1 << 2;
    /// The geometry of cylinders, heads and sectors is valid.
    pub const GEOMETRY: u64 = 1 << 4;
    /// It cannot be written to.
    pub const RO: u64 = 1 << 5;
    /// `blk_size` is valid.
    pub const BLK_SIZE: u64 = 1 << 6;
    /// It has a flush command.
    pub const FLUSH: u64 = 1 << 9;
    /// The fields of alignment and of optimal sizes are valid.
    pub const TOPOLOGY: u64 = 1 << 10;
    /// The driver may choose between write-back and write-through.
    pub const CONFIG_WCE: u64 = 1 << 11;
    /// It has several queues.
    pub const MQ: u64 = 1 << 12;
    /// It has a discard command.
    pub const DISCARD: u64 = 1 << 13;
    /// It has a write-zeroes command.
    pub const WRITE_ZEROES: u64 = 1 << 14;
}

/// Types of request.
pub mod request {
    /// Read.
    pub const IN: u32 = 0;
    /// Write.
    pub const OUT: u32 = 1;
    /// Flush.
    pub const FLUSH: u32 = 4;
    /// Tell the device's name.
    pub const GET_ID: u32 = 8;
    /// Discard.
    pub const DISCARD: u32 = 11;
    /// Write zeroes.
    pub const WRITE_ZEROES: u32 = 13;
}

/// What a request ends with, in its last byte.
pub mod status {
    /// Done.
    pub const OK: u8 = 0;
    /// It failed.
    pub const IOERR: u8 = 1;
    /// There is no such request here.
    pub const UNSUPP: u8 = 2;
}

/// Bytes of the device's name, padded with NUL.
pub const ID_BYTES: usize = 20;
/// Bytes of a request's header.
pub const HEADER_BYTES: usize = 16;
/// Bytes of a range to discard or zero.
pub const RANGE_BYTES: usize = 16;
/// Bytes of the configuration, as far as we know it.
pub const CONFIG_BYTES: usize = 60;
/// Where `writeback` is in the configuration: the one byte of it that a driver may write.
pub const CONFIG_WRITEBACK: usize = 32;

/// What a request begins with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestHeader {
    /// See [`request`].
    pub kind: u32,
    /// Where, for reads and writes.
    pub sector: u64,
}

impl RequestHeader {
    /// From its bytes.
    #[inline]
    pub fn decode(bytes: &[u8; HEADER_BYTES]) -> RequestHeader {
        RequestHeader { kind: u32_le(bytes, 0), sector: u64_le(bytes, 8) }
    }

    /// To its bytes.
    #[inline]
    pub fn encode(&self) -> [u8; HEADER_BYTES] {
        (u128::from(self.kind) | u128::from(self.sector) << 64).to_le_bytes()
    }
}

/// A range to discard or to zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    /// Where it begins.
    pub sector: u64,
    /// Sectors.
    pub sectors: u32,
    /// [`Range::UNMAP`]; others are not known.
    pub flags: u32,
}

impl Range {
    /// Flag: zeroes may be made by unmapping.
    pub const UNMAP: u32 = 1;

    /// From its bytes.
    pub fn decode(bytes: &[u8; RANGE_BYTES]) -> Range {
        Range { sector: u64_le(bytes, 0), sectors: u32_le(bytes, 8), flags: u32_le(bytes, 12) }
    }

    /// To its bytes.
    pub fn encode(&self) -> [u8; RANGE_BYTES] {
        let mut bytes = [0; RANGE_BYTES];
        put(&mut bytes, 0, &self.sector.to_le_bytes());
        put(&mut bytes, 8, &self.sectors.to_le_bytes());
        put(&mut bytes, 12, &self.flags.to_le_bytes());
        bytes
    }
}

/// Ranges of one command, and how large they may be.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RangeLimits {
    /// Sectors of a range at most.
    pub sectors: u32,
    /// Ranges at most.
    pub ranges: u32,
}

/// The device's configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Config {
    /// Sectors.
    pub capacity: u64,
    /// Bytes of a descriptor at most; 0: no limit.
    pub size_max: u32,
    /// Descriptors of data at most.
    pub seg_max: u32,
    /// Bytes of a logical block.
    pub blk_size: u32,
    /// Logical blocks of a physical one, as a power of two.
    pub physical_block_exp: u8,
    /// Smallest I/O that performs well, in logical blocks.
    pub min_io_size: u16,
    /// Best size of an I/O, in logical blocks; 0: not known.
    pub opt_io_size: u32,
    /// Whether writes may stay in a cache until a flush.
    pub writeback: bool,
    /// Queues.
    pub num_queues: u16,
    /// Of discards.
    pub discard: RangeLimits,
    /// Discards begin and end at multiples of so many sectors, or do less.
    pub discard_sector_alignment: u32,
    /// Of write-zeroes.
    pub write_zeroes: RangeLimits,
    /// Whether those may unmap.
    pub write_zeroes_may_unmap: bool,
}

impl Config {
    /// To its bytes. The geometry, which nobody has any more, is zeros.
    pub fn encode(&self) -> [u8; CONFIG_BYTES] {
        let mut bytes = [0; CONFIG_BYTES];
        put(&mut bytes, 0, &self.capacity.to_le_bytes());
        put(&mut bytes, 8, &self.size_max.to_le_bytes());
        put(&mut bytes, 12, &self.seg_max.to_le_bytes());
        put(&mut bytes, 20, &self.blk_size.to_le_bytes());
        bytes[24] = self.physical_block_exp;
        put(&mut bytes, 26, &self.min_io_size.to_le_bytes());
        put(&mut bytes, 28, &self.opt_io_size.to_le_bytes());
        bytes[CONFIG_WRITEBACK] = self.writeback.into();
        put(&mut bytes, 34, &self.num_queues.to_le_bytes());
        put(&mut bytes, 36, &self.discard.sectors.to_le_bytes());
        put(&mut bytes, 40, &self.discard.ranges.to_le_bytes());
        put(&mut bytes, 44, &self.discard_sector_alignment.to_le_bytes());
        put(&mut bytes, 48, &self.write_zeroes.sectors.to_le_bytes());
        put(&mut bytes, 52, &self.write_zeroes.ranges.to_le_bytes());
        bytes[56] = self.write_zeroes_may_unmap.into();
        bytes
    }

    /// From its bytes.
    pub fn decode(bytes: &[u8; CONFIG_BYTES]) -> Config {
        Config {
            capacity: u64_le(bytes, 0),
            size_max: u32_le(bytes, 8),
            seg_max: u32_le(bytes, 12),
            blk_size: u32_le(bytes, 20),
            physical_block_exp: bytes[24],
            min_io_size: u16_le(bytes, 26),
            opt_io_size: u32_le(bytes, 28),
            writeback: bytes[CONFIG_WRITEBACK] != 0,
            num_queues: u16_le(bytes, 34),
            discard: RangeLimits { sectors: u32_le(bytes, 36), ranges: u32_le(bytes, 40) },
            discard_sector_alignment: u32_le(bytes, 44),
            write_zeroes: RangeLimits { sectors: u32_le(bytes, 48), ranges: u32_le(bytes, 52) },
            write_zeroes_may_unmap: bytes[56] != 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fields_of_the_configuration_are_where_the_specification_has_them() {
        let config = Config {
            capacity: 0x0102_0304_0506_0708,
            size_max: 0x1111_1111,
            seg_max: 126,
            blk_size: 4096,
            physical_block_exp: 3,
            min_io_size: 8,
            opt_io_size: 128,
            writeback: true,
            num_queues: 4,
            discard: RangeLimits { sectors: 0x2222_2222, ranges: 33 },
            discard_sector_alignment: 8,
            write_zeroes: RangeLimits { sectors: 0x3333_3333, ranges: 44 },
            write_zeroes_may_unmap: true,
        };
        let bytes = config.encode();
        assert_eq!(Config::decode(&bytes), config);
        assert_eq!(bytes[..8], [8, 7, 6, 5, 4, 3, 2, 1]);
        assert_eq!((bytes[12], bytes[21], bytes[24], bytes[26], bytes[28]), (126, 0x10, 3, 8, 128));
        assert_eq!((bytes[32], bytes[34], bytes[40], bytes[44], bytes[52], bytes[56]), (1, 4, 33, 8, 44, 1));
    }

    #[test]
    fn requests_and_ranges_come_back_as_they_were() {
        let header = RequestHeader { kind: request::WRITE_ZEROES, sector: 0x1234_5678_9abc };
        assert_eq!(RequestHeader::decode(&header.encode()), header);
        let range = Range { sector: 77, sectors: 88, flags: Range::UNMAP };
        assert_eq!(Range::decode(&range.encode()), range);
    }
}
