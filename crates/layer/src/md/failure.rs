//! Members that refuse something: who is given up, and who is not.
//!
//! | what failed | what is done |
//! | --- | --- |
//! | a read | another copy is read at once; the place is written anew from it (`mend.rs`) |
//! | a write, on a member with a list of bad blocks | the range goes into that list, and is left out from then on; where that cannot be, as the next line |
//! | a write or write-zeroes | the member has failed: it is left out, the others record it, then the bio runs again |
//! | a flush, also one behind a FUA | likewise; nobody knows what it has lost, so it is distrusted at once: it is the last to be read, and what was just copied from it is written nowhere |
//! | a write without room or memory (ENOSPC of a sparse file, EFBIG behind the limit of a file's size, ENOMEM) | nothing is wrong with the member: the client hears of it. Mirrors may differ there now, and that is remembered |
//! | likewise, in a row with a parity | its parities are made to fit by a resync, or are bad, to the block, where that cannot be (`parity_doubt.rs`) |
//! | a read or write whose memory is gone (EFAULT: a guest's, cut short by its front end) | likewise: it is the client's fault, and no other copy would help |
//! | a write-zeroes that has to be fast, and is not on this member | likewise; none is tried any more |
//! | a discard that a member turns out not to support | the client hears of it; what was to be discarded has no defined content |
//! | a discard for another reason | likewise, and mirrors may differ there now. The member stays, as in Linux: disks with faults in their TRIM must not lose an array its redundancy with every fstrim |
//! | a write, write-zeroes or flush, on a member with a parity that is needed only for what others list as bad | that is written anew to them, as far as it can be read; then the member has failed, and the rest can be read no more (`parting.rs`) |
//! | anything, on the last member that has some data | the client hears of it; where other copies may have a write that it refused, it is read no more; in a row with a parity, as for a write without room |
//!
//! [`Layer::cure`](blockwork_engine::Layer::cure) decides, and writes nothing down but in memory. What it says of mirrors that
//! may differ is in place before the failed bio counts as over, so that the upkeep, which waits for that, never clears the
//! bit of a write that one member has and another has not. The same holds for members that failed: they are in the list
//! by then, and whoever has the turn looks at it first.

use std::sync::PoisonError;
use std::sync::atomic::Ordering;

use blockwork_engine::{Cure, Errno, Failure, NodeId, Op, Reason, Sector, Sectors, Span, TaskContext};

use super::array::Array;
use super::bad_blocks::whole_blocks;
use super::commit::Refusal;
use super::devices::DeviceIndex;
use super::gate::GateState;
use super::geometry::{Place, Places};
use super::member::Member;
use super::sync_pass::End;

/// A member that failed, to be dealt with.
#[derive(Clone, Copy, Debug)]
pub(super) struct FailedMember {
    pub(super) device: DeviceIndex,
    pub(super) errno: Errno,
    /// A write failed there, and the member has a list of bad blocks: that it goes into, if there is room.
    pub(super) bad: Option<(Sector, Sectors)>,
    /// What others may have written, and this one not.
    pub(super) lacks: Option<Span>,
}

/// Whether a write failed for want of room or of the client's memory, and not because of the disk.
pub(super) fn is_no_fault_of_the_disk(errno: Errno) -> bool {
    [Errno::ENOSPC, Errno::EFBIG, Errno::ENOMEM, Errno::EDQUOT, Errno::EFAULT].contains(&errno)
}

impl Array {
    /// What is done about a failure below; see the module's head.
    pub(super) fn cure_failure(&self, failure: &Failure) -> Cure {
        let found = self.devices.all().find(|(_, member)| member.is_on(failure.below));
        let Some((device, member)) = found else {
            // One that was taken out meanwhile is not reached any more.
            return Cure::Again;
        };
        if !self.geometry().is_redundant() {
            return Cure::None;
        }
        let Some(role) = self.devices.role_of(device).filter(|_| !member.is_faulty()) else {
            return Cure::Again;
        };
        if failure.op == Op::Read {
            let cured = failure.errno != Errno::EFAULT;
            return if cured { self.cure_read(device, failure.span) } else { Cure::None };
        }
        let unsupported = failure.errno == Errno::EOPNOTSUPP;
        let discard = failure.op == Op::Discard;
        if (discard && unsupported) || self.record.is_none() {
            return Cure::None;
        }
        let slow_zeroes = failure.op == Op::WriteZeroes && unsupported;
        if slow_zeroes {
            self.no_fast_zeroes.store(true, Ordering::Relaxed);
        }
        if discard || slow_zeroes || (failure.op != Op::Flush && is_no_fault_of_the_disk(failure.errno)) {
            self.note_differences(device, role, failure.span);
            return Cure::None;
        }
        if failure.op == Op::Flush {
            member.lose();
        }
        if self.has_to_stay(device) {
            self.note_lack(device, role, failure.span);
            return Cure::None;
        }
        let has_list = member.site.as_ref().is_some_and(|(_, site)| site.bad_blocks.is_some());
        let sector = Sector(failure.span.sector.0.saturating_sub(member.data_start.0));
        let bad = (failure.op == Op::Write && has_list)
            .then(|| whole_blocks(sector, failure.span.nr, &self.form().shape.limits));
        if failure.op == Op::Flush {
            self.distrust(device);
        }
        let lacks = failure.op.is_write().then_some(failure.span);
        self.has_failed(FailedMember { device, errno: failure.errno, bad, lacks });
        Cure::Defer(self.defer(failure.span, Reason::MemberFailed))
    }

    /// A device may have lost what it was given: it is read no more if the array can do without it, also before it is given up. Whether that
    /// is news: then reads under way that were resolved before are to be resolved again.
    fn distrust(&self, device: DeviceIndex) -> bool {
        let Some(member) = self.devices.get(device).filter(|_| !self.has_to_stay(device)) else {
            return false;
        };
        let is_news = !member.set_distrusted(true);
        if is_news {
            self.distrusts.fetch_add(1, Ordering::AcqRel);
            self.choose_with_care();
        }
        is_news
    }

    /// A flush of a leaf below that layer has failed.
    pub(super) fn suspect(&self, below: NodeId) {
        let found = self.devices.all().find(|(_, member)| !member.is_faulty() && member.is_on(below));
        if let Some((device, member)) = found {
            member.lose();
            self.distrust(device);
        }
    }

    /// As `distrust`, where no bio's failure tells the engine so.
    pub(super) fn distrust_at_once(&self, device: DeviceIndex, cx: &TaskContext) {
        if self.distrust(device) {
            cx.distrust_reads();
        }
    }

    /// Those that are given up may have been distrusted, but this one, or one that comes later, has to stay. Who could go, and stays for its
    /// sake, is not trusted: the next flush that fails there would be news again, and reads that are on their way begin anew each time. With
    /// the turn.
    fn trust_again(&self, refusals: &[Refusal]) {
        let needed = refusals.iter().filter(|(device, _)| self.has_to_stay(*device));
        for member in needed.filter_map(|(device, _)| self.devices.get(*device)) {
            member.set_distrusted(false);
        }
        self.choose_freely_again();
    }

    /// What [`Array::check_trust`] compares with: taken before something is read that is to be written elsewhere.
    pub(super) fn trust(&self) -> u64 {
        self.distrusts.load(Ordering::Acquire)
    }

    /// Whether all that was read meanwhile may be written elsewhere.
    ///
    /// # Errors
    ///
    /// [`End::Distrusted`]: one of the devices may have lost something before it was read.
    pub(super) fn check_trust(&self, before: u64) -> Result<(), End> {
        if self.trust() == before { Ok(()) } else { Err(End::Distrusted) }
    }

    /// To be dealt with by who has the turn next.
    pub(super) fn has_failed(&self, failed: FailedMember) {
        self.failed.lock().unwrap_or_else(PoisonError::into_inner).push(failed);
    }

    /// Whether a device that fails cannot be given up, not even when it is seen to what others list.
    pub(super) fn has_to_stay(&self, device: DeviceIndex) -> bool {
        self.is_needed(device) && !self.may_part_with(device)
    }

    /// Whether some data would have no copy without this device.
    pub(super) fn is_needed(&self, device: DeviceIndex) -> bool {
        let Some(member) = self.devices.get(device).filter(|member| member.is_complete()) else {
            return false;
        };
        let serves = |role: &u16| self.member(*role).is_some_and(|serving| std::ptr::eq(serving, member));
        self.devices.role_of(device).filter(serves).is_some_and(|role| !self.can_do_without(role))
    }

    /// A write of `span` failed on a device in this role that has to stay: where there is another copy, that may be newer, so this one is read no
    /// more there, and the other one cannot be done without.
    fn note_lack(&self, device: DeviceIndex, role: u16, span: Span) {
        self.note_differences(device, role, span);
        if let Some(member) = self.devices.get(device).filter(|_| span.op.is_write()) {
            self.note_stale(member, role, span);
        }
    }

    /// Mirrors may differ in what `span` of a device in this role holds, where there is another copy of it.
    fn note_differences(&self, device: DeviceIndex, role: u16, span: Span) {
        let Some(member) = self.devices.get(device) else { return };
        let mut places = Places::new();
        let (mut at, mut left) = (Sector(span.sector.0.saturating_sub(member.data_start.0)), span.nr);
        while left > Sectors::ZERO {
            let nr = self.geometry().chunk_room(at).min(left);
            if self.geometry().as_parity().is_some() {
                self.doubt(device, role, at, nr);
            } else if let Some(sector) = self.geometry().to_array(Place { member: role, sector: at }) {
                self.geometry().places(sector, &mut places);
                if places.iter().any(|place| place.member != role && self.member(place.member).is_some()) {
                    self.note_difference(sector, nr);
                }
            }
            (at, left) = (at + nr, left - nr);
        }
    }

    /// A bio of this span of the array fails, since it could not be prepared for. It may have been on its way to the members before, and what some
    /// of them refused was not asked about, since another one was being given up: then they differ. (A write of rows with a parity is prepared for once,
    /// before its task begins, which sees to what it has met by itself.)
    pub(super) fn fails_unprepared(&self, span: Span) {
        let mirrors = self.geometry().is_redundant() && self.geometry().as_parity().is_none();
        if span.op.is_write() && self.record.is_some() && mirrors {
            let (sector, nr) = self.geometry().sync_range(span.sector, span.nr);
            self.note_difference(sector, nr);
        }
    }

    /// Deals with the members that failed.
    pub(super) async fn settle_failures(&self, cx: &TaskContext) -> Result<(), Errno> {
        let _turn = self.turns.take().await;
        self.settle_with_turn(cx).await
    }

    /// As `settle_failures`, for who has the turn. The first thing to do with it.
    pub(super) async fn settle_with_turn(&self, cx: &TaskContext) -> Result<(), Errno> {
        let failed = std::mem::take(&mut *self.failed.lock().unwrap_or_else(PoisonError::into_inner));
        let settled = self.settle(&failed, cx).await;
        if settled.is_err() {
            // The bios are not run again, but fail.
            for FailedMember { device, lacks, .. } in failed {
                // What has met one that is about to go is done without it, or once more when it has gone.
                let goes = self.partings.has(device);
                let stays = !goes && self.devices.get(device).is_some_and(|member| !member.is_faulty());
                if let (true, Some(span), Some(role)) = (stays, lacks, self.devices.role_of(device)) {
                    self.note_lack(device, role, span);
                }
            }
        }
        settled?;
        self.list_doubts(cx).await
    }

    async fn settle(&self, failed: &[FailedMember], cx: &TaskContext) -> Result<(), Errno> {
        let mut refusals: Vec<Refusal> = Vec::new();
        let mut has_listed = false;
        for FailedMember { device, errno, bad, .. } in failed.iter().copied() {
            let known = refusals.iter().any(|(known, _)| *known == device);
            if known || self.devices.get(device).is_none_or(Member::is_faulty) {
                continue;
            }
            let listed = match bad {
                Some((sector, nr)) => self.list_unwritable(device, sector, nr, cx).await,
                None => false,
            };
            has_listed |= listed;
            if !listed {
                refusals.push((device, errno));
            }
        }
        if !refusals.is_empty() {
            // One that cannot be given up any more, since another went before it, stays: its bio fails when it is run again.
            refusals.retain(|refusal| self.give_up(std::slice::from_ref(refusal), cx).is_ok());
        }
        if refusals.is_empty() && self.gate.state() != GateState::Recording {
            return Ok(());
        }
        self.record_state(cx).await?;
        self.reopen();
        if has_listed {
            // A spare may take the place of who has refused that.
            self.sync.state().halted = false;
            self.look_for_sync(cx);
        }
        Ok(())
    }

    /// Declares members faulty, in memory; closes the gate first, so that no write leaves them out before that is on record.
    /// With the turn; who calls this records it next, and opens the gate again.
    ///
    /// # Errors
    ///
    /// The error of a member without which some data would have no copy: it stays, or is about to go ([`Array::part`]).
    pub(super) fn give_up(&self, refusals: &[Refusal], cx: &TaskContext) -> Result<(), Errno> {
        for (device, errno) in refusals {
            let Some(member) = self.devices.get(*device).filter(|member| !member.is_faulty()) else {
                continue;
            };
            let role = self.devices.role_of(*device).map_or("spare".into(), |role| format!("role {role}"));
            if self.is_needed(*device) {
                if !self.may_part_with(*device) {
                    member.stays.say(cx.now(), |more| {
                        log::error!(
                            "{}: member {} ({role}) failed ({errno}), and stays, as it has the only copy of some data{more}",
                            self.name,
                            member.name
                        );
                    });
                } else if self.partings.add((*device, *errno)) {
                    log::error!(
                        "{}: member {} ({role}) failed ({errno}), and goes when it is seen to what others list as bad, and it makes up for",
                        self.name,
                        member.name
                    );
                    // Whoever has met it waits for that, but maybe nobody does.
                    let (array, own) = (self.itself(), cx.clone());
                    cx.spawn(async move { array.part(&own).await });
                }
                if let Some(intent) = self.intent() {
                    intent.disk().all_changed();
                }
                self.trust_again(refusals);
                return Err(*errno);
            }
            self.gives_up(member, &role, *errno);
        }
        Ok(())
    }

    /// Declares a member faulty, in memory, behind a closed gate: as for `give_up`, who calls this records it next.
    pub(super) fn gives_up(&self, member: &Member, role: &str, errno: Errno) {
        self.leave_out(member);
        log::error!(
            "{}: member {} ({role}) has failed ({errno}); the array goes on without it. When the disk is replaced or \
             found to be sound, `blockwork md add ARRAY DISK` (Linux: `mdadm --manage ARRAY --add DISK`; LVM: \
             `lvconvert --repair`) makes the array whole",
            self.name,
            member.name
        );
    }

    /// A device that the array can do without takes part no more: in memory, behind a closed gate. As for `give_up`, who calls
    /// this records it next.
    pub(super) fn leave_out(&self, member: &Member) {
        self.gate.set(GateState::Recording);
        self.choose_with_care();
        member.fail();
        self.books().left_behind = true;
    }
}
