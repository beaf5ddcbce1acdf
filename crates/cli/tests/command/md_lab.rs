//! Arrays for tests of the `md` verbs: made by `md create`, served, asked about through every door.

use std::fs::File;
use std::os::unix::fs::FileExt;

use serde_json::Value;

use crate::support::{Scratch, Server, run, run_refused, tool};

pub const MIB: u64 = 1 << 20;

/// Bytes of a member before its data, in arrays of [`Lab::create`].
const DATA: u64 = MIB;

/// A folder with disks, of which the array `md/data` is made.
pub struct Lab {
    pub scratch: Scratch,
}

impl Lab {
    pub fn new() -> Lab {
        Lab { scratch: Scratch::new() }
    }

    /// A disk of so many bytes: all zeros.
    pub fn blank(&self, name: &str, bytes: u64) {
        self.scratch.sparse(name, bytes);
    }

    /// Makes `md/data` of new disks, each of so many bytes.
    pub fn create(&self, level: &str, disks: &[&str], bytes: u64, more: &[&str]) {
        disks.iter().filter(|disk| **disk != "missing").for_each(|disk| self.blank(disk, bytes));
        let count = disks.len().to_string();
        let mut args = vec!["create", "--level", level, "--name", "data", "--data-offset", "1M"];
        if !more.contains(&"--raid-devices") {
            args.extend(["--raid-devices", &count]);
        }
        args.extend(more);
        args.extend(disks);
        self.md(&args);
    }

    /// Serves `md/data`; statistics are printed at the end.
    pub fn serve(&self, disks: &[&str]) -> Server {
        self.scratch.serve([&["--stats", "--json", "md/data", "--disk"], disks].concat())
    }

    /// Asks a server to end; that must succeed. What it has said.
    #[track_caller]
    pub fn stop(&self, server: Server) -> String {
        let ended = server.stop();
        assert!(ended.status.success(), "{}\n{}", ended.status, ended.stderr);
        ended.stderr
    }

    /// Where clients find it.
    pub fn socket(&self) -> String {
        self.scratch.at("socket")
    }

    /// `blockwork md ARGS`, which must succeed; what it prints.
    pub fn md(&self, args: &[&str]) -> String {
        run(&mut self.scratch.blockwork([&["md"], args].concat()))
    }

    /// The same as JSON.
    pub fn md_json(&self, args: &[&str]) -> Value {
        let said = self.md(args);
        serde_json::from_str(&said).unwrap_or_else(|error| panic!("{args:?}: {error}: {said}"))
    }

    /// `blockwork md ARGS`, which must not succeed; what it says.
    pub fn refused(&self, args: &[&str]) -> String {
        run_refused(&mut self.scratch.blockwork([&["md"], args].concat()))
    }

    /// How the array is that is served.
    pub fn array(&self) -> Value {
        self.md_json(&["status", "md/data", "--json"])["arrays"][0].clone()
    }

    /// The device that has a role.
    pub fn member(&self, role: u64) -> Value {
        let array = self.array();
        let devices = array["devices"].as_array().expect("a list");
        devices.iter().find(|device| device["role"] == role).expect("each role is told of").clone()
    }

    /// The state of a device.
    pub fn state(&self, name: &str) -> String {
        let array = self.array();
        let devices = array["devices"].as_array().expect("a list");
        let found = devices.iter().find(|device| device["name"] == name);
        found.unwrap_or_else(|| panic!("{name} in {array}"))["state"].as_str().expect("text").to_owned()
    }

    /// How much of what is being synced is done, 0 to 1.
    pub fn share_done(&self) -> f64 {
        let sync = &self.array()["sync"];
        let number = |name: &str| sync[name].as_f64().expect("a number");
        number("done_sectors") / number("total_sectors").max(1.0)
    }

    /// Has the server compare all copies; `mismatch_cnt` after that.
    pub fn mismatches_of_check(&self) -> u64 {
        let done = self.md_json(&["check", "md/data", "--wait", "--json"]);
        done["array"]["sync"]["mismatch_sectors"].as_u64().expect("a number")
    }

    /// Posts to the control API by curl: the answer and its status.
    pub fn curl(&self, body: &str) -> (Value, u16) {
        self.scratch.post("/v1/arrays", body)
    }

    /// Size of the one volume that is served.
    pub fn volume_bytes(&self) -> u64 {
        self.scratch.ask("/v1/status")["volumes"][0]["bytes"].as_u64().expect("a number")
    }

    /// What a client that comes now is told of its size.
    pub fn nbd_bytes(&self) -> u64 {
        run(tool("nbdinfo").args(["--size", &self.scratch.uri("md/data")])).trim().parse().expect("a number")
    }

    /// Counters of the disk, or layer, of that name.
    pub fn counters_of(&self, name: &str) -> Value {
        let stats = self.scratch.ask("/v1/stats");
        let nodes = stats["nodes"].as_array().expect("a list");
        let found = nodes.iter().find(|node| node["name"] == name);
        found.unwrap_or_else(|| panic!("{name} in {stats}"))["counters"].clone()
    }

    /// What Prometheus would be told.
    pub fn metrics(&self) -> String {
        run(&mut self.scratch.http("/metrics"))
    }

    /// Writes past the array, to a place of a member's data.
    pub fn plant(&self, disk: &str, at: u64, bytes: &[u8]) {
        let file = File::options().write(true).open(self.scratch.path(disk)).expect("it is there");
        file.write_all_at(bytes, DATA + at).expect("it can be written");
    }

    pub fn resize(&self, disk: &str, bytes: u64) {
        let file = File::options().write(true).open(self.scratch.path(disk)).expect("it is there");
        file.set_len(bytes).expect("it can be resized");
    }

    /// Both members have the same data.
    pub fn is_equal(&self, one: &str, other: &str) -> bool {
        let [one, other] = [one, other].map(|name| File::open(self.scratch.path(name)).expect("it is there"));
        let end = one.metadata().expect("it has a length").len();
        let mut pieces = [vec![0; 1 << 20], vec![0; 1 << 20]];
        (DATA..end).step_by(1 << 20).all(|at| {
            let [a, b] = &mut pieces;
            one.read_exact_at(a, at).expect("whole MiB");
            other.read_exact_at(b, at).is_ok_and(|()| a == b)
        })
    }

    #[track_caller]
    pub fn expect_equal(&self, one: &str, other: &str) {
        assert!(self.is_equal(one, other), "{one} and {other} differ");
    }
}
