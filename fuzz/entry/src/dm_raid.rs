//! Superblocks of dm-raid.

use blockwork_format::dm_raid::{DEVICES_MAX, SUPERBLOCK_BYTES, Superblock};

use crate::input::Input;
use crate::{assert_printable, reached};

/// A superblock of a leg. The input: flags u8 (bit 0: the magic number is mended); its bytes.
pub fn dm_raid(data: &[u8]) {
    let mut input = Input(data);
    let mends = input.u8() & 1 != 0;
    let mut bytes = input.0[..input.0.len().min(512)].to_vec();
    if let (true, Some(magic)) = (mends, bytes.get_mut(..4)) {
        magic.copy_from_slice(b"DmRd");
    }
    let mut superblock = match Superblock::decode(&bytes) {
        Ok(superblock) => superblock,
        Err(error) => {
            reached("refused");
            return assert_printable(&error.to_string());
        }
    };
    reached("superblock");
    assert!(Superblock::is_at(&bytes));
    assert!(superblock.array_position < superblock.num_devices && superblock.num_devices <= DEVICES_MAX);
    let encoded = superblock.encode();
    assert_eq!(encoded[..SUPERBLOCK_BYTES], bytes[..SUPERBLOCK_BYTES]);
    match superblock.supports() {
        Ok(()) => reached("supported"),
        Err(error) => assert_printable(&error.to_string()),
    }
    let own = u16::try_from(superblock.array_position).expect("below 253");
    superblock.fail(own);
    assert!(superblock.has_failed(own));
    assert_eq!(Superblock::decode(&superblock.encode()), Ok(superblock));
}
