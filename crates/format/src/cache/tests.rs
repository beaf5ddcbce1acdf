//! What tools do not write: arrays that a driver would never make, and writecaches.

use super::{Kept, blocks, writes};
use crate::Sparse;
use crate::bytes::put;
use crate::thin::{BLOCK_BYTES, BlockKind, Entries, Node};

/// A device with a cache of as many blocks as there are mappings, whose array is in the blocks that are named.
fn device(mappings: &[u64], places: &[(u64, u64)]) -> Sparse {
    let mut device = Sparse::new(64 * BLOCK_BYTES as u64, Vec::new());
    let mut write = |nr: u64, kind: BlockKind, fields: &[(usize, &[u8])]| {
        let mut block = Box::new([0; BLOCK_BYTES]);
        fields.iter().for_each(|(at, bytes)| put(&mut block[..], *at, bytes));
        kind.seal(nr, &mut block);
        device.write(nr * BLOCK_BYTES as u64, block.to_vec());
    };
    let count = u32::try_from(mappings.len()).unwrap();
    let superblock: &[(usize, &[u8])] = &[
        (32, &0o6_142_003_u64.to_le_bytes()),
        (40, &1_u32.to_le_bytes()),
        (192, &1_u64.to_le_bytes()),
        (232, &128_u32.to_le_bytes()),
        (236, &8_u32.to_le_bytes()),
        (240, &count.to_le_bytes()),
    ];
    write(0, BlockKind::CacheSuperblock, superblock);
    for (nth, values) in mappings.chunks(509).enumerate() {
        let count = u32::try_from(values.len()).unwrap();
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        let header = [509, count, 8].map(u32::to_le_bytes).concat();
        write(2 + nth as u64, BlockKind::Array, &[(4, &header), (24, &bytes)]);
    }
    let (keys, values) = places.iter().copied().unzip();
    let node = Node::Leaf(Entries::<u64> { keys, values }).encode(1);
    device.write(BLOCK_BYTES as u64, node.to_vec());
    device
}

fn mapping(origin: u64) -> u64 {
    origin << 16 | 1
}

fn refusal(mappings: &[u64], places: &[(u64, u64)]) -> String {
    blocks::read(&device(mappings, places)).unwrap_err().to_string()
}

#[test]
fn an_array_goes_on_in_the_next_block_and_has_each_of_its_own() {
    let many: Vec<u64> = (0..600).map(|n| mapping(2000 - n)).collect();
    let (_, kept) = blocks::read(&device(&many, &[(0, 2), (1, 3)])).unwrap().unwrap();
    assert_eq!(kept.blocks.len(), 600);
    assert_eq!((kept.blocks[0], kept.blocks[599]), ((1401, 599), (2000, 0)));
    for (places, why) in [
        (&[(0, 2), (1, 2)][..], "a block of its own"),
        (&[(0, 2), (2, 3)], "array block 2"),
        (&[(0, 2)], "mappings is 509"),
        (&[(0, 3), (1, 2)], "91 values in a block"),
        (&[(0, 2), (1, 64)], "a block of its own"),
        (&[(0, 2), (1, 3), (2, 4)], "at most 2"),
    ] {
        let said = refusal(&many, places);
        assert!(said.contains(why), "{said}");
    }
}

#[test]
fn a_block_of_the_origin_that_is_cached_twice_is_refused() {
    let said = refusal(&[mapping(4), mapping(9), mapping(4)], &[(0, 2)]);
    assert!(said.contains("block 4 twice") && said.contains("cache_repair"), "{said}");
    let invalid = blocks::read(&device(&[mapping(4), mapping(9), 4 << 16], &[(0, 2)]));
    assert_eq!(invalid.unwrap().unwrap().1.blocks, [(4, 0), (9, 1)], "one that is not valid is none");
}

#[test]
fn versions_sizes_and_features_that_are_not_known_are_refused_by_name() {
    for (at, value, why) in [
        (40, 3_u32, "version is 3"),
        (252, 4, "incompatible features is 0x4"),
        (232, 100, "block size is 100"),
        (232, 1 << 22, "block size is 4194304"),
        (236, 16, "metadata block size is 16"),
    ] {
        let mut cache = device(&[], &[]);
        let mut block: Box<[u8; BLOCK_BYTES]> = crate::thin::read_block(&cache, 0).unwrap();
        put(&mut block[..], at, &value.to_le_bytes());
        BlockKind::CacheSuperblock.seal(0, &mut block);
        cache.write(0, block.to_vec());
        let said = blocks::read(&cache).unwrap_err().to_string();
        assert!(said.contains(why), "{said}");
    }
}

/// A writecache of blocks of 4 KiB, whose committed sequence is 100.
fn writecache(entries: &[(u64, u64)]) -> Vec<u8> {
    let blocks = entries.len() as u64;
    let mut bytes = [0x2348_9321_u32, 1, 4096, 0].map(u32::to_le_bytes).concat();
    bytes.extend([blocks, 100].map(u64::to_le_bytes).concat());
    bytes.resize(64, 0);
    for (sector, sequence) in entries {
        bytes.extend([*sector, *sequence].map(u64::to_le_bytes).concat());
    }
    bytes.resize(bytes.len().next_multiple_of(4096) + entries.len() * 4096, 0);
    bytes
}

#[test]
fn of_a_writecache_the_newest_that_is_committed_counts() {
    let entries = [(80, 7), (8, 99), (80, 9), (16, 100), (24, u64::MAX), (80, 8), (0, 1)];
    let kept = Kept { block_sectors: 8, start: 8, blocks: vec![(0, 6), (1, 1), (10, 2)] };
    assert_eq!(writes::read(&writecache(&entries)).unwrap(), Some(kept));
    // The entries of 252 blocks fill the first block with the superblock, of 253 they do not.
    for (count, start) in [(252, 8), (253, 16)] {
        let free = vec![(0, u64::MAX); count];
        let kept = Kept { block_sectors: 8, start, blocks: Vec::new() };
        assert_eq!(writes::read(&writecache(&free)).unwrap(), Some(kept));
    }
    assert_eq!(writes::read(&vec![0; 8192]).unwrap(), None, "never used");
}

#[test]
fn a_writecache_that_the_kernel_does_not_write_is_refused_by_name() {
    let refusal = |bytes: &Vec<u8>| writes::read(bytes).unwrap_err().to_string();
    for entries in [&[(8, 3), (8, 3)][..], &[(8, 3), (16, 3), (8, 3)]] {
        let said = refusal(&writecache(entries));
        assert!(said.contains("sector is 8, as another entry of sequence 3"), "{said}");
    }
    assert!(refusal(&writecache(&[(9, 1)])).contains("sector is 9, expected a multiple of 8"));
    let with = |at: usize, value: u64, length: usize| {
        let mut bytes = writecache(&[(8, 1)]);
        put(&mut bytes, at, &value.to_le_bytes()[..length]);
        refusal(&bytes)
    };
    assert!(with(0, 7, 4).contains("magic is 0x7"));
    assert!(with(4, 2, 4).contains("version is 2"));
    assert!(with(8, 3000, 4).contains("block size is 3000"));
    assert!(with(16, 2, 8).contains("blocks is 2, expected as many as 8192 bytes have room for"));
    assert!(with(16, u64::MAX, 8).contains("expected at most 67108864"));
    assert!(refusal(&vec![0; 10]).contains("cannot be read"));
}

/// A device of zeros behind its superblock, as large as one likes, is refused before it fills memory.
#[test]
fn entries_of_zeros_are_refused_at_once() {
    let mut disk = Sparse::new(1 << 40, Vec::new());
    let mut bytes = writecache(&[]);
    put(&mut bytes, 16, &writes::BLOCKS_MAX.to_le_bytes());
    disk.write(0, bytes);
    assert!(writes::read(&disk).unwrap_err().to_string().contains("another entry of sequence 0"));
}
