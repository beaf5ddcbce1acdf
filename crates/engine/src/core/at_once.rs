//! Bios that are done while their ports submit them, where neither a layer nor a device has to wait for anything: null and memory disks,
//! zeros, what nothing was ever written to.
//!
//! Such a bio has no place among those under way, and nobody is told of its end: whoever submits it hears of that there and then. It is
//! resolved as every other one, by the same layers, and counted like it. Only a read or write that has succeeded is done so. Whatever turns
//! out otherwise goes on from there in the usual way.
//!
//! Where a volume's bios come to wait, trying would cost them more than it spares, and they are better resolved many at a time (`fresh`).
//! So it is tried where the last bio of its volume, or the last of a batch, ended at once or could have.

use blockwork_memory::{Segment, Segments};

use crate::bio::{Bio, Op};
use crate::counters::Counter;
use crate::layer::{Defer, Extent, NodeId, Resolver, Span, Target};
use crate::notes::Notes;
use crate::port::PortId;
use crate::units::{Nanos, SECTOR, Sectors};
use crate::volume::VolumeId;

use super::bios::Root;
use super::{Core, Owner};

impl Core {
    /// Does a bio of a port's at once, or submits it, with its memory. See [`Context::run`](crate::Context::run).
    #[inline]
    pub(crate) fn run(
        &mut self,
        volume: VolumeId,
        port: PortId,
        bio: &mut Bio,
        cookie: impl FnOnce() -> u64,
    ) -> bool {
        if let Ok(node) = self.admit(volume, bio)
            && !self.meets_claim(volume, bio)
        {
            // Who listens to events, or to writes, is told by the usual way.
            let try_it = self.at_once[usize::from(volume.0)]
                && bio.op.has_data()
                && bio.nr > Sectors::ZERO
                && !self.tracer.on()
                && self.tap.is_none();
            let owner = || Owner::Port { port, cookie: cookie() };
            if try_it {
                return self.run_admitted(volume, node, bio, owner);
            }
            self.submit_admitted(volume, node, owner(), bio);
            return false;
        }
        let (owner, data) = (Owner::Port { port, cookie: cookie() }, std::mem::take(&mut bio.data));
        let Bio { op, flags, sector, nr, .. } = *bio;
        match sector.0.checked_mul(SECTOR) {
            Some(offset) => self.submit_bytes(volume, owner, op, flags, offset, nr.bytes(), data),
            None => self.submit(volume, owner, Bio { op, flags, sector, nr, data }), // beyond every volume
        }
        false
    }

    #[inline]
    fn run_admitted(
        &mut self,
        volume: VolumeId,
        node: NodeId,
        bio: &mut Bio,
        owner: impl FnOnce() -> Owner,
    ) -> bool {
        let Bio { op, flags, sector, nr, .. } = *bio;
        let span = Span { op, flags, sector, nr, at: Sectors::ZERO };
        self.counters.add(node, Counter::In, 1);
        // A leaf by itself is what it would be resolved to.
        let leaf = self.leaf_of[usize::from(node.0)];
        match leaf {
            Some(leaf) if self.queues[usize::from(leaf.0)].at_once(&self.counters, span, &bio.data) => {
                self.ran += 1;
                return true;
            }
            Some(_) => {}
            None => self.counters.operation(node, op, nr.bytes()),
        }
        self.extents.clear();
        let mut cx = Resolver::new(&mut self.extents, &self.counters, &mut self.tracer).at(self.now);
        let resolved = self.volumes[usize::from(volume.0)].root.resolve(span, &mut cx);
        let notes = cx.notes;
        if leaf.is_none() && resolved.is_ok() && notes.are_none() && self.end_at_once(span, &bio.data) {
            self.counters.latency(node, op, Nanos(0));
            self.ran += 1;
            return true;
        }
        self.wait_after_all(volume, node, (span, &mut bio.data), owner(), notes, resolved);
        false
    }

    /// A bio that was resolved could not be done at once.
    #[cold]
    fn wait_after_all(
        &mut self,
        volume: VolumeId,
        node: NodeId,
        (span, data): (Span, &mut Segments),
        owner: Owner,
        notes: Notes,
        resolved: Result<(), Defer>,
    ) {
        self.at_once[usize::from(volume.0)] = false;
        let bio = self.bios.add(owner, Root::Volume(volume), node, span, data, self.now);
        self.bios.all[bio as usize].notes = notes;
        let extents = std::mem::take(&mut self.extents);
        match resolved {
            Ok(()) => self.queue(bio, &extents),
            Err(defer) => self.defer(bio, defer),
        }
        self.extents = extents;
    }

    /// Does what a bio was resolved to; false: nothing was done.
    #[inline]
    fn end_at_once(&mut self, bio: Span, data: &[Segment]) -> bool {
        let [Extent { target, span }] = self.extents[..] else { return false };
        debug_assert_eq!((span.op, span.nr), (bio.op, bio.nr), "one piece is all of a bio");
        match target {
            Target::Leaf(leaf) => self.queues[usize::from(leaf.0)].at_once(&self.counters, span, data),
            Target::Zero => {
                if span.op == Op::Read {
                    data.iter().for_each(|segment| segment.fill(0));
                }
                true
            }
            Target::Sum(_) | Target::Task(_) | Target::Error(_) => false,
        }
    }

    /// Whether the bio that was resolved last could have been done at once: then its volume's next ones are tried so.
    pub(super) fn learn(&mut self, bio: u32) {
        let state = &self.bios.all[bio as usize];
        if let Root::Volume(volume) = state.root
            && state.op.has_data()
        {
            self.at_once[usize::from(volume.0)] = match self.extents[..] {
                [Extent { target: Target::Leaf(leaf), .. }] => self.queues[usize::from(leaf.0)].is_instant(),
                [Extent { target: Target::Zero, .. }] => true,
                _ => false,
            };
        }
    }
}
