//! What is done to a guest from outside, between its scenarios, without its knowing: it is stopped and goes on, is saved, moves to
//! another QEMU; and it is given memory, which it is told of.
//!
//! What a script has left running in a session of its own (`setsid`) is what runs meanwhile. A guest that cannot be moved is
//! thrown away.

use std::io::{self, Seek};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;

use crate::error::GuestError;
use crate::guest::{Guest, Machine, VhostDisk};
use crate::qemu::Begin;

impl Guest {
    /// Stops its processors and devices, and has them go on.
    ///
    /// # Errors
    /// It does not boot, or QEMU refuses.
    pub fn stop_and_go_on(&self) -> Result<(), GuestError> {
        let mut slot = self.machine();
        let machine = self.running(&mut slot)?;
        machine.control.stop()?;
        machine.control.go_on()
    }

    /// Gives it so many MiB more, once. Its kernel takes them into use when it is told to (`/sys/devices/system/memory`).
    ///
    /// # Errors
    /// It does not boot, has no disks by vhost-user, or QEMU refuses.
    pub fn add_memory(&self, mib: u64) -> Result<(), GuestError> {
        self.running(&mut self.machine())?.control.add_memory(mib)
    }

    /// Moves it to another QEMU while it runs; what was its disks are these there.
    ///
    /// # Errors
    /// It does not boot, or does not arrive.
    pub fn move_to(&self, disks: &[VhostDisk]) -> Result<(), GuestError> {
        self.replace(|mut machine| {
            let folder = folder()?;
            let uri = uri(&folder.path().join("move"));
            let mut next = Machine::start(disks, Begin::Receive)?;
            next.control.receive(&uri)?;
            machine.control.send(&uri)?;
            next.control.wait_for_it_to_run()?;
            Ok(next)
        })
    }

    /// Saves it, ends its QEMU, and goes on with it in another one.
    ///
    /// # Errors
    /// It does not boot, cannot be saved, or does not come back.
    pub fn save_and_restore(&self) -> Result<(), GuestError> {
        self.replace(|mut machine| {
            let folder = folder()?;
            let (to, from) = (folder.path().join("save"), folder.path().join("restore"));
            let mut saved = tempfile::tempfile().map_err(GuestError::file("cannot make", "a file"))?;
            let listener = UnixListener::bind(&to).map_err(GuestError::file("cannot listen at", &to))?;
            std::thread::scope(|scope| {
                let saving = scope.spawn(|| copy(&mut listener.accept()?.0, &mut saved));
                let sent = machine.control.send(&uri(&to));
                drop(machine);
                if sent.is_err() {
                    // It may not have called, and is waited for.
                    let _ = UnixStream::connect(&to);
                }
                let saved = saving.join().expect("it does not panic");
                sent.and(saved.map_err(GuestError::file("cannot save", &to)))
            })?;
            let mut next = Machine::start(&self.vhost_disks, Begin::Receive)?;
            next.control.receive(&uri(&from))?;
            let restored = UnixStream::connect(&from)
                .and_then(|mut line| saved.rewind().and_then(|()| copy(&mut saved, &mut line)));
            restored.map_err(GuestError::file("cannot restore", &from))?;
            next.control.wait_for_it_to_run()?;
            Ok(next)
        })
    }

    /// Another machine with what runs in this one.
    fn replace(&self, act: impl FnOnce(Machine) -> Result<Machine, GuestError>) -> Result<(), GuestError> {
        let mut slot = self.machine();
        self.running(&mut slot)?;
        let machine = slot.take().expect("it runs");
        let release = machine.release.clone();
        let mut next = act(machine)?;
        next.release = release;
        *slot = Some(next);
        Ok(())
    }
}

fn copy(from: &mut impl io::Read, to: &mut impl io::Write) -> io::Result<()> {
    io::copy(from, to)?;
    to.flush()
}

fn folder() -> Result<tempfile::TempDir, GuestError> {
    let made = tempfile::Builder::new().prefix("blockwork-move-").tempdir();
    made.map_err(GuestError::file("cannot make a folder in", std::env::temp_dir()))
}

fn uri(socket: &Path) -> String {
    format!("unix:{}", socket.display())
}
