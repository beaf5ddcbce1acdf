//! Opening a disk by the name that a person gave it.

use std::path::Path;
use std::sync::Arc;

use blockwork_engine::{LeafSource, Limits};

use crate::error::LeafError;
use crate::file::{FileOptions, FileSource};
use crate::memory::MemorySource;
use crate::nfs::NfsSource;
use crate::null::NullSource;
use crate::spec::{Kind, Spec};

/// What holds for all disks of a command.
#[derive(Clone, Debug, Default)]
pub struct OpenOptions {
    /// Never write, whatever the disk's own options say.
    pub read_only: bool,
    /// Queue settings by their sysfs names, for every leaf; the disk's own come after and win.
    pub settings: Vec<(String, String)>,
    /// Take no lock, whatever the disk's own options say: for looking at disks that somebody else serves. With `read_only`
    /// the limits are those that the disk would have for who writes to it.
    pub unlocked: bool,
}

/// A disk that was opened.
pub struct Opened {
    /// The leaf.
    pub source: Arc<dyn LeafSource>,
    /// What its owner should know, such as that O_DIRECT is not possible, and why. Who tells it says of which disk.
    pub warnings: Vec<String>,
}

/// Opens the disk `spec`: `PATH[,option=value...]`, `nfs://SERVER/PATH`, `null:SIZE` or `memory:SIZE`.
pub fn open(spec: &str, options: &OpenOptions) -> Result<Opened, LeafError> {
    let spec = Spec::parse(spec)?;
    let read_only = options.read_only || spec.read_only;
    let looks = options.read_only && options.unlocked;
    let tune = |limits: &mut Limits| {
        limits.read_only |= if looks { spec.read_only } else { read_only };
        apply(limits, &spec.name, options.settings.iter().chain(&spec.settings))
    };
    match &spec.kind {
        Kind::Null(size) => {
            check_blocks(&spec, *size)?;
            let mut source = NullSource::new(*size, &spec.name)?;
            source.limits_mut().widen_blocks(spec.logical_block_size.unwrap_or(512));
            tune(source.limits_mut())?;
            Ok(Opened { source: Arc::new(source), warnings: Vec::new() })
        }
        Kind::Memory(size) => {
            check_blocks(&spec, *size)?;
            let mut source = MemorySource::new(*size, &spec.name)?;
            source.limits_mut().widen_blocks(spec.logical_block_size.unwrap_or(512));
            tune(source.limits_mut())?;
            Ok(Opened { source: Arc::new(source), warnings: Vec::new() })
        }
        Kind::Nfs(address) => {
            let mut source = NfsSource::open(&spec.name, address, read_only)?;
            if let Some(cache) = spec.cache {
                cache.apply(source.limits_mut());
            }
            tune(source.limits_mut())?;
            let warnings = source.warnings().to_vec();
            Ok(Opened { source: Arc::new(source), warnings })
        }
        Kind::File(path) => {
            let lock = spec.lock && !options.unlocked;
            let file = FileOptions {
                read_only,
                direct: spec.direct,
                lock,
                logical_block_size: spec.logical_block_size,
                looks,
            };
            let mut source = FileSource::open(Path::new(path), &file)?;
            if let Some(cache) = spec.cache {
                cache.apply(source.limits_mut());
            }
            tune(source.limits_mut())?;
            source.told_mut().by_words(spec.cache, options.settings.iter().chain(&spec.settings));
            let warnings = source.warnings().to_vec();
            Ok(Opened { source: Arc::new(source), warnings })
        }
    }
}

fn apply<'a>(
    limits: &mut Limits,
    name: &str,
    settings: impl Iterator<Item = &'a (String, String)>,
) -> Result<(), LeafError> {
    for (key, value) in settings {
        limits.set(key, value).map_err(|source| LeafError::Setting { name: name.to_owned(), source })?;
    }
    Ok(())
}

/// That a size which somebody has given is whole blocks.
fn check_blocks(spec: &Spec, bytes: u64) -> Result<(), LeafError> {
    let block = u64::from(spec.logical_block_size.unwrap_or(1));
    if bytes.is_multiple_of(block) {
        return Ok(());
    }
    let problem = format!(
        "{bytes} bytes are not whole blocks of logical_block_size={block}: {} would be",
        bytes.next_multiple_of(block)
    );
    Err(LeafError::Spec { spec: spec.name.clone(), problem })
}

/// The size of a leaf that has no file: whole sectors, at least one.
pub(crate) fn check_size(name: &str, bytes: u64) -> Result<blockwork_engine::Sectors, LeafError> {
    use blockwork_engine::{SECTOR, Sectors};
    let refuse = |problem: &str| LeafError::Spec { spec: name.to_owned(), problem: problem.to_owned() };
    if bytes == 0 {
        return Err(refuse("the size is 0: expected at least 512 bytes"));
    }
    if !bytes.is_multiple_of(SECTOR) {
        return Err(refuse(&format!(
            "{bytes} bytes are not whole sectors of 512: {} would be",
            bytes / SECTOR * SECTOR
        )));
    }
    Ok(Sectors::from_bytes_floor(bytes))
}
