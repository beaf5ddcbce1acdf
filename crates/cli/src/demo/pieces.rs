//! What the demo's client asks for over NBD: whole volumes to hash, and many small pieces to write and read back.

use anyhow::{Result, ensure};
use ring::digest::{Context as Hash, SHA256};

use super::disks::hex;
use crate::nbd_client::{NbdClient, Transfer};

/// Bytes of a request when a whole volume is read, and requests under way.
const LARGE: u64 = 1 << 20;
const LARGE_DEPTH: u64 = 8;
/// Bytes of a piece.
pub(crate) const PIECE: u64 = 4096;

/// SHA-256 of a whole volume.
pub(crate) fn hash_volume(client: &mut NbdClient) -> Result<String> {
    let mut hash = Hash::new(&SHA256);
    let mut offset = 0;
    while offset < client.size {
        let end = client.size.min(offset + LARGE * LARGE_DEPTH);
        let mut transfers: Vec<_> = (offset..end)
            .step_by(LARGE as usize)
            .map(|at| Transfer { offset: at, data: vec![0; LARGE.min(end - at) as usize] })
            .collect();
        client.read(&mut transfers)?;
        transfers.iter().for_each(|transfer| hash.update(&transfer.data));
        offset = end;
    }
    Ok(hex(hash))
}

/// Writes pieces that tell their own places, from `offset` on, and flushes.
pub(crate) fn write(client: &mut NbdClient, offset: u64, bytes: u64) -> Result<()> {
    let mut transfers: Vec<_> =
        places(offset, bytes).map(|offset| Transfer { offset, data: pattern(offset) }).collect();
    client.write(&mut transfers)?;
    client.flush()
}

/// Reads in pieces what stands there.
pub(crate) fn read(client: &mut NbdClient, offset: u64, bytes: u64) -> Result<Vec<Transfer>> {
    let mut transfers: Vec<_> =
        places(offset, bytes).map(|offset| Transfer { offset, data: vec![0; PIECE as usize] }).collect();
    client.read(&mut transfers)?;
    Ok(transfers)
}

/// Whether these are pieces that [`write()`] has written.
pub(crate) fn check(transfers: &[Transfer]) -> Result<()> {
    for transfer in transfers {
        ensure!(
            transfer.data == pattern(transfer.offset),
            "byte {}: what came back is not what was written",
            transfer.offset
        );
    }
    Ok(())
}

fn places(offset: u64, bytes: u64) -> impl Iterator<Item = u64> {
    (offset..offset + bytes).step_by(PIECE as usize)
}

fn pattern(offset: u64) -> Vec<u8> {
    (0..PIECE / 8).flat_map(|i| (offset + i * 8).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes()).collect()
}
