//! A machine that boots when it is needed, and runs scenarios one after the other.

use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use crate::cache::Cache;
use crate::error::GuestError;
use crate::port::{Heard, Port};
use crate::qemu::{Begin, Qemu};
use crate::qmp::Qmp;
use crate::scenario::{Output, Scenario};
use crate::shared::Shared;
use crate::wire::Kind;

/// A boot takes 4 s on a machine with nothing else to do.
const BOOT_TIMEOUT: Duration = Duration::from_secs(180);
/// How long stopping what a script left may take, and a kill.
const CLEANUP_TIMEOUT: Duration = Duration::from_secs(120);
const KILL_TIMEOUT: Duration = Duration::from_secs(10);

const LIBRARY: &str = include_str!("../guest/lib.sh");
/// What `power_cut` of the library says on the script's standard output.
const POWER_CUT: &str = "@@ power cut @@\n";

/// A guest. It boots for its first scenario, and again for the next one after it was killed.
#[derive(Debug, Default)]
pub struct Guest {
    machine: Mutex<Option<Machine>>,
    pub(crate) vhost_disks: Vec<VhostDisk>,
}

/// A disk that a vhost-user-blk server of ours serves: the guest has it from its boot on, as `/dev/vdb` and so on, in their order.
/// Its server must listen by then; when it goes, QEMU looks for the next one every second.
#[derive(Clone, Debug)]
pub struct VhostDisk {
    /// Where the server listens.
    pub socket: PathBuf,
    /// Queues.
    pub queues: u16,
    /// Descriptors of each.
    pub queue_size: u16,
    /// Packed rings.
    pub packed: bool,
}

impl Guest {
    /// A guest of its own, for scenarios that are better alone.
    pub fn new() -> Guest {
        Guest::default()
    }

    /// One of its own, with disks by vhost-user.
    pub fn with_vhost_disks(disks: Vec<VhostDisk>) -> Guest {
        Guest { vhost_disks: disks, ..Guest::default() }
    }

    /// One of those that the tests of this process hand on to each other, for as long as it is held.
    pub fn shared() -> Shared {
        Shared::take()
    }

    /// Starts to describe a scenario for it.
    pub fn scenario(&self) -> Scenario<'_> {
        Scenario::new(self)
    }

    /// Boots it now, where it does not run, and returns the kernel's release. The first scenario does so by itself.
    ///
    /// # Errors
    /// There is nothing to boot from, or the kernel does not come up.
    pub fn boot(&self) -> Result<String, GuestError> {
        Ok(self.running(&mut self.machine())?.release.clone())
    }

    /// Switches it off at once. What it had written to its disks is in their files.
    pub fn power_off(&self) {
        *self.machine() = None;
    }

    pub(crate) fn running<'a>(&self, slot: &'a mut Option<Machine>) -> Result<&'a mut Machine, GuestError> {
        match slot {
            Some(machine) => Ok(machine),
            None => Ok(slot.insert(Machine::boot(&self.vhost_disks)?)),
        }
    }

    pub(crate) fn machine(&self) -> MutexGuard<'_, Option<Machine>> {
        self.machine.lock().unwrap_or_else(|poisoned| {
            // Whoever panicked left the guest in the middle of something.
            let mut machine = poisoned.into_inner();
            *machine = None;
            self.machine.clear_poison();
            machine
        })
    }

    pub(crate) fn run(&self, scenario: &Scenario<'_>) -> Result<Output, GuestError> {
        let mut slot = self.machine();
        let result = self.running(&mut slot)?.run(scenario);
        let left = match (&result, slot.as_mut()) {
            (Ok(_) | Err(GuestError::Failed { .. } | GuestError::TimedOut { .. }), Some(machine)) => {
                machine.clean_up(scenario)
            }
            _ => Err(GuestError::Held { output: Box::default() }),
        };
        if left.is_err() {
            *slot = None;
        }
        // The first failure is the one to tell of.
        result.and_then(|output| left.map(|()| output))
    }

    pub(crate) fn run_until_power_cut(&self, scenario: &Scenario<'_>) -> Result<Output, GuestError> {
        let mut slot = self.machine();
        let result = self.running(&mut slot)?.run_until_power_cut(scenario);
        // Killed before anybody is told, so that the disks do not change any more.
        *slot = None;
        result
    }
}

/// A running guest.
#[derive(Debug)]
pub(crate) struct Machine {
    qemu: Qemu,
    pub(crate) control: Qmp,
    agent: Port,
    pub(crate) release: String,
    /// SCSI targets of the disks that are plugged in.
    targets: Vec<u32>,
}

/// How a script ended.
enum Ending {
    Exit,
    PowerCut,
    Timeout,
}

impl Machine {
    /// A QEMU, with nothing in it yet.
    pub(crate) fn start(vhost_disks: &[VhostDisk], begin: Begin) -> Result<Machine, GuestError> {
        // Until QEMU has opened the files, nobody may replace them.
        let cache = Cache::open()?;
        let (qemu, lines) = Qemu::start(&cache.boot_files()?, vhost_disks, begin)?;
        drop(cache);
        let control = Qmp::new(lines.control)?;
        let agent = Port::new(lines.agent).map_err(GuestError::file("cannot set up", "the agent's line"))?;
        Ok(Machine { qemu, control, agent, release: String::new(), targets: Vec::new() })
    }

    fn boot(vhost_disks: &[VhostDisk]) -> Result<Machine, GuestError> {
        let mut machine = Machine::start(vhost_disks, Begin::Boot)?;
        match machine.agent.hear(Instant::now() + BOOT_TIMEOUT) {
            Heard::Frame(Kind::Ready, release) => {
                machine.release = String::from_utf8_lossy(&release).into_owned()
            }
            Heard::Nothing => {
                return Err(GuestError::NoBoot { after: BOOT_TIMEOUT, console: machine.qemu.console() });
            }
            Heard::Frame(..) | Heard::End => return Err(machine.gone("it boots")),
        }
        Ok(machine)
    }

    /// It has hung up: QEMU is about to end, and the console is complete when it has.
    fn gone(&self, during: &str) -> GuestError {
        if !self.qemu.ends_within(KILL_TIMEOUT) {
            self.qemu.kill();
        }
        self.qemu.gone(during)
    }

    fn run(&mut self, scenario: &Scenario<'_>) -> Result<Output, GuestError> {
        self.plug_in(scenario)?;
        let (ending, output) = self.script(scenario)?;
        match ending {
            Ending::Timeout => {
                Err(GuestError::TimedOut { after: scenario.timeout, output: Box::new(output) })
            }
            Ending::PowerCut => {
                Err(self.qemu.gone("power_cut was called; Scenario::run_until_power_cut expects that"))
            }
            Ending::Exit if output.exit != 0 => Err(GuestError::Failed { output: Box::new(output) }),
            Ending::Exit => Ok(output),
        }
    }

    fn run_until_power_cut(&mut self, scenario: &Scenario<'_>) -> Result<Output, GuestError> {
        self.plug_in(scenario)?;
        let (ending, output) = self.script(scenario)?;
        match ending {
            Ending::PowerCut => Ok(output),
            Ending::Timeout => {
                Err(GuestError::TimedOut { after: scenario.timeout, output: Box::new(output) })
            }
            Ending::Exit if output.exit != 0 => Err(GuestError::Failed { output: Box::new(output) }),
            Ending::Exit => Err(GuestError::NoCut { output: Box::new(output) }),
        }
    }

    fn plug_in(&mut self, scenario: &Scenario<'_>) -> Result<(), GuestError> {
        for (target, (_, disk)) in (0..).zip(&scenario.disks) {
            self.control.plug_in(target, disk)?;
            self.targets.push(target);
        }
        Ok(())
    }

    fn script(&mut self, scenario: &Scenario<'_>) -> Result<(Ending, Output), GuestError> {
        for (name, contents) in &scenario.inputs {
            let payload = [name.as_bytes(), &[0], contents].concat();
            self.send(Kind::Input, &payload)?;
        }
        let mut text = String::new();
        for (name, value) in &scenario.variables {
            text += &format!("export {name}={}\n", quoted(value));
        }
        let disks =
            (0..).zip(&scenario.disks).map(|(target, (name, _)): (u32, _)| format!("{target}:{name}"));
        text += &format!("{LIBRARY}\ndisks_in {}\n", disks.collect::<Vec<_>>().join(" "));
        // The script is a file of its own, so that the line numbers in bash's messages are its own.
        self.send(Kind::Input, &[b"script\0", scenario.script.as_bytes()].concat())?;
        text += ". /in/script\n";
        self.execute(&text, scenario.timeout, scenario.echo)
    }

    fn send(&mut self, kind: Kind, payload: &[u8]) -> Result<(), GuestError> {
        self.agent.send(kind, payload).map_err(|_| self.gone("it is sent a script"))
    }

    /// Runs a text, and collects what it says.
    fn execute(&mut self, text: &str, timeout: Duration, echo: bool) -> Result<(Ending, Output), GuestError> {
        self.send(Kind::Script, text.as_bytes())?;
        let started = Instant::now();
        let mut deadline = started + timeout;
        let mut ending = Ending::Exit;
        let mut said = Said::default();
        loop {
            match self.agent.hear(deadline) {
                Heard::Frame(Kind::Exit, status) => {
                    let exit = String::from_utf8_lossy(&status).parse().unwrap_or(-1);
                    return Ok((ending, said.output(exit, started.elapsed())));
                }
                Heard::Frame(kind, payload) => {
                    said.hear(kind, payload, echo);
                    if said.ends_with_power_cut() {
                        self.qemu.kill();
                        return Ok((Ending::PowerCut, said.output(0, started.elapsed())));
                    }
                }
                Heard::Nothing if matches!(ending, Ending::Timeout) => {
                    self.qemu.kill();
                    return Err(GuestError::Hung { after: KILL_TIMEOUT, console: self.qemu.console() });
                }
                Heard::Nothing => {
                    ending = Ending::Timeout;
                    deadline = Instant::now() + KILL_TIMEOUT;
                    self.send(Kind::Kill, &[])?;
                }
                Heard::End => {
                    return Err(self.gone(&format!("a script runs{}", said.output(0, Duration::ZERO))));
                }
            }
        }
    }

    /// Stops what uses the disks, and takes them out.
    fn clean_up(&mut self, scenario: &Scenario<'_>) -> Result<(), GuestError> {
        let text = format!("{LIBRARY}\nstop_all\ndisks_out {}\n", disk_arguments(scenario));
        let (ending, output) = self.execute(&text, CLEANUP_TIMEOUT, false)?;
        if output.exit != 0 || !matches!(ending, Ending::Exit) {
            return Err(GuestError::Held { output: Box::new(output) });
        }
        for target in std::mem::take(&mut self.targets) {
            self.control.plug_out(target)?;
        }
        Ok(())
    }
}

/// `TARGET:NAME` of each disk.
fn disk_arguments(scenario: &Scenario<'_>) -> String {
    let disks =
        (0..).zip(&scenario.disks).map(|(target, (name, _)): (u32, _)| quoted(&format!("{target}:{name}")));
    disks.collect::<Vec<_>>().join(" ")
}

/// What has been heard of a script so far.
#[derive(Default)]
struct Said {
    stdout: Vec<u8>,
    stderr: Vec<u8>,
    files: Vec<Vec<u8>>,
}

impl Said {
    fn hear(&mut self, kind: Kind, payload: Vec<u8>, echo: bool) {
        match kind {
            Kind::Stdout => {
                if echo {
                    show(&mut io::stdout(), &payload);
                }
                self.stdout.extend(payload);
            }
            Kind::Stderr => {
                if echo {
                    show(&mut io::stderr(), &payload);
                }
                self.stderr.extend(payload);
            }
            Kind::Result => self.files.push(payload),
            // The agent sends no others while a script runs.
            _ => {}
        }
    }

    fn ends_with_power_cut(&self) -> bool {
        self.stdout.ends_with(POWER_CUT.as_bytes())
    }

    fn output(self, exit: i32, took: Duration) -> Output {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let files = self.files.into_iter().map(|payload| {
            let end = payload.iter().position(|byte| *byte == 0).unwrap_or(payload.len());
            (text(&payload[..end]), payload.get(end + 1..).unwrap_or_default().to_vec())
        });
        let stdout = text(self.stdout.strip_suffix(POWER_CUT.as_bytes()).unwrap_or(&self.stdout));
        Output { stdout, stderr: text(&self.stderr), exit, files: files.collect(), took }
    }
}

/// A closed output is no reason to stop a scenario.
fn show(to: &mut impl Write, payload: &[u8]) {
    let _ = to.write_all(payload).and_then(|()| to.flush());
}

/// For bash.
fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}
