//! Byte ranges that are not whole logical blocks: read, and for writes modified and written back.
//!
//! Only the ragged blocks at the ends are read; a whole middle goes straight through. From the read to the write nobody else alters any of
//! these blocks, on whichever worker (`modify`): two ragged writes to the two halves of one block both survive, and so does what a write
//! of whole blocks beside them has written where they do not.

use blockwork_memory::{Segment, Segments, bytes_in, copy_between, slice_segments};

use crate::bio::{Bio, Errno, Flags, Op};
use crate::modify::Modify;
use crate::task::TaskContext;
use crate::units::{SECTOR, Sector, Sectors};
use crate::volume::VolumeId;

/// A range of bytes of a volume, inside which it lies. The volume is gone by as it is when each bio is resolved: its stack may change.
pub(crate) struct Ragged {
    pub(crate) cx: TaskContext,
    pub(crate) volume: VolumeId,
    /// Bytes of the volume's logical block.
    pub(crate) block: u64,
    pub(crate) offset: u64,
    pub(crate) end: u64,
    pub(crate) flags: Flags,
}

impl Ragged {
    /// Does `op` on the range; gives the memory back.
    pub(crate) async fn run(self, modify: Modify, op: Op, data: Segments) -> (Result<(), Errno>, Segments) {
        let result = match op {
            Op::Flush => unreachable!("a flush has no range"),
            Op::Read => self.read(&data).await,
            // What a discard does to part of a block is nothing. Whole ones are not discarded while another ragged write has them.
            Op::Discard => {
                let _turn = modify.take().await;
                self.discard().await
            }
            Op::Write | Op::WriteZeroes => {
                let (start, end) = self.outer();
                let _claimed =
                    modify.claim(Sector(start / SECTOR), Sector(end / SECTOR), self.cx.workers()).await;
                if op == Op::Write { self.write(&data).await } else { self.write_zeroes().await }
            }
        };
        (result, data)
    }

    /// The smallest range of whole blocks around ours.
    fn outer(&self) -> (u64, u64) {
        (self.offset / self.block * self.block, self.end.next_multiple_of(self.block))
    }
    /// The largest range of whole blocks inside ours; empty ranges have no meaning.
    fn inner(&self) -> Option<(u64, u64)> {
        let (start, end) = (self.offset.next_multiple_of(self.block), self.end / self.block * self.block);
        (start < end).then_some((start, end))
    }

    async fn bio(&self, op: Op, flags: Flags, start: u64, end: u64, data: Segments) -> Result<(), Errno> {
        let nr = Sectors::from_bytes_floor(end - start);
        let bio = Bio { op, flags, sector: Sector(start / SECTOR), nr, data };
        self.cx.volume_bio(self.volume, bio).await.0
    }

    fn memory(&self, len: u64) -> Segment {
        let len = usize::try_from(len).expect("a range of memory fits the address space");
        Segment::new(self.cx.pool().get(len), 0, len)
    }

    async fn read(&self, data: &Segments) -> Result<(), Errno> {
        let (start, end) = self.outer();
        let whole = self.memory(end - start);
        self.bio(Op::Read, self.flags, start, end, Segments::from_iter([whole.clone()])).await?;
        let ours = whole.slice((self.offset - start) as usize, (self.end - self.offset) as usize);
        copy_between(&[ours], data);
        Ok(())
    }

    /// Ragged blocks are read and patched into one buffer, which is written in one go, so that FUA covers all of it.
    async fn write(&self, data: &Segments) -> Result<(), Errno> {
        debug_assert_eq!(bytes_in(data) as u64, self.end - self.offset);
        let (start, end) = self.outer();
        let whole = self.memory(end - start);
        self.fill_ragged(&whole, start, end).await?;
        let ours = whole.slice((self.offset - start) as usize, (self.end - self.offset) as usize);
        copy_between(data, &[ours]);
        self.bio(Op::Write, self.flags, start, end, Segments::from_iter([whole])).await
    }

    /// Reads the first and last block of `whole` where our range does not cover them.
    async fn fill_ragged(&self, whole: &Segment, start: u64, end: u64) -> Result<(), Errno> {
        let first_ragged = self.offset != start;
        let last_ragged = self.end != end;
        let block = self.block as usize;
        if first_ragged || (last_ragged && end - start == self.block) {
            let head = Segments::from_iter([whole.slice(0, block)]);
            self.bio(Op::Read, Flags::NONE, start, start + self.block, head).await?;
        }
        if last_ragged && end - start > self.block {
            let tail = Segments::from_iter([whole.slice(whole.len() - block, block)]);
            self.bio(Op::Read, Flags::NONE, end - self.block, end, tail).await?;
        }
        Ok(())
    }

    /// Whole blocks are zeroed as such; the ragged ends are patched.
    async fn write_zeroes(&self) -> Result<(), Errno> {
        let Some((start, end)) = self.inner() else { return self.patch_zeros(self.offset, self.end).await };
        if self.offset < start {
            self.patch_zeros(self.offset, start).await?;
        }
        if end < self.end {
            self.patch_zeros(end, self.end).await?;
        }
        self.bio(Op::WriteZeroes, self.flags, start, end, Segments::new()).await
    }

    async fn patch_zeros(&self, start: u64, end: u64) -> Result<(), Errno> {
        let zeros = self.memory(end - start);
        zeros.fill(0);
        let part = Ragged { cx: self.cx.clone(), offset: start, end, ..*self };
        let mut data = Segments::new();
        slice_segments(&[zeros], 0, (end - start) as usize, &mut data);
        part.write(&data).await
    }

    async fn discard(&self) -> Result<(), Errno> {
        let Some((start, end)) = self.inner() else { return Ok(()) };
        self.bio(Op::Discard, self.flags, start, end, Segments::new()).await
    }
}
