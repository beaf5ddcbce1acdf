//! What whole-block writes have to do with ragged ones: see `crate::modify`.

use crate::bio::Bio;
use crate::core::{Core, Owner};
use crate::event::{Action, Reason};
use crate::layer::Span;
use crate::modify::Modify;
use crate::task::Command;
use crate::turn::Turn;
use crate::units::Sectors;
use crate::volume::VolumeId;

use super::bios::{Bios, Root};

impl Core {
    /// Once per turn, before anything is resolved: what was published since the last one.
    #[inline]
    pub(crate) fn look(&mut self) {
        if self.attendance.look() {
            self.hold_claims();
            self.attendance.has_looked();
        } else if self.heeds_claims {
            self.heeds_claims = self.volumes.iter().any(|volume| volume.modify.is_claimed());
        }
    }

    /// Bios under way that alter what ragged writes have claimed hold that until they end; those that come are held against it.
    #[cold]
    fn hold_claims(&mut self) {
        self.heeds_claims = false;
        for (id, volume) in (0..=u16::MAX).map(VolumeId).zip(&self.volumes) {
            if volume.modify.is_claimed() {
                self.heeds_claims = true;
                self.bios.hold(id, &volume.modify);
            }
        }
    }

    /// Whether a bio is to wait, since a ragged write has claimed what it alters.
    #[inline]
    pub(super) fn meets_claim(&self, volume: VolumeId, bio: &Bio) -> bool {
        self.heeds_claims && self.volumes[usize::from(volume.0)].modify.meets(&bio.span())
    }

    /// Has a bio wait for its volume's turn.
    #[cold]
    pub(super) fn wait_for_turn(&mut self, volume: VolumeId, owner: Owner, bio: Bio) {
        let top = &self.volumes[usize::from(volume.0)];
        let (node, modify) = (top.node(), top.modify.clone());
        if self.tracer.on() {
            self.trace(node, Action::Defer, bio.span(), Reason::Unaligned, 0);
        }
        let cx = self.executor.context().clone();
        self.executor.spawn(async move {
            let turn = modify.take().await;
            cx.command(Command::SubmitInTurn { volume, owner, bio, turn });
        });
    }

    /// The turn that a bio has waited for has come. It is over when the bio is under way: the next one waits for that.
    pub(super) fn submit_in_turn(&mut self, volume: VolumeId, owner: Owner, mut bio: Bio, turn: Turn) {
        match self.admit(volume, &mut bio) {
            Err(errno) => self.give_back(owner, bio.op, Err(errno), bio.data),
            Ok(node) => self.start(Root::Volume(volume), node, owner, bio),
        }
        drop(turn);
    }
}

impl Bios {
    /// Those of a volume that alter what is claimed there hold it until they end.
    fn hold(&mut self, volume: VolumeId, modify: &Modify) {
        for state in &mut self.all {
            let is_its = matches!(state.root, Root::Volume(of) if of == volume);
            // Not the claimant's own, which are a task's. And who holds already does so until it ends: there is one claim at a time.
            if is_its && state.owner.is_a_port() && modify.meets(&state.span) {
                let owner = std::mem::replace(&mut state.owner, Owner::NOBODY);
                state.owner = Owner::Holding(Box::new((owner, modify.hold())));
            }
        }
    }
}

impl Bio {
    pub(super) fn span(&self) -> Span {
        Span { op: self.op, flags: self.flags, sector: self.sector, nr: self.nr, at: Sectors::ZERO }
    }
}
