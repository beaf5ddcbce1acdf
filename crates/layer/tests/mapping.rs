//! Layers against the slow loop over sectors that anyone can verify.

use std::sync::Arc;

use blockwork_engine::*;
use blockwork_format::md::{Level, ParityLayout};
use blockwork_layer::md::{Array, ArrayConfig, Geometry, MemberConfig};
use blockwork_layer::*;
use proptest::prelude::*;

const NODES: u16 = 64;

fn leaf(id: u16, sectors: u64) -> Arc<dyn Layer> {
    let limits = Limits { discard_granularity: 512, ..Limits::default() };
    Arc::new(LeafLayer::new(LeafId(id), NodeId(id), Sectors(sectors), limits))
}

fn resolve(layer: &dyn Layer, op: Op, sector: u64, nr: u64) -> Vec<Extent> {
    let mut out = Vec::new();
    let counters = CounterTable::new(usize::from(NODES));
    let mut tracer = Tracer::default();
    let span = Span { op, flags: Flags::NONE, sector: Sector(sector), nr: Sectors(nr), at: Sectors(0) };
    layer.resolve(span, &mut Resolver::new(&mut out, &counters, &mut tracer)).unwrap();
    out
}

/// Where each sector of a read lands, by its extents: (target, sector), in order of the bio.
fn by_extents(layer: &dyn Layer, sector: u64, nr: u64) -> Vec<(Target, u64)> {
    let mut all = vec![None; nr as usize];
    for extent in resolve(layer, Op::Read, sector, nr) {
        for i in 0..extent.span.nr.0 {
            let place = &mut all[(extent.span.at.0 + i) as usize];
            assert!(place.is_none(), "sector {} of the bio is mapped twice", extent.span.at.0 + i);
            *place = Some((extent.target, extent.span.sector.0 + i));
        }
    }
    all.into_iter().map(|place| place.expect("every sector is mapped")).collect()
}

/// The striped target's definition, sector by sector.
fn striped_by_hand(chunk: u64, stripes: u64, starts: &[u64], sector: u64) -> (Target, u64) {
    let (c, within) = (sector / chunk, sector % chunk);
    let stripe = c % stripes;
    (Target::Leaf(LeafId(stripe as u16)), starts[stripe as usize] + c / stripes * chunk + within)
}

fn striped(chunk: u64, rows: u64, starts: &[u64]) -> Striped {
    let stripes = starts.iter().enumerate();
    let stripes = stripes
        .map(|(i, start)| Stripe { below: leaf(i as u16, start + rows * chunk), start: Sector(*start) });
    let sectors = Sectors(chunk * rows * starts.len() as u64);
    Striped::new(NodeId(10), Sectors(chunk), stripes.collect(), sectors).unwrap()
}

proptest! {
    #[test]
    fn striped_maps_every_sector_where_its_definition_says(
        chunk in 1u64..20, rows in 1u64..10, starts in prop::collection::vec(0u64..50, 1..6),
        from in 0.0f64..1.0, len in 0.0f64..1.0,
    ) {
        let layer = striped(chunk, rows, &starts);
        let size = layer.sectors().0;
        let sector = (from * size as f64) as u64;
        let nr = 1 + (len * (size - sector - 1) as f64) as u64;
        let slow: Vec<_> =
            (sector..sector + nr).map(|s| striped_by_hand(chunk, starts.len() as u64, &starts, s)).collect();
        prop_assert_eq!(by_extents(&layer, sector, nr), slow);
    }

    #[test]
    fn a_discard_touches_the_same_sectors_as_a_read_with_at_most_one_request_a_stripe(
        chunk in 1u64..20, rows in 1u64..10, starts in prop::collection::vec(0u64..50, 1..6),
        from in 0.0f64..1.0, len in 0.0f64..1.0,
    ) {
        let layer = striped(chunk, rows, &starts);
        let size = layer.sectors().0;
        let sector = (from * size as f64) as u64;
        let nr = 1 + (len * (size - sector - 1) as f64) as u64;
        let extents = resolve(&layer, Op::Discard, sector, nr);
        prop_assert!(extents.len() <= starts.len());
        let mut discarded: Vec<_> = extents
            .iter()
            .flat_map(|extent| (0..extent.span.nr.0).map(|i| (extent.target, extent.span.sector.0 + i)))
            .map(|(target, sector)| (format!("{target:?}"), sector))
            .collect();
        let mut read: Vec<_> =
            by_extents(&layer, sector, nr).into_iter().map(|(target, at)| (format!("{target:?}"), at)).collect();
        discarded.sort();
        read.sort();
        prop_assert_eq!(discarded, read);
    }

    #[test]
    fn a_table_of_linear_targets_is_their_concatenation(
        parts in prop::collection::vec((0u64..30, 1u64..40), 1..8), from in 0.0f64..1.0, len in 0.0f64..1.0,
    ) {
        let mut by_hand = Vec::new();
        let mut segments = Vec::new();
        for (i, (offset, size)) in parts.iter().enumerate() {
            let below = leaf(i as u16, offset + size);
            let linear = Linear::new(NodeId(20 + i as u16), below, Sector(*offset), Sectors(*size)).unwrap();
            segments.push(Segment { start: Sector(by_hand.len() as u64), target: Arc::new(linear) });
            by_hand.extend((0..*size).map(|s| (Target::Leaf(LeafId(i as u16)), offset + s)));
        }
        let table = Table::new(NodeId(19), segments).unwrap();
        let size = table.sectors().0;
        prop_assert_eq!(size as usize, by_hand.len());
        let sector = (from * size as f64) as u64;
        let nr = 1 + (len * (size - sector - 1) as f64) as u64;
        prop_assert_eq!(by_extents(&table, sector, nr), &by_hand[sector as usize..(sector + nr) as usize]);
    }

    #[test]
    fn an_overlay_has_its_blocks_elsewhere_and_the_rest_where_it_was(
        block in 1u64..9, start in 0u64..20, cut in 0u64..8, places in prop::collection::vec(0u32..40, 12),
        kept in 0u32..1 << 12, in_order: bool, from in 0.0f64..1.0, len in 0.0f64..1.0,
    ) {
        let place = |n: u64| if in_order { n as u32 + 3 } else { places[n as usize] };
        let blocks: Vec<_> = (0..12).filter(|n| kept >> n & 1 == 1).map(|n| (n, place(n))).collect();
        let size = 12 * block - cut.min(block - 1);
        let layer = overlay(block, start, size, &blocks).unwrap();
        let sector = (from * size as f64) as u64;
        let nr = 1 + (len * (size - sector - 1) as f64) as u64;
        let by_hand: Vec<_> = (sector..sector + nr)
            .map(|at| match blocks.iter().find(|(own, _)| *own == at / block) {
                Some((_, place)) => (Target::Leaf(LeafId(1)), start + u64::from(*place) * block + at % block),
                None => (Target::Leaf(LeafId(0)), at),
            })
            .collect();
        prop_assert_eq!(by_extents(&layer, sector, nr), by_hand);
    }
}

fn parity(members: &[(u64, u64)], size: u64) -> Result<Arc<Array>, String> {
    let layout = ParityLayout::new(Level::Raid5, 2, 4).unwrap();
    let member = |(n, (start, sectors)): (u16, &(u64, u64))| {
        Some(MemberConfig {
            name: n.to_string(),
            layer: leaf(n, *sectors),
            data_start: Sector(*start),
            recovered: None,
            write_mostly: false,
            bad: Vec::new(),
        })
    };
    let config = ArrayConfig {
        name: "an array".to_owned(),
        geometry: Geometry::parity(layout, Sectors(8), Sectors(size)).map_err(|error| error.to_string())?,
        members: (0..).zip(members).map(member).collect(),
        resync_from: None,
        intent: None,
        record: None,
    };
    Array::new(NodeId(10), config).map_err(|error| error.to_string())
}

#[test]
fn an_array_with_parity_has_its_data_beside_it() {
    let layer = parity(&[(0, 40), (100, 200), (16, 40), (0, 24)], 23).unwrap();
    assert_eq!(layer.sectors(), Sectors(48), "two whole rows of three");
    // Left symmetric: the data of a row begin behind its parity, which is on the last member, then on the one before it.
    let by_hand = |row: u64, place: u16, start: u64| {
        (0..8).map(move |n| (Target::Leaf(LeafId(place)), start + 8 * row + n))
    };
    let expected: Vec<_> = [(0, 0, 0), (0, 1, 100), (0, 2, 16), (1, 3, 0), (1, 0, 0), (1, 1, 100)]
        .into_iter()
        .flat_map(|(row, place, start)| by_hand(row, place, start))
        .collect();
    for (sector, nr) in [(0, 48), (3, 30), (8, 8), (47, 1)] {
        let part = &expected[sector as usize..(sector + nr) as usize];
        assert_eq!(by_extents(&*layer, sector, nr), part, "{nr} from {sector} on");
    }
    assert!(layer.limits().read_only);
    assert_eq!(resolve(&*layer, Op::Write, 0, 8)[0].target, Target::Error(Errno::EROFS));
    assert_eq!(resolve(&*layer, Op::Flush, 0, 0).len(), 4);
}

#[test]
fn an_array_with_parity_whose_members_do_not_make_one_is_refused() {
    let refused = |members: &[(u64, u64)], size| parity(members, size).unwrap_err().to_string();
    assert!(refused(&[(0, 40); 3], 16).contains("3 places for members, expected 4"));
    let said = refused(&[(0, 40), (0, 40), (30, 45), (0, 40)], 16);
    assert!(said.contains("member 2 has 45 sectors, expected 46 or more; was"), "{said}");
    assert!(refused(&[(0, 40); 4], 7).contains("no room for a chunk of 8"));
    assert!(refused(&[(0, 40); 4], u64::MAX).contains("a device at most"));
}

fn overlay(block: u64, start: u64, size: u64, blocks: &[(u64, u32)]) -> Result<Overlay, OverlayError> {
    let config = OverlayConfig {
        origin: leaf(0, size),
        fast: leaf(1, start + 40 * block),
        block: block.try_into().unwrap(),
        start: Sector(start),
        blocks: blocks.to_vec(),
    };
    Overlay::new(NodeId(10), config)
}

#[test]
fn an_overlay_of_blocks_in_a_row_is_one_request_and_nothing_of_it_is_written() {
    let layer = overlay(8, 16, 96, &[(2, 5), (3, 6), (4, 7), (6, 8)]).unwrap();
    assert_eq!(resolve(&layer, Op::Read, 20, 16).len(), 1);
    let sectors: Vec<_> =
        resolve(&layer, Op::Read, 0, 96).iter().map(|it| (it.span.sector.0, it.span.nr.0)).collect();
    assert_eq!(sectors, [(0, 16), (56, 24), (40, 8), (80, 8), (56, 40)]);
    assert!(layer.limits().read_only);
    for op in [Op::Write, Op::Discard, Op::WriteZeroes] {
        assert_eq!(resolve(&layer, op, 0, 96)[0].target, Target::Error(Errno::EROFS));
    }
    assert_eq!(resolve(&layer, Op::Flush, 0, 0).len(), 2);
}

#[test]
fn an_overlay_of_blocks_that_are_nowhere_or_not_in_order_is_refused() {
    let refused = |blocks: &[(u64, u32)]| overlay(8, 16, 92, blocks).unwrap_err().to_string();
    assert!(overlay(8, 16, 92, &[(11, 39)]).is_ok(), "the last ones of both");
    assert!(refused(&[(12, 0)]).contains("block 12 of the origin is at sector 96, of 92"));
    assert!(refused(&[(u64::MAX, 0)]).contains("of the origin"));
    assert!(refused(&[(3, 40)]).contains("block 40 of the fast device is at sector 336, of 336"));
    assert!(refused(&[(3, 1), (3, 2)]).contains("block 3 of the origin is there twice"));
    assert!(refused(&[(3, 1), (2, 2)]).contains("block 2"));
}

#[test]
fn a_discard_of_a_whole_striped_device_is_one_request_a_stripe() {
    // 4 x 1 TiB in chunks of 512 KiB: the kernel's own linear arithmetic, not two million pieces.
    let layer = striped(1024, 1 << 21, &[0, 0, 2048, 0]);
    let extents = resolve(&layer, Op::Discard, 0, layer.sectors().0);
    assert_eq!(extents.len(), 4);
    assert!(extents.iter().all(|extent| extent.span.nr.0 == 1 << 31));
}

#[test]
fn a_flush_reaches_each_leaf_once_however_many_ways_lead_there() {
    let below = leaf(0, 1000);
    let part = |node, start| -> Arc<dyn Layer> {
        Arc::new(Linear::new(NodeId(node), below.clone(), Sector(start), Sectors(100)).unwrap())
    };
    let segments = vec![
        Segment { start: Sector(0), target: part(1, 0) },
        Segment { start: Sector(100), target: part(2, 500) },
        Segment { start: Sector(200), target: Arc::new(Zero::new(NodeId(3), Sectors(50))) },
        Segment { start: Sector(250), target: Arc::new(ErrorTarget::new(NodeId(4), Sectors(50))) },
    ];
    let table = Table::new(NodeId(5), segments).unwrap();
    let extents = resolve(&table, Op::Flush, 0, 0);
    assert_eq!(extents.len(), 1);
    assert_eq!(extents[0].target, Target::Leaf(LeafId(0)));
}

#[test]
fn zero_and_error_end_what_reaches_them() {
    let zero = Zero::new(NodeId(1), Sectors(10));
    assert_eq!(resolve(&zero, Op::Write, 3, 4)[0].target, Target::Zero);
    let error = ErrorTarget::new(NodeId(1), Sectors(10));
    assert_eq!(resolve(&error, Op::Read, 3, 4)[0].target, Target::Error(Errno::EIO));
}

#[test]
fn shapes_that_cannot_be_are_refused() {
    let stripe = |size| Stripe { below: leaf(0, size), start: Sector(5) };
    let new = |chunk, stripes, sectors| {
        Striped::new(NodeId(9), Sectors(chunk), stripes, Sectors(sectors)).map(drop)
    };
    assert_eq!(new(8, vec![], 16), Err(StripedError::None));
    assert_eq!(new(0, vec![stripe(100)], 16), Err(StripedError::Chunk));
    assert!(matches!(new(8, vec![stripe(100), stripe(100)], 24), Err(StripedError::Uneven { .. })));
    assert!(matches!(
        new(8, vec![stripe(100), stripe(12)], 16),
        Err(StripedError::Outside { stripe: 1, end: 13, .. })
    ));
    assert!(matches!(new(8, vec![stripe(100), stripe(u64::MAX >> 9)], 0), Err(StripedError::Uneven { .. })));

    assert!(Linear::new(NodeId(9), leaf(0, 100), Sector(90), Sectors(11)).is_none());
    assert!(Linear::new(NodeId(9), leaf(0, 100), Sector(u64::MAX), Sectors(11)).is_none());

    let at = |start| Segment { start: Sector(start), target: Arc::new(Zero::new(NodeId(1), Sectors(10))) };
    assert_eq!(Table::new(NodeId(9), vec![]).map(drop), Err(TableError::Empty));
    let gap = Table::new(NodeId(9), vec![at(0), at(11)]).map(drop);
    assert_eq!(gap, Err(TableError::Start { index: 1, start: Sector(11), expected: Sector(10) }));
    assert!(Table::new(NodeId(9), vec![at(0), at(9)]).is_err());
}

/// A leaf of blocks of 4 KiB.
fn coarse(id: u16, sectors: u64) -> Arc<dyn Layer> {
    let limits = Limits { logical_block_size: 4096, ..Limits::default() };
    Arc::new(LeafLayer::new(LeafId(id), NodeId(id), Sectors(sectors), limits))
}

/// Targets of so many sectors, side by side over leaves.
fn table(targets: &[(Arc<dyn Layer>, u64)]) -> Table {
    let mut start = Sector(0);
    let targets = targets.iter().zip(10..).map(|((leaf, sectors), node)| {
        let target = Linear::new(NodeId(node), leaf.clone(), Sector(0), Sectors(*sectors)).unwrap();
        let segment = Segment { start, target: Arc::new(target) };
        start = start + Sectors(*sectors);
        segment
    });
    let targets = targets.collect();
    Table::new(NodeId(20), targets).unwrap()
}

#[test]
fn a_table_whose_targets_meet_in_the_middle_of_a_block_says_so() {
    let (fine, coarse) = (|id| leaf(id, 4096), |id| coarse(id, 4096));
    let at = |sector| Some(Misaligned::Boundary { at: Sector(sector) });
    assert_eq!(table(&[(coarse(0), 1000), (coarse(1), 1001)]).misaligned(), None, "the end is no boundary");
    assert_eq!(table(&[(coarse(0), 1000), (coarse(1), 1001), (coarse(2), 7)]).misaligned(), at(2001));
    assert_eq!(table(&[(coarse(0), 1001), (fine(1), 7)]).misaligned(), at(1001));
    assert_eq!(table(&[(fine(0), 1001), (coarse(1), 8)]).misaligned(), at(1001));
    assert_eq!(table(&[(fine(0), 1001), (fine(1), 7), (coarse(2), 8)]).misaligned(), None);
    // The rest of the last block is not on the last disk.
    assert_eq!(table(&[(coarse(0), 1000), (fine(1), 1001)]).misaligned(), at(2001));
    assert_eq!(table(&[(coarse(0), 1000), (fine(1), 1008)]).misaligned(), None);
}

#[test]
fn the_last_block_of_an_uneven_table_is_all_of_its_last_target() {
    let table = table(&[(coarse(0, 4096), 1000), (coarse(1, 4096), 1001)]);
    let places = by_extents(&table, 1992, 16);
    let expected = (0..16).map(|i| (Target::Leaf(LeafId(1)), 992 + i));
    assert_eq!(places, expected.collect::<Vec<_>>());
}

#[test]
fn stripes_of_parts_of_blocks_say_so() {
    let striped = |chunk| {
        let stripes = [0, 1].map(|id| Stripe { below: coarse(id, 4096), start: Sector(0) });
        Striped::new(NodeId(10), Sectors(chunk), stripes.into(), Sectors(64)).unwrap().misaligned()
    };
    assert_eq!(striped(4), Some(Misaligned::Boundary { at: Sector(4) }));
    assert_eq!((striped(8), striped(16)), (None, None));
}
