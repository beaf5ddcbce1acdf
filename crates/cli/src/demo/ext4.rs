//! The files of an ext4 file system, read by a client of the server: over NBD, without the kernel.

use std::error::Error;

use anyhow::{Context, Result};
use ext4_view::{Ext4, Ext4Read, Path, PathBuf};

use crate::nbd_client::{NbdClient, Transfer};

/// A file system on a volume that is being served.
pub(crate) struct FileSystem(Ext4);

impl FileSystem {
    pub(crate) fn open(client: NbdClient) -> Result<FileSystem> {
        Ok(FileSystem(Ext4::load(Box::new(Remote(client))).context("its superblock and journal")?))
    }

    /// All files and symbolic links, in the order of their names: a line each.
    pub(crate) fn tree(&self) -> Result<Vec<String>> {
        let mut lines = Vec::new();
        // Folders that are still to be looked into.
        let mut folders = vec![PathBuf::new("/")];
        while let Some(folder) = folders.pop() {
            for entry in self.0.read_dir(&folder)? {
                let entry = entry?;
                let path = entry.path();
                if [".", ".."].iter().any(|name| entry.file_name() == *name) {
                    continue;
                }
                let metadata = self.0.symlink_metadata(&path)?;
                if metadata.is_dir() {
                    folders.push(path);
                } else if metadata.is_symlink() {
                    lines.push(format!("{} -> {}", path.display(), self.0.read_link(&path)?.display()));
                } else {
                    lines.push(format!("{}, {} bytes", path.display(), metadata.len()));
                }
            }
        }
        lines.sort();
        Ok(lines)
    }

    /// The content of a file.
    pub(crate) fn read(&self, path: &str) -> Result<Vec<u8>> {
        let path = format!("/{path}");
        let path = Path::try_from(path.as_str()).with_context(|| path.clone())?;
        self.0.read(path).with_context(|| path.display().to_string())
    }
}

/// Reads of the volume.
struct Remote(NbdClient);

impl Ext4Read for Remote {
    fn read(&mut self, offset: u64, to: &mut [u8]) -> Result<(), Box<dyn Error + Send + Sync>> {
        let mut transfers = [Transfer { offset, data: vec![0; to.len()] }];
        self.0.read(&mut transfers)?;
        to.copy_from_slice(&transfers[0].data);
        Ok(())
    }
}
