//! The list of exceptions on a store's disk: entering what is new, so that it is durable.
//!
//! What has been entered is known by its number alone; only the block that is being filled is kept in memory. A merge takes
//! exceptions back from the end: their bytes become zeros, and nothing else of the list changes. Where a write was cut
//! off by a power cut, something may lie behind the end of the list: it is made zeros, durably, before the list grows.
//!
//! Invariants: (1) behind the last exception there are zeros, to the end of its area, before it is entered; an area that
//! becomes full is followed by one of zeros, and exceptions are taken back area by area; (2) what is in memory is what the disk has, or the store is lost.

use std::ops::Range;
use std::sync::Arc;

use blockwork_engine::{Bio, Errno, Flags, Layer, Op, SECTOR, Sector, Sectors, TaskContext};
use blockwork_format::snapshot::{Contents, EXCEPTION_BYTES, Exception, Header, Layout};

use crate::md::io;

/// What is written at once, at least: a page of the kernel's, and a block of most disks.
const BLOCK_BYTES: u64 = 4096;

/// How many exceptions are read, and taken back, at once.
const LAST_MAX: u64 = 4096;

/// A list as far as it has been written.
#[derive(Clone, Debug)]
pub(super) struct List {
    layout: Layout,
    /// Exceptions that were entered.
    count: u64,
    /// Bytes of a block; an area is whole ones.
    block: u64,
    /// The exceptions in the block that is being filled.
    open: Vec<u8>,
    ready: Ready,
}

/// What is left to do before the list can grow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ready {
    Yes,
    /// The store was never used.
    New,
    /// Something lies behind the end.
    Remains,
}

/// A write of the list to the store: where, in bytes, and what.
#[derive(Debug)]
pub(super) struct ListWrite {
    at: u64,
    bytes: Vec<u8>,
}

impl ListWrite {
    /// Writes it; with FUA, it is durable when this returns.
    pub(super) async fn run(
        self,
        cx: &TaskContext,
        store: &Arc<dyn Layer>,
        flags: Flags,
    ) -> Result<(), Errno> {
        io::write_bytes_with(cx, store, Sector(self.at / SECTOR), &self.bytes, flags).await
    }
}

impl List {
    /// The list of a store that was never used.
    pub(super) fn new(layout: Layout, logical_block: u32) -> List {
        let block = BLOCK_BYTES.max(logical_block.into()).min(layout.chunk_bytes());
        List { layout, count: 0, block, open: Vec::new(), ready: Ready::New }
    }

    /// The list that was found.
    pub(super) fn found(contents: &Contents, logical_block: u32) -> List {
        let list = List::new(contents.layout, logical_block);
        let count = contents.exceptions.len();
        let within = count % (list.block / EXCEPTION_BYTES) as usize;
        let open = contents.exceptions[count - within..].iter().flat_map(Exception::encode).collect();
        let ready = if contents.remains { Ready::Remains } else { Ready::Yes };
        List { count: count as u64, open, ready, ..list }
    }

    /// The area that is being filled.
    pub(super) fn area(&self) -> u64 {
        self.count / self.layout.exceptions_per_area()
    }

    /// How many exceptions can be entered by one write: to the end of the area.
    pub(super) fn room(&self) -> u64 {
        self.layout.exceptions_per_area() - self.count % self.layout.exceptions_per_area()
    }

    /// Whether so many exceptions can be entered as it is.
    pub(super) fn is_ready(&self, exceptions: u64) -> bool {
        self.ready == Ready::Yes && exceptions < self.room()
    }

    /// Makes ready for so many exceptions, no more than there is [`List::room`] for: a flush, and then they can be entered.
    pub(super) async fn prepare(
        &mut self,
        cx: &TaskContext,
        store: &Arc<dyn Layer>,
        exceptions: u64,
    ) -> Result<(), Errno> {
        self.make_ready(cx, store).await?;
        if exceptions == self.room() {
            self.zero_area(cx, store, self.area() + 1).await?;
        }
        Ok(())
    }

    /// Enters exceptions that the list was made ready for, once what they stand for is durable; gives what has to be written:
    /// whole blocks.
    pub(super) fn append(&mut self, exceptions: &[Exception]) -> ListWrite {
        let at = self.open_block();
        let mut bytes = std::mem::take(&mut self.open);
        bytes.extend(exceptions.iter().flat_map(Exception::encode));
        self.count += exceptions.len() as u64;
        let whole = bytes.len() - bytes.len() % self.block as usize;
        self.open = bytes[whole..].to_vec();
        bytes.resize(bytes.len().next_multiple_of(self.block as usize), 0);
        ListWrite { at, bytes }
    }

    /// Where the block is that the next exception goes to, bytes.
    fn open_block(&self) -> u64 {
        let within = self.count % self.layout.exceptions_per_area() * EXCEPTION_BYTES;
        self.layout.area_chunk(self.area()) * self.layout.chunk_bytes() + within / self.block * self.block
    }

    pub(super) fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The chunk behind the last one in use, if chunks were given out in the order of the list.
    pub(super) fn next_if_in_order(&self) -> u64 {
        self.layout.area_chunk(self.area()) + self.count % self.layout.exceptions_per_area() + 1
    }

    /// Numbers of the last exceptions of the list, at most so many, of one area.
    fn last_numbers(&self, most: u64) -> Range<u64> {
        let area = self.count.saturating_sub(1) / self.layout.exceptions_per_area();
        let start = area * self.layout.exceptions_per_area();
        start.max(self.count.saturating_sub(most.min(LAST_MAX)))..self.count
    }

    /// Where exception number `nth` is, bytes.
    fn place(&self, nth: u64) -> u64 {
        let per_area = self.layout.exceptions_per_area();
        let area = self.layout.area_chunk(nth / per_area) * self.layout.chunk_bytes();
        area + nth % per_area * EXCEPTION_BYTES
    }

    /// Whole blocks that hold the exceptions of these numbers, which are of one area: from where to where, bytes.
    fn blocks(&self, numbers: &Range<u64>) -> Range<u64> {
        let (start, end) = (self.place(numbers.start), self.place(numbers.end - 1) + EXCEPTION_BYTES);
        start / self.block * self.block..end.next_multiple_of(self.block)
    }

    /// The last exceptions of the list as they are on the disk, at most so many, of one area; none: the disk has fewer.
    pub(super) async fn last(
        &self,
        cx: &TaskContext,
        store: &Arc<dyn Layer>,
        most: u64,
    ) -> Result<Option<Vec<Exception>>, Errno> {
        let numbers = self.last_numbers(most);
        if numbers.is_empty() {
            return Ok(Some(Vec::new()));
        }
        let blocks = self.blocks(&numbers);
        let nr = Sectors((blocks.end - blocks.start) / SECTOR);
        let bytes = io::read_bytes(cx, store, Sector(blocks.start / SECTOR), nr).await?;
        let skip = (self.place(numbers.start) - blocks.start) as usize;
        let length = ((numbers.end - numbers.start) * EXCEPTION_BYTES) as usize;
        let found = Exception::decode_all(&bytes[skip..skip + length]);
        Ok(Some(found).filter(|found| found.len() as u64 == numbers.end - numbers.start))
    }

    /// Takes the last exceptions from the list, no more than [`List::last`] gives; durable when this returns.
    pub(super) async fn take_back(
        &mut self,
        cx: &TaskContext,
        store: &Arc<dyn Layer>,
        exceptions: u64,
    ) -> Result<(), Errno> {
        let numbers = self.count - exceptions..self.count;
        if numbers.is_empty() {
            return Ok(());
        }
        let blocks = self.blocks(&numbers);
        let kept = (self.place(numbers.start) - blocks.start) as usize;
        let first = Sector(blocks.start / SECTOR);
        let mut bytes = io::read_bytes(cx, store, first, Sectors(self.block / SECTOR)).await?;
        bytes.truncate(kept);
        self.open = bytes.clone();
        self.count = numbers.start;
        bytes.resize((blocks.end - blocks.start) as usize, 0);
        io::write_bytes(cx, store, first, &bytes).await
    }

    async fn make_ready(&mut self, cx: &TaskContext, store: &Arc<dyn Layer>) -> Result<(), Errno> {
        match self.ready {
            Ready::Yes => {}
            Ready::New => {
                self.zero_area(cx, store, 0).await?;
                io::flush(cx, store).await?;
                write_header(cx, store, Header { valid: true, layout: self.layout }).await?;
            }
            Ready::Remains => {
                let at = self.open_block();
                let mut bytes = self.open.clone();
                bytes.resize(self.block as usize, 0);
                io::write_bytes(cx, store, Sector(at / SECTOR), &bytes).await?;
                let end = (self.layout.area_chunk(self.area()) + 1) * self.layout.chunk_bytes();
                zero(cx, store, at + self.block, end).await?;
                io::flush(cx, store).await?;
            }
        }
        self.ready = Ready::Yes;
        Ok(())
    }

    async fn zero_area(&self, cx: &TaskContext, store: &Arc<dyn Layer>, area: u64) -> Result<(), Errno> {
        let at = self.layout.area_chunk(area) * self.layout.chunk_bytes();
        zero(cx, store, at, at + self.layout.chunk_bytes()).await
    }
}

/// Writes a header so that it is durable.
pub(super) async fn write_header(
    cx: &TaskContext,
    store: &Arc<dyn Layer>,
    header: Header,
) -> Result<(), Errno> {
    io::write_bytes(cx, store, Sector(0), &header.encode()).await
}

/// Makes a range of bytes zeros.
async fn zero(cx: &TaskContext, store: &Arc<dyn Layer>, from: u64, to: u64) -> Result<(), Errno> {
    if from == to {
        return Ok(());
    }
    let (sector, nr) = (Sector(from / SECTOR), Sectors((to - from) / SECTOR));
    cx.bio(store, Bio::without_data(Op::WriteZeroes, Flags::NO_UNMAP, sector, nr)).await.0
}
