//! The load generator against servers that others wrote: nbdkit and qemu-storage-daemon.
//!
//! What is checked: the answers are counted and the blocks verified over both, with simple and structured replies;
//! corruption and loss are found, whichever way they come; the log promises what a flush covered and no more; a dead
//! server is reported as such. The tests need `nbdkit` and `qemu-storage-daemon` and say so if one is missing.

use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;

/// A server process that ends with the test.
struct Server {
    process: Child,
    socket: PathBuf,
}

impl Server {
    fn start(folder: &TempDir, program: &str, arguments: impl Fn(&Path) -> Vec<String>) -> Server {
        let socket = folder.path().join(format!("{program}.sock"));
        // A server that was killed leaves its socket behind.
        let _ = std::fs::remove_file(&socket);
        let process =
            Command::new(program).args(arguments(&socket)).stdin(Stdio::null()).spawn().unwrap_or_else(|e| {
                panic!("{program} cannot be started ({e}): install the package to run this test")
            });
        let mut server = Server { process, socket };
        let deadline = Instant::now() + Duration::from_secs(20);
        while UnixStream::connect(&server.socket).is_err() {
            assert!(server.process.try_wait().unwrap().is_none(), "{program} ended before it listened");
            assert!(Instant::now() < deadline, "{program} does not listen");
            std::thread::yield_now();
        }
        server
    }

    fn nbdkit(folder: &TempDir, plugin: &[&str]) -> Server {
        Server::start(folder, "nbdkit", |socket| {
            let mut arguments = vec!["-f".to_string(), "-U".into(), socket.display().to_string()];
            arguments.extend(plugin.iter().map(|a| a.to_string()));
            arguments
        })
    }

    fn qemu(folder: &TempDir, blockdev: &str) -> Server {
        Server::start(folder, "qemu-storage-daemon", |socket| {
            ["--blockdev", blockdev, "--nbd-server"]
                .map(String::from)
                .into_iter()
                .chain([
                    format!("addr.type=unix,addr.path={}", socket.display()),
                    "--export".into(),
                    "type=nbd,id=e0,node-name=n0,name=disk,writable=on".into(),
                ])
                .collect()
        })
    }

    fn address(&self) -> String {
        format!("unix:{}", self.socket.display())
    }

    fn kill(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn nbdload(address: &str, line: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_nbdload"));
    command.arg(address).args(line.split_whitespace());
    command
}

fn run(address: &str, line: &str) -> (Value, Output) {
    let output = nbdload(address, line).output().unwrap();
    let report = serde_json::from_slice(&output.stdout).unwrap_or(Value::Null);
    (report, output)
}

fn run_well(address: &str, line: &str) -> Value {
    let (report, output) = run(address, line);
    assert_eq!(output.status.code(), Some(0), "{line}: {output:?}");
    report
}

#[test]
fn what_was_written_to_nbdkits_memory_verifies_and_is_missed_after_a_restart() {
    let folder = TempDir::new().unwrap();
    let log = folder.path().join("log");
    let mut server = Server::nbdkit(&folder, &["memory", "size=16M"]);
    let line =
        format!("--rw randwrite --verify --ios 5000 --depth 16 --flush-every 32 --log {}", log.display());
    let report = run_well(&server.address(), &line);
    assert_eq!(report["ios"], 5000);
    assert!(report["checked_blocks"].as_u64().unwrap() > 2000);
    assert!(report["flushes"].as_u64().unwrap() > 50);

    let check = format!("--verify-only --depth 16 --connections 2 --log {}", log.display());
    let after = run_well(&server.address(), &check);
    assert_eq!(after["checked_blocks"], report["checked_blocks"], "the last flush covers all of them");

    server.kill();
    let empty = Server::nbdkit(&folder, &["memory", "size=16M"]);
    let (lost, output) = run(&empty.address(), &check);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert_eq!(lost["wrong_blocks"], report["checked_blocks"]);
    assert!(lost["first_failure"].as_str().unwrap().contains("found zeros"), "{lost}");
}

#[test]
fn reads_and_writes_mixed_verify_over_four_connections_and_any_block_size() {
    let folder = TempDir::new().unwrap();
    let server = Server::nbdkit(&folder, &["memory", "size=64M"]);
    for bs in ["512", "4k", "68k", "1m"] {
        let line = format!("--rw randrw --verify --bs {bs} --ios 3000 --depth 8 --connections 4");
        let report = run_well(&server.address(), &line);
        assert_eq!(report["ios"], 3000);
        assert_eq!(report["wrong_blocks"], 0);
    }
}

#[test]
fn structured_replies_verify_against_qemu_with_data_and_with_holes() {
    let folder = TempDir::new().unwrap();
    let image = folder.path().join("image");
    std::fs::File::create(&image).unwrap().set_len(16 << 20).unwrap();
    let blockdev = format!("driver=file,node-name=n0,filename={}", image.display());
    let server = Server::qemu(&folder, &blockdev);
    let line = "--export disk --structured --rw randrw --verify --ios 2000 --depth 16 --fua --seed 5";
    assert_eq!(run_well(&server.address(), line)["structured"], true);
    // Blocks that were never written come as hole chunks, and must be taken for zeros, not for old content.
    let (report, output) =
        run(&server.address(), "--export disk --structured --verify-only --seed 5 --depth 8");
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(report["checked_blocks"], 4096);
    let wrong = report["wrong_blocks"].as_u64().unwrap();
    assert!((2000..4096).contains(&wrong), "about 1,000 of 4,096 blocks were written: {report}");
    assert!(report["first_failure"].as_str().unwrap().contains("found zeros"), "{report}");
}

#[test]
fn one_changed_byte_in_the_file_behind_the_server_is_found_and_named() {
    let folder = TempDir::new().unwrap();
    let image = folder.path().join("image");
    std::fs::File::create(&image).unwrap().set_len(4 << 20).unwrap();
    let server = Server::nbdkit(&folder, &["file", image.to_str().unwrap()]);
    let log = folder.path().join("log");
    let log = log.display();
    run_well(&server.address(), &format!("--rw write --verify --bytes 4m --depth 8 --log {log}"));
    let mut file = std::fs::File::options().read(true).write(true).open(&image).unwrap();
    file.seek(SeekFrom::Start(1_000_000)).unwrap();
    let mut byte = [0];
    file.read_exact(&mut byte).unwrap();
    file.seek(SeekFrom::Start(1_000_000)).unwrap();
    file.write_all(&[byte[0] ^ 4]).unwrap();
    let (report, output) = run(&server.address(), &format!("--verify-only --log {log}"));
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(report["wrong_blocks"], 1);
    let words = report["first_failure"].as_str().unwrap();
    assert!(words.contains("sector at byte 999936") && words.contains("byte 64 damaged"), "{words}");
}

#[test]
fn a_log_promises_only_what_a_flush_covered() {
    let folder = TempDir::new().unwrap();
    let server = Server::nbdkit(&folder, &["memory", "size=16M"]);
    let log = folder.path().join("log");
    let child =
        nbdload(&server.address(), "--rw randwrite --verify --seconds 600 --depth 4 --flush-every 100000000")
            .arg("--log")
            .arg(&log)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
    wait_until(|| std::fs::read_to_string(&log).is_ok_and(|text| text.ends_with('\n')));
    let mut server = server;
    // Writes flow by now or soon; none of them may enter the log, for no flush was ever sent.
    server.kill();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(3), "{output:?}");
    assert_eq!(std::fs::read_to_string(&log).unwrap().lines().count(), 1);
}

#[test]
fn a_server_killed_under_load_leaves_a_log_that_its_file_fulfils() {
    let folder = TempDir::new().unwrap();
    let image = folder.path().join("image");
    std::fs::File::create(&image).unwrap().set_len(16 << 20).unwrap();
    let log = folder.path().join("log");
    let plugin = ["file", image.to_str().unwrap()];
    let mut server = Server::nbdkit(&folder, &plugin);
    let child =
        nbdload(&server.address(), "--rw randwrite --verify --seconds 600 --depth 16 --flush-every 16")
            .arg("--log")
            .arg(&log)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
    wait_until(|| std::fs::metadata(&log).is_ok_and(|m| m.len() > 2000));
    server.kill();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(3), "{output:?}");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(report["broken"].as_str().unwrap().contains("closed the connection"), "{report}");
    let server = Server::nbdkit(&folder, &plugin);
    let after = run_well(&server.address(), &format!("--verify-only --depth 8 --log {}", log.display()));
    assert!(after["promised_blocks"].as_u64().unwrap() > 100);
    assert_eq!(after["checked_blocks"], after["promised_blocks"]);
}

#[test]
fn errors_of_the_server_are_counted_by_name_and_fail_the_run() {
    let folder = TempDir::new().unwrap();
    let server =
        Server::nbdkit(&folder, &["--filter=error", "memory", "size=16M", "error=ENOSPC", "error-rate=50%"]);
    let (report, output) = run(&server.address(), "--rw randwrite --verify --ios 1000 --depth 8 --range 1m");
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let errors = report["errors_by_name"]["ENOSPC (28)"].as_u64().unwrap();
    assert!(errors > 300 && report["wrong_blocks"] == 0, "{report}");
}

#[test]
fn trims_zeroes_and_limits_by_bytes_do_exactly_what_was_asked() {
    let folder = TempDir::new().unwrap();
    let server = Server::nbdkit(&folder, &["memory", "size=16M"]);
    for rw in ["trim", "zero", "read", "randtrim", "randzero"] {
        let report =
            run_well(&server.address(), &format!("--rw {rw} --bytes 8m --bs 64k --depth 4 --connections 3"));
        assert_eq!(report["ios"], 128, "{rw}");
    }
}

#[test]
fn the_servers_cpu_time_and_latencies_are_in_the_report() {
    let folder = TempDir::new().unwrap();
    let server = Server::nbdkit(&folder, &["null", "size=1G"]);
    let line = format!("--rw randread --seconds 0.5 --depth 16 --pid {}", server.process.id());
    let report = run_well(&server.address(), &line);
    let number = |name: &str| report[name].as_f64().unwrap();
    assert!(number("server_cpu_us_per_io") > 0.1 && number("client_cpu_us_per_io") > 0.1);
    assert!(number("p50_us") > 1.0 && number("p50_us") <= number("p99_us"));
    assert!(number("p99_us") <= number("p999_us") && number("p999_us") <= number("max_us") * 1.02);
    let rate = number("ios") / number("seconds");
    assert!((number("iops") / rate - 1.0).abs() < 0.01);
}

#[test]
fn what_cannot_start_says_why_and_exits_with_two() {
    let folder = TempDir::new().unwrap();
    let server = Server::nbdkit(&folder, &["-r", "memory", "size=16M"]);
    let listener = UnixListener::bind(folder.path().join("mute")).unwrap();
    let mute = format!("unix:{}", folder.path().join("mute").display());
    let greeter = std::thread::spawn(move || {
        let (mut client, _) = listener.accept().unwrap();
        client.write_all(b"SSH-2.0-OpenSSH_9.2 hello").unwrap();
    });
    for (address, line, word) in [
        ("unix:/nonexistent", "", "no server answers"),
        (server.address().as_str(), "--rw write", "read-only"),
        (server.address().as_str(), "--pid 999999999", "no such process"),
        (mute.as_str(), "", "not NBD's"),
    ] {
        let (_, output) = run(address, line);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.contains(word), "{said}");
    }
    greeter.join().unwrap();
}

#[test]
fn a_server_that_goes_silent_is_given_up_on_after_the_timeout() {
    let folder = TempDir::new().unwrap();
    let server = Server::nbdkit(&folder, &["--filter=delay", "memory", "size=16M", "delay-read=30"]);
    let began = Instant::now();
    let (report, output) = run(&server.address(), "--rw randread --ios 10 --timeout 1");
    assert_eq!(output.status.code(), Some(3), "{output:?}");
    assert!(report["broken"].as_str().unwrap().contains("answered nothing for 1 s"), "{report}");
    assert!(began.elapsed() < Duration::from_secs(15));
}

fn wait_until(condition: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(30);
    while !condition() {
        assert!(Instant::now() < deadline, "the condition did not come true within 30 s");
        std::thread::yield_now();
    }
}
