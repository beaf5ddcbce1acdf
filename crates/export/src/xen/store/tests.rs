//! The client against a small server that keeps keys as xenstored does.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::thread::{self, JoinHandle};

use rustix::event::{EventfdFlags, eventfd};

use super::*;

const SHORT: Duration = Duration::from_millis(1);
const LONG: Duration = Duration::from_secs(20);

/// Keeps keys until the client goes; returns them, and who they were given to. Says `EACCES` of everything below `/secret`.
fn server(mut socket: UnixStream) -> JoinHandle<BTreeMap<String, String>> {
    thread::spawn(move || {
        let mut keys = BTreeMap::new();
        let mut watched: Option<String> = None;
        let mut head = [0; HEADER_BYTES];
        while socket.read_exact(&mut head).is_ok() {
            let header = Header::decode(&head).unwrap();
            let mut payload = vec![0; header.len as usize];
            socket.read_exact(&mut payload).unwrap();
            let message = String::from_utf8(payload).unwrap();
            let (path, rest) = message.split_once('\0').unwrap();
            let mut changed = false;
            let answer = match header.kind {
                _ if path.starts_with("/secret") => Err("EACCES"),
                kind::READ => keys.get(path).cloned().ok_or("ENOENT"),
                kind::WRITE => {
                    keys.insert(path.to_owned(), rest.to_owned());
                    changed = watched.as_ref().is_some_and(|watched| path.starts_with(watched));
                    Ok("OK\0".to_owned())
                }
                kind::REMOVE if !keys.contains_key(path) => Err("ENOENT"),
                kind::REMOVE => {
                    keys.retain(|key, _| !key.starts_with(path));
                    Ok("OK\0".to_owned())
                }
                kind::SET_PERMISSIONS => {
                    keys.insert(format!("{path} is of"), rest.replace('\0', " "));
                    Ok("OK\0".to_owned())
                }
                kind::WATCH => {
                    watched = Some(path.to_owned());
                    changed = true;
                    Ok("OK\0".to_owned())
                }
                kind => panic!("a request of kind {kind}"),
            };
            // An event may come before the answer to whatever is asked.
            if changed {
                reply(&mut socket, kind::WATCH_EVENT, 0, &format!("{path}\0token\0"));
            }
            match answer {
                Ok(text) => reply(&mut socket, header.kind, header.request, &text),
                Err(name) => reply(&mut socket, kind::ERROR, header.request, &format!("{name}\0")),
            }
        }
        keys
    })
}

fn reply(socket: &mut UnixStream, kind: u32, request: u32, text: &str) {
    let len = u32::try_from(text.len()).unwrap();
    let bytes = [&Header { kind, request, transaction: 0, len }.encode()[..], text.as_bytes()].concat();
    // In two pieces, as a stream may bring them.
    let (first, second) = bytes.split_at(bytes.len() / 2);
    socket.write_all(first).unwrap();
    socket.write_all(second).unwrap();
}

/// A store of its own; when all handles on it are gone, what it held.
pub(in crate::xen) fn connect() -> (Store, JoinHandle<BTreeMap<String, String>>) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    (Store::over(ours.into()), server(theirs))
}

/// As if xenstored were gone.
pub(in crate::xen) fn hang_up(store: &Store) {
    rustix::net::shutdown(&store.connection().fd, rustix::net::Shutdown::Both).unwrap();
}

#[test]
fn keys_are_written_read_given_away_and_removed() {
    let (mut store, server) = connect();
    store.write("/a/state", "4").unwrap();
    assert_eq!(store.read("/a/state"), Ok(Some("4".to_owned())));
    assert_eq!(store.read("/a/other"), Ok(None));
    store.give("/a", 3, 0).unwrap();
    store.remove("/a/state").unwrap();
    store.remove("/a/state").unwrap();
    let error = store.write("/secret/key", "1").unwrap_err();
    assert_eq!(error.to_string(), "xenstore, /secret/key: EACCES");
    assert!(error.is_refused);
    assert!(store.read("/secret").is_err() && store.remove("/secret").is_err());
    let long = "x".repeat(5000);
    let error = store.write("/a/long", &long).unwrap_err().to_string();
    assert!(error.contains("length is 5008, expected at most 4096"), "{error}");
    drop(store);
    let keys = server.join().unwrap();
    assert_eq!(keys.into_iter().collect::<Vec<_>>(), [("/a is of".to_owned(), "n3 r0 ".to_owned())]);
}

#[test]
fn changes_of_what_is_watched_end_a_wait_and_others_do_not() {
    let (mut store, _server) = connect();
    let bell = eventfd(0, EventfdFlags::empty()).unwrap();
    let fd = bell.as_fd();
    store.watch("/front").unwrap();
    assert_eq!(store.wait(fd, LONG), Ok(true), "once at the beginning");
    assert_eq!(store.wait(fd, SHORT), Ok(false));
    store.write("/elsewhere", "1").unwrap();
    assert_eq!(store.wait(fd, SHORT), Ok(false));
    // The event comes before the answer, and is kept.
    store.write("/front/state", "3").unwrap();
    assert_eq!(store.read("/front/state"), Ok(Some("3".to_owned())));
    assert_eq!(store.wait(fd, LONG), Ok(true));
    rustix::io::write(&bell, &1_u64.to_ne_bytes()).unwrap();
    assert_eq!(store.wait(fd, LONG), Ok(false), "the bell ends it, too");
}

#[test]
fn a_store_that_goes_away_is_an_error() {
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    let store = Store::over(ours.into());
    let answering = thread::spawn(move || {
        let mut asked = vec![0; HEADER_BYTES + 3];
        theirs.read_exact(&mut asked).unwrap();
        // A payload that is longer than any may be.
        let head = Header { kind: kind::READ, request: 1, transaction: 0, len: u32::MAX }.encode();
        theirs.write_all(&head).unwrap();
    });
    let error = store.read("/a").unwrap_err().to_string();
    assert!(error.contains("length is 4294967295"), "{error}");
    answering.join().unwrap();
    assert!(!store.read("/a").unwrap_err().is_refused);
    let error = store.read("/a").unwrap_err().to_string();
    assert!(error.contains("closed the connection") || error.contains("Broken pipe"), "{error}");
}
