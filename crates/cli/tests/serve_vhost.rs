//! `serve --vhost-user`: a guest's requests while servers come and go. The front end is that of `bench/vhostload`, which has a
//! guest's rings and memory without a guest.

mod support;

use std::collections::HashMap;
use std::path::PathBuf;
use std::process::Command;

use blockwork_format::virtio::blk::{request, status};
use rustix::process::Signal;
use support::{Scratch, Server, run, run_refused, until};
use vhostload::{Disk, Options, Request};

const MIB: u64 = 1 << 20;
const BLOCK: usize = 4096;

fn serve(scratch: &Scratch, more: &[&str]) -> Command {
    let mut command = scratch.blockwork(["serve", "--vhost-user", &scratch.at("socket"), "--disk"]);
    command.args(more);
    command
}

fn socket(scratch: &Scratch) -> PathBuf {
    scratch.path("socket")
}

/// A guest that writes blocks all over its disk, and knows what it was told.
struct Guest {
    disk: Disk,
    blocks: u64,
    /// By queue and number of the request: what it writes where.
    in_flight: HashMap<(usize, u16), (u64, u64)>,
    /// What each block holds, where that is known.
    written: HashMap<u64, u64>,
    next: u64,
    finished: u64,
}

impl Guest {
    fn new(disk: Disk, blocks: u64) -> Guest {
        Guest { disk, blocks, in_flight: HashMap::new(), written: HashMap::new(), next: 1, finished: 0 }
    }

    /// Tops up all queues, with blocks that nothing is in flight to.
    fn fill(&mut self) {
        for queue in 0..self.disk.queues.len() {
            while let Some(id) = self.disk.queues[queue].next_id() {
                let block = self.next.wrapping_mul(0x9e37_79b9_7f4a_7c15) % self.blocks;
                if self.in_flight.values().any(|&(busy, _)| busy == block) {
                    self.next += 1;
                    continue;
                }
                self.disk.write_data(queue, id, &self.next.to_le_bytes().repeat(BLOCK / 8));
                let request = Request { kind: request::OUT, sector: block * 8, len: BLOCK };
                if self.disk.start(queue, request).is_none() {
                    break; // the ring is full
                }
                self.in_flight.insert((queue, id), (block, self.next));
                self.next += 1;
            }
        }
    }

    /// Notes what is done.
    fn take(&mut self) -> u64 {
        let before = self.finished;
        for queue in 0..self.disk.queues.len() {
            while let Some(done) = self.disk.finished(queue) {
                assert_eq!(done.status, status::OK);
                let (block, number) = self.in_flight.remove(&(queue, done.id)).expect("answered once");
                self.written.insert(block, number);
                self.finished += 1;
            }
        }
        self.finished - before
    }

    fn run(&mut self, requests: u64) {
        let end = self.finished + requests;
        until("requests are answered", || {
            self.fill();
            self.take();
            self.finished >= end
        });
    }

    /// Ends what is in flight, and reads everything back.
    fn verify(&mut self) {
        until("the rest is answered", || {
            self.take();
            self.in_flight.is_empty()
        });
        for (&block, &number) in &self.written {
            let read = Request { kind: request::IN, sector: block * 8, len: BLOCK };
            let done = self.disk.run(0, read).unwrap();
            let mut data = vec![0; BLOCK];
            self.disk.read_data(0, done.id, &mut data);
            assert!(
                data == number.to_le_bytes().repeat(BLOCK / 8),
                "block {block} does not hold write {number}"
            );
        }
    }
}

/// Kills the server under load, again and again; each next one takes up what the last one had.
fn killed_under_load(options: Options) {
    let scratch = Scratch::new();
    scratch.sparse("disk.img", 64 * MIB);
    let mut server = Server::start(&mut serve(&scratch, &["disk.img", "--workers", "2"]));
    let mut guest = Guest::new(Disk::new(&socket(&scratch), options).unwrap(), 64 * MIB / BLOCK as u64);
    for round in 0..5 {
        guest.run(500 + round * 37);
        // Of some it is not known how far they are; the last ones it cannot even have seen.
        guest.fill();
        server.signal(Signal::STOP);
        guest.take();
        guest.fill();
        server.kill();
        guest.take();
        assert!(!guest.in_flight.is_empty(), "nothing was in flight in round {round}");
        server = Server::start(&mut serve(&scratch, &["disk.img", "--workers", "2"]));
        guest.disk.connect().unwrap();
    }
    guest.run(500);
    guest.verify();
    drop(guest);
    server.stop_quietly();
}

#[test]
fn a_server_that_was_killed_is_followed_by_one_that_takes_up_its_requests() {
    killed_under_load(Options { queues: 2, requests: 64, ..Options::default() });
}

#[test]
fn likewise_with_packed_rings() {
    killed_under_load(Options { queues: 2, requests: 64, packed: true, ..Options::default() });
}

#[test]
fn likewise_where_requests_take_several_descriptors() {
    for packed in [false, true] {
        let options = Options { requests: 16, ring_size: 64, indirect: false, packed, ..Options::default() };
        killed_under_load(Options { event_idx: false, ..options });
    }
}

#[test]
fn a_server_that_was_killed_while_it_was_busy_is_called_by_a_driver_that_comes_later() {
    for (packed, event_idx) in [(false, false), (false, true), (true, false), (true, true)] {
        let scratch = Scratch::new();
        scratch.sparse("disk.img", 64 * MIB);
        let server = Server::start(&mut serve(&scratch, &["disk.img"]));
        let options = Options { requests: 16, packed, event_idx, ..Options::default() };
        let mut guest = Guest::new(Disk::new(&socket(&scratch), options).unwrap(), 64 * MIB / BLOCK as u64);
        guest.run(500);
        until("all is answered", || {
            guest.take();
            guest.in_flight.is_empty()
        });
        server.kill();
        guest.disk.hush();
        let server = Server::start(&mut serve(&scratch, &["disk.img"]));
        guest.disk.connect().unwrap();
        // It has nothing to take up, and rests: the next request has to call it.
        guest.run(1);
        guest.verify();
        drop(guest);
        server.stop_quietly();
    }
}

#[test]
fn a_server_that_is_asked_to_stop_answers_what_it_has_taken_and_leaves_the_rest_to_the_next() {
    let scratch = Scratch::new();
    scratch.sparse("disk.img", 64 * MIB);
    let server = Server::start(&mut serve(&scratch, &["disk.img"]));
    let options = Options { requests: 64, ..Options::default() };
    let mut guest = Guest::new(Disk::new(&socket(&scratch), options).unwrap(), 64 * MIB / BLOCK as u64);
    guest.run(300);
    guest.fill();
    server.stop_quietly();
    guest.take();
    guest.fill();
    let server = Server::start(&mut serve(&scratch, &["disk.img"]));
    guest.disk.connect().unwrap();
    guest.verify();
    server.stop_quietly();
}

#[test]
fn an_array_that_grows_is_a_larger_disk_and_its_guest_is_told() {
    let scratch = Scratch::new();
    for name in ["a.img", "b.img"] {
        scratch.sparse(name, 32 * MIB);
    }
    let create = "md create --level 1 --raid-devices 2 --name data --data-offset 1M --size 16M --assume-clean a.img b.img";
    run(&mut scratch.blockwork(create.split(' ')));
    let server = Server::start(serve(&scratch, &["a.img", "b.img"]).arg("md/data"));
    let disk = Disk::new(&socket(&scratch), Options::default()).unwrap();
    assert_eq!(disk.config().unwrap().capacity, 16 * MIB / 512);
    run(&mut scratch.blockwork(["md", "grow", "md/data", "--size", "24576", "--assume-clean", "--wait"]));
    disk.wait_for_config_change().unwrap();
    assert_eq!(disk.config().unwrap().capacity, 24 * MIB / 512);
    drop(disk);
    server.stop_quietly();
}

#[test]
fn a_ring_that_starves_shows_in_the_statistics() {
    let scratch = Scratch::new();
    let server = Server::start(&mut serve(&scratch, &["memory:16M", "--stats"]));
    let options = Options { ring_size: 4, requests: 4, ..Options::default() };
    let mut guest = Guest::new(Disk::new(&socket(&scratch), options).unwrap(), 1024);
    guest.run(200);
    guest.verify();
    drop(guest);
    let said = server.stop().stderr;
    assert!(said.contains("vhost-user:") && said.contains("queue 0"), "{said}");
}

#[test]
fn each_socket_is_one_volume() {
    let scratch = Scratch::new();
    let mut command = serve(&scratch, &["memory:16M"]);
    let said = run_refused(command.args(["--vhost-user", &scratch.at("other")]));
    assert!(said.contains("2 times --vhost-user for 1 volumes"), "{said}");
}
