//! Giving blocks to writes that need them, a batch at a time.
//!
//! A write needs a block where nothing is mapped, and where what is mapped may be shared. Whoever leads takes what all wait for, in the
//! order of devices and virtual blocks, so that neighbours get neighbouring data blocks. Order, for each block:
//!
//! 1. a data block is given out, in memory only;
//! 2. its content is brought there (`content.rs`): zeros, what is shared so far, or what the external origin has. Not where the writes
//!    that wait cover all of it: see `fill.rs`;
//! 3. it is mapped, in the tree and in the cache at once: from then on the write may go, and readers come.
//!
//! The commit flushes the data device before it makes the tree durable (`commit.rs`).
//!
//! Whether a block is shared goes by the times of mapping and device, as in the kernel: sometimes a block is copied that nobody else
//! has any more.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::future::poll_fn;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Poll;

use blockwork_engine::{Deferred, Errno, Layer, SECTOR, Span, TaskContext};
use blockwork_format::thin::BlockTime;
use blockwork_format::thin::edit::{Blocks, EditError, Editor, VirtualRun};
use smallvec::{SmallVec, smallvec};

use super::content::{Content, Job};
use super::device::Device;
use super::fill::Part;
use super::map::Run;
use super::pool::{Pool, Refused};
use super::request::{Answers, Got, Outcome, Promises, Want, Work};
use super::target::Volume;

/// Blocks that a batch gives out at most.
const BATCH_BLOCKS: usize = 1024;

/// Rows that one operation maps at most: for the way back it keeps a copy of what it changes.
const ROWS_MAX: usize = 64;

/// How often in a row a write may be told that it lacks nothing, and come again all the same. Somebody else has got its blocks meanwhile,
/// and then they have come to be shared once more: by a snapshot, of which so many are not made between two looks at the map.
pub(super) const IDLE_ROUNDS_MAX: u16 = 16;

/// Metadata blocks that a transaction may change before it is committed: 16 MiB.
pub const DIRTY_MAX: usize = 4096;

/// A block that is needed.
#[derive(Debug)]
struct Need {
    /// The number of its device, and its own there.
    block: (u64, u64),
    /// What it holds until it is written.
    content: Content,
    /// Who needs it, by number, and what they write of it.
    by: SmallVec<[(usize, Part); 1]>,
    /// What was given out for it.
    data: Option<u64>,
}

/// Blocks of one device that follow each other, and so do the data blocks that were given out for them.
struct Row {
    /// Which of the needs of the batch.
    needs: Range<usize>,
    data: Range<u64>,
    /// Whether the writes that need them fill them.
    is_filling: bool,
}

/// What blocks of a device lack for a write.
enum Lack {
    /// Nothing is mapped there.
    Block,
    /// What is mapped may be shared; where the first one of them lies.
    OwnBlock(BlockTime),
    Nothing,
}

/// How a batch ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// All was done that could be.
    Done,
    NoData,
    NoMetadata,
}

/// A batch under way.
struct Batch {
    wants: Vec<Want>,
    /// In the order of devices and blocks, each once.
    needs: Vec<Need>,
    /// Those of the wants that have failed.
    failed: BTreeSet<usize>,
    /// Those that lack nothing.
    idle: BTreeSet<usize>,
    /// Those that need more than a batch has room for: they get part of it, and come again.
    is_partial: BTreeSet<usize>,
    end: End,
}

impl Batch {
    /// Whose the blocks of a row are to be.
    fn device(&self, row: &Row) -> &Arc<Device> {
        &self.wants[self.needs[row.needs.start].by[0].0].volume.device
    }

    /// The first block of a row on its device.
    fn first(&self, row: &Row) -> u64 {
        self.needs[row.needs.start].block.1
    }
}

impl Pool {
    /// Gets blocks for writes, each of which goes as soon as it has them.
    pub(super) async fn make_all_ready(
        &self,
        volume: &Arc<Volume>,
        deferred: Vec<Deferred>,
        cx: &TaskContext,
    ) {
        let answers = self.ask(volume, deferred.iter().map(Deferred::span));
        let mut waiting: Vec<_> = deferred.into_iter().map(Some).collect();
        self.served(cx, &answers, |nth, given| {
            let Some(deferred) = waiting[nth].take() else { return };
            // The bio is resolved right after this, in the same turn of its worker.
            match given {
                Ok(Got::Blocks(promises)) => {
                    self.announce(promises);
                    deferred.go_on(Ok(()));
                }
                Ok(Got::Nothing) if deferred.idle_rounds() < IDLE_ROUNDS_MAX => deferred.go_on_idle(),
                Ok(Got::Nothing) => {
                    self.tell_unless_often(|| self.contradiction(volume.device.id, deferred.span()));
                    deferred.go_on(Err(Errno::EIO));
                }
                Err(errno) => deferred.go_on(Err(errno)),
            }
        })
        .await;
    }

    /// A write waits for what it lacks, and lacks nothing: where bios look and where blocks are given out, the map is not the same.
    pub(super) fn contradiction(&self, device: u64, span: Span) -> String {
        let Span { sector, nr, .. } = span;
        let byte = sector.0 * SECTOR;
        format!(
            "{}: thin device {device}: a write of {nr} sectors at sector {sector} (byte {byte}) waits for blocks, and lacks none: it fails \
             after {IDLE_ROUNDS_MAX} rounds. This is a fault of blockwork, not of the disks. Nothing of it is written. Report \
             this line, and start the server anew: then it reads the map from the disks again",
            self.name
        )
    }

    fn ask(&self, volume: &Arc<Volume>, spans: impl ExactSizeIterator<Item = Span>) -> Arc<Answers> {
        let answers = Answers::new(spans.len());
        self.requests.want(spans.enumerate().map(|(nth, span)| Want {
            volume: volume.clone(),
            op: span.op,
            flags: span.flags,
            start: span.sector,
            end: span.end(),
            answer: answers.to(nth),
        }));
        answers
    }

    /// A write is about to be resolved that is to fill these.
    fn announce(&self, promises: Promises) {
        promises.into_iter().for_each(|(data, part)| self.fills.due(data, part));
    }

    /// Waits for all answers, or leads until they are there; `tell` hears of each.
    pub(super) async fn served(
        &self,
        cx: &TaskContext,
        answers: &Answers,
        mut tell: impl FnMut(usize, Result<Got, Errno>),
    ) {
        while answers.is_open() {
            match answers.wait(&self.turns).await {
                Outcome::Answers(given) => given.into_iter().for_each(|(nth, result)| tell(nth, result)),
                Outcome::Lead(_turn) => {
                    // Others that came in by the same wake-up are asked what they want, too.
                    yield_once().await;
                    while answers.is_waiting() {
                        // Apart, so that those who follow carry nothing of it.
                        Box::pin(self.serve(cx)).await;
                        // At once: the next batch may need a commit, which waits for what is promised here to be filled.
                        answers.take().into_iter().for_each(|(nth, result)| tell(nth, result));
                    }
                    // Those who have their answers wait for the turn no more, and need not hand it on from one to the next.
                    yield_once().await;
                }
            }
        }
    }

    /// Serves all that wait. With the turn.
    async fn serve(&self, cx: &TaskContext) {
        let Work { wants, flushes, commit_first } = self.requests.take();
        let is_large = self.editor().dirty_blocks() > DIRTY_MAX;
        // Before anything new is given out: a commit waits for what is being filled.
        if commit_first || is_large || flushes.iter().any(|flush| flush.transaction > self.durable()) {
            let result = self.commit(cx).await;
            log::debug!("{}: committed for {} flushes: {result:?}", self.name, flushes.len());
        }
        for flush in flushes {
            let is_durable = flush.transaction <= self.durable();
            flush.answer.give(if is_durable { Ok(Got::Nothing) } else { Err(Errno::EIO) });
        }
        if !wants.is_empty() {
            self.provision(wants, cx).await;
        }
    }

    pub(super) fn durable(&self) -> u64 {
        self.durable.load(Ordering::Acquire)
    }

    async fn provision(&self, wants: Vec<Want>, cx: &TaskContext) {
        if !self.mode().allows_changes() || !self.can_give_out(cx).await {
            wants.iter().for_each(|want| want.answer.give(Err(Errno::EIO)));
            return;
        }
        let mut batch = self.gather(wants, cx).await;
        self.give_out(&mut batch, cx).await;
        self.bring_content(&mut batch, cx).await;
        let promises = self.enter(&mut batch, cx).await;
        self.conclude(batch, promises, cx).await;
    }

    /// What is needed for some writes.
    async fn gather(&self, wants: Vec<Want>, cx: &TaskContext) -> Batch {
        let mut needs = Vec::new();
        let (mut failed, mut idle, mut is_partial) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
        for (nth, want) in wants.iter().enumerate() {
            let before = needs.len();
            match self.needs_of(nth, want, &mut needs, cx).await {
                Ok(true) if needs.len() == before => _ = idle.insert(nth),
                Ok(true) => {}
                Ok(false) => _ = is_partial.insert(nth),
                Err(refused) => {
                    self.tell(&refused);
                    failed.insert(nth);
                }
            }
        }
        // Of those for one block, who came first stays first.
        needs.sort_by_key(|need| need.block);
        needs.dedup_by(|later, first| {
            let is_same = later.block == first.block;
            if is_same {
                first.by.append(&mut later.by);
            }
            is_same
        });
        Batch { wants, needs, failed, idle, is_partial, end: End::Done }
    }

    /// Enters what a write needs; false: part of it, since a batch has no room for more.
    async fn needs_of(
        &self,
        nth: usize,
        want: &Want,
        needs: &mut Vec<Need>,
        cx: &TaskContext,
    ) -> Result<bool, Refused> {
        let (size, device) = (self.block.get(), &want.volume.device);
        let (mut at, end) = (want.start.0 / size, want.end.0.div_ceil(size));
        let holes_will_do = want.volume.holes_will_do(want.op, want.flags);
        while at < end {
            let (length, lack) = self.lack(device, at, end - at, cx).await?;
            let run = at..at + length.clamp(1, end - at);
            at = run.end;
            let shared = match lack {
                Lack::Nothing => continue,
                Lack::Block if holes_will_do => continue,
                Lack::Block => None,
                Lack::OwnBlock(first) => Some(first),
            };
            for block in run.clone() {
                if needs.len() >= BATCH_BLOCKS {
                    return Ok(false);
                }
                let (from, to) = (block * size, (block + 1) * size);
                let part = Part { start: want.start.0.max(from) - from, end: want.end.0.min(to) - from };
                let content = match (shared, &want.volume.external_origin) {
                    (Some(first), _) => {
                        let mapping = BlockTime { block: first.block + (block - run.start), ..first };
                        self.content_of(self.data.get(), mapping.block, Some(mapping))
                    }
                    (None, Some(origin)) => self.content_of(origin, block, None),
                    (None, None) => Content::Zeros,
                };
                let by = smallvec![(nth, part)];
                needs.push(Need { block: (device.id, block), content, by, data: None });
            }
        }
        Ok(true)
    }

    /// What a write to blocks of a device lacks, and for how many of them that is so. With the turn: nobody else changes the map, so what the
    /// cache has of it is what the trees have.
    async fn lack(
        &self,
        device: &Device,
        at: u64,
        most: u64,
        cx: &TaskContext,
    ) -> Result<(u64, Lack), Refused> {
        match self.look_up(device, at, most, true) {
            Some(Run { at: None, blocks, is_outdated: false }) => return Ok((blocks, Lack::Block)),
            Some(Run { at: Some(mapped), blocks, is_outdated: false }) if !mapped.is_shared => {
                return Ok((blocks, Lack::Nothing));
            }
            _ => {}
        }
        let look = |editor: &mut Editor, blocks: &dyn Blocks| {
            let run = editor.look_up(blocks, device.id, at, most)?;
            let details = editor.details(blocks, device.id)?;
            // A page that is too old to let the write go is filled anew.
            self.refresh(editor, blocks, device, at)?;
            Ok((run, details))
        };
        let (run, details) = self.edit(cx, look).await?;
        Ok(match run {
            VirtualRun::Hole { length } => (length, Lack::Block),
            VirtualRun::Mapped { first, length } if details.may_share(first) => {
                (length, Lack::OwnBlock(first))
            }
            VirtualRun::Mapped { length, .. } => (length, Lack::Nothing),
        })
    }

    /// Gives out data blocks for what is needed, as far as there are any.
    async fn give_out(&self, batch: &mut Batch, cx: &TaskContext) {
        let mut next = 0;
        while next < batch.needs.len() {
            let wanted = (batch.needs.len() - next) as u64;
            match self.edit(cx, |editor, blocks| editor.allocate(blocks, wanted)).await {
                Ok(data) => {
                    for (need, block) in batch.needs[next..].iter_mut().zip(data) {
                        need.data = Some(block);
                        next += 1;
                    }
                }
                Err(refused) => {
                    self.stopped(batch, &refused);
                    return;
                }
            }
        }
    }

    /// Why a batch goes no further.
    fn stopped(&self, batch: &mut Batch, refused: &Refused) {
        batch.end = match refused {
            Refused::Edit(EditError::NoData) => End::NoData,
            Refused::Edit(EditError::NoMetadata) => End::NoMetadata,
            _ => {
                self.tell(refused);
                let left = batch.needs.iter().filter(|need| need.data.is_none());
                batch.failed.extend(left.flat_map(|need| need.by.iter().map(|(nth, _)| *nth)));
                End::Done
            }
        };
    }

    /// Brings content to the blocks that were given out; one that gets none is given back.
    async fn bring_content(&self, batch: &mut Batch, cx: &TaskContext) {
        let is_wanted = |need: &&Need| {
            let stays = matches!(need.content, Content::Zeros) && !self.features.zero_new_blocks;
            !stays && !self.is_covered(batch, need)
        };
        let part = Part { start: 0, end: self.block.get() };
        let job = |need: &Need| Some(Job { data: need.data?, part, content: need.content.clone() });
        let jobs = batch.needs.iter().filter(is_wanted).filter_map(job).collect();
        let bad = self.work_off(jobs, cx).await;
        for need in &mut batch.needs {
            if let Some(data) = need.data.filter(|data| bad.contains(data)) {
                need.data = None;
                self.editor().release(data..data + 1);
                batch.failed.extend(need.by.iter().map(|(nth, _)| *nth));
            }
        }
    }

    /// What a layer has in place of one of its blocks.
    fn content_of(&self, layer: &Arc<dyn Layer>, block: u64, mapping: Option<BlockTime>) -> Content {
        let (size, at) = (self.block.get(), block * self.block.get());
        let sectors = layer.sectors().0.saturating_sub(at).min(size);
        Content::Layer { layer: layer.clone(), at, sectors, mapping }
    }

    /// Whether those who need a block write all of it, each a part of its own. Where parts overlap, one of which may come to nothing, what would
    /// stand in for that would be written over what the other has written.
    fn is_covered(&self, batch: &Batch, need: &Need) -> bool {
        // Mostly one write needs it, and writes little of it.
        let size = self.block.get();
        if need.by.iter().map(|(_, part)| part.end - part.start).sum::<u64>() < size {
            return false;
        }
        let fills = |nth: &usize| batch.wants[*nth].fills() && !batch.is_partial.contains(nth);
        let mut parts: Vec<_> = need.by.iter().map(|(_, part)| *part).collect();
        parts.sort_by_key(|part| part.start);
        let end = parts.iter().try_fold(0, |to, part| (part.start == to).then_some(part.end));
        need.by.iter().all(|(nth, _)| fills(nth)) && end == Some(size)
    }

    /// Maps the blocks that were given out; what is promised to whom.
    async fn enter(&self, batch: &mut Batch, cx: &TaskContext) -> BTreeMap<usize, Promises> {
        let mut promises: BTreeMap<usize, Promises> = BTreeMap::new();
        let rows = self.rows(batch);
        let device = |row: &Row| batch.needs[row.needs.start].block.0;
        let of_one = |a: &Row, b: &Row| device(a) == device(b);
        let mut left: VecDeque<&[Row]> = rows.chunk_by(of_one).flat_map(|own| own.chunks(ROWS_MAX)).collect();
        while let Some(some) = left.pop_front() {
            let entered = match some {
                [_] => self.edit(cx, |editor, blocks| self.enter_rows(editor, blocks, some, batch)).await,
                // Tried once: what many rows need of the metadata may be more than is kept in memory at a time, as where each of them
                // is in a shared leaf of its own, below which every count rises.
                _ => self.enter_rows(&mut self.editor(), &self.blocks, some, batch).map_err(Refused::Edit),
            };
            match entered {
                Ok(()) => some.iter().for_each(|row| self.promise(row, batch, &mut promises)),
                // One by one: what is lacking is read for each, and there are as many as there is room for.
                Err(_) if some.len() > 1 => some.chunks(1).rev().for_each(|row| left.push_front(row)),
                Err(refused) => {
                    some.iter().for_each(|row| self.give_back(row, batch));
                    // Last: those who need what was given back here go no further either.
                    self.stopped(batch, &refused);
                }
            }
        }
        promises
    }

    /// What a row was given that could not be mapped.
    fn give_back(&self, row: &Row, batch: &mut Batch) {
        batch.needs[row.needs.clone()].iter_mut().for_each(|need| need.data = None);
        self.editor().release(row.data.clone());
    }

    /// What of a row that is mapped now is promised to whom.
    fn promise(&self, row: &Row, batch: &Batch, promises: &mut BTreeMap<usize, Promises>) {
        if !row.is_filling {
            return;
        }
        for (need, data) in batch.needs[row.needs.clone()].iter().zip(row.data.clone()) {
            for (by, part) in need.by.iter().filter(|(by, _)| self.may_fill(batch, *by)) {
                promises.entry(*by).or_default().push((data, *part));
            }
        }
    }

    fn may_fill(&self, batch: &Batch, nth: usize) -> bool {
        batch.wants[nth].fills() && !batch.is_partial.contains(&nth)
    }

    /// What was given out, in rows.
    fn rows(&self, batch: &Batch) -> Vec<Row> {
        let mut rows: Vec<Row> = Vec::new();
        let mut last = None;
        for (nth, need) in batch.needs.iter().enumerate() {
            let Some(data) = need.data else { continue };
            let is_filling = self.is_covered(batch, need);
            let follows = last == Some((need.block.0, need.block.1.wrapping_sub(1)));
            last = Some(need.block);
            match rows.last_mut() {
                Some(row) if follows && row.data.end == data && row.is_filling == is_filling => {
                    (row.needs.end, row.data.end) = (nth + 1, data + 1);
                }
                _ => rows.push(Row { needs: nth..nth + 1, data: data..data + 1, is_filling }),
            }
        }
        rows
    }

    /// Maps rows of one device, in the tree and in the cache at once; or none of them.
    fn enter_rows(
        &self,
        editor: &mut Editor,
        blocks: &dyn Blocks,
        rows: &[Row],
        batch: &Batch,
    ) -> Result<(), EditError> {
        let Some(row) = rows.first() else { return Ok(()) };
        let device = batch.device(row);
        let runs: Vec<_> = rows.iter().map(|row| (batch.first(row), row.data.clone())).collect();
        let mapped = editor.map_rows(blocks, device.id, &runs)?;
        self.books().freed |= !mapped.freed.is_empty();
        for row in rows {
            let first = batch.first(row);
            let end = first + (row.data.end - row.data.start);
            device.set_changed(self.transaction.load(Ordering::Acquire), first..end);
            if row.is_filling {
                self.open_fills(row, batch);
            }
            self.publish(editor, device, first, &row.data, row.is_filling);
        }
        Ok(())
    }

    /// The blocks of a row are full when the writes that need them have come to their end.
    fn open_fills(&self, row: &Row, batch: &Batch) {
        for (need, data) in batch.needs[row.needs.clone()].iter().zip(row.data.clone()) {
            let by = need.by.iter().filter(|(by, _)| self.may_fill(batch, *by));
            let parts = by.map(|(_, part)| *part).collect();
            let of = (batch.device(row).clone(), need.block.1);
            self.fills.open(data, of, parts, need.content.clone());
        }
    }

    /// Answers; what could not be served waits for a commit, or for space.
    async fn conclude(&self, batch: Batch, mut promises: BTreeMap<usize, Promises>, cx: &TaskContext) {
        let Batch { wants, needs, failed, idle, end, .. } = batch;
        let unserved = needs.iter().filter(|need| need.data.is_none());
        let unserved: BTreeSet<usize> =
            unserved.flat_map(|need| need.by.iter().map(|(nth, _)| *nth)).collect();
        let mut left = Vec::new();
        for (nth, want) in wants.into_iter().enumerate() {
            let own = promises.remove(&nth).unwrap_or_default();
            if failed.contains(&nth) || unserved.contains(&nth) {
                // What it was to fill is filled by others, or with zeros: it comes later, if at all.
                own.iter().for_each(|(data, part)| self.fills.abandon(*data, *part));
            }
            if failed.contains(&nth) {
                want.answer.give(Err(Errno::EIO));
            } else if unserved.contains(&nth) {
                left.push(want);
            } else {
                want.answer.give(Ok(if idle.contains(&nth) { Got::Nothing } else { Got::Blocks(own) }));
            }
        }
        self.start_upkeep(cx);
        self.look_at_low_water(cx);
        let freed = self.books().freed;
        let may_come = freed || self.editor().is_dirty();
        match end {
            _ if left.is_empty() => {}
            End::NoData if freed => self.requests.again_after_commit(left),
            End::NoMetadata if may_come => self.requests.again_after_commit(left),
            End::NoMetadata => {
                self.out_of_metadata();
                left.iter().for_each(|want| want.answer.give(Err(Errno::EIO)));
            }
            End::NoData => self.out_of_data(left, cx),
            End::Done => self.requests.again_after_commit(left),
        }
    }
}

/// Lets the worker's other tasks run that are ready.
pub(super) async fn yield_once() {
    let mut has_yielded = false;
    poll_fn(|cx| {
        if std::mem::replace(&mut has_yielded, true) {
            return Poll::Ready(());
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}
