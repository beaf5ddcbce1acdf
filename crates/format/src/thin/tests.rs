//! Metadata that was built is read again; each field that is wrong is named; nothing hostile is walked for ever.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::build::{Contents, Device, Mappings, build};
use super::tree::{Place, Reader};
use super::*;
use crate::Sparse;
use crate::bytes::length;

/// A pool of 64 KiB blocks: device 1 with `count` mappings of every other block, device 2 a snapshot of it, device 9 an empty one.
fn pool(count: u64) -> (Sparse, Superblock) {
    let mapping = |n: u64| (2 * n, BlockTime { block: (n * 7) % 4099, time: 0 });
    let details = DeviceDetails { snapshotted_time: 1, ..DeviceDetails::default() };
    let own = |mappings| Device { details, mappings };
    let devices = BTreeMap::from([
        (1, own(Mappings::Own((0..count).map(mapping).collect()))),
        (2, own(Mappings::Of(1))),
        (9, own(Mappings::Own(BTreeMap::new()))),
    ]);
    let contents = Contents {
        data_block_sectors: 128,
        data_blocks: 20_000,
        metadata_blocks: 2048,
        time: 1,
        transaction_id: 3,
        devices,
    };
    let disk = Sparse::new(2048 * BLOCK_LENGTH, build(&contents).unwrap());
    let superblock = Superblock::decode(&read_block(&disk, 0).unwrap()).unwrap().unwrap();
    (disk, superblock)
}

fn root_of(reader: Reader<'_>, superblock: &Superblock, device: u64) -> u64 {
    reader.look_up(superblock.mapping_root, device).unwrap().unwrap()
}

#[test]
fn checksums_are_those_that_linux_computes() {
    let zeros = Box::new([0; BLOCK_BYTES]);
    let expected = [
        (BlockKind::Superblock, 0x58cf_d397),
        (BlockKind::Node, 0x58cc_7e82),
        (BlockKind::Bitmap, 0x58ce_0b1a),
        (BlockKind::Index, 0x58cf_d54f),
    ];
    for (kind, sum) in expected {
        assert_eq!(kind.checksum(&zeros), sum, "{kind:?}");
    }
}

#[test]
fn nodes_have_room_for_as_many_entries_as_those_of_linux() {
    let sizes = [<u32 as Value>::BYTES, u64::BYTES, IndexEntry::BYTES, DeviceDetails::BYTES];
    assert_eq!(sizes.map(max_entries), [336, 252, 168, 126]);
}

#[test]
fn what_was_built_is_found_again_by_key_and_in_order() {
    for count in [0, 1, 252, 253, 1000, 64_000] {
        let (disk, superblock) = pool(count);
        let reader = Reader::new(&disk);
        let root = root_of(reader, &superblock, 1);
        assert_eq!(root_of(reader, &superblock, 2), root, "a snapshot has its origin's tree");
        let all = reader.all::<BlockTime>(root, count, "mappings").unwrap();
        assert_eq!(length(all.len()), count);
        for key in [0, 1, 2, 503, 504, 2 * count, 2 * count + 2, u64::MAX] {
            let expected =
                (key % 2 == 0 && key / 2 < count).then(|| BlockTime { block: (key / 2 * 7) % 4099, time: 0 });
            assert_eq!(reader.look_up(root, key).unwrap(), expected, "{key} of {count}");
        }
        let details: DeviceDetails = reader.look_up(superblock.details_root, 2).unwrap().unwrap();
        assert_eq!(details.mapped_blocks, count);
    }
}

#[test]
fn a_dump_has_the_form_of_thin_dump() {
    let mut mappings = BTreeMap::new();
    mappings.extend((0..32).map(|n| (n, BlockTime { block: 100 + n, time: 0 })));
    mappings.insert(32, BlockTime { block: 132, time: 1 });
    let device = Device {
        details: DeviceDetails { transaction_id: 4, ..Default::default() },
        mappings: Mappings::Own(mappings),
    };
    let contents = Contents {
        data_block_sectors: 256,
        data_blocks: 1000,
        metadata_blocks: 64,
        time: 2,
        transaction_id: 5,
        devices: BTreeMap::from([(7, device)]),
    };
    let disk = Sparse::new(64 * BLOCK_LENGTH, build(&contents).unwrap());
    let superblock = Superblock::decode(&read_block(&disk, 0).unwrap()).unwrap().unwrap();
    let mut text = String::new();
    dump(Reader::new(&disk), &superblock, &mut text).unwrap();
    let expected = r#"<superblock uuid="" time="2" transaction="5" flags="0" version="2" data_block_size="256" nr_data_blocks="1000">
  <device dev_id="7" mapped_blocks="33" transaction="4" creation_time="0" snap_time="0">
    <range_mapping origin_begin="0" data_begin="100" length="32" time="0"/>
    <single_mapping origin_block="32" data_block="132" time="1"/>
  </device>
</superblock>
"#;
    assert_eq!(text, expected);
}

#[test]
fn a_metadata_device_that_is_too_small_is_refused() {
    let contents = Contents {
        data_block_sectors: 128,
        data_blocks: 40 * BITMAP_ENTRIES,
        metadata_blocks: 40,
        ..Contents::default()
    };
    let error = build(&contents).unwrap_err().to_string();
    assert!(error.starts_with("thin metadata at 0: size is 40 blocks, expected at least 48"), "{error}");
}

#[test]
fn a_device_of_zeros_was_never_used_and_other_things_are_no_pool() {
    let mut block = Box::new([0; BLOCK_BYTES]);
    assert_eq!(Superblock::decode(&block), Ok(None));
    block[100] = 1;
    let error = Superblock::decode(&block).unwrap_err().to_string();
    let expected = "thin superblock at 32: magic is 0 (metadata block 0), expected 27022010; \
                    is this the metadata of a thin pool?";
    assert_eq!(error, expected);
}

#[test]
fn each_field_of_a_superblock_that_is_wrong_is_named() {
    let (_, superblock) = pool(3);
    let good = superblock.encode(0);
    assert_eq!(Superblock::decode(&good), Ok(Some(superblock)));
    // Linux asks for no version.
    let old = Superblock { version: 1, ..superblock };
    assert_eq!(Superblock::decode(&old.encode(0)), Ok(Some(old)));
    let cases: [(usize, u32, &str); 5] = [
        (360, 4, "incompatible features"),
        (336, 127, "data block size"),
        (340, 16, "metadata block size"),
        (64 + 4, 0x8000, "blocks of data"),
        (192, 4_161_601, "blocks of the metadata"),
    ];
    for (at, value, field) in cases {
        let mut block = good.clone();
        block[at..at + 4].copy_from_slice(&value.to_le_bytes());
        assert_eq!(Superblock::decode(&block).unwrap_err().field, "checksum");
        BlockKind::Superblock.seal(0, &mut block);
        assert_eq!(Superblock::decode(&block).unwrap_err().field, field);
    }
}

#[test]
fn each_field_of_a_node_that_is_wrong_is_named() {
    let entries = Entries { keys: vec![3, 5], values: vec![10u64, 11] };
    let good = Node::<u32>::Internal(entries).encode(6);
    assert!(Node::<u32>::decode(6, &good).is_ok());
    assert_eq!(Node::<u32>::decode(7, &good).unwrap_err().field, "block number");
    let cases: [(usize, u32, &str); 7] = [
        (4, 3, "flags"),
        (4, 2, "value size"),
        (24, 16, "value size"),
        (20, 251, "max_entries"),
        (16, 253, "nr_entries"),
        (16, 0, "nr_entries"),
        (32, 5, "key"),
    ];
    for (at, value, field) in cases {
        let mut block = good.clone();
        block[at..at + 4].copy_from_slice(&value.to_le_bytes());
        assert_eq!(Node::<u32>::decode(6, &block).unwrap_err().field, "checksum");
        BlockKind::Node.seal(6, &mut block);
        assert_eq!(Node::<u32>::decode(6, &block).unwrap_err().field, field, "{at}");
    }
}

#[test]
fn trees_with_loops_and_children_that_are_no_blocks_end_in_an_error() {
    let node = |nr: u64, keys: Vec<u64>, values: Vec<u64>| {
        let block = Node::<u64>::Internal(Entries { keys, values }).encode(nr);
        crate::Piece { offset: nr * BLOCK_LENGTH, bytes: block.to_vec() }
    };
    let field = |pieces| {
        let disk = Sparse::new(64 * BLOCK_LENGTH, pieces);
        Reader::new(&disk).all::<u64>(1, 100, "values").unwrap_err().field
    };
    assert_eq!(field(vec![node(1, vec![0], vec![1])]), "flags", "itself");
    assert_eq!(field(vec![node(1, vec![0, 9], vec![2, 2]), node(2, vec![0], vec![1])]), "last key");
    assert_eq!(field(vec![node(1, vec![7], vec![2]), node(2, vec![6], vec![3])]), "first key");
    assert_eq!(field(vec![node(1, vec![7], vec![64])]), "child");
    assert_eq!(field(vec![node(1, vec![7], vec![0])]), "child");
}

#[test]
fn more_entries_than_there_may_be_are_an_error() {
    let (disk, superblock) = pool(1000);
    let reader = Reader::new(&disk);
    let root = root_of(reader, &superblock, 1);
    let error = reader.all::<BlockTime>(root, 999, "mappings").unwrap_err();
    assert_eq!((error.field, &*error.expected), ("mappings", "at most 999"));
}

#[test]
fn the_place_of_a_child_has_the_range_of_its_parents() {
    let children = Entries { keys: vec![10, 20], values: vec![5, 6] };
    let first = Place::root(1).child(&children, 0);
    assert_eq!((first.nr, first.low, first.high), (5, 10, Some(20)));
    let last = first.child(&children, 1);
    assert_eq!((last.nr, last.low, last.high), (6, 20, Some(20)));
    assert!(!last.is_root() && Place::root(1).is_root());
}

proptest! {
    #[test]
    fn bitmaps_and_indexes_are_read_as_they_were_written(
        counts in proptest::collection::vec((0..BITMAP_ENTRIES, 0u32..6), 0..200),
        entries in proptest::collection::vec((any::<u64>(), any::<u32>(), any::<u32>()), 0..255),
    ) {
        let (mut bitmap, mut expected) = (Bitmap::default(), BTreeMap::new());
        for (entry, count) in counts {
            bitmap.set(entry, count);
            expected.insert(entry, count.min(3));
        }
        let bitmap = Bitmap::decode(7, bitmap.encode(7)).unwrap();
        for entry in 0..BITMAP_ENTRIES {
            prop_assert_eq!(bitmap.get(entry), expected.get(&entry).copied().unwrap_or(0));
        }
        let entry = |(block, free, none_free_before)| IndexEntry { block, free, none_free_before };
        let index = MetadataIndex { entries: entries.into_iter().map(entry).collect() };
        let bitmaps = length(index.entries.len());
        prop_assert_eq!(MetadataIndex::decode(9, &index.encode(9), bitmaps), Ok(index));
    }

    #[test]
    fn the_first_entry_in_use_is_found_in_any_of_some_bitmaps(
        used in proptest::collection::vec((0usize..2, 0..BITMAP_ENTRIES, 1u32..4), 0..12),
        from in 0..BITMAP_ENTRIES,
        length in 0u64..5000,
    ) {
        let mut maps = [Bitmap::default(), Bitmap::default()];
        used.iter().for_each(|(map, entry, count)| maps[*map].set(*entry, *count));
        let end = (from + length).min(BITMAP_ENTRIES);
        let first = (from..end).find(|entry| maps.iter().any(|map| map.get(*entry) > 0));
        prop_assert_eq!(Bitmap::first_used(&[&maps[0], &maps[1]], from, end), first.unwrap_or(end));
    }

    #[test]
    fn values_are_read_as_they_were_written(block in 0..DATA_BLOCKS_MAX, time in 0u32..1 << 24) {
        let (mapping, mut bytes) = (BlockTime { block, time }, [0; 8]);
        mapping.encode(&mut bytes);
        prop_assert_eq!(u64::from_le_bytes(bytes), block << 24 | u64::from(time));
        prop_assert_eq!(BlockTime::decode(&bytes), mapping);
    }
}

#[test]
fn counts_in_a_bitmap_are_in_linux_order() {
    // Of a pair the first bit weighs 2.
    let mut bitmap = Bitmap::default();
    for (entry, count) in [(0, 1), (1, 2), (2, 3), (3, 0), (5, 1)] {
        bitmap.set(entry, count);
    }
    assert_eq!(bitmap.encode(1)[16..18], [0b00_11_01_10, 0b10_00]);
}
