//! What is measured beside the I/O: CPU time of both sides, stolen CPU, and the server's system calls.
//!
//! Server CPU is utime + stime of /proc/PID/stat: all threads, the ended ones too, in clock ticks (10 ms), so a run
//! should last a second or longer. System calls are counted by `perf stat` on raw_syscalls:sys_enter, switched on
//! and off over a FIFO with acknowledgements, so that the count covers the load and nothing else.

use std::fs::File;
use std::io::Write;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, Signal, kill_process};
use rustix::time::{ClockId, clock_gettime};

/// Longest wait for perf to answer, in seconds.
const PERF_ANSWER_SECONDS: i64 = 10;

/// CPU time a process has used, in us.
#[derive(Debug, Clone, Copy, Default)]
pub struct CpuTime {
    /// In user mode.
    pub user_us: f64,
    /// In the kernel.
    pub system_us: f64,
}

/// The CPU time of process `pid`.
pub fn cpu_time(pid: u32) -> Result<CpuTime> {
    let path = format!("/proc/{pid}/stat");
    let text = std::fs::read_to_string(&path).with_context(|| format!("--pid {pid}: no such process"))?;
    // The name in parentheses may hold blanks and parentheses; the fields count from the last one.
    let rest = text.rsplit_once(')').map(|(_, rest)| rest).unwrap_or_default();
    let fields: Vec<&str> = rest.split_whitespace().collect();
    let tick_us = 1e6 / rustix::param::clock_ticks_per_second() as f64;
    let ticks = |n: usize| fields.get(n).and_then(|f| f.parse::<u64>().ok());
    match (ticks(11), ticks(12)) {
        (Some(user), Some(system)) => {
            Ok(CpuTime { user_us: user as f64 * tick_us, system_us: system as f64 * tick_us })
        }
        _ => bail!("{path}: utime and stime are not where they should be"),
    }
}

/// The CPU time of this process in us, to the nanosecond.
pub fn own_cpu_us() -> f64 {
    let now = clock_gettime(ClockId::ProcessCPUTime);
    now.tv_sec as f64 * 1e6 + now.tv_nsec as f64 / 1e3
}

/// (stolen, all) ticks of all CPUs since boot. What the host takes from a guest shows here and nowhere else.
pub fn steal_ticks() -> Result<(u64, u64)> {
    let text = std::fs::read_to_string("/proc/stat").context("/proc/stat")?;
    let line = text.lines().next().unwrap_or_default();
    let ticks: Vec<u64> = line.split_whitespace().skip(1).filter_map(|f| f.parse().ok()).collect();
    ensure!(ticks.len() >= 8, "/proc/stat: the first line has {} numbers, expected 8 or more", ticks.len());
    Ok((ticks[7], ticks[..8].iter().sum()))
}

/// A running count of a process's system calls.
pub struct SyscallCount {
    perf: Child,
    control: File,
    answers: File,
    folder: PathBuf,
}

impl SyscallCount {
    /// Attaches perf to all threads of `pid`, and to those it will start, and begins to count.
    pub fn start(pid: u32) -> Result<Self> {
        let folder = std::env::temp_dir().join(format!("nbdload-perf-{}", std::process::id()));
        std::fs::create_dir_all(&folder)?;
        let (control, answers) = (make_fifo(&folder, "control")?, make_fifo(&folder, "answers")?);
        let fifos = format!("fifo:{},{}", folder.join("control").display(), folder.join("answers").display());
        let perf = Command::new("perf")
            .args(["stat", "-x,", "-D", "-1", "-e", "raw_syscalls:sys_enter", "-p", &pid.to_string()])
            .arg("--control")
            .arg(fifos)
            .arg("-o")
            .arg(folder.join("counts"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .context("--syscalls: perf cannot be started; install it (linux-perf) or leave --syscalls out")?;
        let mut count = SyscallCount { perf, control, answers, folder };
        count.say("enable\n")?;
        Ok(count)
    }

    /// Stops counting and returns the number of calls.
    pub fn finish(mut self) -> Result<u64> {
        self.say("disable\n")?;
        kill_process(Pid::from_child(&self.perf), Signal::INT)?;
        self.perf.wait()?;
        let text = std::fs::read_to_string(self.folder.join("counts"))?;
        let line = text.lines().find(|l| l.contains("raw_syscalls")).unwrap_or_default();
        line.split(',')
            .next()
            .and_then(|n| n.parse().ok())
            .with_context(|| format!("perf stat wrote `{line}`"))
    }

    fn say(&mut self, word: &str) -> Result<()> {
        self.control.write_all(word.as_bytes())?;
        let wait = Timespec { tv_sec: PERF_ANSWER_SECONDS, tv_nsec: 0 };
        let ready = poll(&mut [PollFd::new(&self.answers.as_fd(), PollFlags::IN)], Some(&wait))?;
        if ready == 0 {
            // perf did not get as far as its control loop: its own words say why.
            self.perf.kill()?;
            let mut said = String::new();
            if let Some(mut stderr) = self.perf.stderr.take() {
                std::io::Read::read_to_string(&mut stderr, &mut said)?;
            }
            bail!("--syscalls: perf stat does not answer: {}", said.trim());
        }
        let mut answer = [0; 16];
        rustix::io::read(&self.answers, &mut answer)?;
        Ok(())
    }
}

impl Drop for SyscallCount {
    fn drop(&mut self) {
        // After `finish` perf has ended, and both do nothing that matters; errors have no one to go to.
        let _ = self.perf.kill();
        let _ = self.perf.wait();
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

fn make_fifo(folder: &std::path::Path, name: &str) -> Result<File> {
    let path = folder.join(name);
    let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
    rustix::fs::mkfifoat(rustix::fs::CWD, &path, mode).with_context(|| format!("{}", path.display()))?;
    // Opened for both directions, so that the open does not wait for perf.
    File::options().read(true).write(true).open(&path).with_context(|| format!("{}", path.display()))
}
