//! The demo's disks: packed into this program as the real kernel left them, unpacked as sparse files, with what that
//! kernel read of them.
//!
//! `demo/` at the root of the project has them, and says how they were made.

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::thread;

use anyhow::{Context, Result, anyhow, ensure};
use ring::digest::{Context as Hash, SHA256};
use ruzstd::decoding::StreamingDecoder;
use serde::Deserialize;

const MANIFEST: &str = include_str!("../../../../demo/manifest.json");
/// The files that the manifest names.
const PACKED: [(&str, &[u8]); 4] = [
    ("one.img.zst", include_bytes!("../../../../demo/one.img.zst")),
    ("two.img.zst", include_bytes!("../../../../demo/two.img.zst")),
    ("three.img.zst", include_bytes!("../../../../demo/three.img.zst")),
    ("four.img.zst", include_bytes!("../../../../demo/four.img.zst")),
];
/// What is read at once, bytes; as much of zeros stays a hole.
const PIECE: usize = 64 << 10;

/// What the kernel that made the disks read of them.
#[derive(Debug, Deserialize)]
pub(crate) struct Manifest {
    /// The kernel's release.
    pub(crate) kernel: String,
    pub(crate) volumes: Vec<VolumeEntry>,
    pub(crate) files: Vec<FileEntry>,
    pub(crate) disks: Vec<DiskEntry>,
}

#[derive(Debug, Deserialize)]
pub(crate) struct VolumeEntry {
    pub(crate) name: String,
    pub(crate) bytes: u64,
    /// Its file system, as `mount -t` calls it.
    pub(crate) signature: String,
    /// SHA-256 in hexadecimal, here and below.
    pub(crate) sha256: String,
}

#[derive(Debug, Deserialize)]
pub(crate) struct FileEntry {
    /// The volume that it is in.
    pub(crate) volume: String,
    /// From the root of the volume's file system.
    pub(crate) path: String,
    pub(crate) sha256: String,
}

#[derive(Debug, Deserialize)]
pub(crate) struct DiskEntry {
    name: String,
    /// Its packed form.
    file: String,
    bytes: u64,
    sha256: String,
}

impl Manifest {
    pub(crate) fn read() -> Result<Manifest> {
        serde_json::from_str(MANIFEST).context("demo/manifest.json")
    }

    pub(crate) fn volume(&self, name: &str) -> Result<&VolumeEntry> {
        self.volumes
            .iter()
            .find(|volume| volume.name == name)
            .with_context(|| format!("demo/manifest.json: no volume {name}"))
    }

    /// The names of the disks' files, unpacked.
    pub(crate) fn images(&self) -> Vec<String> {
        self.disks.iter().map(DiskEntry::image).collect()
    }

    pub(crate) fn files_of<'a>(&'a self, volume: &'a str) -> impl Iterator<Item = &'a FileEntry> {
        self.files.iter().filter(move |file| file.volume == volume)
    }

    /// Unpacks all disks into `folder`.
    pub(crate) fn unpack(&self, folder: &Path) -> Result<()> {
        self.each_disk(|disk| disk.unpack(folder))
    }

    /// Whether all disks in `folder` are as the kernel left them, to the bit.
    pub(crate) fn check_disks(&self, folder: &Path) -> Result<()> {
        self.each_disk(|disk| {
            let path = folder.join(disk.image());
            let mut file = File::open(&path).with_context(|| path.display().to_string())?;
            disk.check(hash(&mut file)?)
        })
    }

    /// At the same time: hashing takes longer than all else that the demo does.
    fn each_disk(&self, act: impl Fn(&DiskEntry) -> Result<()> + Sync) -> Result<()> {
        thread::scope(|scope| {
            let threads: Vec<_> = self.disks.iter().map(|disk| scope.spawn(|| act(disk))).collect();
            threads
                .into_iter()
                .try_for_each(|thread| thread.join().map_err(|_| anyhow!("a disk's thread has panicked"))?)
        })
    }
}

impl DiskEntry {
    fn image(&self) -> String {
        format!("{}.img", self.name)
    }

    fn unpack(&self, folder: &Path) -> Result<()> {
        let (_, packed) = PACKED
            .iter()
            .find(|(file, _)| *file == self.file)
            .with_context(|| format!("demo/manifest.json: no file {}", self.file))?;
        let path = folder.join(self.image());
        let unpack = || -> Result<(u64, String)> {
            let file = File::create_new(&path)?;
            file.set_len(self.bytes)?;
            let mut unpacked = StreamingDecoder::new(*packed)?;
            copy(&mut unpacked, |offset, piece| Ok(file.write_all_at(piece, offset)?))
        };
        self.check(unpack().with_context(|| path.display().to_string())?)
    }

    fn check(&self, (bytes, sha256): (u64, String)) -> Result<()> {
        let name = self.image();
        ensure!(bytes == self.bytes, "{name}: {bytes} bytes, where the kernel left {}", self.bytes);
        ensure!(sha256 == self.sha256, "{name}: SHA-256 {sha256}, where the kernel left {}", self.sha256);
        Ok(())
    }
}

/// Length and SHA-256 of everything there is to read.
pub(crate) fn hash(from: &mut dyn Read) -> Result<(u64, String)> {
    copy(from, |_, _| Ok(()))
}

/// Hands each piece that is not all zeros to `put`, with its place. Gives the length and the SHA-256 of everything.
fn copy(from: &mut dyn Read, mut put: impl FnMut(u64, &[u8]) -> Result<()>) -> Result<(u64, String)> {
    let mut hash = Hash::new(&SHA256);
    let mut piece = vec![0; PIECE];
    let mut offset = 0;
    loop {
        let filled = fill(from, &mut piece)?;
        if filled == 0 {
            return Ok((offset, hex(hash)));
        }
        let piece = &piece[..filled];
        hash.update(piece);
        if piece.iter().any(|byte| *byte != 0) {
            put(offset, piece)?;
        }
        offset += filled as u64;
    }
}

/// Reads until the piece is full or the source ends; how many bytes were read.
fn fill(from: &mut dyn Read, piece: &mut [u8]) -> std::io::Result<usize> {
    let mut filled = 0;
    while filled < piece.len() {
        match from.read(&mut piece[filled..])? {
            0 => break,
            count => filled += count,
        }
    }
    Ok(filled)
}

/// A SHA-256 as `sha256sum` prints it.
pub(crate) fn hex(hash: Hash) -> String {
    hash.finish().as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Of data that is at hand whole.
pub(crate) fn sha256(data: &[u8]) -> String {
    let mut hash = Hash::new(&SHA256);
    hash.update(data);
    hex(hash)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_is_what_the_kernel_left_or_an_error() {
        let manifest = Manifest::read().expect("it is our own");
        let folder = tempfile::tempdir().expect("a folder");
        let disk = &manifest.disks[0];
        disk.unpack(folder.path()).expect("it is whole");
        let unpacked = File::options().write(true).open(folder.path().join("one.img")).expect("it is there");
        let only_one = Manifest { disks: vec![Manifest::read().expect("again").disks.remove(0)], ..manifest };
        only_one.check_disks(folder.path()).expect("as it was unpacked");

        // A byte that was zero, in a hole.
        unpacked.write_all_at(&[1], 200 << 20).expect("it is a file");
        let said = only_one.check_disks(folder.path()).expect_err("it has changed").to_string();
        assert!(said.starts_with("one.img: SHA-256 ") && said.contains("where the kernel left"), "{said}");
        unpacked.set_len(1 << 20).expect("it is a file");
        let said = only_one.check_disks(folder.path()).expect_err("it is short").to_string();
        assert_eq!(said, "one.img: 1048576 bytes, where the kernel left 268435456");
    }

    #[test]
    fn what_is_zero_stays_a_hole() {
        let mut data = vec![0; 3 * PIECE + 7];
        data[PIECE + 5] = 1;
        let mut written = Vec::new();
        let mut source: &[u8] = &data;
        let (bytes, hash) = copy(&mut source, |offset, piece| {
            written.push((offset, piece.len()));
            Ok(())
        })
        .expect("memory can be read");
        assert_eq!(written, [(PIECE as u64, PIECE)]);
        assert_eq!((bytes, hash), (data.len() as u64, sha256(&data)));
    }
}
