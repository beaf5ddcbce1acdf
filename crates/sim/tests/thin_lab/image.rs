//! What is on the devices of a pool, read without the code that is tested: by format's reader, from the devices themselves.

use std::collections::BTreeMap;

use blockwork_format::Source;
use blockwork_format::thin::tree::Reader;
use blockwork_format::thin::{BlockTime, DeviceDetails, Superblock, read_block};

use crate::running::bytes::Bytes;

/// The superblock that is on a metadata device.
pub fn superblock(metadata: &Bytes<'_>) -> Result<Superblock, String> {
    let block = read_block(metadata, 0).map_err(|error| error.to_string())?;
    let found = Superblock::decode(&block).map_err(|error| error.to_string())?;
    found.ok_or_else(|| "the metadata is blank".to_owned())
}

/// The devices of a pool.
pub fn devices(metadata: &Bytes<'_>) -> Result<Vec<(u64, DeviceDetails)>, String> {
    let root = superblock(metadata)?.details_root;
    Reader::new(metadata).all(root, 1000, "devices").map_err(|error| error.to_string())
}

/// What a device of so many sectors has.
pub fn content(metadata: &Bytes<'_>, data: &Bytes<'_>, id: u64, sectors: u64) -> Result<Vec<u8>, String> {
    let superblock = superblock(metadata)?;
    let reader = Reader::new(metadata);
    let text = |error: blockwork_format::FormatError| error.to_string();
    let root = reader.look_up::<u64>(superblock.mapping_root, id).map_err(text)?;
    let root = root.ok_or_else(|| format!("there is no device {id}"))?;
    let mappings = reader.all::<BlockTime>(root, 100_000, "mappings").map_err(text)?;
    let mappings: BTreeMap<u64, BlockTime> = mappings.into_iter().collect();
    let size = u64::from(superblock.data_block_sectors);
    let mut bytes = vec![0; sectors as usize * 512];
    for (sector, piece) in (0..sectors).zip(bytes.chunks_mut(512)) {
        if let Some(mapping) = mappings.get(&(sector / size)) {
            data.read_at((mapping.block * size + sector % size) * 512, piece)
                .map_err(|error| error.to_string())?;
        }
    }
    Ok(bytes)
}
