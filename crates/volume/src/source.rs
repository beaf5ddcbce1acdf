//! Reading while volumes are assembled, before there is a worker: through a stack, to the leaves that it ends on.

use std::io;
use std::ops::Range;
use std::sync::Arc;

use blockwork_engine::{
    CounterTable, Defer, Extent, Flags, Layer, LeafSource, NodeId, Op, Resolver, SECTOR, Sector, Sectors,
    Span, Target, Term, Tracer, layer_below,
};
use blockwork_format::Source;

/// Bytes at the start of a device that are read at once: what is looked for there lies in them, but for what an area
/// holds.
const HEAD_BYTES: u64 = 72 << 10;

/// Any layer as something a parser can read.
pub(crate) struct StackSource<'a> {
    pub(crate) layer: &'a dyn Layer,
    pub(crate) leaves: &'a [(NodeId, Arc<dyn LeafSource>)],
    /// Has a row for every node of the stack. What is counted here is seen by nobody.
    pub(crate) counters: &'a CounterTable,
    /// No worker serves any of it: what layers keep in memory is what the disks say, and they may read more of that.
    pub(crate) is_at_rest: bool,
}

impl Source for StackSource<'_> {
    fn size(&self) -> u64 {
        self.layer.sectors().bytes()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        let end = offset.checked_add(buf.len() as u64).filter(|end| *end <= self.size());
        let end = end.ok_or(io::ErrorKind::UnexpectedEof)?;
        if buf.is_empty() {
            return Ok(());
        }
        let first = Sector(offset / SECTOR);
        let nr = Sectors::from_bytes_ceil(end - first.bytes());
        let span = Span { op: Op::Read, flags: Flags::NONE, sector: first, nr, at: Sectors::ZERO };
        let mut extents = Vec::new();
        let mut tracer = Tracer::default();
        let mut before = None;
        loop {
            extents.clear();
            let mut resolver = Resolver::new(&mut extents, self.counters, &mut tracer);
            let Err(defer) = self.layer.resolve(span, &mut resolver) else { break };
            let place = (defer.node, defer.span.sector);
            // What it was prepared for, and asks for once more, takes more than that.
            let is_news = before.replace(place) != Some(place);
            let prepared = if is_news && self.is_at_rest { self.prepare(&defer) } else { None };
            prepared.unwrap_or_else(|| {
                Err(io::Error::other(format!("it needs work before it can be read ({:?})", defer.reason)))
            })?;
        }
        extents.iter().try_for_each(|extent| self.read_extent(extent, first.bytes(), offset, buf))
    }
}

impl StackSource<'_> {
    /// Has a layer of the stack do what it needs before something of it can be read; none: that takes a worker.
    fn prepare(&self, defer: &Defer) -> Option<io::Result<()>> {
        let read = |layer: &dyn Layer, offset: u64, into: &mut [u8]| {
            StackSource { layer, ..*self }.read_at(offset, into)
        };
        let below = layer_below(self.layer, defer.node);
        below.as_deref().unwrap_or(self.layer).prepare_now(defer, &read)
    }

    /// Reads what `extent` has of the bytes from `offset` on; it was resolved for a read from byte `start` on.
    fn read_extent(&self, extent: &Extent, start: u64, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        let from = start + extent.span.at.bytes();
        let Some(Common { skip, at }) = common(from, extent.span.nr.bytes(), offset, buf.len()) else {
            return Ok(());
        };
        match extent.target {
            Target::Leaf(leaf) => {
                let (_, source) = &self.leaves[usize::from(leaf.0)];
                source.read_now(extent.span.sector.bytes() + skip, &mut buf[at])
            }
            Target::Zero => {
                buf[at].fill(0);
                Ok(())
            }
            Target::Sum(node) => self.compute(node, extent.span, skip, &mut buf[at]),
            Target::Task(_) => unreachable!("no read is done in a task of its layer"),
            Target::Error(errno) => Err(io::Error::from_raw_os_error(errno.0)),
        }
    }

    /// Computes the bytes from byte `skip` of a span on. Where something cannot be read of what they are computed from, those of each sector
    /// by themselves: another one may be computed from others.
    fn compute(&self, node: NodeId, span: Span, skip: u64, buf: &mut [u8]) -> io::Result<()> {
        let below = layer_below(self.layer, node);
        let layer = below.as_deref().unwrap_or(self.layer);
        if self.compute_alike(layer, span, skip, &mut Vec::new(), buf)? == 0 {
            return Ok(());
        }
        let (mut skip, mut rest) = (skip, buf);
        while !rest.is_empty() {
            let bytes = rest.len().min(usize::try_from(SECTOR - skip % SECTOR).expect("at most a sector"));
            let (now, later) = rest.split_at_mut(bytes);
            let mut without = Vec::new();
            while self.compute_alike(layer, span, skip, &mut without, now)? > 0 {}
            (skip, rest) = (skip + bytes as u64, later);
        }
        Ok(())
    }

    /// Likewise, all from the same members, but for those `without` which it is done. How many more have refused something: then they are among
    /// those, and nothing is computed.
    fn compute_alike(
        &self,
        layer: &dyn Layer,
        span: Span,
        skip: u64,
        without: &mut Vec<NodeId>,
        buf: &mut [u8],
    ) -> io::Result<usize> {
        let first = skip / SECTOR;
        let end = Sectors::from_bytes_ceil(skip + buf.len() as u64);
        let piece = span.piece(Sectors(first), end - Sectors(first));
        let terms = layer.terms(piece, without).map_err(|errno| io::Error::from_raw_os_error(errno.0))?;
        let (mut term, mut refused) = (vec![0; buf.len()], 0);
        buf.fill(0);
        for Term { below, sector, factor } in terms {
            let source = StackSource { layer: &*below, ..*self };
            match source.read_at(sector.bytes() + skip % SECTOR, &mut term) {
                Ok(()) => factor.add_times(&term, buf),
                Err(_) => {
                    without.push(below.node());
                    refused += 1;
                }
            }
        }
        Ok(refused)
    }
}

/// What a piece and a buffer have in common.
struct Common {
    /// Bytes of the piece before it.
    skip: u64,
    /// Where in the buffer.
    at: Range<usize>,
}

fn common(from: u64, bytes: u64, offset: u64, length: usize) -> Option<Common> {
    let start = from.max(offset);
    let end = (from + bytes).min(offset + length as u64);
    let index = |at: u64| usize::try_from(at - offset).expect("inside a buffer");
    (start < end).then(|| Common { skip: start - from, at: index(start)..index(end) })
}

/// A range of a leaf that is in no stack, for a look at what it holds.
pub(crate) struct LeafReader<'a> {
    pub(crate) source: &'a dyn LeafSource,
    /// First byte.
    pub(crate) start: u64,
    /// Length.
    pub(crate) bytes: u64,
}

impl Source for LeafReader<'_> {
    fn size(&self) -> u64 {
        self.bytes
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        let end = offset.checked_add(buf.len() as u64).filter(|end| *end <= self.bytes);
        end.ok_or(io::ErrorKind::UnexpectedEof)?;
        self.source.read_now(self.start + offset, buf)
    }
}

/// A source whose first bytes were read at once, since parsers ask for them in dozens of small pieces.
pub(crate) struct Buffered<'a> {
    below: &'a dyn Source,
    head: Vec<u8>,
}

impl<'a> Buffered<'a> {
    /// Reads the first bytes. Where they cannot be read, each piece of them is tried by itself when it is asked for.
    pub(crate) fn new(below: &'a dyn Source) -> Buffered<'a> {
        let length = usize::try_from(below.size().min(HEAD_BYTES)).expect("at most HEAD_BYTES");
        let mut head = vec![0; length];
        if below.read_at(0, &mut head).is_err() {
            head.clear();
        }
        Buffered { below, head }
    }
}

impl Source for Buffered<'_> {
    fn size(&self) -> u64 {
        self.below.size()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        let start = usize::try_from(offset).ok();
        let end = start.and_then(|start| start.checked_add(buf.len()));
        match start.zip(end).and_then(|(start, end)| self.head.get(start..end)) {
            Some(known) => {
                buf.copy_from_slice(known);
                Ok(())
            }
            None => self.below.read_at(offset, buf),
        }
    }
}

#[cfg(test)]
mod tests {
    use blockwork_engine::{Errno, LeafId, LeafLayer, NodeInfo, NodeKind, Shape};
    use blockwork_format::md::{Level, ParityLayout};
    use blockwork_layer::md::{Array, ArrayConfig, Geometry, MemberConfig};
    use blockwork_layer::{Linear, Segment, Stripe, Striped, Table, Zero};

    use super::*;
    use crate::nodes::{MAJOR_DM, Nodes};

    /// A stack over two disks in memory, of which every sector holds its own number and the disk's.
    struct Rig {
        leaves: Vec<(NodeId, Arc<dyn LeafSource>)>,
        layers: Vec<Arc<dyn Layer>>,
        folder: tempfile::TempDir,
        nodes: Nodes,
    }

    fn rig() -> Rig {
        let folder = tempfile::tempdir().unwrap();
        let mut rig = Rig { leaves: Vec::new(), layers: Vec::new(), folder, nodes: Nodes::default() };
        for disk in 0..2u8 {
            let path = rig.folder.path().join(disk.to_string());
            let bytes: Vec<u8> = (0..200u8).flat_map(|sector| [[disk, sector]; 256].concat()).collect();
            std::fs::write(&path, bytes).unwrap();
            let opened = blockwork_leaf::open(path.to_str().unwrap(), &Default::default()).unwrap();
            let node = rig.node();
            let source = opened.source;
            let leaf = LeafLayer::new(LeafId(disk.into()), node, source.sectors(), source.limits().clone());
            rig.layers.push(Arc::new(leaf));
            rig.leaves.push((node, source));
        }
        rig
    }

    impl Rig {
        fn node(&mut self) -> NodeId {
            self.nodes.add("a layer", NodeKind::Linear, MAJOR_DM).unwrap()
        }
        fn source<'a>(&'a self, layer: &'a dyn Layer, counters: &'a CounterTable) -> StackSource<'a> {
            StackSource { layer, leaves: &self.leaves, counters, is_at_rest: true }
        }
    }

    #[test]
    fn any_range_of_a_stack_reads_as_its_leaves_and_zeros_do() {
        let mut rig = rig();
        let (a, b) = (rig.layers[0].clone(), rig.layers[1].clone());
        let stripes =
            [(a.clone(), 10), (b.clone(), 20)].map(|(below, start)| Stripe { below, start: Sector(start) });
        let striped = Striped::new(rig.node(), Sectors(3), stripes.to_vec(), Sectors(12)).unwrap();
        let linear = Linear::new(rig.node(), b, Sector(7), Sectors(5)).unwrap();
        let zero = Zero::new(rig.node(), Sectors(2));
        let targets: [Arc<dyn Layer>; 3] = [Arc::new(striped), Arc::new(zero), Arc::new(linear)];
        let starts = [0, 12, 14];
        let segments = starts.into_iter().zip(targets);
        let segments = segments.map(|(start, target)| Segment { start: Sector(start), target }).collect();
        let table = Table::new(rig.node(), segments).unwrap();
        let expected: Vec<u8> = [(0, 10..13), (1, 20..23), (0, 13..16), (1, 23..26), (9, 0..2), (1, 7..12)]
            .into_iter()
            .flat_map(|(disk, sectors)| {
                sectors.map(move |sector| if disk == 9 { [0, 0] } else { [disk, sector] })
            })
            .flat_map(|pair| [pair; 256].concat())
            .collect();
        let counters = CounterTable::new(rig.nodes.infos().len());
        let source = rig.source(&table, &counters);
        assert_eq!(source.size(), 19 * 512);
        for (from, to) in [(0, expected.len()), (0, 1), (511, 513), (1000, 6500), (6143, 7170), (9727, 9728)]
        {
            let mut buf = vec![0xee; to - from];
            source.read_at(from as u64, &mut buf).unwrap();
            assert!(buf == expected[from..to], "bytes {from} to {to}");
            let mut again = vec![0xee; to - from];
            Buffered::new(&source).read_at(from as u64, &mut again).unwrap();
            assert!(again == buf, "bytes {from} to {to}");
        }
        for (offset, length) in [(9728, 1), (9727, 2), (u64::MAX, 1)] {
            let error = source.read_at(offset, &mut vec![0; length]).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
        }
        let names: Vec<&NodeInfo> = rig.nodes.infos().iter().collect();
        assert_eq!(names.len(), 6);
    }

    #[test]
    fn what_a_member_had_that_is_missing_is_computed_from_the_others() {
        let mut rig = rig();
        let member = |layer: &Arc<dyn Layer>| MemberConfig {
            name: "a member".to_owned(),
            layer: layer.clone(),
            data_start: Sector(4),
            recovered: None,
            write_mostly: false,
            bad: Vec::new(),
        };
        let members = vec![None, Some(member(&rig.layers[0])), Some(member(&rig.layers[1]))];
        let layout = ParityLayout::new(Level::Raid4, 0, 3).unwrap();
        let config = ArrayConfig {
            name: "md/a".to_owned(),
            geometry: Geometry::parity(layout, Sectors(8), Sectors(32)).unwrap(),
            members,
            resync_from: Some(Sector(24)),
            intent: None,
            record: None,
        };
        let array: Arc<dyn Layer> = Array::new(rig.node(), config).unwrap();
        let above = Linear::new(rig.node(), array.clone(), Sector(0), Sectors(64)).unwrap();
        // Both disks have their number and the sector's, so that the sum is 1 and 0.
        let expected: Vec<u8> = (0..64u8)
            .flat_map(|sector| {
                let on_member = sector / 16 * 8 + sector % 8;
                let byte = if sector / 8 % 2 == 0 { [1, 0] } else { [0, 4 + on_member] };
                [byte; 256].concat()
            })
            .collect();
        let counters = CounterTable::new(rig.nodes.infos().len());
        for layer in [&*array, &above] {
            let source = rig.source(layer, &counters);
            for (from, to) in [(0, 48 * 512), (0, 1), (511, 513), (100, 9000), (8191, 8193)] {
                let mut buf = vec![0xee; to - from];
                source.read_at(from as u64, &mut buf).unwrap();
                assert!(buf == expected[from..to], "bytes {from} to {to}");
            }
            // Of the last row the parity may not fit: what is there is read, and nothing is computed.
            source.read_at(56 * 512, &mut [0; 8 * 512]).unwrap();
            let error = source.read_at(50 * 512, &mut [0; 1]).unwrap_err();
            assert_eq!(error.raw_os_error(), Some(Errno::EIO.0));
        }
    }

    #[test]
    fn a_sector_that_a_member_refuses_is_computed_without_that_one_alone() {
        /// Refuses one sector.
        #[derive(Debug)]
        struct Refusing(Arc<dyn Layer>, Shape);
        impl Layer for Refusing {
            fn shape(&self) -> &Shape {
                &self.1
            }
            fn resolve(&self, span: Span, cx: &mut Resolver<'_>) -> Result<(), blockwork_engine::Defer> {
                if span.sector <= Sector(3) && Sector(3) < span.end() {
                    cx.error(span, Errno::EIO);
                    return Ok(());
                }
                cx.pass(self.node(), span.sector, &*self.0, span)
            }
        }
        let mut rig = rig();
        let shape = Shape { node: rig.node(), sectors: Sectors(200), limits: rig.layers[0].limits().clone() };
        let refusing: Arc<dyn Layer> = Arc::new(Refusing(rig.layers[0].clone(), shape));
        let zero: Arc<dyn Layer> = Arc::new(Zero::new(rig.node(), Sectors(200)));
        // Of RAID6 the first is missing; the second is all zeros, P is the first disk, but for one sector, and Q the second one.
        let member = |layer: Arc<dyn Layer>| MemberConfig {
            name: "a member".to_owned(),
            layer,
            data_start: Sector(0),
            recovered: None,
            write_mostly: false,
            bad: Vec::new(),
        };
        let layout = ParityLayout::new(Level::Raid6, 5, 4).unwrap();
        let config = ArrayConfig {
            name: "md/a".to_owned(),
            geometry: Geometry::parity(layout, Sectors(8), Sectors(8)).unwrap(),
            members: vec![
                None,
                Some(member(zero)),
                Some(member(refusing)),
                Some(member(rig.layers[1].clone())),
            ],
            resync_from: None,
            intent: None,
            record: None,
        };
        let array = Array::new(rig.node(), config).unwrap();
        let counters = CounterTable::new(rig.nodes.infos().len());
        let mut buf = vec![0xee; 8 * 512];
        rig.source(&*array, &counters).read_at(0, &mut buf).unwrap();
        for (sector, bytes) in (0..).zip(buf.chunks(512)) {
            let disk = if sector == 3 { 1 } else { 0 };
            assert!(bytes.chunks(2).all(|pair| pair == [disk, sector]), "sector {sector}: {:?}", &bytes[..2]);
        }
    }
}
