//! A Linux machine and us, taking turns with the same disks: what every test against the real kernel needs.
//!
//! A test makes a [`Machine`], gives it disks, runs scripts in it (the guest: `tests/kernel`) and serves its disks with the real
//! `blockwork`. All that the two say is kept, and shown when the test fails.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs::File;
use std::ops::Deref;
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use rustix::fs::{FlockOperation, fcntl_lock};

use blockwork_kernel::{Disk, Guest, GuestError, Output, Scenario, Shared, create_disk, pattern};

use crate::support::fs::{Print, print_of};
use crate::support::nbd::python;
use crate::support::{Ended, Scratch, Server, run, tool, until};

pub const KIB: u64 = 1 << 10;
pub const MIB: u64 = 1 << 20;

/// Functions for the scripts of these tests.
const LIBRARY: &str = include_str!("lib.sh");

/// All that was said so far, in order.
type Journal = Rc<RefCell<String>>;

/// A Linux machine whose disks are files of ours.
pub struct Machine {
    pub scratch: Scratch,
    /// What it runs in: its own as long as it is there.
    guest: Shared,
    disks: Vec<String>,
    journal: Journal,
}

impl Machine {
    pub fn new() -> Machine {
        Machine {
            scratch: Scratch::new(),
            guest: Guest::shared(),
            disks: Vec::new(),
            journal: Journal::default(),
        }
    }

    /// Gives it an empty disk, which its scripts find as `/d/NAME` and we as `NAME`.
    pub fn disk(&mut self, name: &str, bytes: u64) {
        create_disk(self.scratch.path(name), bytes).expect("a new disk");
        self.disks.push(name.to_owned());
    }

    /// Its disks, in the order in which they were given.
    pub fn disks(&self) -> Vec<&str> {
        self.disks.iter().map(String::as_str).collect()
    }

    /// Runs a script in it with all of its disks; what it printed.
    pub fn run(&self, script: &str) -> Output {
        self.run_with(&self.disks(), script)
    }

    /// Runs a script in it with some of its disks.
    ///
    /// A server that was killed holds its disks for longer than it lives, until the kernel has wound up its io_uring. Our next
    /// server waits for that; QEMU refuses such a disk at once.
    pub fn run_with(&self, disks: &[&str], script: &str) -> Output {
        self.said(script, self.scenario(disks, script).run())
    }

    /// Runs a script that may take longer than others, with all of its disks.
    pub fn run_long(&self, patience: Duration, script: &str) -> Output {
        self.run_long_with(&self.disks(), patience, script)
    }

    /// The same with some of its disks.
    pub fn run_long_with(&self, disks: &[&str], patience: Duration, script: &str) -> Output {
        self.said(script, self.scenario(disks, script).timeout(patience).run())
    }

    /// The same, until the script calls `power_cut`.
    pub fn run_until_power_cut(&self, patience: Duration, script: &str) -> Output {
        self.run_with_until_power_cut(&self.disks(), patience, script)
    }

    /// The same with some of its disks.
    pub fn run_with_until_power_cut(&self, disks: &[&str], patience: Duration, script: &str) -> Output {
        let scenario = self.scenario(disks, script).timeout(patience);
        self.said(script, scenario.run_until_power_cut())
    }

    fn scenario(&self, disks: &[&str], script: &str) -> Scenario<'_> {
        for name in disks {
            let file =
                File::options().read(true).write(true).open(self.scratch.path(name)).expect("it is a file");
            until(&format!("nobody has {name} any more"), || {
                fcntl_lock(&file, FlockOperation::NonBlockingLockExclusive).is_ok()
            });
        }
        let scenario = self.guest.scenario().input("tests.sh", LIBRARY);
        let scenario = scenario.script(format!(". /in/tests.sh\n{script}"));
        disks.iter().fold(scenario, |it, name| it.disk(name, Disk::file(self.scratch.path(name))))
    }

    fn said(&self, script: &str, result: Result<Output, GuestError>) -> Output {
        match result {
            Ok(output) => {
                self.note("the kernel", &output.to_string());
                output
            }
            Err(error) => panic!("the kernel's side: {error}\n-- script\n{}", numbered(script)),
        }
    }

    /// `blockwork serve --disk DISKS ARGS` over NBD.
    pub fn serve<S: AsRef<str>>(&self, disks: &[S], args: &[&str]) -> Served<'_> {
        let mut command = vec!["--disk"];
        command.extend(disks.iter().map(AsRef::as_ref));
        command.extend(args);
        self.note("serve", &command.join(" "));
        Served { machine: self, server: Some(self.scratch.serve(command)) }
    }

    /// Copies what a server of ours has as a volume to a file; its path.
    pub fn copy_out(&self, volume: &str) -> String {
        let file = self.scratch.at("copy");
        run(tool("nbdcopy").arg(self.scratch.uri(volume)).arg(&file));
        file
    }

    /// The SHA-256 of what a server of ours has as a volume.
    pub fn sha256(&self, volume: &str) -> String {
        sha256_of(&self.copy_out(volume))
    }

    /// What each disk is now.
    pub fn prints(&self) -> BTreeMap<String, Print> {
        let print = |name: &String| {
            // A file takes more blocks once what was written to it is on the host's disk.
            File::open(self.scratch.path(name)).and_then(|file| file.sync_all()).expect("it is a file");
            (name.clone(), print_of(&self.scratch.at(name)))
        };
        self.disks.iter().map(print).collect()
    }

    /// Nothing has been written to any disk since then.
    pub fn expect_untouched(&self, before: &BTreeMap<String, Print>) {
        assert_eq!(self.prints(), *before, "a disk was written to");
    }

    pub fn note(&self, who: &str, what: &str) {
        self.journal.borrow_mut().push_str(&format!("== {who}: {what}\n"));
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("all that was said before:\n{}", self.journal.borrow());
        }
    }
}

/// A server of ours over a machine's disks. What it says is noted for the machine.
pub struct Served<'a> {
    machine: &'a Machine,
    server: Option<Server>,
}

impl Served<'_> {
    /// Asks it to end, as an operator would; that must succeed. What it said.
    pub fn stop(mut self) -> String {
        let ended = self.end(Server::stop);
        assert!(ended.status.success(), "serve ended with {}:\n{}", ended.status, ended.stderr);
        ended.stderr
    }

    /// Ends it as a crash would. What it said.
    pub fn kill(mut self) -> String {
        self.end(Server::kill).stderr
    }

    fn end(&mut self, how: impl FnOnce(Server) -> Ended) -> Ended {
        let ended = how(self.server.take().expect("it is ended once"));
        self.machine.note("serve said", &ended.stderr);
        ended
    }
}

impl Deref for Served<'_> {
    type Target = Server;

    fn deref(&self) -> &Server {
        self.server.as_ref().expect("it has not ended")
    }
}

impl Drop for Served<'_> {
    fn drop(&mut self) {
        if let Some(server) = &self.server {
            self.machine.note("serve said so far", &server.said());
        }
    }
}

/// With the numbers that bash gives its lines.
fn numbered(script: &str) -> String {
    (2..).zip(script.lines()).map(|(number, line): (u32, _)| format!("{number:4} {line}\n")).collect()
}

/// The SHA-256 of a file.
pub fn sha256_of(path: &str) -> String {
    run(tool("sha256sum").arg(path)).split_whitespace().next().expect("a hash").to_owned()
}

/// A file holds the pattern from its first byte to its last; how long it is.
pub fn expect_pattern(what: &str, path: impl AsRef<Path>, seed: u64) -> u64 {
    let file = File::open(path).expect("it was copied");
    let length = file.metadata().expect("it has a length").len();
    pattern::verify(&file, 0, length, seed).unwrap_or_else(|error| panic!("{what}: {error}"));
    length
}

/// Of each region of a volume, so many bytes, 1 where it can be read, and has the pattern; 0 where it fails.
pub fn regions_read(machine: &Machine, volume: &str, region: u64, seed: u64) -> String {
    let uri = machine.scratch.uri(volume);
    let script = format!(
        "import struct\nh = connect({uri:?})\nsaid = ''\n\
         for at in range(0, h.get_size(), {region}):\n    try:\n        data = h.pread({region}, at)\n    \
         except nbd.Error as e:\n        assert e.errnum == errno.EIO\n        said += '0'\n        continue\n    \
         words = struct.unpack('<%dQ' % ({region} // 8), data)\n    \
         assert all(word == (at // 8 + n) ^ {seed} for n, word in enumerate(words)), at\n    said += '1'\n\
         print(said)\n"
    );
    python(&script).trim().to_owned()
}

/// Values that a script printed as lines `NAME KEY VALUE`.
pub struct Facts<'a>(pub &'a str);

impl<'a> Facts<'a> {
    /// The value of `key` of `name`.
    pub fn get(&self, name: &str, key: &str) -> &'a str {
        let mut lines = self.0.lines().map(|line| line.splitn(3, ' '));
        let found = lines.find_map(|mut words| {
            (words.next() == Some(name) && words.next() == Some(key))
                .then(|| words.next().unwrap_or_default())
        });
        found.unwrap_or_else(|| panic!("no `{name} {key}` in\n{}", self.0)).trim()
    }

    /// The same as a number.
    pub fn number(&self, name: &str, key: &str) -> u64 {
        let text = self.get(name, key);
        text.parse().unwrap_or_else(|error| panic!("{name} {key}: {text:?}: {error}"))
    }
}

/// A client that writes all over a volume: data, zeroes and discards of all sizes, at all places, with FUA and flushes in
/// between, and reads back all that it has written.
pub fn scribble(machine: &Machine, volume: &str, seed: u64) {
    let uri = machine.scratch.uri(volume);
    let script = SCRIBBLE.replace("URI", &format!("{uri:?}")).replace("SEED", &seed.to_string());
    let said = python(&script);
    assert_eq!(said.trim(), "as written", "{volume}");
}

/// Discarded ranges have no defined content, and so are written again before they are compared.
const SCRIBBLE: &str = "
import random
h = connect(URI)
rng = random.Random(SEED)
size = h.get_size()
model = bytearray()
for at in range(0, size, 1 << 20):
    model += h.pread(min(1 << 20, size - at), at)
for n in range(200):
    length = min(size, rng.choice([512, 4096, 4608, 65536, 100 * 512, 1 << 20, 3 << 20]))
    offset = rng.randrange(0, size - length + 1) // 512 * 512
    what = rng.choice(['write', 'write', 'fua', 'zero', 'hole', 'discard', 'flush'])
    data = rng.randbytes(4096) * (length // 4096) + rng.randbytes(length % 4096)
    if what == 'write' or what == 'fua':
        h.pwrite(data, offset, nbd.CMD_FLAG_FUA if what == 'fua' else 0)
    elif what == 'zero' or what == 'hole':
        h.zero(length, offset, nbd.CMD_FLAG_NO_HOLE if what == 'zero' else 0)
        data = bytes(length)
    elif what == 'discard' and h.can_trim():
        h.trim(length, offset)
        # The middle stays discarded; what it is now must be the same for whoever reads it.
        data = bytes(h.pread(length, offset))
    else:
        h.flush()
        continue
    model[offset:offset + length] = data
for at in range(0, size, 1 << 20):
    end = min(size, at + (1 << 20))
    if h.pread(end - at, at) != model[at:end]:
        print('differs between', at, 'and', end)
        sys.exit()
print('as written')
";
