//! Cache modes, by the names that QEMU's users know (`cache=`).
//!
//! | mode | page cache | a completed write | a flush |
//! | --- | --- | --- | --- |
//! | `none` | bypassed (O_DIRECT) | may be lost in a power cut until a flush | fdatasync |
//! | `writeback` | used | likewise | fdatasync |
//! | `directsync` | bypassed | is durable | fdatasync |
//! | `writethrough` | used | is durable | fdatasync |
//! | `unsafe` | used | may be lost in a power cut | does nothing |
//!
//! Without a mode it is `none` where that is possible, and else `writeback`, with a warning. A mode that is named is had or
//! refused.
//!
//! Of a file on an NFS server the page cache is the server's, which no client can bypass, and a flush is a COMMIT. So `none` and `writeback`
//! are the same there, and what it is without a mode; `directsync` and `writethrough` are: each write is a stable one (DATA_SYNC). With
//! `unsafe` nothing is committed for a flush; what is uncommitted is still kept, committed when the memory for it gets scarce, and sent
//! again where that finds out that the server has restarted.

use blockwork_engine::{Fua, Limits};

use crate::file::Direct;

/// What stands between a client's writes and stable storage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cache {
    /// No page cache; the client flushes.
    None,
    /// The page cache; the client flushes.
    WriteBack,
    /// No page cache; each write is durable when it completes.
    DirectSync,
    /// The page cache; each write is durable when it completes.
    WriteThrough,
    /// The page cache, and no flushes: for disks that are thrown away.
    Unsafe,
}

impl Cache {
    const NAMES: [(&'static str, Cache); 5] = [
        ("none", Cache::None),
        ("writeback", Cache::WriteBack),
        ("directsync", Cache::DirectSync),
        ("writethrough", Cache::WriteThrough),
        ("unsafe", Cache::Unsafe),
    ];

    /// The mode of that name.
    ///
    /// # Errors
    ///
    /// There is none; says which there are.
    pub(crate) fn parse(name: &str) -> Result<Cache, String> {
        let found = Cache::NAMES.iter().find(|(known, _)| *known == name);
        let expected = || Cache::NAMES.map(|(known, _)| known).join(", ");
        found.map(|(_, cache)| *cache).ok_or_else(|| format!("cache={name}: expected one of {}", expected()))
    }

    /// Its name on command lines.
    pub(crate) fn name(self) -> &'static str {
        Cache::NAMES.iter().find(|(_, cache)| *cache == self).map_or("", |(name, _)| name)
    }

    /// Whether it bypasses the page cache.
    pub(crate) fn direct(self) -> Direct {
        match self {
            Cache::None | Cache::DirectSync => Direct::On,
            Cache::WriteBack | Cache::WriteThrough | Cache::Unsafe => Direct::Off,
        }
    }

    /// Makes the limits of a file, here or on a server, those of this mode.
    pub(crate) fn apply(self, limits: &mut Limits) {
        match self {
            Cache::None | Cache::WriteBack => {}
            Cache::DirectSync | Cache::WriteThrough => limits.sync = true,
            // A queue does not flush what has no cache, and no write is durable otherwise.
            Cache::Unsafe => {
                (limits.write_cache, limits.lossy, limits.hw_fua, limits.fua) =
                    (false, true, false, Fua::Flush);
            }
        }
    }
}
