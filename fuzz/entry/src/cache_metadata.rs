//! The metadata of dm-cache, and what dm-writecache writes.

use blockwork_format::cache::{Kept, blocks, writes};
use blockwork_format::thin::{BLOCK_BYTES, BlockKind};
use blockwork_format::{FormatError, Sparse};

use crate::input::Input;
use crate::thin_metadata::{BLOCKS, device_of};
use crate::{assert_printable, reached};

/// In this order kinds of blocks have numbers in an input.
pub(crate) const KINDS: [BlockKind; 3] = [BlockKind::CacheSuperblock, BlockKind::Node, BlockKind::Array];

/// The head of a writecache is mended: magic and version.
pub(crate) const FIX_HEADER: u8 = 1;

/// A metadata device of 64 blocks, as `thin_metadata` has it.
pub fn cache_metadata(data: &[u8]) {
    let device = device_of(&mut Input(data), &KINDS);
    match blocks::read(&device) {
        Ok(None) => reached("never used"),
        Ok(Some((superblock, kept))) => {
            reached("superblock");
            assert!(superblock.blocks as usize >= kept.blocks.len());
            check(&kept, superblock.blocks.into());
            // As many as all blocks have room for, and not more: no block is taken twice.
            assert!(kept.blocks.len() <= usize::from(BLOCKS) * BLOCK_BYTES / 8);
        }
        Err(error) => refused(&error),
    }
}

/// A writecache. The input: flags u8; how many zeros follow u32; its bytes.
pub fn writecache(data: &[u8]) {
    let mut input = Input(data);
    let (flags, zeros) = (input.u8(), input.u32());
    let mut bytes = input.0.to_vec();
    if flags & FIX_HEADER != 0 && bytes.len() >= 8 {
        bytes[..8].copy_from_slice(b"\x21\x93\x48\x23\x01\0\0\0");
    }
    let size = bytes.len() as u64 + u64::from(zeros);
    let mut disk = Sparse::new(size, Vec::new());
    disk.write(0, bytes);
    match writes::read(&disk) {
        Ok(None) => reached("never used"),
        Ok(Some(kept)) => {
            reached("writecache");
            let room = (size / 512).saturating_sub(kept.start) / kept.block_sectors;
            check(&kept, room);
        }
        Err(error) => refused(&error),
    }
}

fn check(kept: &Kept, blocks: u64) {
    assert!(kept.blocks.windows(2).all(|pair| pair[0].0 < pair[1].0), "the origin's blocks rise");
    let mut of_fast: Vec<u32> = kept.blocks.iter().map(|(_, fast)| *fast).collect();
    of_fast.sort_unstable();
    assert!(of_fast.windows(2).all(|pair| pair[0] < pair[1]), "and none of the fast device is there twice");
    assert!(of_fast.last().is_none_or(|last| u64::from(*last) < blocks));
    kept.blocks.iter().for_each(|_| reached("kept"));
}

fn refused(error: &FormatError) {
    reached("refused");
    assert_printable(&error.to_string());
}
