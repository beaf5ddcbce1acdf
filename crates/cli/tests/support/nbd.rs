//! NBD clients: nbdload, fio, libnbd's Python module, and a hand-made one that says whatever a test wants.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use serde_json::Value;

use super::{BLOCKWORK, Background, PATIENCE, Scratch, output, run, tool, until};

/// `nbdload`, the repository's own load generator (`bench/nbdload`), from the folder where `blockwork` was built. It is
/// built once where it is not there: a test can only name programs of its own package.
pub fn nbdload() -> Command {
    static PATH: OnceLock<PathBuf> = OnceLock::new();
    let path = PATH.get_or_init(|| {
        let folder = Path::new(BLOCKWORK).parent().expect("it lies in a folder");
        let path = folder.join("nbdload");
        if !path.exists() {
            let profile = match folder.file_name().and_then(|name| name.to_str()) {
                Some("debug") | None => "dev",
                Some(name) => name,
            };
            let target = folder.parent().expect("a target folder");
            let mut cargo = Command::new(env!("CARGO"));
            cargo.args(["build", "--quiet", "--package", "nbdload", "--profile", profile]);
            cargo.arg("--target-dir").arg(target).current_dir(env!("CARGO_MANIFEST_DIR"));
            // Not by `run`: a build may take longer than a client.
            let status = cargo.stdin(Stdio::null()).status().expect("cargo runs");
            assert!(
                status.success() && path.exists(),
                "{cargo:?} does not make {}: {status}",
                path.display()
            );
        }
        path
    });
    Command::new(path)
}

/// Runs nbdload to a good end; its report.
pub fn load(socket: &str, args: &[&str]) -> Value {
    let said = run(nbdload().arg(format!("unix:{socket}")).args(args));
    serde_json::from_str(&said).unwrap_or_else(|error| panic!("{said}: {error}"))
}

/// Runs nbdload however it ends; its exit code, and its report if it has one.
pub fn try_load(socket: &str, args: &[&str]) -> (Option<i32>, Value, String) {
    let done = output(nbdload().arg(format!("unix:{socket}")).args(args));
    let report = serde_json::from_slice(&done.stdout).unwrap_or(Value::Null);
    (done.status.code(), report, String::from_utf8_lossy(&done.stderr).into_owned())
}

/// fio with its NBD engine; its files stay in `scratch`.
pub fn fio(scratch: &Scratch, uri: &str, args: &[&str]) -> Command {
    let mut fio = tool("fio");
    fio.current_dir(scratch.path(""));
    fio.args(["--name=job", "--ioengine=nbd", &format!("--uri={uri}"), "--randrepeat=1", "--eta=never"])
        .args(args);
    fio
}

/// What tells one content of a range of an export from another.
pub fn checksum(scratch: &Scratch, export: &str, range: std::ops::Range<u64>) -> String {
    let (uri, start, end) = (scratch.uri(export), range.start, range.end);
    python(&format!(
        "import hashlib\nh = connect({uri:?})\nhash = hashlib.sha256()\nend = min({end}, h.get_size())\n\
         for at in range({start}, end, 1 << 20):\n    hash.update(h.pread(min(1 << 20, end - at), at))\n\
         print(hash.hexdigest())\n"
    ))
}

/// Runs a script with libnbd's Python module, with a function `connect(uri)` that gives a handle; what it prints.
pub fn python(script: &str) -> String {
    let head = "import nbd, errno, sys, os\n\
        def connect(uri):\n    h = nbd.NBD()\n    h.add_meta_context('base:allocation')\n    \
        h.set_strict_mode(0)\n    h.connect_uri(uri)\n    return h\n\
        def refused(call):\n    try:\n        call()\n    except nbd.Error as e:\n        return e.errnum\n    return None\n";
    run(tool("/usr/bin/python3").args(["-c", &format!("{head}{script}")]))
}

/// The simplest client: fixed newstyle, GO, simple replies; and whatever bytes a test wants.
pub struct Raw {
    pub stream: UnixStream,
}

impl Raw {
    /// Connects, and reads the greeting.
    pub fn connect(socket: &str) -> Raw {
        let stream = UnixStream::connect(socket).expect("the server listens");
        stream.set_read_timeout(Some(PATIENCE)).expect("a socket has it");
        stream.set_write_timeout(Some(PATIENCE)).expect("a socket has it");
        let mut raw = Raw { stream };
        let mut greeting = [0; 18];
        raw.stream.read_exact(&mut greeting).expect("a greeting");
        assert_eq!(greeting, *b"NBDMAGICIHAVEOPT\0\x03");
        raw
    }

    /// Connects, and opens the default export.
    pub fn open(socket: &str) -> Raw {
        Raw::open_export(socket, "")
    }

    /// Connects, and opens an export.
    pub fn open_export(socket: &str, name: &str) -> Raw {
        let length = u32::try_from(name.len()).expect("a short name");
        let mut raw = Raw::connect(socket);
        let mut go = 3u32.to_be_bytes().to_vec(); // fixed newstyle, no zeroes
        go.extend(b"IHAVEOPT");
        go.extend(7u32.to_be_bytes()); // NBD_OPT_GO
        go.extend((6 + length).to_be_bytes());
        go.extend(length.to_be_bytes());
        go.extend(name.as_bytes());
        go.extend([0; 2]); // no requests for information
        raw.stream.write_all(&go).expect("the server reads");
        loop {
            let mut head = [0; 20];
            raw.stream.read_exact(&mut head).expect("an answer to GO");
            let word = |at: usize| u32::from_be_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
            let mut data = vec![0; usize::try_from(word(16)).expect("32 bits")];
            raw.stream.read_exact(&mut data).expect("its data");
            match word(12) {
                1 => return raw,
                3 => {}
                other => panic!("GO is answered by {other:#x}"),
            }
        }
    }

    /// Sends a write, and does not wait for its answer.
    pub fn write_unanswered(&mut self, offset: u64, length: u32) {
        let mut request = Raw::request(1, 0, 0, offset, length);
        request.resize(request.len() + usize::try_from(length).expect("it fits"), 0xdd);
        self.stream.write_all(&request).expect("the server reads");
    }

    /// The head of a request.
    pub fn request(kind: u16, flags: u16, cookie: u64, offset: u64, len: u32) -> Vec<u8> {
        let mut head = 0x2560_9513u32.to_be_bytes().to_vec();
        head.extend(flags.to_be_bytes());
        head.extend(kind.to_be_bytes());
        head.extend(cookie.to_be_bytes());
        head.extend(offset.to_be_bytes());
        head.extend(len.to_be_bytes());
        head
    }
}

/// A client that holds an export open until it is killed.
pub fn holder(scratch: &Scratch, export: &str) -> Background {
    let held = scratch.path("held");
    let _ = fs::remove_file(&held);
    let uri = scratch.uri(export);
    let script = format!(
        "import nbd, time\nh = nbd.NBD()\nh.connect_uri({uri:?})\nopen({held:?}, 'w')\nwhile True: time.sleep(1000)\n"
    );
    let holder = Background::start(tool("/usr/bin/python3").args(["-c", &script]));
    until("the client has it open", || held.exists());
    holder
}
