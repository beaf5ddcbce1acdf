//! Origins and old snapshots that come, grow and go while they, or others of their family, are served.
//!
//! An origin and its snapshots share what copies chunks out, so all of them change together, as dm changes the table of a device:
//!
//! ```text
//!   suspend (writes wait) ─▶ what was resolved ends ─▶ the old family is retired, the origin flushed ─▶ a new one is built from what
//!   the stores hold ─▶ all workers have it ─▶ resume
//! ```
//!
//! The group's text says so before. Until the volumes are suspended, the old family goes on: a snapshot that is new is what its origin
//! was in that moment, and one that is gone is kept for nothing. What was its store is nobody else's until the old family is retired,
//! also where the origin is gone with it, and nothing is built. A server that is killed between leaves what the text says: a
//! new snapshot with nothing in its store is what the origin is then, and nobody was told that it had been made.

use std::sync::Arc;

use anyhow::{Result, anyhow};
use blockwork_engine::{Bio, Errno, Flags, Op, Sector, Sectors, Volume, VolumeId};
use blockwork_format::escape;
use blockwork_layer::{ErrorTarget, Suspension};
use blockwork_volume::lvm::served::ChangedFamily;

use super::groups::ServedGroups;

impl ServedGroups {
    /// Has the volumes of a family go by what it is now. Those in `closed` are not what they were: nobody has them open, and they get
    /// numbers of their own, since what is still on its way to them from clients that have gone goes by the number that it was sent to. It
    /// fails, whenever it goes on: a write may wait for minutes, below the family, for space in a pool.
    ///
    /// # Errors
    ///
    /// The server is being stopped, or a volume cannot be built: it answers EIO from then on, since the old family does nothing any more.
    /// The error names it.
    pub(super) fn switch(&self, changed: ChangedFamily, closed: &[String]) -> Result<()> {
        let before = self.served.layers();
        let volumes: Vec<(VolumeId, Volume)> =
            changed.volumes.iter().filter_map(|name| self.served.find(name)).collect();
        let suspension = Suspension::default();
        let is_closed = |volume: &Volume| closed.contains(&volume.name);
        let meanwhile = |(id, volume): &(VolumeId, Volume)| match is_closed(volume) {
            true => self.served.withdraw(*id),
            false => self.served.set(*id, volume.with_root(suspension.over(volume.root.clone()))),
        };
        volumes.iter().for_each(meanwhile);
        if let Err(error) = self.put_to_rest(changed, &volumes, is_closed) {
            volumes.iter().for_each(|(id, volume)| self.served.set(*id, with_nothing(volume)));
            let names: Vec<String> = volumes.iter().map(|(_, volume)| escape(&volume.name)).collect();
            return Err(error.context(format!("{} cannot be served any more", names.join(", "))));
        }
        let build = |(id, old): (VolumeId, Volume)| {
            let (volume, failure) = anew(&old, self.build(&old.name));
            ((id, volume), failure)
        };
        let (built, failures): (Vec<_>, Vec<_>) = volumes.into_iter().map(build).unzip();
        built.iter().filter(|(_, volume)| !is_closed(volume)).for_each(meanwhile);
        // Who reads by the old family knows nothing of what the new one copies: no write before the last of those reads has ended.
        let quiet = self.served.run(|cx| async move { cx.quiesce().await });
        let mut failure = failures.into_iter().flatten().next().or(quiet.err());
        for (id, volume) in &built {
            let id = if is_closed(volume) {
                self.served.add(volume.clone())
            } else {
                self.served.set(*id, volume.clone());
                Ok(*id)
            };
            let offered = id.and_then(|id| self.offers.change(&volume.name, id, volume));
            failure = failure.or(offered.err());
        }
        drop(suspension);
        let roots = built.into_iter().map(|(_, volume)| volume.root);
        failure = failure.or(self.served.open(roots, &before).err());
        failure.map_or(Ok(()), Err)
    }

    /// Waits until nothing is under way in the old stacks, and nothing waits there.
    fn put_to_rest(
        &self,
        changed: ChangedFamily,
        volumes: &[(VolumeId, Volume)],
        is_closed: impl Fn(&Volume) -> bool,
    ) -> Result<()> {
        let roots: Vec<_> = volumes.iter().map(|(_, volume)| volume.root.clone()).collect();
        let closed: Vec<_> =
            volumes.iter().map(|(_, volume)| volume).filter(|volume| is_closed(volume)).cloned().collect();
        let flushed = self.served.run(|cx| async move {
            if let Some(family) = &changed.family {
                family.retire().await;
            }
            cx.quiesce().await;
            if !closed.is_empty() {
                // Whoever has waited for the family has had its turn before this one, and fails; so does the rest of what is read,
                // modified and written.
                if let Some(family) = &changed.family {
                    family.retire().await;
                }
                for volume in closed {
                    volume.settle().await;
                }
                cx.quiesce().await;
            }
            let mut flushed: Result<(), Errno> = Ok(());
            for root in roots.iter().filter(|root| !root.limits().read_only) {
                let flush = Bio::without_data(Op::Flush, Flags::NONE, Sector(0), Sectors::ZERO);
                flushed = flushed.and(cx.bio(root, flush).await.0);
            }
            flushed
        })?;
        // The disk takes no more writes from now on, and whoever flushes next is told.
        flushed
            .unwrap_or_else(|errno| log::error!("what snapshots were made of could not be flushed: {errno}"));
        Ok(())
    }
}

/// A volume with its new stack; where there is none, with nothing, and why.
pub(super) fn anew(old: &Volume, built: Result<Volume>) -> (Volume, Option<anyhow::Error>) {
    match built {
        Ok(built) => {
            let mut volume = old.with_root(built.root);
            volume.read_only |= built.read_only;
            (volume, None)
        }
        Err(error) => {
            let why = anyhow!(
                "{} cannot be served any more: {error:#}; its clients get errors until that is mended and the server started anew",
                escape(&old.name)
            );
            (with_nothing(old), Some(why))
        }
    }
}

/// A volume that answers EIO.
pub(super) fn with_nothing(volume: &Volume) -> Volume {
    volume.with_root(Arc::new(ErrorTarget::new(volume.node(), volume.sectors())))
}
