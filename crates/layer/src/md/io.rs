//! I/O of slow paths: to members and metadata volumes, in whole logical blocks, with or without durability.

use std::future::Future;
use std::sync::Arc;

use blockwork_engine::{Bio, Errno, Flags, Layer, Op, Sector, Sectors, TaskContext};
use blockwork_memory::{Segment, Segments};
use futures_util::future::join_all;

/// Memory for so many sectors.
pub(crate) fn memory(cx: &TaskContext, nr: Sectors) -> Segment {
    Segment::new(cx.pool().get(nr.byte_len()), 0, nr.byte_len())
}

/// Where the last block of a layer ends, which of an uneven one is behind its end: less than all of it cannot be read or written.
pub(crate) fn end_of_blocks(layer: &dyn Layer) -> Sector {
    let block = Sectors::from_bytes_ceil(layer.limits().logical_block_size.into()).0.max(1);
    Sector(layer.sectors().0.next_multiple_of(block))
}

/// Reads `nr` sectors.
pub(crate) async fn read(
    cx: &TaskContext,
    layer: &Arc<dyn Layer>,
    sector: Sector,
    nr: Sectors,
) -> Result<Segment, Errno> {
    read_with(cx, layer, sector, nr, Flags::NONE).await
}

/// Reads `nr` sectors, and nothing ahead of them.
pub(crate) async fn read_once(
    cx: &TaskContext,
    layer: &Arc<dyn Layer>,
    sector: Sector,
    nr: Sectors,
) -> Result<Segment, Errno> {
    read_with(cx, layer, sector, nr, Flags::NO_READ_AHEAD).await
}

async fn read_with(
    cx: &TaskContext,
    layer: &Arc<dyn Layer>,
    sector: Sector,
    nr: Sectors,
    flags: Flags,
) -> Result<Segment, Errno> {
    let data = memory(cx, nr);
    let bio = Bio::with_data(Op::Read, flags, sector, Segments::from_iter([data.clone()]));
    cx.bio(layer, bio).await.0.map(|()| data)
}

/// Writes memory; durable after a flush.
pub(crate) async fn store(
    cx: &TaskContext,
    layer: &Arc<dyn Layer>,
    sector: Sector,
    data: Segment,
) -> Result<(), Errno> {
    write_with(cx, layer, sector, data, Flags::NONE).await
}

/// Reads whole sectors, also on a device with larger blocks.
pub(crate) async fn read_bytes(
    cx: &TaskContext,
    layer: &Arc<dyn Layer>,
    sector: Sector,
    nr: Sectors,
) -> Result<Vec<u8>, Errno> {
    let block = Sectors::from_bytes_ceil(layer.limits().logical_block_size.into()).0.max(1);
    let start = Sector(sector.0 / block * block);
    let end = (sector.0 + nr.0).next_multiple_of(block);
    let data = read(cx, layer, start, Sectors(end - start.0)).await?;
    let mut bytes = vec![0; nr.byte_len()];
    data.read_at(sector.since(start).byte_len(), &mut bytes);
    Ok(bytes)
}

/// Writes memory so that it is durable when this returns.
pub(crate) async fn write(
    cx: &TaskContext,
    layer: &Arc<dyn Layer>,
    sector: Sector,
    data: Segment,
) -> Result<(), Errno> {
    write_with(cx, layer, sector, data, Flags::FUA).await
}

async fn write_with(
    cx: &TaskContext,
    layer: &Arc<dyn Layer>,
    sector: Sector,
    data: Segment,
    flags: Flags,
) -> Result<(), Errno> {
    let bio = Bio::with_data(Op::Write, flags, sector, Segments::from_iter([data]));
    cx.bio(layer, bio).await.0
}

/// Writes whole sectors so that they are durable when this returns.
pub(crate) async fn write_bytes(
    cx: &TaskContext,
    layer: &Arc<dyn Layer>,
    sector: Sector,
    bytes: &[u8],
) -> Result<(), Errno> {
    write_bytes_with(cx, layer, sector, bytes, Flags::FUA).await
}

/// Writes whole sectors. On a device with larger blocks, what else is in them is read and written back.
pub(crate) async fn write_bytes_with(
    cx: &TaskContext,
    layer: &Arc<dyn Layer>,
    sector: Sector,
    bytes: &[u8],
    flags: Flags,
) -> Result<(), Errno> {
    let block = Sectors::from_bytes_ceil(layer.limits().logical_block_size.into()).0.max(1);
    let nr = Sectors::from_bytes_ceil(bytes.len() as u64);
    let start = Sector(sector.0 / block * block);
    let end = (sector.0 + nr.0).next_multiple_of(block);
    let whole = Sectors(end - start.0);
    let data = if whole == nr { memory(cx, nr) } else { read(cx, layer, start, whole).await? };
    data.write_at(sector.since(start).byte_len(), bytes);
    write_with(cx, layer, start, data, flags).await
}

/// Makes durable what was written.
pub(crate) async fn flush(cx: &TaskContext, layer: &Arc<dyn Layer>) -> Result<(), Errno> {
    cx.bio(layer, Bio::flush()).await.0
}

/// Runs all of them at once, and gives their results in order. Of many, those are looked at that something has happened to: a window of a resync
/// that is cut into hundreds of pieces has each piece's end look at one of them, and not at all.
pub(crate) async fn together<T>(futures: Vec<impl Future<Output = T>>) -> Vec<T> {
    join_all(futures).await
}

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    use futures_util::FutureExt;

    use super::*;

    #[test]
    fn of_many_those_are_looked_at_that_something_has_happened_to() {
        const COUNT: usize = 256;
        let looks = Cell::new(0);
        let all: Vec<(Cell<bool>, RefCell<Option<Waker>>)> = (0..COUNT).map(|_| Default::default()).collect();
        let futures = all.iter().enumerate().map(|(n, (is_done, waker))| {
            std::future::poll_fn(|cx| {
                looks.set(looks.get() + 1);
                *waker.borrow_mut() = Some(cx.waker().clone());
                if is_done.get() { Poll::Ready(()) } else { Poll::Pending }
            })
            .map(move |()| n)
        });
        let mut together = pin!(together(futures.collect()));
        let mut cx = Context::from_waker(Waker::noop());
        assert!(together.as_mut().poll(&mut cx).is_pending());
        // The last first: the results come in their order all the same.
        let mut results = None;
        for (is_done, waker) in all.iter().rev() {
            assert!(results.is_none());
            is_done.set(true);
            waker.take().expect("it was looked at").wake();
            if let Poll::Ready(all) = together.as_mut().poll(&mut cx) {
                results = Some(all);
            }
        }
        assert_eq!(results, Some((0..COUNT).collect()));
        assert_eq!(looks.get(), 2 * COUNT);
    }
}
