//! Copying: what was given out is read from the origin, and written to the stores that need it.
//!
//! Neighbours in the origin are read at once, for all snapshots that need them, and neighbours in a store written at once. When
//! that is to happen, and what must be durable when, is `batch.rs`'s business.

use std::collections::BTreeMap;

use blockwork_engine::{Bio, Flags, Op, SECTOR, Sector, Sectors, TaskContext};
use blockwork_format::snapshot::Exception;
use blockwork_memory::{Segment, Segments};

use super::family::Family;
use super::give_out::Share;
use super::overwrite::Overwritten;
use crate::md::io;

/// What is copied by one read, or one write.
pub(super) const PIECE: Sectors = Sectors(2048);

/// What is on its way at a time, and so in memory.
const UNDER_WAY: Sectors = Sectors(16_384);

/// Pieces on their way at a time.
const PIECES_MAX: usize = 256;

/// A place in a store that a piece of the origin goes to.
pub(super) type Destination = (usize, Sector);

/// What is to be written to stores.
type Contents = BTreeMap<Destination, (Sectors, Segment)>;

/// Pieces of the origin, and where each goes.
type Pieces = BTreeMap<(Sector, Sectors), Vec<Destination>>;

impl Family {
    /// Copies the content of all exceptions to their stores, which are written with these flags; tells of each store whether that
    /// succeeded.
    pub(super) async fn copy(&self, shares: &[Share], flags: Flags, cx: &TaskContext) -> Vec<bool> {
        let overwritten = self.overwritten(shares);
        let mut pieces = self.pieces(shares, &overwritten);
        let mut succeeded = vec![true; shares.len()];
        let contents = overwritten.into_iter().map(|(to, bytes)| (to, memory_of(&bytes, cx))).collect();
        let mut failed = self.write_out(contents, flags, cx).await;
        while !pieces.is_empty() {
            let some = take_some(&mut pieces);
            failed.extend(self.copy_some(some, flags, cx).await);
        }
        failed.into_iter().for_each(|nth| succeeded[nth] = false);
        succeeded
    }

    /// Copies pieces; gives the stores that failed.
    async fn copy_some(&self, pieces: Pieces, flags: Flags, cx: &TaskContext) -> Vec<usize> {
        let reads = pieces.into_iter().map(|((start, nr), to)| async move {
            // The write that is waiting comes next: what was read ahead would be forgotten.
            let data = io::read_once(cx, &self.origin, start, nr).await;
            if let Err(errno) = data {
                log::error!("what snapshots need of the origin, at sector {start}, cannot be read: {errno}");
            }
            (nr, to, data.ok())
        });
        let mut failed = Vec::new();
        let mut contents = Contents::new();
        for (nr, to, data) in io::together(reads.collect()).await {
            match data {
                Some(data) => contents.extend(to.into_iter().map(|to| (to, (nr, data.clone())))),
                None => failed.extend(to.iter().map(|(nth, _)| *nth)),
            }
        }
        failed.extend(self.write_out(contents, flags, cx).await);
        failed
    }

    /// Writes contents to their stores; gives those that failed.
    async fn write_out(&self, contents: Contents, flags: Flags, cx: &TaskContext) -> Vec<usize> {
        let writes = gather(contents).into_iter().map(|((nth, at), data)| async move {
            let store = &self.stores[nth];
            let result = cx.bio(&store.layer, Bio::with_data(Op::Write, flags, at, data)).await.0;
            result.err().map(|errno| {
                log::error!("{}: its store cannot be written at sector {at}: {errno}", store.name);
                nth
            })
        });
        io::together(writes.collect()).await.into_iter().flatten().collect()
    }

    /// What has to be copied, in pieces of the origin: from where, how much, and to where.
    fn pieces(&self, shares: &[Share], overwritten: &Overwritten) -> Pieces {
        let mut pieces = Pieces::new();
        for (nth, (store, share)) in self.stores.iter().zip(shares).enumerate() {
            let chunk = store.layout.chunk_sectors();
            let follows = |a: &Exception, b: &Exception| a.old + 1 == b.old && a.new + 1 == b.new;
            let is_copied =
                |exception: &&Exception| !overwritten.contains_key(&(nth, Sector(exception.new * chunk)));
            let exceptions: Vec<_> = share.exceptions.iter().filter(is_copied).copied().collect();
            for run in exceptions.chunk_by(follows).filter(|_| !share.lost) {
                let (from, to) = (run[0].old * chunk, run[0].new * chunk);
                let end = (from + run.len() as u64 * chunk).min(io::end_of_blocks(&*self.origin).0);
                for skip in (0..end - from).step_by(PIECE.0 as usize) {
                    let nr = PIECE.0.min(end - from - skip);
                    let piece = pieces.entry((Sector(from + skip), Sectors(nr))).or_default();
                    piece.push((nth, Sector(to + skip)));
                }
            }
        }
        pieces
    }
}

/// The same bytes, in memory that devices can read.
fn memory_of(bytes: &[u8], cx: &TaskContext) -> (Sectors, Segment) {
    let segment = Segment::new(cx.pool().get(bytes.len()), 0, bytes.len());
    segment.write_at(0, bytes);
    (Sectors(bytes.len() as u64 / SECTOR), segment)
}

/// Takes as many pieces as there is memory for.
fn take_some(pieces: &mut Pieces) -> Pieces {
    let (mut some, mut total) = (Pieces::new(), Sectors::ZERO);
    while let Some(((start, nr), to)) = pieces.pop_first() {
        total += nr;
        if total > UNDER_WAY || some.len() == PIECES_MAX {
            pieces.insert((start, nr), to);
            break;
        }
        some.insert((start, nr), to);
    }
    some
}

/// Joins contents that are neighbours in their store, to writes of a piece at most.
fn gather(contents: Contents) -> Vec<(Destination, Segments)> {
    let mut writes: Vec<(Destination, Segments)> = Vec::new();
    let (mut end, mut total) = (None, Sectors::ZERO);
    for ((nth, at), (nr, data)) in contents {
        match writes.last_mut() {
            Some((_, joined)) if end == Some((nth, at)) && total + nr <= PIECE => joined.push(data),
            _ => {
                writes.push(((nth, at), Segments::from_iter([data])));
                total = Sectors::ZERO;
            }
        }
        (end, total) = (Some((nth, at + nr)), total + nr);
    }
    writes
}
