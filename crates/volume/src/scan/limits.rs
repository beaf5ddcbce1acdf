//! Queue limits, by their names in sysfs.

use blockwork_engine::Limits;
use serde::Serialize;

/// Limits, named as in sysfs.
#[derive(Clone, Debug, Serialize)]
#[allow(missing_docs, reason = "sysfs' own names")]
pub struct LimitsReport {
    pub logical_block_size: u32,
    pub physical_block_size: u32,
    pub minimum_io_size: u32,
    pub optimal_io_size: u32,
    pub max_sectors_kb: u64,
    pub max_segments: u32,
    pub discard_granularity: u32,
    pub discard_max_bytes: u64,
    pub write_zeroes_max_bytes: u64,
    pub dma_alignment: u32,
    pub write_cache: &'static str,
    pub fua: &'static str,
    pub rotational: bool,
    pub read_only: bool,
    pub nr_requests: u32,
    pub wbt_lat_usec: u64,
    pub nomerges: u32,
    pub read_ahead_kb: u64,
    pub linearize: &'static str,
    pub fixed: &'static str,
}

impl From<&Limits> for LimitsReport {
    fn from(limits: &Limits) -> LimitsReport {
        LimitsReport {
            logical_block_size: limits.logical_block_size,
            physical_block_size: limits.physical_block_size,
            minimum_io_size: limits.io_min,
            optimal_io_size: limits.io_opt,
            max_sectors_kb: limits.max_sectors.bytes() / 1024,
            max_segments: limits.max_segments,
            discard_granularity: limits.discard_granularity,
            discard_max_bytes: limits.max_discard.bytes(),
            write_zeroes_max_bytes: limits.max_write_zeroes.bytes(),
            dma_alignment: limits.dma_alignment,
            write_cache: limits.write_cache_name(),
            fua: limits.fua.name(),
            rotational: limits.rotational,
            read_only: limits.read_only,
            nr_requests: limits.nr_requests,
            wbt_lat_usec: limits.wbt_lat.0 / 1000,
            nomerges: limits.merges as u32,
            read_ahead_kb: limits.read_ahead.bytes() / 1024,
            linearize: limits.linearize.name(),
            fixed: limits.fixed.name(),
        }
    }
}
