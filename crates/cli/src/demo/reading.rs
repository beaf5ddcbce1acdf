//! Reading the volumes in every way that this machine has: what comes back is what the kernel read that made the disks.

use std::fs::File;
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use rustix::process::geteuid;

use super::disks::{self, FileEntry, sha256};
use super::server::{MOUNTS, SOCKET};
use super::{Demo, VOLUMES, VolumeOutcome, ext4, kernel, pieces, same};
use crate::scan::size;

/// A file of the first volume that is shown.
const SHOWN_FILE: &str = "etc/motd";

impl Demo {
    /// Compares the volumes with what the kernel read of them.
    pub(super) fn read_volumes(&mut self) -> Result<()> {
        let start = Instant::now();
        let mut found = Vec::new();
        for name in VOLUMES {
            let entry = self.manifest.volume(name)?;
            let mut client = self.client(name)?;
            ensure!(client.size == entry.bytes, "{name} has {} bytes", client.size);
            same(name, &pieces::hash_volume(&mut client)?, &entry.sha256)?;
            found.push(VolumeOutcome {
                name: name.to_owned(),
                bytes: entry.bytes,
                sha256: entry.sha256.clone(),
            });
        }
        let all: Vec<_> =
            found.iter().map(|volume| format!("{} ({})", volume.name, size(volume.bytes))).collect();
        let seconds = start.elapsed().as_secs_f64();
        self.say(&format!("{}: what the kernel read, by SHA-256, in {seconds:.2} s", all.join(", ")));
        self.outcome.volumes = found;
        Ok(())
    }

    /// Reads the files of the first volume over NBD.
    pub(super) fn read_files(&mut self) -> Result<()> {
        let volume = VOLUMES[0];
        let files = ext4::FileSystem::open(self.client(volume)?).with_context(|| volume.to_owned())?;
        self.say(&format!("\nThe files of {volume}, as a client finds them that reads ext4 over NBD:"));
        for line in files.tree()? {
            self.say(&format!("  {line}"));
        }
        let count = check_files(self.manifest.files_of(volume), |path| files.read(path))?;
        self.outcome.files = count;
        let shown = String::from_utf8(files.read(SHOWN_FILE)?)?;
        self.say(&format!("{count} files are what the kernel wrote. /{SHOWN_FILE}: {}", shown.trim_end()));
        Ok(())
    }

    /// Another client, where it is installed.
    pub(super) fn nbdcopy(&mut self) -> Result<()> {
        let volume = VOLUMES[0];
        let uri = format!("nbd+unix:///{volume}?socket={SOCKET}");
        let mut command = Command::new("nbdcopy");
        let Ok(done) = command.current_dir(&self.folder).args([&uri, "root.copy"]).output() else {
            self.skip("nbdcopy, which is not installed".to_owned());
            return Ok(());
        };
        ensure!(done.status.success(), "nbdcopy: {}", String::from_utf8_lossy(&done.stderr).trim_end());
        let copy = std::fs::read(self.folder.join("root.copy"))?;
        same("what nbdcopy copied", &sha256(&copy), &self.manifest.volume(volume)?.sha256)?;
        self.say(&format!("\n$ nbdcopy '{uri}' root.copy\nthe same"));
        self.outcome.nbdcopy = true;
        Ok(())
    }

    /// The volumes as files; and their file systems, mounted by the kernel where it lets us.
    pub(super) fn read_through_fuse(&mut self) -> Result<()> {
        for name in VOLUMES {
            let path = self.folder.join(MOUNTS).join(name);
            let mut file = File::open(&path).with_context(|| path.display().to_string())?;
            let (_, found) = disks::hash(&mut file).with_context(|| path.display().to_string())?;
            same(&format!("{MOUNTS}/{name}"), &found, &self.manifest.volume(name)?.sha256)?;
        }
        self.say(&format!(
            "\n$ sha256sum {}\nthe same",
            VOLUMES.map(|name| format!("{MOUNTS}/{name}")).join(" ")
        ));
        if !geteuid().is_root() {
            self.skip("mounting them through loop devices, for which one has to be root".to_owned());
            return Ok(());
        }
        for name in VOLUMES {
            self.check_interruption()?;
            self.mount(name)?;
        }
        Ok(())
    }

    fn mount(&mut self, name: &str) -> Result<()> {
        let entry = self.manifest.volume(name)?;
        let place = self.folder.join("mnt").join(name);
        // The data is right, as we have seen: what fails now, this machine does not have.
        let mounted =
            match kernel::Mounted::new(&self.folder.join(MOUNTS).join(name), &entry.signature, &place) {
                Ok(mounted) => mounted,
                Err(error) => {
                    self.skip(format!("mounting {name} through a loop device ({error:#})"));
                    return Ok(());
                }
            };
        let read = |path: &str| std::fs::read(mounted.place.join(path)).with_context(|| path.to_owned());
        let count = check_files(self.manifest.files_of(name), read)?;
        self.say(&format!(
            "\n$ mount -o ro,loop {MOUNTS}/{name} mnt/{name}\n{count} files, read by this kernel's {}: the same",
            entry.signature
        ));
        self.outcome.files_by_kernel += count;
        Ok(())
    }
}

/// Compares each file with what the kernel wrote; how many there are.
fn check_files<'a>(
    files: impl Iterator<Item = &'a FileEntry>,
    read: impl Fn(&str) -> Result<Vec<u8>>,
) -> Result<usize> {
    let mut count = 0;
    for file in files {
        same(&format!("{}: {}", file.volume, file.path), &sha256(&read(&file.path)?), &file.sha256)?;
        count += 1;
    }
    Ok(count)
}
