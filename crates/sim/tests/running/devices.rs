//! Random devices, and how they and their environment behave.

use blockwork_engine::{Fua, Limits, Merges, Nanos, Sectors, WBT_LAT};
use blockwork_sim::{Chaos, DeviceModel, Latencies, Latency, Random};

/// A device of so many sectors, perhaps with blocks of 4 KiB.
pub fn draw_device(random: &mut Random, sectors: u64, small_blocks: bool) -> DeviceModel {
    let latency = |random: &mut Random| match random.below(4) {
        0 => Latency::Fixed(Nanos::micros(100)),
        1 => Latency::ZERO,
        2 => Latency::LogNormal { median: Nanos::micros(80), sigma: 1.0 },
        _ => Latency::Uniform(Nanos::micros(10), Nanos::millis(3)),
    };
    let big_blocks = !small_blocks && random.chance(1, 3);
    let mut model = DeviceModel::null(Sectors(sectors));
    model.name = "lab".to_owned();
    model.latency = Latencies {
        read: latency(random),
        write: latency(random),
        flush: latency(random),
        discard: latency(random),
        sequential: None,
    };
    model.parallelism = *random.choose(&[1, 2, 8, 64]);
    model.cache_bytes = *random.choose(&[0, 16 << 10, 16 << 20, 16 << 20, 16 << 20]);
    model.atomic_write_unit = *random.choose(&[512, if big_blocks { 4096 } else { 512 }]);
    model.limits = draw_limits(random, big_blocks);
    model
}

fn draw_limits(random: &mut Random, big_blocks: bool) -> Limits {
    // What is drawn from a copy leaves all other draws of a seed as they were: some seeds are kept for what they once found.
    let mut apart = random.clone();
    let block = if big_blocks { 4096 } else { 512 };
    let max_sectors = Sectors(*random.choose(&[8, 16, 64, 2560]));
    let granularity = *random.choose(&[0, block, 4096, 16 << 10]);
    let max_discard = *random.choose(&[32, 96, 1 << 32]);
    let max_discard = if granularity == 0 { Sectors::ZERO } else { Sectors(max_discard) };
    Limits {
        logical_block_size: block,
        physical_block_size: *random.choose(&[block, 4096]),
        io_min: block,
        max_hw_sectors: max_sectors,
        max_sectors,
        max_segments: *random.choose(&[2, 3, 16, 127]),
        chunk_sectors: Sectors(*random.choose(&[0, 0, 0, 32, 128])),
        discard_granularity: granularity,
        max_hw_discard: max_discard,
        max_discard,
        max_write_zeroes: *random.choose(&[Sectors::ZERO, Sectors(16), Sectors(1 << 32)]),
        dma_alignment: *random.choose(&[1, 4, 512]),
        fua: *random.choose(&[Fua::Auto, Fua::Dsync, Fua::Flush]),
        nr_requests: *random.choose(&[1, 2, 8, 128]),
        wbt_lat: *apart.choose(&[Nanos(0), Nanos(1), Nanos::micros(200), WBT_LAT]),
        merges: *random.choose(&[Merges::All, Merges::All, Merges::Simple, Merges::None]),
        read_ahead: Sectors(*random.choose(&[0, 0, 32, 256])),
        ..Limits::default()
    }
}

/// How oddly its environment behaves.
pub fn draw_chaos(random: &mut Random) -> Chaos {
    if random.coin() {
        return Chaos::default();
    }
    Chaos { spurious_wakeups: 50_000, partial_batches: 300_000, shuffled_batches: 300_000 }
}
