//! `serve --migratable`: disks that are open only while a guest uses them, so that it can move between hosts that both reach them.
//!
//! Who moves a virtual machine starts the next one, and so connects to the next server, while the first one still runs. That server must not read
//! what arrays and pools say of themselves before this one has written the last of it; nor could it have the disks, which are locked. So it tells the
//! front end what the disks are like ([`look`]), and opens them when the guest wants to use them there. Before, this one has let go of them:
//!
//! ```text
//! away ──(a guest's ring is set going)──▶ tried, until they can be opened ──▶ here: workers, layers, control socket
//!   ▲                                                                                                        │
//!   └──── closed, as at the end of a server ◀──(its last ring rests while it moves, or its front end has gone)┘
//! ```
//!
//! Invariants: (1) the front end of a guest that moves is answered that its last ring rests when all that it has written is durable, what
//! layers have to record is recorded, and the disks are unlocked; (2) the disks of a server come and go together; (3) a guest's requests wait
//! for disks that cannot be opened, and do not fail.

use std::convert::Infallible;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};
use blockwork_daemon::VolumeStatus;
use blockwork_engine::Volume;
use blockwork_export::vhost::{DiskKeeper, VhostOptions, VhostServer, VhostSocket};
use blockwork_format::escape;
use blockwork_leaf::LeafError;
use blockwork_volume::{Assembly, Plan, VolumeError};
use signal_hook::iterator::Signals;

use super::away::AwayControl;
use super::background::Launch;
use super::guests::pages_at_start;
use super::signals::SecondSignal;
use super::{News, Running, assemble, check_count, choose, heed, plan};
use crate::args::ServeArgs;
use crate::usage::bail_usage;

/// How often disks are tried that cannot be opened yet, at first and at last. The kernel tells nobody that a lock is free.
const FIRST_PAUSE: Duration = Duration::from_millis(10);
const PAUSE: Duration = Duration::from_millis(640);

/// How often disks are looked at that somebody writes to meanwhile: what is read may not fit together.
const LOOKS: usize = 5;

/// Serves until a signal asks for the end.
pub(super) fn run(
    args: &ServeArgs,
    launch: &Launch,
    (disks, named): (Vec<String>, Vec<String>),
    signals: &mut Signals,
    news: mpsc::Sender<News>,
    hear: mpsc::Receiver<News>,
) -> Result<()> {
    if let Some(disk) = disks.iter().find(|disk| disk.starts_with("memory:")) {
        bail_usage!(
            "{disk}: its content would be gone whenever no guest runs; --migratable needs disks that last"
        );
    }
    let seen = look(args, &disks, &named)?;
    check_count("--vhost-user", "socket", args.vhost_user.len(), seen.len())?;
    let keeper = Arc::new(Keeper(news.clone()));
    let berths = args.vhost_user.iter().zip(&seen).enumerate();
    let berths = berths.map(|(index, (path, seen))| Berth::new(args, index, path, seen, keeper.clone()));
    let berths = berths.collect::<Result<Vec<_>>>()?;
    drop(seen);
    let addresses: Vec<String> = berths.iter().map(|berth| berth.socket.address().to_owned()).collect();
    let mut harbour = Harbour { args, disks, named, news: news.clone(), berths, away: None };
    if !args.no_control {
        harbour.away = Some(harbour.control()?);
    }
    launch.is_ready(args, &addresses)?;
    heed(signals, Vec::new(), &news, |second| harbour.run(hear, second))
}

/// What the volumes are like. Where nobody else has the disks, as for who writes to them, and that is told of as ever; else as they look. What else
/// keeps them from being opened would keep a guest waiting, for ever maybe.
fn look(args: &ServeArgs, disks: &[String], named: &[String]) -> Result<Vec<Volume>> {
    let open = || {
        let mut assembly = assemble(args, disks)?;
        choose(&mut assembly, named)
    };
    let refused = match open() {
        Err(refused) if is_in_use(&refused) => refused,
        result => return result,
    };
    for _ in 0..LOOKS {
        if let Ok(volumes) = look_only(args, disks, named) {
            log::info!("the disks are opened when a guest uses them: {}", crate::said(&refused));
            return Ok(volumes);
        }
    }
    Err(refused)
}

fn is_in_use(error: &anyhow::Error) -> bool {
    matches!(error.downcast_ref(), Some(VolumeError::Leaf(LeafError::InUse { .. })))
}

fn look_only(args: &ServeArgs, disks: &[String], named: &[String]) -> Result<Vec<Volume>> {
    let plan = Plan { unlocked: true, ..plan(args, disks)? };
    let mut assembly = Assembly::open(plan)?;
    let chosen = if named.is_empty() { assembly.choose_all().0 } else { assembly.choose(named)? };
    Ok(chosen.into_iter().map(|chosen| chosen.volume).collect())
}

/// A guest's disk, and where its front ends find it.
struct Berth {
    /// As it was when its disks were open last.
    volume: VolumeStatus,
    socket: Arc<VhostSocket>,
}

impl Berth {
    fn new(
        args: &ServeArgs,
        first_worker: usize,
        path: &Path,
        seen: &Volume,
        keeper: Arc<Keeper>,
    ) -> Result<Berth> {
        let pages = pages_at_start(args.guest_memory.into(), seen);
        let options = VhostOptions { queues: args.queues, first_worker, pages };
        let socket = VhostSocket::open(path, seen, options, Some(keeper))?;
        let volume = VolumeStatus::of(seen, vec![socket.address().to_owned()]);
        Ok(Berth { volume, socket: Arc::new(socket) })
    }
}

/// Tells of what front ends do.
struct Keeper(mpsc::Sender<News>);

impl DiskKeeper for Keeper {
    fn is_wanted(&self) {
        // At the end nothing comes any more.
        let _ = self.0.send(News::Wanted);
    }

    fn is_left(&self) {
        let (heed, heeded) = mpsc::channel();
        if self.0.send(News::Left(heed)).is_ok() {
            // It ends when the news is dropped.
            let _ = heeded.recv();
        }
    }
}

/// The disks of a server, which come and go.
struct Harbour<'a> {
    args: &'a ServeArgs,
    disks: Vec<String>,
    named: Vec<String>,
    news: mpsc::Sender<News>,
    berths: Vec<Berth>,
    /// While the disks are away, unless there is to be none, or it could not be had.
    away: Option<AwayControl>,
}

impl Harbour<'_> {
    /// Until the end.
    fn run(mut self, mut hear: mpsc::Receiver<News>, second: &SecondSignal) -> Result<()> {
        while let ControlFlow::Continue(brought) = self.wait_and_bring(&hear) {
            let Some(running) = brought else { continue };
            hear = match self.stay(running, hear, second)? {
                Some(hear) => hear,
                None => return Ok(()),
            };
            self.tell_that_disks_are_away();
        }
        Ok(())
    }

    fn control(&self) -> Result<AwayControl> {
        AwayControl::open(self.berths.iter().map(|berth| &berth.volume))
    }

    /// Guests are served, also where that can be told to nobody.
    fn tell_that_disks_are_away(&mut self) {
        if self.away.is_none() && !self.args.no_control {
            let control = self.control();
            self.away = control.inspect_err(|error| log::warn!("{}", crate::said(error))).ok();
        }
    }

    fn are_waited_for(&self) -> bool {
        self.berths.iter().any(|berth| berth.socket.is_waited_for())
    }

    /// Sleeps until a guest wants its disks, and opens them as soon as that is possible. None: it does not want them any more.
    fn wait_and_bring(&mut self, hear: &mpsc::Receiver<News>) -> ControlFlow<(), Option<Running>> {
        // What is wanted can be seen before it is told of.
        while !self.are_waited_for() {
            match hear.recv().unwrap_or(News::Stop) {
                News::Stop => return ControlFlow::Break(()),
                News::Statistics => log::info!("no disk is open, as no guest uses any"),
                _ => {}
            }
        }
        let (mut told, mut pause) = (String::new(), FIRST_PAUSE);
        while self.are_waited_for() {
            let error = match self.try_to_bring() {
                Ok(running) => return ControlFlow::Continue(Some(running)),
                Err(error) => crate::said(&error),
            };
            if error != told {
                log::warn!("a guest's requests wait, as its disks cannot be opened yet: {error}");
                told = error;
            }
            self.tell_that_disks_are_away();
            self.away.iter().for_each(|away| away.is_waited_for(&told));
            pause_unless_over(hear, pause)?;
            pause = (pause * 2).min(PAUSE);
        }
        log::info!("no guest waits for the disks any more");
        self.away.iter().for_each(AwayControl::is_unused);
        ControlFlow::Continue(None)
    }

    fn try_to_bring(&mut self) -> Result<Running> {
        let args = self.args;
        let mut assembly = assemble(args, &self.disks)?;
        let volumes = choose(&mut assembly, &self.named)?;
        self.away = None;
        let mut running = Running::start(args, assembly, volumes, self.news.clone())?;
        match running.export(args, Vec::new()).and_then(|()| self.moor(&running)) {
            Ok(()) => {
                running.workers.open_layers();
                Ok(running)
            }
            Err(error) => Err(running.stop(args, Err(error)).expect_err("it tells of what it was told")),
        }
    }

    /// Has the volumes served at their sockets: all of them, or none.
    fn moor(&self, running: &Running) -> Result<()> {
        let workers = &running.workers;
        let find = |Berth { volume, .. }: &Berth| {
            let found = workers.served.find(&volume.name);
            found.ok_or_else(|| anyhow!("{}: it is not there any more", escape(&volume.name)))
        };
        let volumes = self.berths.iter().map(find).collect::<Result<Vec<_>>>()?;
        for (berth, (id, volume)) in self.berths.iter().zip(&volumes) {
            let socket = berth.socket.clone();
            let at = || VhostServer::at(socket, (*id, volume), &workers.handles, workers.stats.clone());
            let Ok(_address) = running.offers.by_guest((*id, volume), || Ok::<_, Infallible>(at()));
        }
        Ok(())
    }

    /// Serves until no guest uses the disks, or until the end. None: that has come.
    fn stay(
        &mut self,
        running: Running,
        hear: mpsc::Receiver<News>,
        second: &SecondSignal,
    ) -> Result<Option<mpsc::Receiver<News>>> {
        loop {
            match running.wait(&hear, self.args.json) {
                News::Left(heeded) => {
                    if !self.cast_off(&running) {
                        continue;
                    }
                    self.close(running)?;
                    drop(heeded);
                    break;
                }
                news => {
                    // Front ends that are about to leave wait for nobody any more: they are waited for.
                    drop(hear);
                    if !matches!(news, News::Stop) {
                        second.arm();
                    }
                    running.stop(self.args, news.result())?;
                    return Ok(None);
                }
            }
        }
        // What workers and keepers of this stay have told is of no interest to the next one.
        let is_over = hear.try_iter().any(|news| matches!(news, News::Stop));
        Ok((!is_over).then_some(hear))
    }

    /// Ends what serves the disks, and lets go of them.
    fn close(&mut self, running: Running) -> Result<()> {
        for Berth { volume, .. } in &mut self.berths {
            if let Some((_, now)) = running.workers.served.find(&volume.name) {
                *volume = VolumeStatus::of(&now, std::mem::take(&mut volume.exports));
            }
        }
        let leaves = running.workers.leaves();
        running.stop(self.args, Ok(()))?;
        leaves.iter().for_each(|(_, leaf)| leaf.let_go());
        log::info!("no guest uses the disks any more: they are closed");
        Ok(())
    }

    /// Has the disks be nobody's, if no guest uses any.
    fn cast_off(&self, running: &Running) -> bool {
        if running.offers.has_lasting_guests() {
            log::warn!(
                "a guest has moved away or ended, but its disks stay open, as others were added (`blockwork export add`): \
                 another host's server gets them when this one is stopped"
            );
            return false;
        }
        let sockets: Vec<_> = self.berths.iter().map(|berth| berth.socket.clone()).collect();
        VhostSocket::take_away(&sockets)
    }
}

/// Waits for a while, or until the end.
fn pause_unless_over(hear: &mpsc::Receiver<News>, pause: Duration) -> ControlFlow<()> {
    let end = Instant::now() + pause;
    loop {
        match hear.recv_timeout(end.saturating_duration_since(Instant::now())) {
            Ok(News::Stop) | Err(RecvTimeoutError::Disconnected) => return ControlFlow::Break(()),
            Ok(_) => {}
            Err(RecvTimeoutError::Timeout) => return ControlFlow::Continue(()),
        }
    }
}
