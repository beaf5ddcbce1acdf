//! QEMU's control socket: JSON, a command and its answer a line, events between them. Here it plugs disks in and out, gives a
//! guest memory, stops it, and moves it.

use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use serde_json::{Value, json};

use crate::error::GuestError;
use crate::scenario::{Backing, Disk};

/// QEMU answers commands at once, also while the guest is busy.
const PATIENCE: Duration = Duration::from_secs(60);

/// The control socket.
#[derive(Debug)]
pub(crate) struct Qmp {
    stream: BufReader<UnixStream>,
    /// Devices that have been unplugged, of events that came before somebody waited for them.
    unplugged: Vec<String>,
    /// What was heard last of how a move from here goes.
    move_is: String,
    /// The guest was heard to run here.
    runs: bool,
}

impl Qmp {
    /// Agrees on the protocol.
    pub(crate) fn new(stream: UnixStream) -> Result<Qmp, GuestError> {
        stream.set_read_timeout(Some(PATIENCE)).map_err(lost)?;
        let stream = BufReader::new(stream);
        let mut qmp = Qmp { stream, unplugged: Vec::new(), move_is: String::new(), runs: false };
        qmp.read()?;
        qmp.execute("qmp_capabilities", json!({}))?;
        Ok(qmp)
    }

    /// Makes a disk of the guest from a file or an export: SCSI target `target`, with the disk's name as its serial number.
    pub(crate) fn plug_in(&mut self, target: u32, disk: &Disk) -> Result<(), GuestError> {
        let node = format!("file{target}");
        let mut backing = match &disk.backing {
            Backing::File(path) => json!({
                "driver": "raw",
                // Zeroes that the guest writes stay holes; what it flushes is in our page cache, where everybody sees it.
                "detect-zeroes": "unmap",
                "discard": "unmap",
                "cache": { "no-flush": true },
                "file": { "driver": "file", "filename": path, "discard": "unmap", "cache": { "no-flush": true } },
            }),
            Backing::Nbd { socket, export } => json!({
                "driver": "nbd",
                "server": { "type": "unix", "path": socket },
                "export": export,
                "discard": "unmap",
            }),
        };
        backing["node-name"] = node.clone().into();
        backing["read-only"] = disk.read_only.into();
        self.execute("blockdev-add", backing)?;
        let device = json!({
            "driver": "scsi-hd",
            "bus": "scsi.0",
            "id": device(target),
            "scsi-id": target,
            "lun": 0,
            "serial": format!("{target}"),
            "drive": node,
            "logical_block_size": disk.sector_size,
            "physical_block_size": disk.sector_size,
        });
        self.execute("device_add", device)
    }

    /// Takes it out, when the guest has let go of it.
    pub(crate) fn plug_out(&mut self, target: u32) -> Result<(), GuestError> {
        self.execute("device_del", json!({ "id": device(target) }))?;
        while !self.unplugged.contains(&device(target)) {
            self.read()?;
        }
        self.unplugged.retain(|other| *other != device(target));
        self.execute("blockdev-del", json!({ "node-name": format!("file{target}") }))
    }

    /// Stops the guest's processors, and takes its devices to rest.
    pub(crate) fn stop(&mut self) -> Result<(), GuestError> {
        self.execute("stop", json!({}))
    }

    /// Has it go on.
    pub(crate) fn go_on(&mut self) -> Result<(), GuestError> {
        self.execute("cont", json!({}))
    }

    /// Plugs memory in, of which the kernel in the guest has to make something.
    pub(crate) fn add_memory(&mut self, mib: u64) -> Result<(), GuestError> {
        let size = mib << 20;
        let memory = json!({ "qom-type": "memory-backend-memfd", "id": "more", "size": size, "share": true });
        self.execute("object-add", memory)?;
        self.execute("device_add", json!({ "driver": "pc-dimm", "id": "dimm", "memdev": "more" }))
    }

    /// Waits at `uri` for a guest.
    pub(crate) fn receive(&mut self, uri: &str) -> Result<(), GuestError> {
        self.execute("migrate-incoming", json!({ "uri": uri }))
    }

    /// Until the guest that was received runs.
    pub(crate) fn wait_for_it_to_run(&mut self) -> Result<(), GuestError> {
        while !self.runs {
            self.read()?;
        }
        Ok(())
    }

    /// Sends the guest to who waits at `uri`, while it runs, until it runs there.
    pub(crate) fn send(&mut self, uri: &str) -> Result<(), GuestError> {
        let events = json!({ "capabilities": [{ "capability": "events", "state": true }] });
        self.execute("migrate-set-capabilities", events)?;
        // So little may be left when the guest is stopped that nearly all has been sent while it ran, and what it wrote since once more;
        // an emulated processor writes more slowly than that.
        let pace = json!({ "max-bandwidth": 128 << 20, "downtime-limit": 100 });
        self.execute("migrate-set-parameters", pace)?;
        self.execute("migrate", json!({ "uri": uri }))?;
        while self.move_is != "completed" {
            if self.move_is == "failed" {
                let reason = "the move has failed; the console says why".to_owned();
                return Err(GuestError::Refused { command: "migrate".into(), reason });
            }
            self.read()?;
        }
        Ok(())
    }

    fn execute(&mut self, command: &str, arguments: Value) -> Result<(), GuestError> {
        let line = json!({ "execute": command, "arguments": arguments }).to_string() + "\n";
        self.stream.get_mut().write_all(line.as_bytes()).map_err(lost)?;
        loop {
            let answer = self.read()?;
            if let Some(error) = answer.get("error") {
                let reason = error["desc"].as_str().unwrap_or_default().to_owned();
                return Err(GuestError::Refused { command: line.trim().to_owned(), reason });
            }
            if answer.get("return").is_some() {
                return Ok(());
            }
        }
    }

    fn read(&mut self) -> Result<Value, GuestError> {
        let mut line = String::new();
        if self.stream.read_line(&mut line).map_err(lost)? == 0 {
            return Err(lost(io::ErrorKind::UnexpectedEof.into()));
        }
        let said: Value = serde_json::from_str(&line).map_err(|error| lost(error.into()))?;
        match said["event"].as_str() {
            Some("DEVICE_DELETED") => {
                self.unplugged.extend(said["data"]["device"].as_str().map(str::to_owned));
            }
            Some("MIGRATION") => self.move_is = said["data"]["status"].as_str().unwrap_or_default().into(),
            Some("RESUME") => self.runs = true,
            _ => {}
        }
        Ok(said)
    }
}

fn device(target: u32) -> String {
    format!("disk{target}")
}

fn lost(source: io::Error) -> GuestError {
    GuestError::File { what: "cannot speak to", path: "QEMU's control socket".into(), source }
}
