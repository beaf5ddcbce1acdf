//! Bringing content to new blocks: zeros and copies, neighbours in one piece, several pieces at a time.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use blockwork_engine::{Allocation, Bio, Errno, Flags, Layer, Op, Sector, Sectors, TaskContext};
use blockwork_format::thin::BlockTime;
use blockwork_format::thin::edit::{Blocks, EditError, Editor};

use super::device::Device;
use super::fill::{Given, Left, Part};
use super::mode::Mode;
use super::pool::Pool;
use crate::md::io;

/// What is copied by one read and one write.
const PIECE: u64 = 2048;

/// Pieces on their way at a time: so many have memory.
const PIECES_MAX: usize = 8;

/// What a new block holds before it is written.
#[derive(Clone, Debug)]
pub(super) enum Content {
    Zeros,
    /// What is on a layer from that sector on, as far as it goes; zeros behind that.
    Layer {
        layer: Arc<dyn Layer>,
        at: u64,
        sectors: u64,
        /// It is a block of the pool, which was mapped so far; none: it is what is read where nothing is.
        mapping: Option<BlockTime>,
    },
}

impl Content {
    /// What was mapped so far.
    pub fn mapping(&self) -> Option<BlockTime> {
        match self {
            Content::Layer { mapping, .. } => *mapping,
            Content::Zeros => None,
        }
    }
}

/// What some part of a new block gets.
#[derive(Clone, Debug)]
pub(super) struct Job {
    pub data: u64,
    pub part: Part,
    pub content: Content,
}

/// What has to be written to some sectors of the data device.
#[derive(Clone, Debug)]
struct Piece {
    from: From,
    to: Range<u64>,
}

#[derive(Clone, Debug)]
enum From {
    Zeros,
    Layer(Arc<dyn Layer>, u64),
}

impl Job {
    fn pieces(self, size: u64) -> impl Iterator<Item = Piece> {
        let (start, Part { start: first, end }) = (self.data * size, self.part);
        let (copy, there) = match self.content {
            Content::Zeros => (None, first),
            Content::Layer { layer, at, sectors, .. } => {
                let there = sectors.clamp(first, end);
                (
                    Some(Piece { from: From::Layer(layer, at + first), to: start + first..start + there }),
                    there,
                )
            }
        };
        let zeros = Piece { from: From::Zeros, to: start + there..start + end };
        copy.into_iter().chain([zeros]).filter(|piece| !piece.to.is_empty())
    }
}

impl Piece {
    /// Whether another one goes on where this one ends, here and where it comes from.
    fn goes_on(&self, next: &Piece) -> bool {
        self.to.end == next.to.start
            && match (&self.from, &next.from) {
                (From::Zeros, From::Zeros) => true,
                (From::Layer(one, at), From::Layer(other, next_at)) => {
                    Arc::ptr_eq(one, other) && at + (self.to.end - self.to.start) == *next_at
                }
                _ => false,
            }
    }

    fn sectors(&self) -> (Sector, Sectors) {
        (Sector(self.to.start), Sectors(self.to.end - self.to.start))
    }

    /// Cut where a copy would need too much memory.
    fn cut(self) -> Vec<Piece> {
        let From::Layer(layer, at) = &self.from else { return vec![self] };
        let length = self.to.end - self.to.start;
        let starts = (0..length).step_by(PIECE as usize);
        let cut = |skip: u64| {
            let to = self.to.start + skip..self.to.start + (skip + PIECE).min(length);
            Piece { from: From::Layer(layer.clone(), at + skip), to }
        };
        starts.map(cut).collect()
    }
}

impl Pool {
    /// Does the jobs; the data blocks for which that failed.
    pub(super) async fn work_off(&self, jobs: Vec<Job>, cx: &TaskContext) -> BTreeSet<u64> {
        let size = self.block.get();
        let mut pieces: Vec<Piece> = jobs.into_iter().flat_map(|job| job.pieces(size)).collect();
        pieces.sort_by_key(|piece| piece.to.start);
        let mut joined: Vec<Piece> = Vec::new();
        for piece in pieces {
            match joined.last_mut() {
                Some(last) if last.goes_on(&piece) => last.to.end = piece.to.end,
                _ => joined.push(piece),
            }
        }
        let pieces: Vec<_> = joined.into_iter().flat_map(Piece::cut).collect();
        let pieces = self.without_holes(pieces, cx).await;
        let mut bad = BTreeSet::new();
        for some in pieces.chunks(PIECES_MAX) {
            let work = some.iter().map(|piece| self.bring(piece, cx));
            for (piece, result) in some.iter().zip(io::together(work.collect()).await) {
                if let Err(why) = result {
                    let (name, at) = (&self.name, piece.to.start);
                    self.complaints.unfilled.say(cx.now(), |more| {
                        log::error!("{name}: new blocks at sector {at} of its data device {why}{more}");
                    });
                    bad.extend(piece.to.start / size..piece.to.end.div_ceil(size));
                }
            }
        }
        bad
    }

    /// Without those that are to be zeros and are holes of a file: they are zeros, and to make them so again costs more than all else of
    /// a first write.
    async fn without_holes(&self, pieces: Vec<Piece>, cx: &TaskContext) -> Vec<Piece> {
        let is_hole = async |piece: &Piece| {
            if !matches!(piece.from, From::Zeros) {
                return false;
            }
            let (to, nr) = piece.sectors();
            cx.allocation(self.data.get(), to, nr).await == (Allocation::Hole, nr)
        };
        let holes = io::together(pieces.iter().map(&is_hole).collect()).await;
        pieces.into_iter().zip(holes).filter(|(_, is_hole)| !is_hole).map(|(piece, _)| piece).collect()
    }

    /// An error says in words what failed.
    async fn bring(&self, piece: &Piece, cx: &TaskContext) -> Result<(), String> {
        let (to, nr) = piece.sectors();
        let data = self.data.get();
        let written = match &piece.from {
            From::Zeros => cx.bio(data, Bio::without_data(Op::WriteZeroes, Flags::NONE, to, nr)).await.0,
            From::Layer(layer, at) => {
                let memory = io::read(cx, layer, Sector(*at), nr).await;
                let from = if layer.node() == data.node() { "of it" } else { "of the external origin" };
                let memory = memory.map_err(|errno| {
                    format!("are not written: what they are to hold, at sector {at} {from}, cannot be read: {errno}")
                })?;
                io::store(cx, data, to, memory).await
            }
        };
        written.map_err(|errno| format!("cannot be written: {errno}"))
    }

    /// Content for parts of blocks whose writes do not come. With the turn.
    async fn stand_in(&self, jobs: Vec<Job>, cx: &TaskContext) {
        let parts: Vec<_> = jobs.iter().map(|job| (job.data, job.part)).collect();
        let bad = self.work_off(jobs, cx).await;
        let good = parts.iter().filter(|(data, _)| !bad.contains(data));
        good.for_each(|(data, part)| self.fills.filled(*data, *part, &self.cache));
        for data in bad {
            self.give_up(data, cx).await;
        }
    }

    /// Not all of a block can be written: what was on the device before, perhaps another volume's, must not be found in it, now or
    /// later. Where nothing of it has been written, what was mapped before is mapped again, as in the kernel, which maps a block only
    /// when it is full. Otherwise the block cannot be read, and no transaction that leads to it is committed. With the turn.
    async fn give_up(&self, data: u64, cx: &TaskContext) {
        if self.mode() != Mode::ReadOnly
            && let Some(given) = self.fills.untouched(data)
        {
            let undo = |editor: &mut Editor, from: &dyn Blocks| self.undo(editor, from, data, &given);
            match self.edit(cx, undo).await {
                Ok(()) => return,
                Err(refused) => self.tell(&refused),
            }
        }
        self.fills.lose(data);
        // A device that takes no writes may have lost what it took before, of any block that was mapped since the last commit.
        if self.flush_data(cx).await.is_err() {
            self.abandon(cx);
        }
        let why = format!("block {data} of its data device was mapped, and some of it cannot be written");
        self.fail_metadata(&why, cx).await;
    }

    /// A block is mapped no more, but what was before it.
    fn undo(
        &self,
        editor: &mut Editor,
        from: &dyn Blocks,
        data: u64,
        Given { device, block, before }: &Given,
    ) -> Result<(), EditError> {
        let own = *block..*block + 1;
        let Some(mapping) = before else { return self.unmap(editor, from, device, own).map(|_| ()) };
        editor.map_back(from, device.id, *block, *mapping)?;
        device.set_changed(self.transaction.load(Ordering::Acquire), own.clone());
        {
            let mut books = self.books();
            books.freed = true;
            // Others may have given it up meanwhile.
            books.keep(mapping.block);
        }
        self.publish_back(device, *block, data, *mapping);
        self.fills.forget(device, &own);
        Ok(())
    }

    /// Waits until nothing is being filled: all blocks are full, or the pool is read-only. With the turn.
    pub(super) async fn settle_fills(&self, cx: &TaskContext) {
        loop {
            match self.fills.left(None) {
                Left::Nothing | Left::Lost => return,
                Left::Bring(jobs) => self.stand_in(jobs, cx).await,
                Left::Due => {
                    // What was due before is resolved when every worker has looked up once.
                    let due = self.fills.all_due();
                    cx.quiesce().await;
                    self.fills.overdue(&due);
                }
                Left::Wait => {
                    let is_over = || (!matches!(self.fills.left(None), Left::Wait)).then_some(());
                    self.fills.bell().wait(is_over).await;
                }
            }
        }
    }

    /// Waits until some blocks of a device are no longer being filled. Where that takes more than waiting, it sees to it. An error, if
    /// one of them is lost.
    pub(super) async fn await_fills(
        &self,
        cx: &TaskContext,
        device: &Device,
        blocks: Range<u64>,
    ) -> Result<(), Errno> {
        let left = || self.fills.left(Some((device, &blocks)));
        loop {
            self.fills.bell().wait(|| (!matches!(left(), Left::Wait)).then_some(())).await;
            match left() {
                Left::Nothing => return Ok(()),
                Left::Lost => return Err(Errno::EIO),
                Left::Wait | Left::Due | Left::Bring(_) => {}
            }
            let _turn = self.turns.take().await;
            if matches!(left(), Left::Bring(_) | Left::Due) {
                self.settle_fills(cx).await;
            }
        }
    }
}
