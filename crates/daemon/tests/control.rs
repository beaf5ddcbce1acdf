//! The control API of a server that does real I/O, asked by curl and by our own client.

mod rig;

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::{Command, Stdio};

use blockwork_daemon::{
    ArrayList, ArrayRequest, Away, BODY_BYTES_MAX, CONNECTIONS_MAX, ClientError, Control, ControlState,
    HEAD_BYTES_MAX, Status, Verb, ask_array, find_array_in, find_volume_in, get_json, servers_in, stream,
    trace_path,
};
use blockwork_engine::Stats;
use blockwork_format::blktrace::Act;
use blockwork_insight::report::Report;
use blockwork_insight::trace::{RecordStream, TraceHub};
use rig::{HOSTILE, PATIENCE, Rig};

/// What curl says: the body, a line feed, and the status.
fn curl(socket: &Path, path: &str, more: &[&str]) -> (String, u16) {
    let mut command = Command::new("curl");
    command.args(["-sS", "--max-time", "20", "-w", "\n%{http_code}"]).args(more);
    let output = command.arg("--unix-socket").arg(socket).arg(format!("http://localhost{path}")).output();
    let output = output.expect("curl runs (Debian: apt-get install curl)");
    let text = String::from_utf8(output.stdout).unwrap();
    let (body, status) = text.rsplit_once('\n').unwrap();
    assert!(output.status.success(), "curl: {}", String::from_utf8_lossy(&output.stderr));
    (body.to_owned(), status.parse().unwrap())
}

#[test]
fn status_tells_of_volumes_and_disks_with_their_limits_by_sysfs_names() {
    let rig = Rig::new();
    let (body, status) = curl(&rig.socket, "/v1/status", &[]);
    assert_eq!(status, 200);
    let told: Status = serde_json::from_str(&body).unwrap();
    assert_eq!((told.pid, told.version.as_str()), (std::process::id(), env!("CARGO_PKG_VERSION")));
    let [plain, hostile] = &told.volumes[..] else { panic!("{told:?}") };
    assert_eq!((plain.name.as_str(), plain.bytes, plain.read_only), ("disk/null", 1 << 30, false));
    assert_eq!((hostile.name.as_str(), hostile.read_only), (HOSTILE, true));
    assert_eq!(plain.exports, ["nbd:unix:/x"]);
    assert_eq!(told.disks[0].limits["max_sectors_kb"], 1280);
    assert_eq!(told.disks[0].limits["write_cache"], "write through");
    assert!(!told.disks[0].failed);
    assert_eq!(get_json::<Status>(&rig.socket, "/v1/status").unwrap().volumes, told.volumes);
}

#[test]
fn statistics_and_metrics_count_what_was_done() {
    let rig = Rig::new();
    (0..3).for_each(|_| rig.read(0));
    let report: Report = get_json(&rig.socket, "/v1/stats").unwrap();
    assert_eq!(report.nodes[0].counters["read_bytes"] % 4096, 0);
    assert!(report.nodes[0].counters["in"] >= 3, "{report:?}");
    assert_eq!(report.nodes[1].counters["in"], 0);
    let (metrics, status) = curl(&rig.socket, "/metrics", &["-D", "/dev/stderr"]);
    assert_eq!(status, 200);
    let line = format!("blockwork_in_total{{node=\"disk/null\",kind=\"leaf\",device=\"259:0\"}} {}\n", {
        report.nodes[0].counters["in"]
    });
    assert!(metrics.contains(&line), "{metrics}");
    assert!(metrics.contains("\nblockwork_failed_disks 0\n"));
    assert!(!metrics.contains('\u{1b}'));
}

#[test]
fn text_streams_to_curl_while_it_happens_and_ends_when_curl_goes() {
    let rig = Rig::new();
    let url = format!("http://localhost{}", trace_path("disk/null", true));
    let mut curl = Command::new("curl")
        .args(["-sSN", "--unix-socket"])
        .arg(&rig.socket)
        .arg(url)
        .stdout(Stdio::piped())
        .spawn()
        .expect("curl runs");
    rig.until_traced(true);
    // The first read may be on its way before the worker looks whether anybody listens.
    (0..10).for_each(|_| rig.read(0));
    let mut lines = BufReader::new(curl.stdout.take().unwrap()).lines().map(|line| line.unwrap());
    let line = lines.find(|line| line.contains(" D ")).unwrap();
    assert!(line.contains("259,0") && line.ends_with("RS 8 + 8 [blockwork]"), "{line}");
    curl.kill().unwrap();
    curl.wait().unwrap();
    rig.until_traced(false);
}

#[test]
fn records_of_the_volume_that_was_asked_for_stream_to_our_client() {
    let rig = Rig::new();
    let mut trace = stream(&rig.socket, &trace_path(HOSTILE, false)).unwrap();
    rig.until_traced(true);
    (0..10).for_each(|n| rig.read(n % 2));
    let (mut records, mut issued) = (RecordStream::new(), 0);
    let mut buffer = [0; 1000];
    while issued < 3 {
        let len = trace.read(&mut buffer).unwrap();
        assert!(len > 0, "the stream has ended");
        let each = |record: &blockwork_format::blktrace::Record<'_>, _: &[u8]| {
            let is_note = record.action.as_note().is_some();
            assert!(is_note || record.device.minor() == 1, "{record:?}");
            issued += u32::from(record.action.act() == Some(Act::Issue));
        };
        records.push(&buffer[..len], each).unwrap();
    }
    drop(trace);
    rig.until_traced(false);
}

#[test]
fn a_server_that_stops_ends_its_streams_and_removes_its_socket() {
    let mut rig = Rig::new();
    let mut trace = stream(&rig.socket, "/v1/trace").unwrap();
    let reader = std::thread::spawn(move || trace.read_to_end(&mut Vec::new()));
    rig.until_traced(true);
    drop(rig.control.take());
    reader.join().unwrap().unwrap();
    assert!(!rig.socket.exists());
    let error = get_json::<Status>(&rig.socket, "/v1/status").unwrap_err().to_string();
    assert!(error.contains(": the server cannot be asked: No such file"), "{error}");
}

#[test]
fn what_cannot_be_answered_is_refused_with_a_reason() {
    let rig = Rig::new();
    let (body, status) = curl(&rig.socket, "/v1/trace?volume=disk%2Fother", &[]);
    assert_eq!(status, 404);
    let error: serde_json::Value = serde_json::from_str(&body).unwrap();
    assert_eq!(error["volumes"], serde_json::json!(["disk/null", HOSTILE]));
    for (path, more, expected) in [
        ("/v1/trace?format=parquet", &[][..], 400),
        ("/v1/trace?size=9", &[], 400),
        ("/v2/status", &[], 404),
        ("/v1/status", &["-d", "x"], 405),
        ("/v1/stats", &["-X", "DELETE"], 405),
    ] {
        let (body, status) = curl(&rig.socket, path, more);
        assert_eq!(status, expected, "{path}: {body}");
        assert!(body.starts_with("{\"error\":"), "{body}");
    }
    let refused = stream(&rig.socket, &trace_path("\u{1b}no", true)).err().unwrap().to_string();
    assert!(refused.contains("404") && refused.contains("disk/null"), "{refused}");
    assert!(!refused.contains('\u{1b}'), "{refused:?}");
}

#[test]
fn what_is_asked_of_arrays_is_read_within_limits_and_refused_with_a_reason() {
    let rig = Rig::new();
    assert_eq!(get_json::<ArrayList>(&rig.socket, "/v1/arrays").unwrap(), ArrayList { arrays: Vec::new() });
    let long = format!("{{\"array\":\"{}\"}}", "x".repeat(BODY_BYTES_MAX));
    for (body, expected, word) in [
        (r#"{"array":"md/x","verb":"check"}"#, 404, "no array is called md/x; there are: none"),
        (r#"{"array":"md/x","verb":"melt"}"#, 400, "melt"),
        (r#"{"array":"md/x"}"#, 400, "verb"),
        (&long, 400, "length limit"),
        ("", 400, "expected JSON such as"),
    ] {
        let (body, status) = curl(&rig.socket, "/v1/arrays", &["-d", body]);
        assert_eq!(status, expected, "{body}");
        assert!(body.starts_with("{\"error\":") && body.contains(word), "{body}");
    }
    let (_, status) = curl(&rig.socket, "/v1/arrays", &["-X", "DELETE"]);
    assert_eq!(status, 405);
    let request = ArrayRequest { array: "md/a\u{1b}".to_owned(), verb: Verb::Check };
    let error = ask_array(&rig.socket, &request).unwrap_err();
    assert_eq!(error.to_string(), "no array is called md/a\\u{1b}; there are: none");
    let error = find_array_in(rig.folder(), "md/data").unwrap_err().to_string();
    assert!(error.starts_with("no running server serves the array md/data; "), "{error}");
}

#[test]
fn a_head_that_is_too_long_is_refused_and_garbage_harms_nobody() {
    let rig = Rig::new();
    let answer_to = |bytes: &[u8]| {
        let mut connection = UnixStream::connect(&rig.socket).unwrap();
        connection.set_read_timeout(Some(PATIENCE)).unwrap();
        // The server may have answered and closed before it has all.
        let _ = connection.write_all(bytes);
        let mut answer = Vec::new();
        let _ = connection.read_to_end(&mut answer);
        String::from_utf8_lossy(&answer).into_owned()
    };
    let long = format!("GET /v1/status HTTP/1.1\r\nX: {}\r\n\r\n", "x".repeat(HEAD_BYTES_MAX));
    let answer = answer_to(long.as_bytes());
    assert!(answer.starts_with("HTTP/1.1 431"), "{answer}");
    let many = format!("GET /v1/status HTTP/1.1\r\n{}\r\n", "X: y\r\n".repeat(200));
    assert!(answer_to(many.as_bytes()).starts_with("HTTP/1.1 431"));
    assert!(answer_to(b"\0\xff\xfe nonsense\r\n\r\n").starts_with("HTTP/1.1 400"));
    assert!(get_json::<Status>(&rig.socket, "/v1/status").is_ok());
}

#[test]
fn one_connection_too_many_is_told_to_come_again_and_may_when_another_is_gone() {
    let rig = Rig::new();
    let path = trace_path("disk/null", false);
    let mut traces: Vec<_> = (0..CONNECTIONS_MAX).map(|_| stream(&rig.socket, &path).unwrap()).collect();
    let refused = get_json::<Status>(&rig.socket, "/v1/status").unwrap_err();
    assert!(matches!(refused, ClientError::Refused { status: 503, .. }), "{refused}");
    assert!(refused.to_string().contains("too many connections at once"), "{refused}");
    traces.pop();
    let start = std::time::Instant::now();
    while get_json::<Status>(&rig.socket, "/v1/status").is_err() {
        assert!(start.elapsed() < PATIENCE, "the slot is not free again");
    }
}

#[test]
fn servers_are_found_and_sockets_of_dead_ones_removed() {
    let rig = Rig::new();
    // A process that has been waited for is dead, and its number is not used again soon.
    let mut child = Command::new("true").spawn().unwrap();
    let dead = rig.folder().join(format!("{}.sock", child.id()));
    child.wait().unwrap();
    // Nobody listens there either, but the process lives: it may be just starting.
    let starting = rig.folder().join("1.sock");
    let unrelated = rig.folder().join("notes.txt");
    for path in [&dead, &starting] {
        drop(UnixListener::bind(path).unwrap());
    }
    std::fs::write(&unrelated, "x").unwrap();
    let found = servers_in(rig.folder()).unwrap();
    let [only] = &found.answering[..] else { panic!("{found:?}") };
    assert_eq!((only.pid, &only.socket), (std::process::id(), &rig.socket));
    assert!(found.complete().is_ok(), "one that refuses does not owe an answer");
    // A child that another test begins just now has the closed listener as well, until it becomes another program.
    let start = std::time::Instant::now();
    while dead.exists() {
        assert!(start.elapsed() < PATIENCE, "the socket of a dead server stays");
        servers_in(rig.folder()).unwrap();
    }
    assert!(starting.exists() && unrelated.exists());
    assert_eq!(find_volume_in(rig.folder(), HOSTILE).unwrap().socket, rig.socket);
    let error = find_volume_in(rig.folder(), "VG/x\n").unwrap_err().to_string();
    assert!(
        error.starts_with("no running server serves the volume VG/x\\n; served are: disk/null, "),
        "{error}"
    );
    assert!(!error.contains('\u{1b}'), "{error:?}");
    assert_eq!(servers_in(&rig.folder().join("nothing")).unwrap().answering, []);
}

#[test]
fn what_one_has_that_does_not_answer_is_not_known_and_what_another_has_is_found() {
    let rig = Rig::new();
    let _silent = UnixListener::bind(rig.folder().join("1.sock")).unwrap();
    assert_eq!(find_volume_in(rig.folder(), "disk/null").unwrap().socket, rig.socket);
    let error = find_volume_in(rig.folder(), "vg/x").unwrap_err().to_string();
    assert!(
        error.starts_with("the server 1 (") && error.contains("no answer within 5 s: ask again"),
        "{error}"
    );
    assert!(error.ends_with("; what there is, is not known without it"), "{error}");
}

#[test]
fn a_volume_that_two_servers_serve_is_nobodys_guess() {
    let (one, two) = (Rig::new(), Rig::new());
    std::os::unix::fs::symlink(&two.socket, one.folder().join("1.sock")).unwrap();
    let error = find_volume_in(one.folder(), "disk/null").unwrap_err();
    assert!(matches!(&error, ClientError::Ambiguous { sockets, .. } if sockets.len() == 2), "{error}");
}

#[test]
fn a_socket_is_ours_alone_and_not_taken_from_a_server_that_lives() {
    let rig = Rig::new();
    assert_eq!(std::fs::metadata(&rig.socket).unwrap().permissions().mode() & 0o777, 0o600);
    let state = || ControlState::new(Stats::new(Vec::new()).into(), TraceHub::new(&[]));
    let error = Control::start(state(), &rig.socket).err().unwrap().to_string();
    assert!(error.contains("another server answers there"), "{error}");
    assert!(get_json::<Status>(&rig.socket, "/v1/status").is_ok());
    // One that a dead server left behind is replaced.
    let stale = rig.folder().join("stale.sock");
    drop(UnixListener::bind(&stale).unwrap());
    let control = Control::start(state(), &stale).unwrap();
    assert_eq!(get_json::<Status>(control.path(), "/v1/status").unwrap().volumes, []);
    let deep = rig.folder().join("x".repeat(200));
    let error = Control::start(state(), &deep).err().unwrap().to_string();
    assert!(
        error.contains("the control socket cannot be made") && error.contains("BLOCKWORK_RUN_DIR"),
        "{error}"
    );
}

/// Whoever asks once more because of it would have it made twice.
#[test]
fn a_change_whose_server_went_before_it_answered_may_have_been_made() {
    let rig = Rig::new();
    let socket = rig.folder().join("killed.sock");
    let listener = UnixListener::bind(&socket).unwrap();
    let server = std::thread::spawn(move || {
        for _ in 0..2 {
            let (mut client, _) = listener.accept().unwrap();
            let mut request = [0; 4096];
            assert!(client.read(&mut request).unwrap() > 0);
        }
    });
    let request = ArrayRequest { array: "md/data".into(), verb: Verb::Check };
    let error = ask_array(&socket, &request).unwrap_err();
    assert!(matches!(error, ClientError::Unanswered { .. }), "{error:?}");
    let said = error.to_string();
    assert!(said.contains("it may have done what it was asked for all the same"), "{said}");
    // A question changes nothing, and nobody has heard of what could not even be sent.
    let error = get_json::<Status>(&socket, "/v1/status").unwrap_err();
    assert!(matches!(error, ClientError::Connection { .. }), "{error:?}");
    server.join().unwrap();
    let error = ask_array(&socket, &request).unwrap_err();
    assert!(matches!(error, ClientError::Connection { .. }), "{error:?}");
}

/// A server whose disks are not open is there all the same, and says why nothing can be had of it.
#[test]
fn a_server_whose_disks_are_away_tells_of_its_volumes_and_refuses_what_needs_them() {
    let rig = Rig::new();
    let open = get_json::<Status>(&rig.socket, "/v1/status").unwrap();
    assert_eq!(open.away, None);
    let mut state = ControlState::new(Stats::new(Vec::new()).into(), TraceHub::new(&[]));
    let away = Away::because("no guest uses them");
    state.set_away(away.clone());
    open.volumes.iter().for_each(|volume| state.volumes().add_away(volume.clone()));
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("1.sock");
    let _control = Control::start(state, &socket).unwrap();
    let told = get_json::<Status>(&socket, "/v1/status").unwrap();
    assert_eq!((&told.volumes, told.disks.len()), (&open.volumes, 0));
    assert_eq!(told.away.as_deref(), Some("no guest uses them"));
    away.set("another reason");
    let refused = format!("{}\n", r#"{"error":"the disks of this server are not open: another reason"}"#);
    assert_eq!(curl(&socket, "/v1/trace?volume=disk/null", &[]), (refused.clone(), 409));
    for path in ["/v1/arrays", "/v1/groups", "/v1/pools", "/v1/exports"] {
        assert_eq!(curl(&socket, path, &["-d", "{}"]), (refused.clone(), 409), "{path}");
    }
    for (path, status) in [("/v1/arrays", 200), ("/v1/groups", 200), ("/metrics", 200), ("/v1/exports", 405)]
    {
        assert_eq!(curl(&socket, path, &[]).1, status, "{path}");
    }
    assert_eq!(curl(&socket, "/v1/status", &["-d", "{}"]).1, 405);
}
