//! Resync, recovery, check and repair: when they run, and in which order.
//!
//! One task at a time looks after an array's copies ([`Array::look_for_sync`]): it is started when the array is opened, when a
//! member fails or comes, and when somebody asks. It does what is due, the most urgent first, until nothing is:
//!
//! 1. Members that fail are replaced by spares (`roster.rs`), and those that lack data are filled: *recover*. One after the other. What a
//!    replacement has refused meanwhile, and only the member has that it replaces, is copied once more before that one goes.
//! 2. Where mirrors may differ, the first is copied to the others: *resync*. A replacement that is filled waits for that: it was
//!    not read until then, so it may hold something else than what clients have seen. (Linux fills it first, and takes what it has
//!    copied for resynced: of the chunks that a bitmap had marked, mirrors may differ for good, until a *repair*.)
//! 3. What was asked for: *check*, *repair*.
//!
//! What is under way goes over the array in windows (`sync_pass.rs`). It stops at the next one, with a checkpoint in the
//! superblocks, when the worker ends, when somebody says `idle`, when something more urgent may be due, and while a volume of LVM grows
//! ([`Sync::hold`]). After `idle`, nothing begins by itself until something changes, or somebody asks for it.
//!
//! Before anything is decided, the task waits in [`TaskContext::quiesce`]: whoever resolves a bio then knows that the array is
//! out of order, if it is, so a device that is not in sync can be given a role. Where it has only become so meanwhile, it waits once
//! more.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use blockwork_engine::{Errno, Nanos, Sector, Sectors, TaskContext, Turn, Turns};

use super::array::Array;
use super::commit::Refusal;
use super::devices::DeviceIndex;
use super::gate::GateState;
use super::member::Member;
use super::sync_pass::{End, Kind, Pass};
use super::sync_status::{SyncAction, SyncStatus};

/// `sync_speed_min` and `sync_speed_max` where nobody says otherwise, KiB per second and member. The minimum is Linux's. Its maximum, 200,000,
/// is less than one of today's disks does, and holds up a rebuild behind which nobody waits: beside clients, the minimum counts.
pub const SYNC_SPEED_DEFAULT: (u64, u64) = (1_000, 10_000_000);

/// What an array's copies are up to.
#[derive(Debug)]
pub(super) struct Sync {
    /// Held by the task that looks after them.
    pub(super) running: Turns,
    /// Something has changed: look what is due.
    pub(super) due: AtomicBool,
    /// What runs is to stop.
    pub(super) stop: AtomicBool,
    /// How many wait for what runs to stop at a checkpoint, or change what it goes by meanwhile: nothing begins, and what was stopped goes on
    /// afterwards.
    pub(super) held: AtomicU32,
    /// The array is put to rest: nothing begins any more, as nobody would wait for its end.
    pub(super) at_rest: AtomicBool,
    /// Its volume is no more, and nothing may be written where it lies: whoever has taken the turn to write looks at that first.
    pub(super) retired: AtomicBool,
    /// A resync has left something as it was, since it cannot be read.
    pub(super) stuck: AtomicBool,
    /// Clients have done I/O since somebody last looked.
    client: AtomicBool,
    pub(super) speed_min: AtomicU64,
    pub(super) speed_max: AtomicU64,
    state: Mutex<SyncState>,
}

#[derive(Debug, Default)]
pub(super) struct SyncState {
    pub(super) status: SyncStatus,
    /// A check or repair that was asked for, and how far it is.
    pub(super) requested: Option<(SyncAction, u64)>,
    /// Nothing begins by itself.
    pub(super) halted: bool,
    /// Where the resync that is under way has left something as it was, the first place.
    pub(super) unsynced: Option<Sector>,
}

/// Nothing is copied as long as this lives.
pub(super) struct Hold<'a> {
    sync: &'a Sync,
    _running: Option<Turn>,
}

impl Drop for Hold<'_> {
    fn drop(&mut self) {
        self.sync.held.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Default for Sync {
    fn default() -> Sync {
        Sync {
            running: Turns::default(),
            due: AtomicBool::new(false),
            stop: AtomicBool::new(false),
            held: AtomicU32::new(0),
            at_rest: AtomicBool::new(false),
            retired: AtomicBool::new(false),
            stuck: AtomicBool::new(false),
            client: AtomicBool::new(false),
            speed_min: AtomicU64::new(SYNC_SPEED_DEFAULT.0),
            speed_max: AtomicU64::new(SYNC_SPEED_DEFAULT.1),
            state: Mutex::default(),
        }
    }
}

impl Sync {
    /// Held only for as long as it takes to look or to alter, never across a wait.
    pub(super) fn state(&self) -> MutexGuard<'_, SyncState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether what runs is to stop.
    pub(super) fn is_to_stop(&self) -> bool {
        self.stop.load(Ordering::Acquire) || self.held.load(Ordering::Acquire) > 0
    }

    /// Has what runs stop at a checkpoint, and waits until it has; nothing begins until that is dropped. Whoever drops it has somebody look
    /// what is due then.
    pub(super) async fn hold(&self) -> Hold<'_> {
        self.held.fetch_add(1, Ordering::AcqRel);
        let mut hold = Hold { sync: self, _running: None };
        hold._running = Some(self.running.take().await);
        hold
    }

    /// A client does I/O. Those that find it noted pay a load.
    #[inline]
    pub(super) fn note_client(&self) {
        if !self.client.load(Ordering::Relaxed) {
            self.client.store(true, Ordering::Relaxed);
        }
    }

    /// Whether clients have done I/O since the last call.
    pub(super) fn take_client(&self) -> bool {
        self.client.swap(false, Ordering::Relaxed)
    }
}

impl Array {
    /// Has somebody look what is due, if nobody does.
    pub(super) fn look_for_sync(&self, cx: &TaskContext) {
        if self.record.is_none() || !self.geometry().is_redundant() || self.form().shape.limits.read_only {
            return;
        }
        if self.sync.at_rest.load(Ordering::Acquire) {
            return;
        }
        self.sync.due.store(true, Ordering::Release);
        if let Some(turn) = self.sync.running.try_take() {
            let (array, own) = (self.itself(), cx.clone());
            cx.spawn(async move { array.look_after_copies(turn, &own).await });
        }
    }

    async fn look_after_copies(&self, turn: Turn, cx: &TaskContext) {
        let mut turn = Some(turn);
        while turn.is_some() {
            while self.sync.due.swap(false, Ordering::AcqRel) {
                while cx.pause(Nanos(0)).await && self.do_what_is_due(cx).await {}
            }
            drop(turn.take());
            // Who came meanwhile, and found the turn taken, counts on us.
            let again = self.sync.due.load(Ordering::Acquire) && cx.pause(Nanos(0)).await;
            turn = self.sync.running.try_take().filter(|_| again);
        }
    }

    /// Waits until nothing runs, and nothing is due; how the last of it went.
    pub async fn wait_sync(&self, cx: &TaskContext) -> SyncStatus {
        loop {
            drop(self.sync.running.take().await);
            if !self.sync.due.load(Ordering::Acquire) || !cx.pause(Nanos(0)).await {
                return self.sync_status();
            }
            self.look_for_sync(cx);
        }
    }

    /// How far it is.
    pub(super) fn sync_status(&self) -> SyncStatus {
        self.sync.state().status.clone()
    }

    /// Does the most urgent thing that is due. Whether there may be more.
    async fn do_what_is_due(&self, cx: &TaskContext) -> bool {
        let Some(pass) = self.next_pass(cx).await else {
            self.sync.state().status.action = SyncAction::Idle;
            return false;
        };
        log::info!("{}: {} begins at {}", self.name, pass.action(), pass.start);
        {
            let mut state = self.sync.state();
            state.status.action = pass.action();
            (state.status.done, state.status.total) = (Sectors(pass.start), Sectors(pass.total));
            state.unsynced = None;
            if matches!(pass.kind, Kind::Check { .. }) && pass.start == 0 {
                state.status.mismatches = Sectors::ZERO;
            }
        }
        if pass.kind == Kind::Resync {
            self.sync.stuck.store(false, Ordering::Release);
        }
        let mut end = self.run_pass(&pass, cx).await;
        if let (End::Done, Some(at)) = (end, self.sync.state().unsynced) {
            end = End::Stuck(at);
        }
        let mut tried = Vec::new();
        if end == End::Done {
            match self.fill_again(&pass, cx).await {
                Ok(all) => tried = all,
                Err(failed) => end = failed,
            }
        }
        let more = self.end_pass(&pass, end, &tried, cx).await;
        self.sync.state().status.action = SyncAction::Idle;
        more
    }

    /// The turn, when whoever resolves a bio knows whether the array is out of order; none where its state cannot be written.
    async fn turn_when_known(&self, cx: &TaskContext) -> Option<Turn> {
        loop {
            let was_irregular = self.irregular.load(Ordering::Acquire);
            cx.quiesce().await;
            let turn = self.turns.take().await;
            self.settle_with_turn(cx).await.ok()?;
            if was_irregular || !self.irregular.load(Ordering::Acquire) {
                return Some(turn);
            }
        }
    }

    /// The most urgent thing that is due.
    async fn next_pass(&self, cx: &TaskContext) -> Option<Pass> {
        let _turn = match self.turn_when_known(cx).await {
            Some(turn) => turn,
            None => {
                self.part(cx).await;
                self.turn_when_known(cx).await?
            }
        };
        self.sync.due.store(false, Ordering::Release);
        self.sync.stop.store(false, Ordering::Release);
        if self.sync.retired.load(Ordering::Acquire) || self.sync.held.load(Ordering::Acquire) > 0 {
            return None;
        }
        let (requested, halted) = {
            let state = self.sync.state();
            (state.requested, state.halted)
        };
        if !halted {
            self.fill_roles(cx).await;
            let waits = |device| self.devices.get(device).is_some_and(Member::is_replacement);
            if let Some((device, role)) = self.next_to_recover()
                && !(waits(device) && self.may_differ_anywhere())
            {
                if !self.says_who_comes_back(device, cx).await {
                    return None;
                }
                let start = self.devices.get(device)?.recovered()?.0;
                let total = self.geometry().sectors_on_member(role).0;
                return Some(Pass { kind: Kind::Recover { device, role }, start: start.min(total), total });
            }
            // With all bits clear nothing differs, but the superblocks say so only after a resync, however short.
            if self.may_differ_anywhere() || self.resync_from().is_some() {
                let total = self.geometry().sync_sectors().0;
                let start = match self.intent() {
                    Some(intent) => intent.next_kept(Sector(0)).unwrap_or(Sector(total)),
                    None => Sector(self.differ_from.load(Ordering::Acquire)),
                };
                return Some(Pass { kind: Kind::Resync, start: start.0.min(total), total });
            }
        }
        self.choose_freely_again();
        let (action, start) = requested?;
        let kind = Kind::Check { repair: action == SyncAction::Repair };
        Some(Pass { kind, start, total: self.geometry().sync_sectors().0 })
    }

    /// Of a device that comes back, its superblock says what it lacks before anything is copied to it. With the turn. Whether that is so.
    async fn says_who_comes_back(&self, device: DeviceIndex, cx: &TaskContext) -> bool {
        let is_on_record = self.books().opened;
        if is_on_record || !self.devices.get(device).is_some_and(|member| self.comes_back(member)) {
            return true;
        }
        if let Err(errno) = self.record_change(cx).await {
            log::error!("{}: who comes back is not on record, and is not filled: {errno}", self.name);
            self.sync.state().halted = true;
            return false;
        }
        let is_there = !self.devices.get(device).is_some_and(Member::is_faulty);
        self.sync.due.fetch_or(!is_there, Ordering::AcqRel);
        is_there
    }

    /// Whether a device was away when the array was opened, and is to be filled.
    fn comes_back(&self, member: &Member) -> bool {
        let at = member.site.as_ref().map(|(at, _)| *at);
        at.zip(self.record.as_ref()).is_some_and(|(at, record)| record.comes_back(at))
    }

    /// A device that lacks data of its role, and is there.
    pub(super) fn next_to_recover(&self) -> Option<(DeviceIndex, u16)> {
        let of_role = |role| {
            let holders = self.devices.holders(role);
            let lacks = |index: &DeviceIndex| {
                self.devices.get(*index).is_some_and(|it| !it.is_faulty() && it.recovered().is_some())
            };
            let index = [holders.member(), holders.replacement()].into_iter().flatten().find(lacks)?;
            Some((index, role))
        };
        (0..self.geometry().members()).find_map(of_role)
    }

    /// What a pass has come to is written down, and of a replacement what it was tried to fill once more. Whether there may be more to do.
    async fn end_pass(&self, pass: &Pass, end: End, tried: &[(Sector, Sectors)], cx: &TaskContext) -> bool {
        let name = &self.name;
        match end {
            End::Failed(refusal) => {
                let gives_up = async || {
                    let _turn = self.turns.take().await;
                    if self.go_on_without(&[refusal], cx).await { Ok(()) } else { Err(refusal.1) }
                };
                if self.parting(cx, gives_up).await.is_err() {
                    // It would be refused again, and again, without end.
                    log::error!("{name}: {} stops: {}", pass.action(), self.refuses_and_stays(refusal));
                    let mut state = self.sync.state();
                    (state.halted, state.requested) = (true, None);
                }
                return true;
            }
            End::Stuck(sector) => {
                let why = match pass.kind {
                    Kind::Recover { .. } => {
                        "there is no copy that can be read, and the list of bad blocks of the member that is filled has no room for it"
                    }
                    _ => {
                        "what is there, or its newest copy, cannot be read; it goes on when `md start-sync` says so, or the array is served again"
                    }
                };
                log::error!("{name}: {} stops at sector {sector} of a member: {why}", pass.action());
                self.sync.stuck.fetch_or(pass.kind == Kind::Resync, Ordering::AcqRel);
                self.sync.state().halted = true;
            }
            End::Interrupted | End::Distrusted => {}
            End::Done => log::info!("{name}: {} done", pass.action()),
        }
        if let Kind::Check { .. } = pass.kind {
            let mut state = self.sync.state();
            let done = end == End::Done || self.sync.stop.load(Ordering::Acquire);
            let at = state.status.done.0;
            state.requested = state.requested.filter(|_| !done).map(|(action, _)| (action, at));
            return true;
        }
        let write_down = async || match (end, pass.kind) {
            (End::Done, Kind::Recover { device, role }) => {
                self.finish_recovery(device, role, tried, cx).await
            }
            (End::Done, _) => self.finish_resync(pass, cx).await,
            _ => self.checkpoint(cx).await,
        };
        let result = self.parting(cx, write_down).await;
        if let Err(errno) = result {
            log::error!("{name}: {} is not on record: {errno}", pass.action());
            self.sync.state().halted = true;
        }
        if self.sync.stop.load(Ordering::Acquire) {
            self.sync.state().halted = true;
        }
        true
    }

    fn refuses_and_stays(&self, (device, errno): Refusal) -> String {
        let member = self.devices.get(device).map_or("a member", |member| &member.name);
        format!(
            "{member} refuses what is to be written there ({errno}), and the array cannot go on without it; when the disk is found to \
             be sound, or the array has another one, it goes on when `md start-sync` says so, or it is served again"
        )
    }

    /// Makes durable what was copied, and says in the superblocks how far that is.
    pub(super) async fn checkpoint(&self, cx: &TaskContext) -> Result<(), Errno> {
        let _turn = self.turns.take().await;
        self.settle_with_turn(cx).await?;
        let refusals = self.flush_members(cx).await;
        self.give_up(&refusals, cx)?;
        self.record_change(cx).await
    }

    /// A device is filled: it counts as in sync, and one that it has replaced has no role any more.
    ///
    /// Its data is flushed before its superblock says so; that is on record before it is read everywhere, and before a write may
    /// go past the one that it replaces. Not as long as that one may have what was not `tried` to be copied once more.
    async fn finish_recovery(
        &self,
        device: DeviceIndex,
        role: u16,
        tried: &[(Sector, Sectors)],
        cx: &TaskContext,
    ) -> Result<(), Errno> {
        let _turn = self.turns.take().await;
        self.settle_with_turn(cx).await?;
        let refusals = self.flush_members(cx).await;
        self.give_up(&refusals, cx)?;
        let Some(member) = self.devices.get(device) else { return Ok(()) };
        if member.is_faulty() || self.devices.role_of(device) != Some(role) {
            return self.record_change(cx).await;
        }
        let lacks_more = || self.lacks_alone(device, role).iter().any(|range| !tried.contains(range));
        if member.is_replacement() && (self.may_differ_anywhere() || lacks_more()) {
            return self.record_change(cx).await;
        }
        if member.is_replacement() {
            self.gate.set(GateState::Recording);
            self.choose_with_care();
            if let Some(old) = self.devices.member(role) {
                old.fail();
            }
            member.take_over();
        }
        // Rows with a parity are never served by one leg.
        let goes_alone = self.geometry().as_parity().is_none();
        if goes_alone && member.is_by_bitmap() && self.comes_back(member) {
            // All others take back that it has failed before its own superblock says that it is whole. A power cut in between would leave some that call
            // it so, and were they away when it goes on alone, nobody could tell that they were not used without it.
            member.is_filled_to(self.geometry().sectors_on_member(role));
            self.record_change(cx).await?;
            if member.is_faulty() {
                return Ok(());
            }
        }
        member.is_durable_to(None);
        self.record_state(cx).await?;
        self.take_role(device, role);
        member.end_recovery();
        self.reopen();
        self.choose_freely_again();
        self.start_upkeep(cx);
        log::info!("{}: {} has all data of member {role}", self.name, member.name);
        Ok(())
    }

    /// Mirrors agree as far as nothing else was noted meanwhile.
    async fn finish_resync(&self, pass: &Pass, cx: &TaskContext) -> Result<(), Errno> {
        let _turn = self.turns.take().await;
        self.settle_with_turn(cx).await?;
        let before = self.differ_from.load(Ordering::Acquire);
        let agrees = |array: &Array| match array.intent() {
            Some(intent) => !intent.any_kept(),
            None => before >= pass.total,
        };
        if agrees(self) {
            // A difference that is noted now is lower, or in a bit that is kept.
            let swapped =
                self.differ_from.compare_exchange(before, u64::MAX, Ordering::AcqRel, Ordering::Acquire);
            if swapped.is_ok() && !agrees(self) {
                self.differ_from.fetch_min(before, Ordering::AcqRel);
            }
        }
        let refusals = self.flush_members(cx).await;
        self.give_up(&refusals, cx)?;
        self.record_change(cx).await?;
        self.choose_freely_again();
        self.start_upkeep(cx);
        Ok(())
    }
}
