//! The metadata of thin pools.

use blockwork_format::Sparse;
use blockwork_format::thin::tree::Reader;
use blockwork_format::thin::{
    BLOCK_BYTES, Bitmap, BlockKind, BlockTime, DeviceDetails, IndexEntry, MetadataIndex, Node, Superblock,
    dump, read_block,
};

use crate::input::Input;
use crate::{assert_printable, reached};

/// Each block gets its number and its checksum.
pub(crate) const SEAL: u8 = 1;

/// Blocks of the device.
pub(crate) const BLOCKS: u8 = 64;

/// In this order kinds of blocks have numbers in an input.
pub(crate) const KINDS: [BlockKind; 4] =
    [BlockKind::Superblock, BlockKind::Node, BlockKind::Bitmap, BlockKind::Index];

/// A metadata device of 64 blocks. The input: flags u8; then of each block that is not zeros its number u8, its kind u8, how many words
/// are not zero u8, and these: which u16, value u64.
pub fn thin_metadata(data: &[u8]) {
    read(&device(&mut Input(data)));
}

/// The device that the rest of an input describes.
pub(crate) fn device(input: &mut Input<'_>) -> Sparse {
    device_of(input, &KINDS)
}

/// The same, of blocks of those kinds.
pub(crate) fn device_of(input: &mut Input<'_>, kinds: &[BlockKind]) -> Sparse {
    let flags = input.u8();
    let mut device = Sparse::new(u64::from(BLOCKS) * BLOCK_BYTES as u64, Vec::new());
    while !input.0.is_empty() {
        let (nr, kind, words) = (u64::from(input.u8() % BLOCKS), input.u8(), input.u8());
        let mut block = Box::new([0; BLOCK_BYTES]);
        for _ in 0..words {
            let at = usize::from(input.u16()) % (BLOCK_BYTES / 8) * 8;
            block[at..at + 8].copy_from_slice(&input.array::<8>());
        }
        if flags & SEAL != 0 {
            kinds[usize::from(kind) % kinds.len()].seal(nr, &mut block);
        }
        device.write(nr * BLOCK_BYTES as u64, block.to_vec());
    }
    device
}

fn read(device: &Sparse) {
    let block = read_block(device, 0).expect("it is in memory");
    let superblock = match Superblock::decode(&block) {
        Ok(Some(superblock)) => superblock,
        Ok(None) => return reached("never used"),
        Err(error) => return refused(error),
    };
    reached("superblock");
    assert_eq!(Superblock::decode(&superblock.encode(0)), Ok(Some(superblock)));
    let reader = Reader::new(device);
    // As many entries as all blocks have room for, and not more: no node is taken twice.
    let most = u64::from(BLOCKS) * 336;
    match reader.all::<u64>(superblock.mapping_root, most, "devices") {
        Ok(devices) => devices.into_iter().for_each(|(_, root)| mappings(reader, root, most)),
        Err(error) => refused(error),
    }
    match reader.all::<DeviceDetails>(superblock.details_root, most, "devices") {
        Ok(_) => reached("details"),
        Err(error) => refused(error),
    }
    match reader.all::<IndexEntry>(superblock.data_space_map.bitmap_root, most, "bitmaps") {
        Ok(entries) => entries.into_iter().for_each(|(_, entry)| bitmap(device, entry)),
        Err(error) => refused(error),
    }
    let root = superblock.metadata_space_map;
    let index = read_block(device, root.bitmap_root)
        .and_then(|block| MetadataIndex::decode(root.bitmap_root, &block, root.bitmaps()));
    match index {
        Ok(index) => index.entries.into_iter().for_each(|entry| bitmap(device, entry)),
        Err(error) => refused(error),
    }
    let mut text = String::new();
    if dump(reader, &superblock, &mut text).is_ok() {
        reached("dump");
        assert!(text.ends_with("</superblock>\n"));
    }
}

fn mappings(reader: Reader<'_>, root: u64, most: u64) {
    let all = match reader.all::<BlockTime>(root, most, "mappings") {
        Ok(all) => all,
        Err(error) => return refused(error),
    };
    reached("mappings");
    assert!(all.windows(2).all(|pair| pair[0].0 < pair[1].0), "keys rise over all nodes");
    for (key, mapping) in all.iter().take(3).chain(all.last()) {
        assert_eq!(reader.look_up(root, *key), Ok(Some(*mapping)));
    }
    if let Ok(block) = read_block(reader.source(), root)
        && let Ok(node) = Node::<BlockTime>::decode(root, &block)
    {
        assert_eq!(Node::decode(root, &node.encode(root)), Ok(node));
    }
}

fn bitmap(device: &Sparse, entry: IndexEntry) {
    match read_block(device, entry.block).and_then(|block| Bitmap::decode(entry.block, block)) {
        Ok(_) => reached("bitmap"),
        Err(error) => refused(error),
    }
}

fn refused(error: blockwork_format::FormatError) {
    reached("refused");
    assert_printable(&error.to_string());
}
