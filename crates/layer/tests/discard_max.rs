//! A smaller limit on discards: what it cuts, and what it leaves alone.

use std::sync::Arc;

use blockwork_engine::*;
use blockwork_layer::DiscardMax;

const CHUNK: u64 = 1024;
const DEVICE: u64 = 64 * CHUNK;

fn leaf(id: u16, granularity: u32) -> Arc<dyn Layer> {
    let limits = Limits { discard_granularity: granularity, ..Limits::default() };
    Arc::new(LeafLayer::new(LeafId(id), NodeId(id), Sectors(DEVICE), limits))
}

struct Resolved {
    extents: Vec<Extent>,
    splits: u64,
}

fn resolve(layer: &dyn Layer, op: Op, sector: u64, nr: u64) -> Resolved {
    let (mut extents, mut tracer) = (Vec::new(), Tracer::default());
    let counters = CounterTable::new(16);
    let span = Span { op, flags: Flags::NONE, sector: Sector(sector), nr: Sectors(nr), at: Sectors(0) };
    layer.resolve(span, &mut Resolver::new(&mut extents, &counters, &mut tracer)).unwrap();
    Resolved { extents, splits: counters.get(layer.node(), Counter::SplitChunk) }
}

#[test]
fn a_discard_is_cut_before_the_layer_sees_it() {
    let capped = DiscardMax::new(leaf(0, 512), "524288").unwrap();
    assert_eq!(capped.limits().max_discard, Sectors(CHUNK));
    let resolved = resolve(&capped, Op::Discard, 0, 3 * CHUNK + 8);
    let pieces: Vec<_> = resolved.extents.iter().map(|it| (it.span.sector.0, it.span.nr.0)).collect();
    assert_eq!(pieces, [(0, CHUNK), (CHUNK, CHUNK), (2 * CHUNK, CHUNK), (3 * CHUNK, 8)]);
    assert_eq!(resolved.splits, 3);
    assert!(resolved.extents.iter().all(|extent| extent.span.flags.has(Flags::NO_MERGE)));
}

#[test]
fn pieces_begin_with_granules() {
    let capped = DiscardMax::new(leaf(0, 4096), "524288").unwrap();
    let resolved = resolve(&capped, Op::Discard, 3, 2 * CHUNK);
    let starts: Vec<_> = resolved.extents.iter().map(|extent| extent.span.sector.0).collect();
    assert_eq!(starts, [3, CHUNK, 2 * CHUNK]);
    assert_eq!(resolved.extents.iter().map(|extent| extent.span.nr.0).sum::<u64>(), 2 * CHUNK);
}

#[test]
fn pieces_are_cut_again_at_chunks() {
    let capped = DiscardMax::new(leaf(0, 512), "524288").unwrap().cut_at_chunks(Sectors(CHUNK));
    let resolved = resolve(&capped, Op::Discard, 256, 2 * CHUNK);
    let pieces: Vec<_> = resolved.extents.iter().map(|it| (it.span.sector.0, it.span.nr.0)).collect();
    assert_eq!(pieces, [(256, 768), (CHUNK, 256), (CHUNK + 256, 768), (2 * CHUNK, 256)]);
    assert_eq!(resolved.splits, 3);
}

#[test]
fn what_is_no_discard_goes_straight_through() {
    let capped = DiscardMax::new(leaf(0, 512), "524288").unwrap();
    for op in [Op::Read, Op::Write, Op::WriteZeroes] {
        let resolved = resolve(&capped, op, 5, 8 * CHUNK);
        assert_eq!(resolved.extents.len(), 1, "{op:?}");
        assert_eq!(resolved.extents[0].span.flags, Flags::NONE, "{op:?}");
    }
}

#[test]
fn none_at_all_is_a_limit_too() {
    let capped = DiscardMax::new(leaf(0, 512), "0").unwrap();
    assert!(!capped.limits().discards());
    let resolved = resolve(&capped, Op::Discard, 0, 8);
    assert_eq!(resolved.extents[0].target, Target::Error(Errno::EOPNOTSUPP));
}

#[test]
fn a_limit_beyond_the_device_is_refused() {
    let limits = Limits {
        max_hw_discard: Sectors(8),
        max_discard: Sectors(8),
        discard_granularity: 512,
        ..Limits::default()
    };
    let leaf = Arc::new(LeafLayer::new(LeafId(0), NodeId(0), Sectors(DEVICE), limits));
    let error = DiscardMax::new(leaf, "8192").unwrap_err().to_string();
    assert!(error.contains("discard_max_bytes=8192") && error.contains("4096"), "{error}");
}
