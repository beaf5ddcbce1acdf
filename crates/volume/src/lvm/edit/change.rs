//! What can be done with a group, in one form: whether nobody uses it or it is served, and who asks need not know how it is done.

use serde::{Deserialize, Serialize};

use super::create::{Created, NewVolume};
use super::draft::{Draft, TagChange};
use super::error::EditError;
use super::resize::{Resize, Resized};
use super::snapshot::{NewSnapshot, Snapshotted};
use super::thin::{NewPool, NewThin, NewThinPool, NewThinSnapshot};

/// A change of a group. Names are those of volumes, without the group's.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "verb", rename_all = "kebab-case")]
pub enum Change {
    /// A volume that lies on the group's disks by itself.
    Create(NewVolume),
    /// A thin pool.
    CreateThinPool(NewThinPool),
    /// A volume of a thin pool.
    CreateThin(NewThin),
    /// A snapshot of the old kind.
    Snapshot(NewSnapshot),
    /// A snapshot of a volume of a thin pool.
    SnapshotThin(NewThinSnapshot),
    /// Another size.
    Resize {
        /// Of this volume.
        volume: String,
        /// How large.
        to: Resize,
        /// It may become smaller.
        #[serde(default)]
        may_shrink: bool,
    },
    /// More room for a pool's map.
    ResizePoolMetadata {
        /// The pool.
        volume: String,
        /// How large.
        to: Resize,
    },
    /// A snapshot is merged into its origin, by whoever serves that; then it is gone.
    Merge {
        /// The snapshot.
        volume: String,
    },
    /// Another name.
    Rename {
        /// The volume.
        volume: String,
        /// What it is to be called.
        new: String,
    },
    /// Volumes that go.
    Remove {
        /// These.
        volumes: Vec<String>,
    },
    /// Tags of a volume.
    TagVolume {
        /// The volume.
        volume: String,
        /// Which.
        #[serde(flatten)]
        tags: TagChange,
    },
    /// Tags of the group.
    TagGroup(TagChange),
}

/// What became of a change in the text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Made {
    /// Of [`Change::Create`].
    Created(Created),
    /// Of [`Change::CreateThinPool`].
    Pool(NewPool),
    /// Of [`Change::CreateThin`]: extents that it looks as large as.
    Thin {
        /// How many.
        extents: u64,
    },
    /// Of [`Change::Snapshot`].
    Snapshot(Snapshotted),
    /// Of [`Change::SnapshotThin`].
    ThinSnapshot {
        /// Its name.
        name: String,
    },
    /// Of both kinds of resizing.
    Resized(Resized),
    /// Of what has nothing to tell.
    Done,
}

impl Made {
    /// What was asked for and is not quite so, for people.
    pub fn note(&self) -> Option<&str> {
        match self {
            Made::Created(created) => created.rounded.as_deref(),
            Made::Snapshot(made) => made.rounded.as_deref(),
            Made::Resized(resized) => resized.capped.as_deref(),
            Made::Pool(_) | Made::Thin { .. } | Made::ThinSnapshot { .. } | Made::Done => None,
        }
    }
}

impl Change {
    /// The volume that it is about, by the name that it has then; none: it is about several, or none.
    pub fn volume<'a>(&'a self, made: &'a Made) -> Option<&'a str> {
        match (self, made) {
            (Change::Create(new), _) => Some(&new.name),
            (Change::CreateThinPool(new), _) => Some(&new.name),
            (Change::CreateThin(new), _) => Some(&new.name),
            (_, Made::Snapshot(Snapshotted { name, .. }) | Made::ThinSnapshot { name }) => Some(name),
            (Change::Rename { new, .. }, _) => Some(new),
            (
                Change::Resize { volume, .. }
                | Change::ResizePoolMetadata { volume, .. }
                | Change::Merge { volume }
                | Change::TagVolume { volume, .. },
                _,
            ) => Some(volume),
            _ => None,
        }
    }
}

impl Draft {
    /// Makes a change.
    ///
    /// # Errors
    ///
    /// It cannot be made: the draft is as it was.
    pub fn make(&mut self, change: &Change) -> Result<Made, EditError> {
        Ok(match change {
            Change::Create(new) => Made::Created(self.create_volume(new)?),
            Change::CreateThinPool(new) => Made::Pool(self.create_thin_pool(new)?),
            Change::CreateThin(new) => Made::Thin { extents: self.create_thin(new)? },
            Change::Snapshot(new) => Made::Snapshot(self.create_snapshot(new)?),
            Change::SnapshotThin(new) => Made::ThinSnapshot { name: self.create_thin_snapshot(new)? },
            Change::Resize { volume, to, may_shrink } => {
                Made::Resized(self.resize_volume(volume, *to, *may_shrink)?).checked(self, volume)?
            }
            Change::ResizePoolMetadata { volume, to } => {
                Made::Resized(self.grow_pool_metadata(volume, *to)?).checked(self, volume)?
            }
            Change::Merge { volume } => {
                self.plan_merge(volume)?;
                Made::Done
            }
            Change::Rename { volume, new } => {
                self.rename_volume(volume, new)?;
                Made::Done
            }
            Change::Remove { volumes } => {
                self.remove_volumes(volumes)?;
                Made::Done
            }
            Change::TagVolume { volume, tags } => {
                self.tag_volume(volume, tags)?;
                Made::Done
            }
            Change::TagGroup(tags) => {
                self.tag_group(tags)?;
                Made::Done
            }
        })
    }
}

impl Made {
    /// A volume that has the size already is not changed.
    fn checked(self, draft: &Draft, volume: &str) -> Result<Made, EditError> {
        match &self {
            Made::Resized(resized) if resized.from == resized.to => {
                Err(EditError::volume(volume, format!("it has {} already", draft.extents_shown(resized.to))))
            }
            _ => Ok(self),
        }
    }
}
