//! Who may open a disk that somebody else has open: two of ours, in one process and in two; QEMU, in both directions.

mod lab;

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use blockwork_leaf::{FileOptions, FileSource};

const WRITER: FileOptions = FileOptions::DEFAULT;
const READER: FileOptions = FileOptions { read_only: true, ..WRITER };

fn disk() -> tempfile::NamedTempFile {
    let file = tempfile::NamedTempFile::new().unwrap();
    file.as_file().set_len(1 << 20).unwrap();
    file
}

fn refused(path: &Path, options: &FileOptions) -> String {
    FileSource::open(path, options).err().expect("locked").to_string()
}

/// A process that holds the disk until it is dropped.
struct Holder {
    process: Child,
}

impl Holder {
    /// Runs qemu-io, and waits until it has the image open.
    fn qemu(path: &Path, options: &[&str]) -> Holder {
        let mut process = Command::new("qemu-io")
            .args(options)
            .args(["-f", "raw", path.to_str().unwrap()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        process.stdin.as_mut().unwrap().write_all(b"length\n").unwrap();
        let mut said = String::new();
        let mut out = BufReader::new(process.stdout.as_mut().unwrap());
        while !said.contains("1 MiB") {
            assert!(out.read_line(&mut said).unwrap() > 0, "qemu-io: {said}");
        }
        Holder { process }
    }

    /// Runs this test program once more, to hold the disk as a writer.
    fn ours(path: &Path) -> Holder {
        let mut process = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "holder_in_another_process", "--nocapture", "--include-ignored"])
            .env("HOLD", path)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut out = BufReader::new(process.stdout.as_mut().unwrap());
        let mut said = String::new();
        while !said.contains("holding") {
            assert!(out.read_line(&mut said).unwrap() > 0, "{said}");
        }
        Holder { process }
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        drop(self.process.stdin.take());
        self.process.wait().unwrap();
    }
}

fn qemu_opens(path: &Path, options: &[&str]) -> bool {
    let file = path.to_str().unwrap();
    let output =
        Command::new("qemu-io").args(options).args(["-f", "raw", "-c", "length", file]).output().unwrap();
    let said =
        String::from_utf8_lossy(&output.stderr).into_owned() + &String::from_utf8_lossy(&output.stdout);
    assert_eq!(!output.status.success(), said.contains("lock"), "{said}");
    output.status.success()
}

/// Not a test by itself: the other process of the test below. Without HOLD it has nothing to hold.
#[test]
#[ignore = "the second process of another test"]
fn holder_in_another_process() {
    let Some(path) = std::env::var_os("HOLD") else {
        return;
    };
    let source = FileSource::open(Path::new(&path), &WRITER).unwrap();
    println!("holding");
    std::io::stdin().read_line(&mut String::new()).unwrap();
    drop(source);
}

#[test]
fn a_second_process_is_refused_and_told_who_holds_the_disk() {
    let _alone = lab::alone();
    let file = disk();
    let holder = Holder::ours(file.path());
    let error = refused(file.path(), &WRITER);
    for part in
        [file.path().to_str().unwrap(), &format!("process {}", holder.process.id()), "stop that first"]
    {
        assert!(error.contains(part), "{part}: {error}");
    }
    assert!(refused(file.path(), &READER).contains("lock=off"));
    FileSource::open(file.path(), &FileOptions { lock: false, ..READER }).unwrap();
    drop(holder);
    FileSource::open(file.path(), &WRITER).unwrap();
}

#[test]
fn readers_share_and_writers_do_not() {
    let _alone = lab::alone();
    let file = disk();
    let first = FileSource::open(file.path(), &READER).unwrap();
    let second = FileSource::open(file.path(), &READER).unwrap();
    assert!(refused(file.path(), &WRITER).contains("this very process"));
    drop((first, second));
    let writer = FileSource::open(file.path(), &WRITER).unwrap();
    refused(file.path(), &READER);
    refused(file.path(), &WRITER);
    // A worker's handle keeps the lock when the source is gone.
    let leaf = blockwork_engine::LeafSource::open(&writer);
    drop(writer);
    refused(file.path(), &WRITER);
    drop(leaf);
    FileSource::open(file.path(), &WRITER).unwrap();
}

#[test]
fn what_qemu_writes_to_we_do_not_open() {
    let _alone = lab::alone();
    let file = disk();
    let qemu = Holder::qemu(file.path(), &[]);
    let error = refused(file.path(), &WRITER);
    assert!(error.contains("qemu-io") && error.contains(&qemu.process.id().to_string()), "{error}");
    refused(file.path(), &READER);
    drop(qemu);
    FileSource::open(file.path(), &WRITER).unwrap();
}

#[test]
fn what_qemu_reads_we_read_too_but_do_not_write() {
    let _alone = lab::alone();
    let file = disk();
    let _qemu = Holder::qemu(file.path(), &["-r"]);
    FileSource::open(file.path(), &READER).unwrap();
    refused(file.path(), &WRITER);
}

#[test]
fn what_we_write_to_qemu_does_not_open() {
    let _alone = lab::alone();
    let file = disk();
    let writer = FileSource::open(file.path(), &WRITER).unwrap();
    assert!(!qemu_opens(file.path(), &[]));
    assert!(!qemu_opens(file.path(), &["-r"]));
    drop(writer);
    assert!(qemu_opens(file.path(), &[]));
}

#[test]
fn what_we_read_qemu_reads_too_but_does_not_write() {
    let _alone = lab::alone();
    let file = disk();
    let _reader = FileSource::open(file.path(), &READER).unwrap();
    assert!(qemu_opens(file.path(), &["-r"]));
    assert!(!qemu_opens(file.path(), &[]));
}

/// Whoever else refers to the open file keeps it no longer.
#[test]
fn a_disk_that_is_let_go_of_can_be_had_though_it_is_open() {
    let _alone = lab::alone();
    let file = disk();
    let let_go = blockwork_engine::LeafSource::let_go;
    let first = FileSource::open(file.path(), &WRITER).unwrap();
    refused(file.path(), &WRITER);
    let_go(&first);
    let second = FileSource::open(file.path(), &WRITER).unwrap();
    let_go(&first);
    // The second one's was not its own to let go of.
    refused(file.path(), &WRITER);
    drop((first, second));
}
