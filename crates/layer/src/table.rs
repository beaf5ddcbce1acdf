//! A device-mapper table: targets side by side, without gap or overlap.

use std::sync::Arc;

use blockwork_engine::{
    Defer, Layer, Limits, Misaligned, NodeId, Op, Reason, Resolver, Sector, Sectors, Shape, Span,
};

/// A target and where it starts.
#[derive(Clone, Debug)]
pub struct Segment {
    /// First sector, on the table's device.
    pub start: Sector,
    /// The target; its own sectors begin with 0.
    pub target: Arc<dyn Layer>,
}

/// Why targets do not make up a device.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TableError {
    /// No targets.
    #[error("the table has no targets")]
    Empty,
    /// A gap or overlap.
    #[error("target {index} starts at sector {start}; expected {expected}, where the one before it ends")]
    Start {
        /// Which, from 0.
        index: usize,
        /// Where it starts.
        start: Sector,
        /// Where it should.
        expected: Sector,
    },
    /// The sum of the sizes is beyond what a device may have.
    #[error("the table ends beyond sector {}", Sectors::MAX)]
    TooLarge,
}

/// Targets side by side.
#[derive(Debug)]
pub struct Table {
    segments: Vec<Segment>,
    shape: Shape,
}

impl Table {
    /// A device made of these targets, in order.
    pub fn new(node: NodeId, segments: Vec<Segment>) -> Result<Table, TableError> {
        if segments.is_empty() {
            return Err(TableError::Empty);
        }
        let mut expected = Sector(0);
        for (index, segment) in segments.iter().enumerate() {
            if segment.start != expected {
                return Err(TableError::Start { index, start: segment.start, expected });
            }
            let end = expected.0.checked_add(segment.target.sectors().0).filter(|end| *end <= Sectors::MAX.0);
            expected = Sector(end.ok_or(TableError::TooLarge)?);
        }
        let limits = Limits::stacked(segments.iter().map(|segment| segment.target.limits()));
        Ok(Table { segments, shape: Shape { node, sectors: Sectors(expected.0), limits } })
    }

    /// The target that holds `sector`.
    #[inline]
    fn index_of(&self, sector: Sector) -> usize {
        if self.segments.len() == 1 {
            0
        } else {
            self.segments.partition_point(|segment| segment.start <= sector) - 1
        }
    }
}

impl Layer for Table {
    fn shape(&self) -> &Shape {
        &self.shape
    }
    #[inline]
    fn resolve(&self, span: Span, cx: &mut Resolver<'_>) -> Result<(), Defer> {
        if span.op == Op::Flush {
            let mut all = self.segments.iter();
            return all.try_for_each(|segment| cx.pass(self.shape.node, span.sector, &*segment.target, span));
        }
        let mut index = self.index_of(span.sector);
        let mut rest = span;
        loop {
            let Segment { start, target } = &self.segments[index];
            let within = Sector(rest.sector.0 - start.0);
            let room = Sectors(target.sectors().0 - within.0);
            // Behind the last one is the rest of an uneven table's last block.
            if rest.nr <= room || index + 1 == self.segments.len() {
                return cx.pass(self.shape.node, rest.sector, &**target, rest.moved_to(within));
            }
            cx.split(self.shape.node, rest.piece(Sectors::ZERO, room), 2, Reason::TargetEnd);
            cx.pass(
                self.shape.node,
                rest.sector,
                &**target,
                rest.piece(Sectors::ZERO, room).moved_to(within),
            )?;
            rest = rest.piece(room, rest.nr - room);
            index += 1;
        }
    }
    fn misaligned(&self) -> Option<Misaligned> {
        let block = |segment: &Segment| segment.target.limits().logical_block_size;
        let in_a_block = |at: Sector, block: u32| {
            (!at.bytes().is_multiple_of(block.into())).then_some(Misaligned::Boundary { at })
        };
        let inner = self
            .segments
            .windows(2)
            .find_map(|pair| in_a_block(pair[1].start, block(&pair[0]).max(block(&pair[1]))));
        // The rest of the last block is the last target's: on smaller blocks it may be behind the end of a disk, or somebody else's.
        let smaller = |segment: &&Segment| block(segment) < self.shape.limits.logical_block_size;
        inner.or_else(|| {
            self.segments.last().filter(smaller)?;
            in_a_block(Sector(self.shape.sectors.0), self.shape.limits.logical_block_size)
        })
    }
    fn approach(&self, span: &Span) {
        let Segment { start, target } = &self.segments[self.index_of(span.sector)];
        target.approach(&span.moved_to(Sector(span.sector.0.saturating_sub(start.0))));
    }
    fn below(&self) -> Vec<Arc<dyn Layer>> {
        self.segments.iter().map(|segment| segment.target.clone()).collect()
    }
}
