//! A disk less, and writing: what was acknowledged is on both mirrors.

use std::time::Instant;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::{Demo, VOLUMES, Writing, account, pieces, same};
use crate::scan::size;

/// The volume that is written to, and where: 16 MiB which its XFS has not allocated, so that it stays whole.
const WRITTEN: &str = "vg0/data";
const WRITTEN_FROM: u64 = 100 << 20;
const WRITTEN_BYTES: u64 = 16 << 20;
/// The array that all lies on.
const ARRAY: &str = "md/array";

impl Demo {
    /// Serves without the last disk; with a warning, and with the same data.
    pub(super) fn lose_a_disk(&self) -> Result<()> {
        let mut images = self.manifest.images();
        images.pop();
        let server = self.serve(&images, &["--read-only"])?;
        let messages = server.messages()?;
        ensure!(messages.contains("degraded"), "no word of the lost disk, but: {messages}");
        self.say(&format!("{}\n{messages}", server.shown));
        for name in VOLUMES {
            let found = pieces::hash_volume(&mut self.client(name)?)?;
            same(name, &found, &self.manifest.volume(name)?.sha256)?;
        }
        server.stop()?;
        self.say(&format!("{}: still what the kernel read", VOLUMES.join(", ")));
        Ok(())
    }

    /// Writes, reads back, and looks at the disks afterwards: the array is clean, and each half of the mirrors has it.
    pub(super) fn write(&mut self) -> Result<()> {
        let server = self.serve(&self.manifest.images(), &[])?;
        self.say(&server.shown);
        let mut client = self.client(WRITTEN)?;
        let start = Instant::now();
        pieces::write(&mut client, WRITTEN_FROM, WRITTEN_BYTES)?;
        let seconds = start.elapsed().as_secs_f64();
        pieces::check(&pieces::read(&mut client, WRITTEN_FROM, WRITTEN_BYTES)?)?;
        let written = pieces::hash_volume(&mut client)?;
        drop(client);
        let report = server.stop()?;
        let writing = Writing {
            client_writes: WRITTEN_BYTES / pieces::PIECE,
            disk_writes: account::of_disks(&report, "writes"),
            seconds,
        };
        self.say(&format!(
            "{} in pieces of 4 KiB to {WRITTEN}, and a flush, in {seconds:.3} s; read back: the same.\n\
             {} writes came from the client. With two copies, and what the array keeps for itself, the disks saw {}.\n",
            size(WRITTEN_BYTES),
            writing.client_writes,
            writing.disk_writes
        ));
        self.outcome.write = writing;
        self.show_scan(|line| line.starts_with(ARRAY))?;
        self.read_halves(&written)
    }

    /// With one disk of each mirrored pair alone, and with the others alone.
    fn read_halves(&self, written: &str) -> Result<()> {
        let array = self.scan_array()?;
        ensure!(array["clean"] == true && array["degraded"] == 0, "the array is not clean: {array}");
        ensure!(array["bitmap"]["dirty_chunks"] == 0, "the bitmap is not clean: {array}");
        self.say("");
        for half in 0..2 {
            self.check_interruption()?;
            let images = half_of(&array, half)?;
            let server = self.serve(&images, &["--read-only"])?;
            same(WRITTEN, &pieces::hash_volume(&mut self.client(WRITTEN)?)?, written)?;
            server.stop()?;
            self.say(&format!("{WRITTEN} of {} alone: the same", images.join(" and ")));
        }
        Ok(())
    }

    /// What `blockwork scan --json` says of the array.
    fn scan_array(&self) -> Result<Value> {
        let report: Value = serde_json::from_str(&self.scan(&["--json"])?)?;
        let arrays = report["arrays"].as_array().context("scan tells of no arrays")?;
        let array = arrays.iter().find(|array| array["volume"] == ARRAY);
        array.cloned().with_context(|| format!("scan does not know {ARRAY}"))
    }
}

/// The disks with the first (0) or second (1) copies of a RAID10 with two near copies.
fn half_of(array: &Value, half: u64) -> Result<Vec<String>> {
    let members = array["members"].as_array().context("scan tells of no members")?;
    let is_in = |member: &&Value| member["place"].as_u64().is_some_and(|place| place % 2 == half);
    let image = |member: &Value| -> Result<String> {
        let partition = member["volume"].as_str().context("a member without a device")?;
        let disk = partition.strip_prefix("disk/").and_then(|rest| rest.strip_suffix("/1"));
        Ok(disk.with_context(|| format!("a member that is no first partition: {partition}"))?.to_owned())
    };
    members.iter().filter(is_in).map(image).collect()
}
