//! The targets `thin-pool` and `thin`: what their arguments say, and how they are printed.

use std::fmt;

use super::{Below, Quoted};

const SKIP_BLOCK_ZEROING: &str = "skip_block_zeroing";
const IGNORE_DISCARD: &str = "ignore_discard";
const NO_DISCARD_PASSDOWN: &str = "no_discard_passdown";
const READ_ONLY: &str = "read_only";
const ERROR_IF_NO_SPACE: &str = "error_if_no_space";

/// The words of all features, for an error.
pub(super) const FEATURES: &str =
    "skip_block_zeroing, ignore_discard, no_discard_passdown, read_only or error_if_no_space";

/// Most features that a line has: the kernel takes no more.
pub(super) const FEATURES_MAX: u64 = 4;

/// A pool of thin volumes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ThinPool {
    /// The metadata device, as it is written.
    pub metadata: String,
    /// The data device; its offset is 0.
    pub data: Below,
    /// Sectors of a block of data: 128 to 2097152, a multiple of 128.
    pub block_sectors: u32,
    /// So few free blocks are worth a warning; 0: none is given.
    pub low_water: u64,
    /// What is asked for beside that.
    pub features: ThinPoolFeatures,
}

/// How a pool behaves, where that is not the default.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ThinPoolFeatures {
    /// `skip_block_zeroing`: new blocks keep what is on the data device.
    pub skip_block_zeroing: bool,
    /// `ignore_discard`: volumes take no discards.
    pub ignore_discard: bool,
    /// `no_discard_passdown`: discards free blocks, and go no further.
    pub no_discard_passdown: bool,
    /// `read_only`: the metadata stays as it is.
    pub read_only: bool,
    /// `error_if_no_space`: writes fail at once when the pool is full, in place of waiting.
    pub error_if_no_space: bool,
}

impl ThinPoolFeatures {
    /// Sets a feature by its word; false if there is none of that name.
    pub(super) fn set(&mut self, word: &str) -> bool {
        let feature = match word {
            SKIP_BLOCK_ZEROING => &mut self.skip_block_zeroing,
            IGNORE_DISCARD => &mut self.ignore_discard,
            NO_DISCARD_PASSDOWN => &mut self.no_discard_passdown,
            READ_ONLY => &mut self.read_only,
            ERROR_IF_NO_SPACE => &mut self.error_if_no_space,
            _ => return false,
        };
        *feature = true;
        true
    }

    /// Their words, in the order in which `dmsetup table` prints them.
    pub fn words(&self) -> Vec<&'static str> {
        let all = [
            (self.skip_block_zeroing, SKIP_BLOCK_ZEROING),
            (self.ignore_discard, IGNORE_DISCARD),
            (self.no_discard_passdown, NO_DISCARD_PASSDOWN),
            (self.read_only, READ_ONLY),
            (self.error_if_no_space, ERROR_IF_NO_SPACE),
        ];
        all.into_iter().filter_map(|(is_set, word)| is_set.then_some(word)).collect()
    }
}

/// A volume of a pool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Thin {
    /// The pool, as it is written.
    pub pool: String,
    /// Its number in the pool.
    pub device_id: u32,
    /// What is read where it has no block, as it is written.
    pub external_origin: Option<String>,
}

impl fmt::Display for ThinPool {
    /// The arguments of the target.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (metadata, data) = (Quoted(&self.metadata), Quoted(&self.data.dev));
        let words = self.features.words();
        write!(f, "{metadata} {data} {} {} {}", self.block_sectors, self.low_water, words.len())?;
        words.iter().try_for_each(|word| write!(f, " {word}"))
    }
}

impl fmt::Display for Thin {
    /// The arguments of the target.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", Quoted(&self.pool), self.device_id)?;
        self.external_origin.iter().try_for_each(|origin| write!(f, " {}", Quoted(origin)))
    }
}
