//! `serve --fork`, `--pid-file` and `--log-file`: the next line of a script finds the server ready, or knows why it is not; nothing of who started it
//! is kept open; and the server is found by its number until its end.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use crate::support::fs::LeftMount;
use crate::support::md::array;
use crate::support::{BLOCKWORK, FuseDisk, Scratch, both, output, run, run_refused, tool, until};
use blockwork_format::md::Level;
use rustix::process::{Pid, Signal, kill_process, test_kill_process};

const MIB: u64 = 1 << 20;

/// A server in the background, by its pid file. Dropped, it is killed.
struct Forked(PathBuf);

impl Forked {
    /// `blockwork serve --fork --pid-file pid ARGS`, which must succeed; what it said on both outputs.
    fn start(scratch: &Scratch, args: &[&str]) -> (Forked, String) {
        let server = Forked(scratch.path("pid"));
        let mut command = scratch.blockwork(["serve", "--fork", "--pid-file", "pid"]);
        // It ends when nobody has its outputs any more.
        let done = output(command.args(args));
        let said = both(&done);
        assert!(done.status.success(), "{said}");
        (server, said)
    }

    fn pid(&self) -> Option<Pid> {
        let text = fs::read_to_string(&self.0).ok()?;
        text.strip_suffix('\n').and_then(|pid| Pid::from_raw(pid.parse().ok()?))
    }

    fn signal(&self, signal: Signal) {
        kill_process(self.pid().expect("it is ready"), signal).expect("it runs");
    }

    /// Asks it to end, and waits for that.
    fn stop(&self) {
        let pid = self.pid().expect("it is ready");
        self.signal(Signal::TERM);
        until("the server has ended", || is_gone(pid));
        assert!(!self.0.exists(), "its file is removed");
    }
}

impl Drop for Forked {
    fn drop(&mut self) {
        if let Some(pid) = self.pid() {
            let _ = kill_process(pid, Signal::KILL);
        }
    }
}

/// It is nobody's child here, and who waits for it may take a while.
fn is_gone(pid: Pid) -> bool {
    let pid = pid.as_raw_nonzero();
    let state = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    state.is_empty() || state.contains(") Z ")
}

#[test]
fn the_next_line_of_a_script_finds_it_ready() {
    let scratch = Scratch::new();
    scratch.sparse("disk.img", 3 * MIB);
    let _left = Forked(scratch.path("pid"));
    let script = "set -e\nsaid=$(\"$0\" serve --fork --pid-file pid --disk disk.img --nbd unix:socket 2>&1)\n\
                  nbdinfo --size \"$1\"\nkill $(cat pid)\necho \"$said\"";
    let mut command = tool("sh");
    command.env("BLOCKWORK_RUN_DIR", scratch.run_dir()).current_dir(scratch.path(""));
    let said = run(command.args(["-c", script, BLOCKWORK, &scratch.uri("")]));
    let ready = format!("ready nbd+unix:///?socket={}", scratch.at("socket"));
    assert_eq!(said.lines().collect::<Vec<_>>(), ["3145728", &ready]);
}

#[test]
fn a_server_that_cannot_start_tells_why_and_is_no_success() {
    let scratch = Scratch::new();
    scratch.sparse("disk.img", MIB);
    for (args, code, why) in [
        (&["--disk", "nosuch", "--nbd", "unix:socket"][..], 1, "nosuch: open: No such file"),
        (&["--disk", "disk.img", "--nbd", "nowhere"], 2, "nowhere to listen at"),
        (&["--disk", "disk.img"], 2, "nothing to serve by"),
        (&["--disk", "disk.img", "--nbd", "unix:socket", "--log-file", "no/log"], 1, "--log-file no/log"),
    ] {
        let done = output(scratch.blockwork(["serve", "--fork", "--pid-file", "pid"]).args(args));
        let said = both(&done);
        assert_eq!(done.status.code(), Some(code), "{args:?}: {said}");
        assert!(said.starts_with("blockwork: error: ") && said.contains(why), "{args:?}: {said}");
        assert_eq!(said.lines().count(), 1, "{args:?}: {said}");
        assert!(!scratch.path("pid").exists());
    }
}

#[test]
fn what_it_says_before_it_is_ready_is_heard_and_what_it_says_then_is_in_the_log() {
    let scratch = Scratch::new();
    let disks = array(&scratch, "mirrors", Level::Raid10, 2, 32 * MIB);
    let args = ["--log-file", "log", "--read-only", "--nbd", "unix:socket", "--disk", &disks[0]];
    let (server, said) = Forked::start(&scratch, &args);
    let [warning, ready] = said.lines().rev().collect::<Vec<_>>()[..] else { panic!("two lines: {said}") };
    let (ready, warning) = if warning.starts_with("ready") { (warning, ready) } else { (ready, warning) };
    assert!(ready.starts_with("ready nbd+unix:") && warning.contains("warning: md/mirrors"), "{said}");
    assert_eq!(fs::read_to_string(scratch.path("log")).unwrap(), "");
    let pid = server.pid().expect("it is ready").as_raw_nonzero();
    let at = |number: u32| fs::read_link(format!("/proc/{pid}/fd/{number}")).unwrap();
    assert_eq!([at(0), at(1), at(2)], [PathBuf::from("/dev/null"), scratch.path("log"), scratch.path("log")]);
    server.signal(Signal::USR1);
    until("statistics are in the log", || {
        fs::read_to_string(scratch.path("log")).unwrap().contains(&disks[0])
    });
    server.stop();
}

/// It has a session of its own, whatever becomes of the terminal; and nobody hears what it says where nobody has asked for that.
#[test]
fn it_has_nothing_to_do_with_the_terminal_any_more() {
    let scratch = Scratch::new();
    let (server, _) = Forked::start(&scratch, &["--disk", "memory:1M", "--nbd", "unix:socket"]);
    let pid = server.pid().expect("it is ready");
    assert_eq!(rustix::process::getsid(Some(pid)), Ok(pid));
    for number in 0..=2 {
        let at = fs::read_link(format!("/proc/{}/fd/{number}", pid.as_raw_nonzero())).unwrap();
        assert_eq!(at, PathBuf::from("/dev/null"));
    }
    server.stop();
}

#[test]
fn every_kind_of_server_is_ready_when_the_command_returns() {
    let scratch = Scratch::new();
    scratch.sparse("disk.img", 4 * MIB);
    let mount = scratch.at("mount.img");
    let _left = LeftMount(mount.clone().into());
    for (args, ready) in [
        (&["--fuse", &mount][..], "ready fuse:"),
        (&["--vhost-user", "guest"], "ready vhost-user:"),
        (&["--vhost-user", "guest", "--migratable"], "ready vhost-user:"),
        (&["--nbd", "unix:socket", "--sandbox", "on"], "ready nbd+unix:"),
        (&["--no-exports"], "ready"),
        (&["--nbd", "unix:socket", "--json"], "{\"ready\":["),
    ] {
        let (server, said) = Forked::start(&scratch, &[args, &["--disk", "disk.img"]].concat());
        let told = said.lines().last().unwrap_or_default();
        assert!(told.starts_with(ready), "{args:?}: {said}");
        match args[0] {
            "--fuse" => assert_eq!(fs::metadata(&mount).unwrap().len(), 4 * MIB),
            "--vhost-user" => assert!(scratch.path("guest").exists()),
            "--nbd" => assert_eq!(run(tool("nbdinfo").args(["--size", &scratch.uri("")])), "4194304\n"),
            _ => assert!(run(&mut scratch.blockwork(["export", "show"])).contains("disk/disk.img")),
        }
        server.stop();
    }
}

#[test]
fn a_pid_file_is_one_servers_and_one_that_was_killed_leaves_it_to_the_next() {
    let scratch = Scratch::new();
    let args = ["--disk", "memory:1M", "--nbd", "unix:socket"];
    let (server, _) = Forked::start(&scratch, &args);
    let first = server.pid().expect("it is ready");
    let mut command = scratch.blockwork(["serve", "--pid-file", "pid", "--nbd", "unix:other"]);
    let said = both(&output(command.args(["--disk", "memory:1M"])));
    assert!(said.contains("--pid-file pid: it is of another server, which runs"), "{said}");
    assert_eq!(server.pid(), Some(first), "it is as it was");
    server.signal(Signal::KILL);
    until("it is killed", || is_gone(first));
    assert_eq!(server.pid(), Some(first), "nobody has removed it");
    let (server, _) = Forked::start(&scratch, &args);
    assert_ne!(server.pid(), Some(first));
    server.stop();
}

/// What a server writes to besides disks is no disk that was named by mistake, nor anything else that is there.
#[test]
fn what_is_no_log_and_no_pid_file_is_left_as_it_is() {
    let scratch = Scratch::new();
    let disk = scratch.write("disk.img", [&[7; 100][..], &[0; 1 << 20]].concat());
    run(tool("mkfifo").arg(scratch.path("pipe")));
    for (args, why) in [
        (["--log-writes", "disk.img"], "disk.img: there is something that is no log of writes"),
        (["--log-file", "disk.img"], "--log-file disk.img: it is there, and holds no text"),
        (["--pid-file", "disk.img"], "--pid-file disk.img: it is there, and holds no process's number"),
        (["--pid-file", "pipe"], "--pid-file pipe: it is there, and no regular file"),
        (["--log-file", "pipe"], "--log-file pipe: "),
    ] {
        for fork in [&["--fork"][..], &[]] {
            let mut command = scratch.blockwork(["serve", "--nbd", "unix:socket", "--disk", &disk]);
            let said = run_refused(command.args(fork).args(args));
            assert!(said.contains(why), "{args:?}: {said}");
        }
    }
    assert_eq!(fs::read(&disk).unwrap(), [&[7; 100][..], &[0; 1 << 20]].concat());
}

/// Who has started it cannot be told any more that it is ready: it is nobody's then, and must not be there.
#[test]
fn a_server_whose_starter_is_killed_before_it_is_ready_ends() {
    let scratch = Scratch::new();
    let disk = FuseDisk::slow(&scratch, &scratch.sparse("disk.img", 16 * MIB), 16, 300);
    let _left = Forked(scratch.path("pid"));
    let mut command = scratch.blockwork(["serve", "--fork", "--pid-file", "pid", "--nbd", "unix:socket"]);
    command.args(["--disk", &disk.file]).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut starter = command.spawn().unwrap();
    let children = format!("/proc/{0}/task/{0}/children", starter.id());
    let mut server = None;
    until("it has a child", || {
        let text = fs::read_to_string(&children).unwrap_or_default();
        server = text.split_whitespace().next().and_then(|pid| Pid::from_raw(pid.parse().ok()?));
        server.is_some()
    });
    let server = server.expect("it was found");
    until("it has begun", || scratch.path("pid").exists());
    starter.kill().unwrap();
    let said = starter.wait_with_output().unwrap();
    assert_eq!(both(&said), "", "it was not ready yet");
    until("the server has ended", || is_gone(server));
    assert!(test_kill_process(server).is_err() || is_gone(server));
    assert!(!scratch.path("socket").exists() && !scratch.path("pid").exists());
}

#[test]
fn sockets_of_a_service_manager_do_not_go_with_it() {
    const ACTIVATE: &str = "import os, socket, sys\n\
        s = socket.socket(socket.AF_UNIX); s.bind('activated'); s.listen()\n\
        os.dup2(s.fileno(), 3); os.set_inheritable(3, True)\n\
        os.environ.update(LISTEN_FDS='1', LISTEN_PID=str(os.getpid()))\n\
        os.execv(sys.argv[1], sys.argv[1:])\n";
    let scratch = Scratch::new();
    let mut command = Command::new("/usr/bin/python3");
    command.current_dir(scratch.path("")).env("BLOCKWORK_RUN_DIR", scratch.run_dir());
    let done = output(command.args(["-c", ACTIVATE, BLOCKWORK, "serve", "--fork", "--disk", "memory:1M"]));
    let said = both(&done);
    assert!(done.status.code() == Some(2) && said.contains("leave out --fork"), "{said}");
}
