//! One way through an array or a member, window by window.
//!
//! A window is a few MiB of each member, less while clients are at work, at low speeds (`pace.rs`), and where there are many members. For each: a fence is raised, what was under way comes to its end,
//! then it is copied or compared (`sync_copy.rs`, `sync_check.rs`), and the fence is lowered. Up to [`LANES`] windows are under
//! way, so that one is read while another is written and a third waits; they come to their end in order, and only then does the
//! position move.
//!
//! A recovery goes over the member, so that it is written from its start to its end; resync and check go over the array.
//!
//! Whenever the pass pauses (speed limits, checkpoints) no window is under way: no client waits for a fence meanwhile.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::atomic::Ordering;
use std::task::Poll;

use blockwork_engine::{Nanos, Sector, Sectors, TaskContext};

use super::array::Array;
use super::commit::Refusal;
use super::devices::DeviceIndex;
use super::fence::LANES;
use super::geometry::Place;
use super::pace::Pacer;
use super::parity_sync::Parities;
use super::sync_check::UNIT;
use super::sync_status::SyncAction;

/// Superblocks tell at least this often how far it is.
const CHECKPOINT: Nanos = Nanos::secs(10);

/// How many pieces are looked at, one by one, in search of something to copy, before others get a turn.
const SCAN: usize = 4096;

/// Most sectors of all members in a window, but for chunks that are larger: neither what is in memory nor what clients' writes wait for grows with
/// the members.
const WINDOW_OF_ALL: u64 = 1 << 17;

/// Sectors of an array of mirrors in a window that has `size` sectors of each member: whole chunks, or units in which differences are counted.
fn window_of_array(size: u64, members: u16, copies: u16, chunk: Option<Sectors>) -> u64 {
    let (members, copies) = (u64::from(members), u64::from(copies));
    let size = (size * members).min(WINDOW_OF_ALL) / copies;
    size.max(1).next_multiple_of(chunk.map_or(UNIT, |chunk| chunk.0))
}

/// Sectors of each member in a window of rows with a parity, all of whose members are read.
fn window_of_members(size: u64, members: u16) -> u64 {
    size.min(WINDOW_OF_ALL / u64::from(members)).max(1).next_multiple_of(UNIT)
}

/// What is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// A device gets the data of its role.
    Recover { device: DeviceIndex, role: u16 },
    /// The first copy goes to the others, where they may differ.
    Resync,
    /// Copies are compared, and made the same if told so.
    Check { repair: bool },
}

/// One way through.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pass {
    pub(super) kind: Kind,
    pub(super) start: u64,
    pub(super) total: u64,
}

impl Pass {
    pub(super) fn action(&self) -> SyncAction {
        match self.kind {
            Kind::Recover { .. } => SyncAction::Recover,
            Kind::Resync => SyncAction::Resync,
            Kind::Check { repair: false } => SyncAction::Check,
            Kind::Check { repair: true } => SyncAction::Repair,
        }
    }
}

/// How a pass has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// At its end.
    Done,
    /// Before that: the worker ends, or something else may be due.
    Interrupted,
    /// A device may have lost what was read from it meanwhile: to be done again, without that device.
    Distrusted,
    /// A device refused what was copied to it.
    Failed(Refusal),
    /// That sector of a member has no copy, and there is no room to remember it; or what was there is old, and the newer copy cannot be read.
    Stuck(Sector),
}

/// A part of a pass.
#[derive(Clone, Copy, Debug)]
pub(super) struct Window {
    pub(super) start: u64,
    pub(super) end: u64,
    /// Nothing in it has to be copied.
    nothing: bool,
}

/// A future that is under way, and what it gave.
type Running<'a, T> = (Pin<Box<dyn Future<Output = T> + 'a>>, Option<T>);

/// Futures that run at once, and whose results come in order.
struct Lanes<'a, T> {
    running: VecDeque<Running<'a, T>>,
}

impl<'a, T> Lanes<'a, T> {
    fn push(&mut self, future: impl Future<Output = T> + 'a) {
        self.running.push_back((Box::pin(future), None));
    }

    async fn next(&mut self) -> Option<T> {
        std::future::poll_fn(|cx| {
            for (future, result) in self.running.iter_mut().filter(|(_, result)| result.is_none()) {
                if let Poll::Ready(done) = future.as_mut().poll(cx) {
                    *result = Some(done);
                }
            }
            match self.running.front() {
                Some((_, None)) => Poll::Pending,
                _ => Poll::Ready(self.running.pop_front().and_then(|(_, result)| result)),
            }
        })
        .await
    }
}

impl Array {
    /// Goes through the array, or a member of it.
    pub(super) async fn run_pass(&self, pass: &Pass, cx: &TaskContext) -> End {
        let mut pacer = Pacer::new(cx.now());
        let mut checkpoint = cx.now() + CHECKPOINT;
        let mut lanes = Lanes { running: VecDeque::new() };
        let (mut next, mut slot) = (pass.start, 0);
        // The front of the mirrors that agree, as this pass has moved it.
        let mut front = self.differ_from.load(Ordering::Acquire);
        let mut end = End::Done;
        loop {
            let mut wait = pacer.wait(&self.sync, cx.now());
            let goes_on = end == End::Done && cx.now() < checkpoint;
            while goes_on && wait.is_none() && lanes.running.len() < LANES && next < pass.total {
                let window = self.next_window(pass, next, pacer.window());
                next = window.end;
                if !window.nothing {
                    pacer.count(self.on_each_member(pass, window.end - window.start));
                }
                lanes.push(self.run_window(pass, window, slot, cx));
                slot = (slot + 1) % LANES;
                wait = pacer.wait(&self.sync, cx.now());
            }
            let Some((window, result)) = lanes.next().await else {
                if end != End::Done || next >= pass.total {
                    return end;
                }
                if cx.now() >= checkpoint {
                    checkpoint = cx.now() + CHECKPOINT;
                    let is_check = matches!(pass.kind, Kind::Check { .. });
                    if !is_check && self.parting(cx, async || self.checkpoint(cx).await).await.is_err() {
                        end = End::Interrupted;
                    }
                }
                // At the slowest a window waits for a minute.
                if !cx.pause(wait.unwrap_or_default()).await || self.sync.is_to_stop() {
                    end = End::Interrupted;
                }
                continue;
            };
            match result {
                // What came behind one that failed does not count.
                Ok(()) if matches!(end, End::Done | End::Interrupted) => {
                    self.advance(pass, window, &mut front);
                    self.sync.state().status.speed_kib = pacer.speed_kib(cx.now());
                }
                Ok(()) => {}
                Err(failed) if matches!(end, End::Done | End::Interrupted | End::Distrusted) => end = failed,
                Err(_) => {}
            }
            let interrupted = self.sync.due.load(Ordering::Acquire) || self.sync.is_to_stop();
            if end == End::Done && (interrupted || !cx.pause(Nanos(0)).await) {
                end = End::Interrupted;
            }
        }
    }

    /// What a replacement [lacks alone](Array::lacks_alone), since it refused a client's write, is copied once more from the member, which is there
    /// only until the replacement has its place; if it refuses that, too, it has failed. Gives what was tried: what no copy has stays bad.
    pub(super) async fn fill_again(
        &self,
        pass: &Pass,
        cx: &TaskContext,
    ) -> Result<Vec<(Sector, Sectors)>, End> {
        let Kind::Recover { device, role } = pass.kind else { return Ok(Vec::new()) };
        let lacking = self.lacks_alone(device, role);
        for (sector, nr) in &lacking {
            let window = Window { start: sector.0, end: (*sector + *nr).0.min(pass.total), nothing: false };
            self.run_window(pass, window, 0, cx).await.1?;
        }
        Ok(lacking)
    }

    /// How many sectors of each member `nr` sectors of a pass are.
    fn on_each_member(&self, pass: &Pass, nr: u64) -> u64 {
        match pass.kind {
            Kind::Recover { .. } => nr,
            _ if self.geometry().as_parity().is_some() => nr,
            _ => {
                let geometry = self.geometry();
                nr / u64::from(geometry.members()) * u64::from(geometry.copies())
            }
        }
    }

    /// The window at or behind `from`, for so many sectors of each member.
    fn next_window(&self, pass: &Pass, from: u64, size: u64) -> Window {
        let nothing = |end: u64| Window { start: from, end: end.min(pass.total), nothing: true };
        let geometry = self.geometry();
        match pass.kind {
            Kind::Recover { device, role } => {
                let by_bitmap = self.devices.get(device).is_some_and(|member| member.is_by_bitmap());
                let mut place = Place { member: role, sector: Sector(from) };
                for _ in 0..SCAN {
                    if place.sector.0 >= pass.total || !by_bitmap || self.lacks(place) {
                        break;
                    }
                    place.sector = place.sector + self.step(place);
                }
                if place.sector.0 > from {
                    return nothing(place.sector.0);
                }
                let size = match geometry.as_parity() {
                    Some(parity) => window_of_members(size, parity.members()),
                    None => size,
                };
                let room = geometry.part_room(place).0;
                let end = (from + size.min(room)).min(pass.total);
                Window { start: from, end, nothing: false }
            }
            Kind::Resync | Kind::Check { .. } => {
                if let (Kind::Resync, Some(intent)) = (pass.kind, self.intent()) {
                    match intent.next_kept(Sector(from)) {
                        None => return nothing(pass.total),
                        Some(kept) if kept.0 > from => return nothing(kept.0),
                        Some(_) => {}
                    }
                }
                let size = match geometry.as_parity() {
                    Some(parity) => window_of_members(size, parity.members()),
                    None => window_of_array(size, geometry.members(), geometry.copies(), geometry.chunk()),
                };
                Window { start: from, end: (from + size).min(pass.total), nothing: false }
            }
        }
    }

    /// How far from a place of a member its sectors are of one piece of the array, and of one bit.
    pub(super) fn step(&self, place: Place) -> Sectors {
        let geometry = self.geometry();
        let left = Sectors(geometry.sectors_on_member(place.member).0.saturating_sub(place.sector.0).max(1));
        let Some(sector) = geometry.to_sync(place) else {
            // Behind the last chunk.
            return geometry
                .chunk()
                .map_or(left, |chunk| Sectors(chunk.0 - place.sector.0 % chunk.0))
                .min(left);
        };
        let bit = self
            .intent()
            .map_or(u64::MAX, |intent| intent.chunk_sectors() - sector.0 % intent.chunk_sectors());
        geometry.sync_room(sector).min(Sectors(bit)).min(left)
    }

    /// Whether a member that was away may lack what is at this place of it.
    pub(super) fn lacks(&self, place: Place) -> bool {
        match (self.geometry().to_sync(place), self.intent()) {
            (Some(sector), Some(intent)) => intent.is_dirty(sector),
            (Some(_), None) => true,
            (None, _) => false,
        }
    }

    /// The range of the array that a window touches; none if it has nothing of it.
    fn range_of(&self, pass: &Pass, window: Window) -> Option<(Sector, Sector)> {
        let Kind::Recover { role, .. } = pass.kind else {
            return Some((Sector(window.start), Sector(window.end)));
        };
        let mut range: Option<(Sector, Sector)> = None;
        let mut place = Place { member: role, sector: Sector(window.start) };
        while place.sector.0 < window.end {
            let nr = self.step(place).min(Sectors(window.end - place.sector.0));
            if let Some(sector) = self.geometry().to_sync(place) {
                let (start, end) = range.unwrap_or((sector, sector));
                range = Some((start.min(sector), end.max(sector + nr)));
            }
            place.sector = place.sector + nr;
        }
        range
    }

    async fn run_window(
        &self,
        pass: &Pass,
        window: Window,
        slot: usize,
        cx: &TaskContext,
    ) -> (Window, Result<(), End>) {
        let range = if window.nothing { None } else { self.range_of(pass, window) };
        let Some((start, end)) = range else { return (window, Ok(())) };
        // Of hundreds of arrays that are filled at once, as after a disk of all of them was replaced, each has its turn.
        let _turn = cx.turn_of_few().await;
        if self.sync.is_to_stop() || !cx.pause(Nanos(0)).await {
            return (window, Err(End::Interrupted));
        }
        if let (Kind::Resync, Some(intent)) = (pass.kind, self.intent()) {
            each_bit(intent.chunk_sectors(), window, |sector, from_start| {
                if from_start || window.start == pass.start {
                    intent.begin_resync(sector);
                }
            });
        }
        let _fence = self.fences.raise(slot, start, end).await;
        cx.quiesce().await;
        let has_parity = self.geometry().as_parity().is_some();
        let result = match pass.kind {
            Kind::Recover { device, role } => self.fill(device, role, window, cx).await,
            Kind::Resync if has_parity => self.sync_rows(window, Parities::Resync, cx).await,
            Kind::Check { repair } if has_parity => {
                self.sync_rows(window, Parities::Check { repair }, cx).await
            }
            Kind::Resync => self.copy_first(window, cx).await,
            Kind::Check { repair } => self.compare(window, repair, cx).await,
        };
        (window, result)
    }

    /// A window has come to its end, and so have all before it.
    fn advance(&self, pass: &Pass, window: Window, front: &mut u64) {
        match pass.kind {
            Kind::Recover { device, .. } => {
                if let Some(member) = self.devices.get(device) {
                    member.recover_to(Sector(window.end));
                }
            }
            Kind::Resync => {
                if let Some(intent) = self.intent() {
                    let whole = |sector: Sector| {
                        (sector.0 + 1).next_multiple_of(intent.chunk_sectors()).min(pass.total) <= window.end
                    };
                    each_bit(intent.chunk_sectors(), window, |sector, _| {
                        if !window.nothing && whole(sector) {
                            intent.end_resync(sector);
                        }
                    });
                }
                // Nothing that was left as it was is passed, and a difference that was noted before it stays noted.
                let end = self.sync.state().unsynced.map_or(window.end, |at| at.0.min(window.end));
                let moved =
                    self.differ_from.compare_exchange(*front, end, Ordering::AcqRel, Ordering::Acquire);
                if moved.is_ok() {
                    *front = end;
                }
            }
            Kind::Check { .. } => {}
        }
        self.sync.state().status.done = Sectors(window.end);
    }
}

/// Calls for each bit of a bitmap that a window touches, with a sector of it in the window, and whether the bit's own first sector
/// is in it.
fn each_bit(chunk: u64, window: Window, mut each: impl FnMut(Sector, bool)) {
    if window.nothing {
        return;
    }
    let mut sector = window.start;
    while sector < window.end {
        each(Sector(sector), sector.is_multiple_of(chunk));
        sector = (sector + 1).next_multiple_of(chunk);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_does_not_grow_with_the_members() {
        let chunk = Some(Sectors(1024));
        assert_eq!(window_of_array(8192, 2, 2, None), 8192);
        assert_eq!(window_of_array(8192, 16, 2, chunk), 65_536);
        assert_eq!(window_of_array(8192, 384, 2, chunk), 65_536);
        assert_eq!(window_of_array(8192, 100, 100, None), 1408);
        assert_eq!(window_of_array(128, 3, 2, Some(Sectors(1 << 18))), 1 << 18, "a chunk at least");
        assert_eq!(window_of_array(128, 2000, 2000, None), 128);
    }
}
