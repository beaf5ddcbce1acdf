//! Writes that change what devices are, in an order that a power cut cannot break.
//!
//! Every write of a [`Step`] is durable before the first of the next step begins; within a step they may be done in any order.
//! Which order is safe is for whoever makes the steps to know. What they rely on is what was read, which whoever was there before may have
//! written a moment ago and been killed before it was flushed: so a change begins with [`settle`].

use std::collections::BTreeSet;
use std::sync::Arc;

use blockwork_engine::{Bio, Errno, Flags, Layer, Op, SECTOR, Sector, Sectors, TaskContext, topmost_first};
use blockwork_format::{Piece, escape};
use blockwork_memory::{Segment, Segments};

/// Most bytes of one write.
const WRITE_BYTES_MAX: usize = 1 << 20;

/// Bytes for a device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Write {
    /// Which of the devices, by the caller's count.
    pub device: usize,
    /// What, and where: whole sectors of the device.
    pub piece: Piece,
}

/// Writes that are durable before those of the next step begin.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    /// What is written, for errors: `the superblock`.
    pub what: &'static str,
    /// The writes. No two of a device overlap.
    pub writes: Vec<Write>,
}

/// A device that is written to.
#[derive(Debug, Clone)]
pub struct Target {
    /// What messages call it.
    pub name: String,
    /// How it is written.
    pub layer: Arc<dyn Layer>,
}

/// A step that failed; those before it are done, those after it are not.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{name}: {what} could not be written at byte {offset}: {errno}")]
pub struct StepError {
    /// The device.
    pub name: String,
    /// What was to be written.
    pub what: &'static str,
    /// Where, in bytes.
    pub offset: u64,
    /// Why.
    pub errno: Errno,
}

/// Carries out the steps, one after the other.
///
/// # Errors
///
/// The first write or flush that failed.
///
/// # Panics
///
/// A write that is not whole sectors.
pub async fn carry_out(steps: Vec<Step>, targets: &[Target], cx: &TaskContext) -> Result<(), StepError> {
    for Step { what, writes } in steps {
        let mut counts = vec![0; targets.len()];
        writes.iter().for_each(|write| counts[write.device] += requests(&write.piece));
        for Write { device, piece } in &writes {
            let target = &targets[*device];
            // One write is made durable by itself, several by one flush.
            let flags = if counts[*device] == 1 { Flags::FUA } else { Flags::NONE };
            let failed = |errno| failed(target, what, piece.offset, errno);
            write(cx, &target.layer, piece, flags).await.map_err(failed)?;
        }
        for (target, _) in targets.iter().zip(counts).filter(|(_, count)| *count > 1) {
            flush(cx, target, what).await?;
        }
    }
    Ok(())
}

/// Makes durable what is there already, where a change is going to write, which has all of these steps.
///
/// # Errors
///
/// The first flush that failed.
pub async fn settle<'a>(
    steps: impl IntoIterator<Item = &'a Step>,
    targets: &[Target],
    cx: &TaskContext,
) -> Result<(), StepError> {
    let writes = steps.into_iter().flat_map(|step| &step.writes);
    let written: BTreeSet<_> = writes.map(|write| write.device).collect();
    for device in written {
        flush(cx, &targets[device], "what is there already").await?;
    }
    Ok(())
}

/// Closes these layers and all below them, the topmost first: an array that was written to records that it is clean.
pub(crate) async fn close(layers: Vec<Arc<dyn Layer>>, cx: &TaskContext) -> Result<(), Errno> {
    let mut result = Ok(());
    for layer in topmost_first(layers) {
        if let Some(closing) = layer.close(cx.clone()) {
            result = result.and(closing.await);
        }
    }
    result
}

async fn flush(cx: &TaskContext, target: &Target, what: &'static str) -> Result<(), StepError> {
    let result = cx.bio(&target.layer, Bio::flush()).await.0;
    result.map_err(|errno| failed(target, what, 0, errno))
}

/// Writes that a piece is.
fn requests(piece: &Piece) -> usize {
    piece.bytes.len().div_ceil(WRITE_BYTES_MAX)
}

fn failed(target: &Target, what: &'static str, offset: u64, errno: Errno) -> StepError {
    StepError { name: escape(&target.name), what, offset, errno }
}

/// Writes sectors. On a device with larger blocks, what else is in them is read and written back.
async fn write(cx: &TaskContext, layer: &Arc<dyn Layer>, piece: &Piece, flags: Flags) -> Result<(), Errno> {
    let block = u64::from(layer.limits().logical_block_size).max(SECTOR);
    for (bytes, at) in piece.bytes.chunks(WRITE_BYTES_MAX).zip((piece.offset..).step_by(WRITE_BYTES_MAX)) {
        let end = at + bytes.len() as u64;
        assert!(at.is_multiple_of(SECTOR) && end.is_multiple_of(SECTOR), "bytes {at} to {end}");
        let start = at / block * block;
        let nr = Sectors::from_bytes_ceil(end.next_multiple_of(block) - start);
        let sector = Sector(start / SECTOR);
        let data = Segment::new(cx.pool().get(nr.byte_len()), 0, nr.byte_len());
        let bio = |op, flags| Bio::with_data(op, flags, sector, Segments::from_iter([data.clone()]));
        if nr.byte_len() != bytes.len() {
            cx.bio(layer, bio(Op::Read, Flags::NONE)).await.0?;
        }
        data.write_at(Sectors::from_bytes_floor(at - start).byte_len(), bytes);
        cx.bio(layer, bio(Op::Write, flags)).await.0?;
    }
    Ok(())
}
