//! `blockwork serve`: assembles the volumes, starts the workers and exports, waits for a signal, and takes it all down
//! in an order that loses nothing.
//!
//! Up: log and pid file ─▶ sandbox (and before it, what it would not allow) ─▶ disks, stacks ─▶ workers ─▶ NBD, FUSE, vhost-user, Xen ─▶ who looks after pools, merges and sizes ─▶ control socket ─▶ layers (arrays
//! take up what is due) ─▶ `ready`.
//! Down: control socket ─▶ who looks after pools, merges and sizes ─▶ mounts ─▶ workers are asked to end (what waits for space in a pool waits no longer,
//! what is under way is answered) ─▶ guests' rings ─▶ what [`Workers::stop`] does ─▶ statistics.

mod arrays;
mod autoextend;
mod away;
mod background;
mod exports;
mod families;
mod groups;
mod guests;
mod keeper;
mod merges;
mod migratable;
mod offers;
mod patience;
mod pid_file;
mod sandbox;
mod served;
mod signals;
mod sizes;
mod untold;
mod workers;

use std::error::Error;
use std::io::{self, Write};
use std::path::Path;
use std::sync::{Arc, mpsc};
use std::thread;

use anyhow::{Context, Result, anyhow, bail};
use blockwork_daemon::{Control, ControlHandle, ControlState, socket_path};
use blockwork_engine::{Stats, Volume};
use blockwork_export::fuse;
use blockwork_export::nbd::{self, Export, Exports, Listener, NbdConfig, Server, ServerTls};
use blockwork_export::vhost::{VhostOptions, VhostServer};
use blockwork_export::xen::{XenOptions, XenServer};
use blockwork_format::escape;
use blockwork_insight::report;
use blockwork_uring::WakesWith;
use blockwork_volume::{Assembly, Plan, parse_setting};
use signal_hook::consts::SIGUSR1;
use signal_hook::iterator::Signals;

use crate::args::{GuestMemoryArg, ServeArgs, Switch};
use crate::usage::bail_usage;
pub(crate) use arrays::{ServedArrays, arrays_of, device_status, sync_status};
use autoextend::Autoextender;
use background::Launch;
use exports::{ServedExports, ledgers};
use groups::ServedGroups;
use guests::pages_at_start;
use keeper::{NO_THREAD, OnPanic};
use merges::MergeKeeper;
pub(crate) use offers::Offers;
use patience::Patience;
use signals::SecondSignal;
use sizes::SizeKeeper;
pub(crate) use workers::{Workers, WorkersConfig};

/// Workers at most, where nobody says how many.
const WORKERS_DEFAULT_MAX: usize = 8;

pub(crate) fn run(args: &ServeArgs) -> Result<()> {
    if args.fork && !background::is_server() {
        return background::start();
    }
    let mut signals = signals::heeded()?;
    let inherited = nbd::inherited(|name| std::env::var(name).ok())?;
    let guests = args.vhost_user.len() + args.xen.len();
    match args.nbd.len() + args.fuse.len() + guests + inherited.len() {
        0 if !args.no_exports => bail_usage!(
            "nothing to serve by: add --nbd unix:PATH, --nbd HOST:PORT, --fuse FILE, --vhost-user PATH or --xen DOMID/VDEV; or \
             --no-exports, where all that there is to be comes by `blockwork export add`"
        ),
        1.. if args.migratable && !inherited.is_empty() => bail_usage!(
            "--migratable, and sockets of a service manager (LISTEN_FDS) to serve by NBD: take away either"
        ),
        1.. if args.no_exports => bail_usage!(
            "--no-exports, and sockets of a service manager (LISTEN_FDS) to serve by NBD: take away either"
        ),
        _ => {}
    }
    sandbox::check(args)?;
    let launch = Launch::prepare(args)?;
    let (disks, named) = disks_and_volumes(args);
    let mut listeners = inherited;
    if args.sandbox == Switch::On {
        listeners.extend(listeners_of(args)?);
        sandbox::enter(args, &disks)?;
    }
    let (news, hear) = mpsc::channel();
    if args.migratable {
        return migratable::run(args, &launch, (disks, named), &mut signals, news, hear);
    }
    let mut assembly = assemble(args, &disks)?;
    let volumes = choose(&mut assembly, &named)?;
    let mut running = Running::start(args, assembly, volumes, news)?;
    let up = running.export(args, listeners).and_then(|()| {
        running.workers.open_layers();
        launch.is_ready(args, &running.addresses)
    });
    // A server that does not come up wholly may have been reached by clients already, and arrays have taken up what was due.
    let waited = up.and_then(|()| {
        let mounts = running.mounts.iter().map(fuse::Mount::point).collect();
        heed(&mut signals, mounts, &running.news, |_| running.wait(&hear, args.json).result())
    });
    running.stop(args, waited)
}

/// Does something while signals are news: the first that asks for the end, and those that ask for statistics. The second one does not wait for anything
/// but that what is mounted is taken away. Nor does the first, where `act` has been ended by
/// something else: it arms what it is given, or is at its own end.
fn heed<T>(
    signals: &mut Signals,
    mounts: Vec<fuse::MountPoint>,
    news: &mpsc::Sender<News>,
    act: impl FnOnce(&SecondSignal) -> Result<T>,
) -> Result<T> {
    let handle = signals.handle();
    let second = SecondSignal::new(mounts);
    thread::scope(|scope| {
        let heed = || {
            for signal in signals.forever() {
                let heard = if signal == SIGUSR1 {
                    News::Statistics
                } else {
                    second.arm_soon();
                    News::Stop
                };
                // Nobody hears of it where the end has come.
                let _ = news.send(heard);
            }
        };
        thread::Builder::new().spawn_scoped(scope, heed).context(NO_THREAD)?;
        let result = act(&second);
        // Where it was no signal that has ended the waiting, the first one is as good as the second.
        second.arm();
        handle.close();
        result
    })
}

/// What of `--disk A B C` is a disk, and which volumes are named: what follows the first of a `--disk`, is no file and
/// reads like a volume's name is one, since `--disk a.img vg0/root` would be one too many otherwise.
fn disks_and_volumes(args: &ServeArgs) -> (Vec<String>, Vec<String>) {
    let mut disks = Vec::new();
    let mut volumes = Vec::new();
    for (i, spec) in args.disk.iter().enumerate() {
        let is_volume = i > 0 && !is_disk(spec) && reads_like_a_volume(spec);
        if is_volume { &mut volumes } else { &mut disks }.push(spec.clone());
    }
    volumes.extend(args.volumes.iter().cloned());
    (disks, volumes)
}

fn is_disk(spec: &str) -> bool {
    let path = spec.split(',').next().unwrap_or(spec);
    ["null:", "memory:"].iter().any(|kind| spec.starts_with(kind)) || Path::new(path).exists()
}

/// `disk/a.img/1`, `md/data`, `md:data`, `vg0/root`: a path below here that leads through a folder is none of these.
fn reads_like_a_volume(spec: &str) -> bool {
    if spec.starts_with("md:") {
        return true;
    }
    let mut parts = spec.split('/');
    let first = parts.next().unwrap_or_default();
    let is_name = |part: &str| !part.is_empty() && part != "." && part != "..";
    is_name(first) && spec.contains('/') && parts.all(is_name) && !Path::new(first).is_dir()
}

/// Of `--disk A B vg0`, where `vg0` is no file: what is wrong with it, if it is a volume group on those disks.
fn group_named(specs: &[String]) -> Option<anyhow::Error> {
    let (names, disks): (Vec<String>, Vec<String>) =
        specs.iter().cloned().partition(|spec| !spec.contains('/') && !is_disk(spec));
    if names.is_empty() {
        return None;
    }
    let plan = Plan { disks, read_only: true, unlocked: true, ..Plan::default() };
    let mut assembly = Assembly::open(plan).ok()?;
    let is_group = |name: &&String| assembly.graph().groups.iter().any(|group| group.name == **name);
    let name = names.iter().find(is_group)?;
    Some(assembly.choose(std::slice::from_ref(name)).err()?.into())
}

/// The sockets of `--nbd`. A server in its sandbox cannot bind any over TCP, so it has them before; another one when it has something to serve.
fn listeners_of(args: &ServeArgs) -> Result<Vec<Listener>> {
    let listener = |address: &String| match address.strip_prefix("unix:") {
        Some(path) => Listener::unix(Path::new(path)),
        None => Listener::tcp(address),
    };
    Ok(args.nbd.iter().map(listener).collect::<Result<_, _>>()?)
}

fn plan(args: &ServeArgs, disks: &[String]) -> Result<Plan> {
    let mut settings =
        args.set.iter().map(|setting| parse_setting(setting)).collect::<Result<Vec<_>, _>>()?;
    if args.guest_memory == GuestMemoryArg::Pinned {
        // Also where locked memory is limited. What is said counts, as it comes later.
        settings.insert(0, parse_setting("fixed=auto")?);
    }
    let (disks, tables) = (disks.to_vec(), args.table.clone());
    Ok(Plan { disks, tables, read_only: args.read_only, settings, ..Plan::default() })
}

fn assemble(args: &ServeArgs, disks: &[String]) -> Result<Assembly> {
    Assembly::open(plan(args, disks)?).map_err(|error| group_named(disks).unwrap_or(error.into()))
}

/// The volumes that were named, or all. Says what there is to know about the disks, and which volumes are not as one
/// might expect.
fn choose(assembly: &mut Assembly, named: &[String]) -> Result<Vec<Volume>> {
    let (chosen, refused) =
        if named.is_empty() { assembly.choose_all() } else { (assembly.choose(named)?, Vec::new()) };
    assembly.check_settings()?;
    for warning in assembly.warnings() {
        log::warn!("{warning}");
    }
    for error in &refused {
        log::warn!("not served: {error}");
    }
    if chosen.is_empty() {
        let groups: Vec<String> = match refused.is_empty() && named.is_empty() && !assembly.is_read_only() {
            true => assembly.graph().groups.iter().map(|group| escape(&group.name)).collect(),
            false => Vec::new(),
        };
        if groups.is_empty() {
            bail!("the disks hold no volume that can be served; `blockwork scan` shows what they hold");
        }
        log::warn!(
            "{}: no volume yet that can be opened; `blockwork lv create` makes some",
            groups.join(", ")
        );
    }
    let volumes = chosen.into_iter().map(|chosen| {
        if let Some(why) = &chosen.read_only {
            log::warn!("{}: it is served read-only: {why}", escape(&chosen.volume.name));
        }
        chosen.volume
    });
    Ok(volumes.collect())
}

/// What is heard while a server runs. Most of it is the end.
enum News {
    /// A signal.
    Stop,
    /// Another one: statistics are wanted.
    Statistics,
    /// A guest wants to use disks that are not open.
    Wanted,
    /// A guest uses its disks no more. Who tells of that waits until this is dropped.
    Left(mpsc::Sender<()>),
    /// This worker's thread has ended.
    Ended(u16),
    /// What looks after something has panicked.
    Panicked(&'static str),
    /// What was mounted there is gone, and not by our own doing. It is the end where nothing else is served.
    Unmounted(String),
}

impl News {
    /// What that is for the server.
    fn result(self) -> Result<()> {
        match self {
            News::Stop | News::Statistics | News::Wanted | News::Left(_) | News::Unmounted(_) => Ok(()),
            News::Ended(worker) => Err(anyhow!("worker {worker} ended by itself; see above")),
            News::Panicked(what) => {
                Err(anyhow!("{what} has panicked; see above. Report that, and start the server anew"))
            }
        }
    }
}

/// Guests' rings alone are served best by all that a device has answered. Where all is added later, these are what comes mostly.
fn wakes_with(args: &ServeArgs) -> WakesWith {
    let has_others = !(args.nbd.is_empty() && args.fuse.is_empty() && args.xen.is_empty());
    let has_guests = !args.vhost_user.is_empty() || args.no_exports;
    if has_guests && !has_others { WakesWith::All } else { WakesWith::First }
}

/// A server that is up.
struct Running {
    workers: Workers,
    news: mpsc::Sender<News>,
    nbd: Option<Server>,
    mounts: Vec<fuse::Mount>,
    offers: Offers,
    control: Option<ControlHandle>,
    autoextend: Option<Autoextender>,
    merges: Option<MergeKeeper>,
    sizes: Option<SizeKeeper>,
    /// Where clients find it.
    addresses: Vec<String>,
}

impl Running {
    fn start(
        args: &ServeArgs,
        assembly: Assembly,
        volumes: Vec<Volume>,
        news: mpsc::Sender<News>,
    ) -> Result<Running> {
        let processors = thread::available_parallelism().map_or(1, std::num::NonZero::get);
        let config = WorkersConfig {
            count: args.workers.map_or(processors.min(WORKERS_DEFAULT_MAX), usize::from),
            io: args.io.into(),
            poll: args.poll,
            wakes_with: wakes_with(args),
            log_writes: args.log_writes.clone(),
        };
        let tell = news.clone();
        // Nobody waits any more when the server is being stopped.
        let on_end = move |worker| drop(tell.send(News::Ended(worker)));
        let workers = Workers::start(&config, assembly, volumes, Arc::new(on_end))?;
        Ok(Running {
            workers,
            news,
            nbd: None,
            mounts: Vec::new(),
            offers: Offers::new(args.read_only),
            control: None,
            autoextend: None,
            merges: None,
            sizes: None,
            addresses: Vec::new(),
        })
    }

    /// Starts everything that clients and people reach it by.
    fn export(&mut self, args: &ServeArgs, listeners: Vec<Listener>) -> Result<()> {
        self.export_nbd(args, listeners)?;
        self.export_fuse(args)?;
        self.export_vhost(args)?;
        self.export_xen(args)?;
        let mut state = ControlState::new(self.workers.stats.clone(), self.workers.hub.clone());
        state.set_sandboxed(sandbox::is_in());
        self.offers.tell(state.volumes());
        let serves_all = disks_and_volumes(args).1.is_empty() && args.table.is_empty();
        let groups = Arc::new(ServedGroups::new(&self.workers, self.offers.clone(), serves_all));
        let tell = self.news.clone();
        let on_panic: OnPanic = Arc::new(move |what| drop(tell.send(News::Panicked(what))));
        self.autoextend = Some(Autoextender::start(groups.clone(), on_panic.clone())?);
        let merges = MergeKeeper::start(groups.clone(), on_panic.clone())?;
        let exports = Arc::new(ServedExports::new(
            &self.workers,
            self.offers.clone(),
            merges.caller(),
            args.guest_memory.into(),
        ));
        self.merges = Some(merges);
        self.sizes = Some(SizeKeeper::start(groups.clone(), on_panic)?);
        if !args.no_control {
            self.open_control(state, groups.clone(), exports)?;
        }
        // What comes by this is told of beside what was there.
        groups.finish_what_was_cut_short();
        Ok(())
    }

    fn export_nbd(&mut self, args: &ServeArgs, mut listeners: Vec<Listener>) -> Result<()> {
        if !sandbox::is_in() {
            listeners.extend(listeners_of(args)?);
        }
        if listeners.is_empty() {
            return Ok(());
        }
        let listeners = listeners.into_iter().map(|listener| listener.insecure(args.insecure)).collect();
        let volumes = self.workers.served.all();
        let exports = volumes.iter().map(|(id, volume)| Export::new(*id, volume, args.read_only));
        let exports = Exports::of(exports)?;
        let mut config = NbdConfig::new(exports.clone());
        config.connections_max = args.nbd_clients.into();
        if let Some(folder) = &args.tls_certificates {
            config.tls = Some(ServerTls::from_folder(folder, args.tls_verify_peer)?);
        }
        let server = Server::start(config, listeners, &self.workers.handles)?;
        self.addresses.extend(server.addresses().iter().cloned());
        self.offers.by_nbd(exports, server.addresses());
        self.nbd = Some(server);
        Ok(())
    }

    fn export_fuse(&mut self, args: &ServeArgs) -> Result<()> {
        if args.fuse.is_empty() {
            return Ok(());
        }
        let volumes = self.workers.served.all();
        let served = volumes.iter().map(|(id, volume)| fuse::Served::new(*id, volume, args.read_only));
        let files = fuse::Files::of(served)?;
        self.offers.by_files(files.clone());
        args.fuse.iter().try_for_each(|path| self.mount(path, &files, args.read_only))
    }

    fn mount(&mut self, path: &Path, files: &fuse::Files, read_only: bool) -> Result<()> {
        let options = fuse::Options { read_only, ..fuse::Options::default() };
        let (session, mount) = fuse::mount(path, files, options)?;
        // A file system's requests come one after the other; one worker, not always the same, takes each mount.
        let worker = &self.workers.handles[self.mounts.len() % self.workers.handles.len()];
        let address = format!("fuse:{}", mount.path().display());
        let (news, lost) = (self.news.clone(), address.clone());
        let session = session.when_lost(move || drop(news.send(News::Unmounted(lost))));
        worker.run(move |worker| {
            worker.add_port(Box::new(session.into_port()));
        });
        self.offers.by_mount(address.clone(), mount.is_folder());
        self.addresses.push(address);
        self.mounts.push(mount);
        Ok(())
    }

    /// A socket is one disk, so each volume has its own. Sockets of guests that may move are there already.
    fn export_vhost(&mut self, args: &ServeArgs) -> Result<()> {
        if args.migratable {
            return Ok(());
        }
        let volumes = self.workers.served.all();
        check_count("--vhost-user", "socket", args.vhost_user.len(), volumes.len())?;
        for (first_worker, (path, (id, volume))) in args.vhost_user.iter().zip(&volumes).enumerate() {
            let pages = pages_at_start(args.guest_memory.into(), volume);
            let options = VhostOptions { queues: args.queues, first_worker, pages };
            let stats = self.workers.stats.clone();
            let start = || VhostServer::start(path, (*id, volume), options, &self.workers.handles, stats);
            self.addresses.push(self.offers.by_guest((*id, volume), start)?);
        }
        Ok(())
    }

    /// A device of a guest is one disk, so each volume has its own.
    fn export_xen(&mut self, args: &ServeArgs) -> Result<()> {
        let volumes = self.workers.served.all();
        check_count("--xen", "disk", args.xen.len(), volumes.len())?;
        if args.xen.is_empty() {
            return Ok(());
        }
        let ledgers = ledgers()?;
        let mut skipped = None;
        for (first_worker, (&(domain, device), (id, volume))) in args.xen.iter().zip(&volumes).enumerate() {
            let options = XenOptions { domain, device, first_worker, ledgers: ledgers.clone() };
            let stats = self.workers.stats.clone();
            let start = || XenServer::start(options, (*id, volume), &self.workers.handles, stats);
            match self.offers.by_guest((*id, volume), start) {
                Ok(address) => self.addresses.push(address),
                Err(error) if error.is_of_one_guest() => {
                    log::error!("xen:{domain}/{device}: it is not served: {error}");
                    skipped = Some(error);
                }
                Err(error) => return Err(error.into()),
            }
        }
        // A guest that is gone, or spoils its keys, must not keep what others use from being served again.
        match skipped {
            Some(error) if self.addresses.is_empty() => Err(error.into()),
            _ => Ok(()),
        }
    }

    fn open_control(
        &mut self,
        mut state: ControlState,
        groups: Arc<ServedGroups>,
        exports: Arc<ServedExports>,
    ) -> Result<()> {
        self.offers.tell_all(&self.workers.served.all());
        self.workers.leaves().iter().for_each(|(_, leaf)| state.disks().add(leaf.clone()));
        state.set_arrays(Arc::new(ServedArrays::new(&self.workers, state.disks(), self.offers.clone())));
        state.set_groups(groups);
        state.set_exports(exports);
        self.control = Some(start_control(state)?);
        Ok(())
    }

    /// Sleeps until a signal asks for the end, a worker has come to its own, or a guest has left disks that are open for it alone.
    fn wait(&self, hear: &mpsc::Receiver<News>, json: bool) -> News {
        loop {
            match hear.recv().unwrap_or(News::Stop) {
                News::Statistics => print_stats(&self.workers.stats, json),
                News::Unmounted(address) if self.goes_on_without(&address) => {}
                // It has them.
                News::Wanted => {}
                news => return news,
            }
        }
    }

    /// A mount is gone, and nobody here has taken it away. Whether that leaves anything to be served.
    fn goes_on_without(&self, address: &str) -> bool {
        let goes_on = self.offers.has_lost(address);
        self.merges.iter().for_each(|merges| merges.caller().begin());
        if goes_on {
            log::warn!(
                "{address} is gone, as somebody has unmounted it or aborted its connection; volumes are found there again when the server is \
                 started anew"
            );
        } else {
            log::info!(
                "{address} is gone, as somebody has unmounted it or aborted its connection; no other way leads to the volumes: the server ends"
            );
        }
        goes_on
    }

    /// Ends everything, in order, whatever `waited`, which is told first. What fails on the way does not keep the rest from being done.
    fn stop(mut self, args: &ServeArgs, waited: Result<()>) -> Result<()> {
        let mut failure = waited.err();
        let mut note = |error: anyhow::Error| {
            if failure.is_some() {
                log::error!("{}", crate::said(&error));
            } else {
                failure = Some(error);
            }
        };
        let _patience = Patience::start(self.workers.stats.clone());
        drop(self.control.take());
        self.autoextend.take().into_iter().for_each(Autoextender::stop);
        self.merges.take().into_iter().for_each(MergeKeeper::stop);
        self.sizes.take().into_iter().for_each(SizeKeeper::stop);
        // What is written back of the mounts waits for nothing that may never come.
        self.workers.end_pauses();
        for mount in self.mounts.drain(..) {
            if let Err(error) = mount.unmount() {
                note(error.into());
            }
        }
        self.offers.ask_guests_to_end();
        self.workers.ask_to_end();
        self.offers.stop_guests();
        self.workers.stop(&mut note);
        if args.stats {
            print_stats(&self.workers.stats, args.json);
        }
        failure.map_or(Ok(()), Err)
    }
}

fn start_control(state: ControlState) -> Result<ControlHandle> {
    // Where nothing can be written, there is nothing to be set.
    let without = |error: &dyn Error| anyhow!("{error}, or serve without a control socket (--no-control)");
    let path = socket_path().map_err(|error| without(&error))?;
    Control::start(state, &path).map_err(|error| without(&error))
}

/// Each export of a kind that has one volume gets one, in their order.
fn check_count(option: &str, what: &str, given: usize, volumes: usize) -> Result<()> {
    if given > volumes {
        let s = if volumes == 1 { "" } else { "s" };
        bail_usage!(
            "{given} times {option} for {volumes} volume{s}: each is the {what} of one volume, in their order"
        );
    }
    Ok(())
}

/// Whoever has closed standard error, or filled its disk, wants none of this, and the server goes on.
fn print_stats(stats: &Stats, json: bool) {
    let (snapshot, rings, locks) = (stats.snapshot(), stats.rings(blockwork_uring::clock()), stats.locks());
    let text = if json {
        let report = report::Report::new(&snapshot).with_rings(&rings).with_decisions(&stats.decisions());
        format!("{}\n", report.with_choices(&stats.choices()).with_locks(&locks).json())
    } else {
        let decisions = report::decision_table(&stats.decisions(), &snapshot);
        let choices = report::choice_table(&stats.choices(), &snapshot);
        let (rings, locks) = (report::ring_table(&rings), report::lock_table(&locks));
        format!("{}{rings}{decisions}{choices}{locks}", report::table(&snapshot))
    };
    let _ = io::stderr().write_all(text.as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_ends_by_itself_is_a_failure_of_the_server() {
        assert!(News::Stop.result().is_ok());
        let said = [News::Ended(3), News::Panicked("the thread that does it")]
            .map(|news| news.result().map_err(|error| error.to_string()).unwrap_err());
        assert!(
            said[0].starts_with("worker 3 ended")
                && said[1].starts_with("the thread that does it has panicked")
        );
    }

    #[test]
    fn workers_of_guests_alone_are_woken_by_all_that_a_device_has_answered() {
        use clap::Parser;

        use crate::args::{Cli, Verb};

        let of = |exports: &[&str]| {
            let words = ["blockwork", "serve", "--disk", "null:1M"].iter().chain(exports);
            let Verb::Serve(args) = Cli::parse_from(words).verb else { unreachable!("it is serve") };
            wakes_with(&args)
        };
        assert_eq!(of(&["--vhost-user", "a"]), WakesWith::All);
        assert_eq!(of(&["--no-exports"]), WakesWith::All);
        assert_eq!(of(&["--vhost-user", "a", "--nbd", "unix:b"]), WakesWith::First);
        assert_eq!(of(&["--vhost-user", "a", "--fuse", "b"]), WakesWith::First);
        assert_eq!(of(&["--vhost-user", "a", "--xen", "1/xvda"]), WakesWith::First);
        // By sockets that a service manager has opened.
        assert_eq!(of(&[]), WakesWith::First);
    }
}
