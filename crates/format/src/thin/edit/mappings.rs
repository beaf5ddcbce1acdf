//! Mappings of a device: looking them up, entering them, taking them out; and the data blocks for them.

use std::ops::Range;

use crate::bytes::length;
use crate::thin::BlockKind;
use crate::thin::node::Node;
use crate::thin::value::{BlockTime, DeviceDetails};

use super::remove::first_leaf;
use super::tree::{self, Committed, Edit, Plain, Roots, Run};
use super::{Blocks, EditError, Editor, LEAVES_MAX, State, Uses};

/// Virtual blocks of a device that follow each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum VirtualRun {
    /// They map nothing.
    Hole {
        /// How many.
        length: u64,
    },
    /// They map data blocks that follow each other, all entered at one time.
    Mapped {
        /// Where the first one lies, and since when.
        first: BlockTime,
        /// How many.
        length: u64,
    },
}

/// What mapping a run did.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Mapped {
    /// How many of the virtual blocks had a mapping already.
    pub replaced: u64,
    /// Data blocks that nobody maps any more, in rising order.
    pub freed: Vec<Range<u64>>,
}

/// What a step of unmapping did.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Unmapped {
    /// How many virtual blocks have no mapping any more.
    pub count: u64,
    /// Data blocks that nobody maps any more, in rising order.
    pub freed: Vec<Range<u64>>,
    /// Where to go on; none: all of the range is unmapped.
    pub next: Option<u64>,
}

/// Blocks as runs.
pub(super) fn ranges(blocks: impl IntoIterator<Item = u64>) -> Vec<Range<u64>> {
    joined(blocks.into_iter().map(|block| block..block + 1).collect())
}

/// Runs in rising order, of which no two adjoin.
fn joined(mut runs: Vec<Range<u64>>) -> Vec<Range<u64>> {
    runs.sort_unstable_by_key(|run| run.start);
    let mut joined: Vec<Range<u64>> = Vec::new();
    for run in runs {
        match joined.last_mut() {
            Some(last) if last.end == run.start => last.end = run.end,
            _ => joined.push(run),
        }
    }
    joined
}

impl State {
    pub(super) fn root(&mut self, from: Committed<'_>, device: u64) -> Result<u64, EditError> {
        let root = tree::look_up(&mut self.roots, from, self.superblock.mapping_root, device)?;
        root.ok_or(EditError::NoDevice(device))
    }

    pub(super) fn details(&mut self, from: Committed<'_>, device: u64) -> Result<DeviceDetails, EditError> {
        let root = self.superblock.details_root;
        tree::look_up(&mut self.details, from, root, device)?.ok_or(EditError::NoDevice(device))
    }

    /// Enters the root of a device into a top level; the root of that then.
    pub(super) fn insert_root(
        &mut self,
        from: Committed<'_>,
        top: u64,
        device: u64,
        root: u64,
    ) -> Result<u64, EditError> {
        let State { roots, metadata, .. } = self;
        let mut edit = Edit { nodes: roots, space: metadata, owner: &mut Roots, from };
        Ok(edit.insert(top, device, root)?.0)
    }

    pub(super) fn insert_details(
        &mut self,
        from: Committed<'_>,
        tree: u64,
        device: u64,
        details: DeviceDetails,
    ) -> Result<u64, EditError> {
        let State { details: nodes, metadata, .. } = self;
        let mut edit = Edit { nodes, space: metadata, owner: &mut Plain, from };
        Ok(edit.insert(tree, device, details)?.0)
    }

    pub(super) fn mapping_edit<'a>(
        &'a mut self,
        from: Committed<'a>,
    ) -> Edit<'a, BlockTime, super::space::Metadata, super::space::Data> {
        let State { mappings, metadata, data, .. } = self;
        Edit { nodes: mappings, space: metadata, owner: data, from }
    }

    /// The root of a device, on a way that is one's own: only then does its count say whether it is shared.
    fn own_root(&mut self, from: Committed<'_>, device: u64) -> Result<u64, EditError> {
        let root = self.root(from, device)?;
        self.superblock.mapping_root = self.insert_root(from, self.superblock.mapping_root, device, root)?;
        Ok(root)
    }

    /// Notes what a device has become.
    fn settle_device(
        &mut self,
        from: Committed<'_>,
        device: u64,
        (before, after): (u64, u64),
        (gone, come): (u64, u64),
    ) -> Result<(), EditError> {
        if before != after {
            self.superblock.mapping_root =
                self.insert_root(from, self.superblock.mapping_root, device, after)?;
        }
        if gone != come {
            let details = self.details(from, device)?.with_fewer(gone, device)?;
            let mapped_blocks = details.mapped_blocks.saturating_add(come);
            let details = DeviceDetails { mapped_blocks, ..details };
            self.superblock.details_root =
                self.insert_details(from, self.superblock.details_root, device, details)?;
        }
        Ok(())
    }

    /// One reference less to each data block; those that have none left.
    pub(super) fn lower_data(
        &mut self,
        from: Committed<'_>,
        values: &[BlockTime],
    ) -> Result<Vec<u64>, EditError> {
        let mut freed = Vec::new();
        for value in values {
            if self.data.lower(&mut self.metadata, from, value.block)? == 0 {
                freed.push(value.block);
            }
        }
        Ok(freed)
    }

    /// The way to the device's tree, and what is known of the device, change once, however many rows there are.
    fn map(
        &mut self,
        from: Committed<'_>,
        device: u64,
        rows: &[(u64, Range<u64>)],
        time: u32,
    ) -> Result<Mapped, EditError> {
        let root = self.own_root(from, device)?;
        let (mut after, mut count, mut replaced) = (root, 0, Vec::new());
        for (first, data) in rows {
            let value = |at| BlockTime { block: data.start + at, time };
            let run = Run { first: *first, length: data.end - data.start, value };
            count += run.length;
            after = self.mapping_edit(from).insert_run(after, run, &mut replaced)?;
            for block in data.clone() {
                self.data.raise(&mut self.metadata, from, block)?;
            }
        }
        let freed = self.lower_data(from, &replaced)?;
        let replaced = length(replaced.len());
        self.settle_device(from, device, (root, after), (replaced, count))?;
        Ok(Mapped { replaced, freed: ranges(freed) })
    }

    /// What one leaf has of a range.
    fn unmap(&mut self, from: Committed<'_>, device: u64, range: Range<u64>) -> Result<Unmapped, EditError> {
        let root = self.root(from, device)?;
        let first = first_leaf(&mut self.mappings, from, root, &range)?;
        let Some(start) = first.start else {
            return Ok(Unmapped { next: first.next, ..Unmapped::default() });
        };
        let root = self.own_root(from, device)?;
        let (after, taken) = self.mapping_edit(from).remove_leaf(root, start..range.end)?;
        let freed = self.lower_data(from, &taken.values)?;
        self.settle_device(from, device, (root, after), (taken.count, 0))?;
        Ok(Unmapped { count: taken.count, freed: ranges(freed), next: taken.next })
    }

    fn look_up(
        &mut self,
        from: Committed<'_>,
        device: u64,
        first: u64,
        most: u64,
    ) -> Result<VirtualRun, EditError> {
        let root = self.root(from, device)?;
        let blocks = self.data.pages.tally.blocks;
        let (place, leaf) = tree::leaf(&mut self.mappings, from, root, first)?;
        let at = leaf.keys.partition_point(|key| *key < first);
        if leaf.keys.get(at) != Some(&first) {
            let end = leaf.keys.get(at).copied().or(place.high.filter(|high| *high > first));
            return Ok(VirtualRun::Hole {
                length: end.unwrap_or(u64::MAX).min(first.saturating_add(most)) - first,
            });
        }
        let start = leaf.values[at];
        let follows = |(step, (key, value)): (u64, (u64, BlockTime))| {
            let wanted = (first.checked_add(step), start.block.checked_add(step), start.time);
            (Some(key), Some(value.block), value.time) == wanted
        };
        let behind = leaf.keys[at..].iter().copied().zip(leaf.values[at..].iter().copied());
        let run = length((0..most).zip(behind).take_while(|entry| follows(*entry)).count());
        if start.block >= blocks || run > blocks - start.block {
            let found = format!("{} for block {first}", start.block);
            let expected = format!("below {blocks}");
            return Err(BlockKind::Node.wrong(place.nr, 0, "data block", found, expected).into());
        }
        Ok(VirtualRun::Mapped { first: start, length: run })
    }
}

impl DeviceDetails {
    /// With so many mappings less.
    pub(super) fn with_fewer(self, count: u64, device: u64) -> Result<DeviceDetails, EditError> {
        let mapped_blocks = self.mapped_blocks.checked_sub(count).ok_or_else(|| {
            let found = format!("{} (of device {device})", self.mapped_blocks);
            let expected = format!("at least {count}");
            crate::FormatError::invalid("thin device details", 0, "mapped blocks", found, expected)
        })?;
        Ok(DeviceDetails { mapped_blocks, ..self })
    }
}

impl Editor {
    /// What a device maps from virtual block `first` on: a run of `most` blocks at most, which need not be as long as it could.
    ///
    /// # Errors
    ///
    /// No such device; [`EditError::Missing`]; damage.
    pub fn look_up(
        &mut self,
        blocks: &dyn Blocks,
        device: u64,
        first: u64,
        most: u64,
    ) -> Result<VirtualRun, EditError> {
        self.look(blocks, |state, from| state.look_up(from, device, first, most))
    }

    /// The root of a device's tree as it is now; its nodes are on the device, or [`Editor::node`] has them.
    ///
    /// # Errors
    ///
    /// As for [`Editor::look_up`].
    pub fn root(&mut self, blocks: &dyn Blocks, device: u64) -> Result<u64, EditError> {
        self.look(blocks, |state, from| state.root(from, device))
    }

    /// A node of a device's tree that is not durable yet. None: the device has it, or it is none.
    pub fn node(&self, nr: u64) -> Option<&Node<BlockTime>> {
        self.state.mappings.not_durable(nr)
    }

    /// Whether more than one mapping leads to a data block.
    ///
    /// # Errors
    ///
    /// There is no such block; [`EditError::Missing`]; damage.
    pub fn is_shared(&mut self, blocks: &dyn Blocks, data_block: u64) -> Result<bool, EditError> {
        self.look(blocks, |state, from| Ok(state.data.count(from, data_block)? > 1))
    }

    /// Gives out up to `most` free data blocks that follow each other, behind those that were given out last. They are the caller's,
    /// in memory only, until they are mapped or [released](Editor::release).
    ///
    /// # Errors
    ///
    /// [`EditError::NoData`]; [`EditError::NoMetadata`], if they could not be mapped; [`EditError::Missing`]; damage.
    pub fn allocate(&mut self, blocks: &dyn Blocks, most: u64) -> Result<Range<u64>, EditError> {
        if self.exhausted || most == 0 {
            return Err(EditError::NoData);
        }
        let given = std::mem::take(&mut self.given);
        let found = self.operation(blocks, Uses::Space, |state, from| {
            let tally = state.data.pages.tally;
            for range in [tally.next..tally.blocks, 0..tally.next.min(tally.blocks)] {
                if let Some(first) = first_free(state, from, &given, range)? {
                    let end = end_of_run(state, from, &given, first, most)?;
                    state.data.pages.tally.next = end;
                    return Ok(Some(first..end));
                }
            }
            Ok(None)
        });
        self.given = given;
        let Some(found) = found? else {
            self.exhausted = true;
            return Err(EditError::NoData);
        };
        self.given.insert(found.start, found.end);
        Ok(found)
    }

    /// Takes data blocks back that were given out and are not mapped.
    pub fn release(&mut self, data: Range<u64>) {
        self.take_back(&data);
        self.exhausted = false;
    }

    fn take_back(&mut self, data: &Range<u64>) {
        let first = self.given.range(..=data.start).next_back().map_or(data.start, |(first, _)| *first);
        let touched: Vec<(u64, u64)> =
            self.given.range(first..data.end).map(|(first, end)| (*first, *end)).collect();
        for (first, end) in touched {
            if end <= data.start {
                continue;
            }
            self.given.remove(&first);
            if first < data.start {
                self.given.insert(first, data.start);
            }
            if end > data.end {
                self.given.insert(data.end, end);
            }
        }
    }

    /// Maps virtual blocks from `first` on to data blocks that follow each other, each of which gets a reference; mappings that were
    /// there are replaced, and what they led to loses one.
    ///
    /// # Errors
    ///
    /// No such device or data blocks; [`EditError::NoMetadata`]; [`EditError::Missing`]; damage.
    pub fn map(
        &mut self,
        blocks: &dyn Blocks,
        device: u64,
        first: u64,
        data: Range<u64>,
    ) -> Result<Mapped, EditError> {
        self.map_rows(blocks, device, &[(first, data)])
    }

    /// As [`Editor::map`], for several rows of virtual blocks (where each begins, and the data blocks for it) in rising order: all of
    /// them, or none. Rows of one batch cost much less than one by one, since what they have in common is copied once.
    ///
    /// # Errors
    ///
    /// As for [`Editor::map`].
    pub fn map_rows(
        &mut self,
        blocks: &dyn Blocks,
        device: u64,
        rows: &[(u64, Range<u64>)],
    ) -> Result<Mapped, EditError> {
        let all = self.data_blocks();
        for (first, data) in rows {
            let count = data.end.saturating_sub(data.start);
            if count == 0 || data.end > all || first.checked_add(count).is_none() {
                return Err(EditError::Range { first: data.start, length: count.max(1), blocks: all });
            }
        }
        let mapped = self.operation(blocks, Uses::Space, |state, from| {
            let time = state.superblock.time;
            state.map(from, device, rows, time)
        })?;
        // What was given out together comes back together.
        let mut next = 0;
        while let Some((_, data)) = rows.get(next) {
            let mut own = data.clone();
            next += 1;
            while let Some((_, behind)) = rows.get(next).filter(|(_, behind)| behind.start == own.end) {
                own.end = behind.end;
                next += 1;
            }
            self.take_back(&own);
        }
        Ok(mapped)
    }

    /// Gives a virtual block the mapping that it had until [`Editor::map`] has replaced it, in the transaction that is under way still.
    ///
    /// # Errors
    ///
    /// As for [`Editor::map`].
    pub fn map_back(
        &mut self,
        blocks: &dyn Blocks,
        device: u64,
        virtual_block: u64,
        mapping: BlockTime,
    ) -> Result<Mapped, EditError> {
        let row = (virtual_block, mapping.block..mapping.block + 1);
        self.operation(blocks, Uses::Little, |state, from| {
            state.map(from, device, std::slice::from_ref(&row), mapping.time)
        })
    }

    /// Takes the mappings of a range of virtual blocks away, as far as a call goes: ask again from [`Unmapped::next`].
    ///
    /// # Errors
    ///
    /// No such device; [`EditError::NoMetadata`]; [`EditError::Missing`]; damage.
    pub fn unmap(
        &mut self,
        blocks: &dyn Blocks,
        device: u64,
        range: Range<u64>,
    ) -> Result<Unmapped, EditError> {
        let mut all = Unmapped { next: Some(range.start), ..Unmapped::default() };
        for nth in 0..LEAVES_MAX {
            let Some(start) = all.next else { break };
            let one = self
                .operation(blocks, Uses::Little, |state, from| state.unmap(from, device, start..range.end));
            let Unmapped { count, freed, next } = match one {
                // As in `by_leaves`.
                Err(_) if nth > 0 => break,
                one => one?,
            };
            all.count += count;
            all.freed.extend(freed);
            all.next = next;
            if count == 0 {
                break;
            }
        }
        all.freed = joined(all.freed);
        Ok(all)
    }
}

/// The first data block of a range that may be given out and was not.
fn first_free(
    state: &mut State,
    from: Committed<'_>,
    given: &std::collections::BTreeMap<u64, u64>,
    range: Range<u64>,
) -> Result<Option<u64>, EditError> {
    let mut start = range.start;
    while let Some(block) = state.data.find(from, start..range.end)? {
        match given.range(..=block).next_back() {
            Some((_, end)) if *end > block => start = *end,
            _ => return Ok(Some(block)),
        }
    }
    Ok(None)
}

/// Where the run of free data blocks ends that begins with `first`; `most` long at most.
fn end_of_run(
    state: &mut State,
    from: Committed<'_>,
    given: &std::collections::BTreeMap<u64, u64>,
    first: u64,
    most: u64,
) -> Result<u64, EditError> {
    let taken = given.range(first..).next().map_or(u64::MAX, |(next, _)| *next);
    let bound = first.saturating_add(most).min(state.data.pages.tally.blocks).min(taken);
    let mut end = first + 1;
    while end < bound {
        let run = state.data.end_of_free(from, end, bound)?;
        if run == end {
            break;
        }
        end = run;
    }
    Ok(end)
}
