//! Devices of a pool come and go; snapshots of devices, and of the metadata.
//!
//! A snapshot is one more reference to the root of its origin's tree: from then on, whoever changes a node copies it first. The pool's
//! time rises with each, and tells which mappings were there before ([`DeviceDetails::may_share`]).

use crate::FormatError;
use crate::thin::DEVICES_MAX;
use crate::thin::node::Node;
use crate::thin::space_map::SpaceMapRoot;
use crate::thin::superblock::Superblock;
use crate::thin::tree::Place;
use crate::thin::value::DeviceDetails;

use super::space::Space;
use super::tree::{self, Committed, Edit, Plain, Roots};
use super::{Blocks, EditError, Editor, State, Uses};

/// One past the highest time that a mapping has room for.
const TIMES_MAX: u32 = 1 << 24;

/// The trees that know the devices: the pool's own, or those of a metadata snapshot.
#[derive(Debug, Clone, Copy)]
struct Trees {
    mapping: u64,
    details: u64,
}

impl State {
    fn check_new(&mut self, from: Committed<'_>, device: u64) -> Result<(), EditError> {
        if device >= DEVICES_MAX {
            return Err(EditError::DeviceNumber(device));
        }
        match self.root(from, device) {
            Ok(_) => Err(EditError::Exists(device)),
            Err(EditError::NoDevice(_)) => Ok(()),
            Err(error) => Err(error),
        }
    }

    fn enter(
        &mut self,
        from: Committed<'_>,
        device: u64,
        root: u64,
        details: DeviceDetails,
    ) -> Result<(), EditError> {
        let Superblock { mapping_root, details_root, .. } = self.superblock;
        self.superblock.mapping_root = self.insert_root(from, mapping_root, device, root)?;
        self.superblock.details_root = self.insert_details(from, details_root, device, details)?;
        Ok(())
    }

    fn create(&mut self, from: Committed<'_>, device: u64) -> Result<(), EditError> {
        self.check_new(from, device)?;
        let root = self.mapping_edit(from).empty()?;
        let Superblock { time, transaction_id, .. } = self.superblock;
        let details =
            DeviceDetails { mapped_blocks: 0, transaction_id, creation_time: time, snapshotted_time: time };
        self.enter(from, device, root, details)
    }

    fn snapshot(&mut self, from: Committed<'_>, device: u64, origin: u64) -> Result<(), EditError> {
        self.check_new(from, device)?;
        let of = self.details(from, origin)?;
        let time = self.superblock.time.saturating_add(1);
        if time >= TIMES_MAX {
            let expected = format!("below {TIMES_MAX}");
            return Err(FormatError::limit("thin superblock", 44, "time", time, expected).into());
        }
        self.superblock.time = time;
        let root = self.root(from, origin)?;
        self.enter(from, origin, root, DeviceDetails { snapshotted_time: time, ..of })?;
        // Only now, on a way that is one's own, does the count mean all references.
        self.metadata.raise(from, root)?;
        let transaction_id = self.superblock.transaction_id;
        let own = DeviceDetails { transaction_id, creation_time: time, snapshotted_time: time, ..of };
        self.enter(from, device, root, own)
    }

    /// A step of deleting a device from some trees: what one leaf maps; whether it is gone.
    fn delete(&mut self, from: Committed<'_>, trees: &mut Trees, device: u64) -> Result<bool, EditError> {
        let missing = || EditError::NoDevice(device);
        let root = tree::look_up(&mut self.roots, from, trees.mapping, device)?.ok_or_else(missing)?;
        trees.mapping = self.insert_root(from, trees.mapping, device, root)?;
        if self.metadata.count(from, root)? > 1 {
            self.metadata.lower(from, root)?;
            self.forget(from, trees, device)?;
            return Ok(true);
        }
        let (root, taken) = self.mapping_edit(from).remove_leaf(root, 0..u64::MAX)?;
        self.lower_data(from, &taken.values)?;
        if taken.next.is_none() {
            self.mapping_edit(from).drop_node(root)?;
            self.forget(from, trees, device)?;
            return Ok(true);
        }
        trees.mapping = self.insert_root(from, trees.mapping, device, root)?;
        let details = tree::look_up(&mut self.details, from, trees.details, device)?.ok_or_else(missing)?;
        let details = details.with_fewer(taken.count, device)?;
        trees.details = self.insert_details(from, trees.details, device, details)?;
        Ok(false)
    }

    /// Takes a device out of both trees.
    fn forget(&mut self, from: Committed<'_>, trees: &mut Trees, device: u64) -> Result<(), EditError> {
        let State { roots, details, metadata, .. } = self;
        let mut edit = Edit { nodes: roots, space: metadata, owner: &mut Roots, from };
        trees.mapping = edit.remove_leaf(trees.mapping, device..device + 1)?.0;
        let mut edit = Edit { nodes: details, space: metadata, owner: &mut Plain, from };
        trees.details = edit.remove_leaf(trees.details, device..device + 1)?.0;
        Ok(())
    }

    fn reserve_snap(&mut self, from: Committed<'_>) -> Result<(), EditError> {
        if self.superblock.held_root != 0 {
            return Err(EditError::Held);
        }
        let nr = self.metadata.take(from)?;
        let none = SpaceMapRoot::default();
        let held = Superblock { data_space_map: none, metadata_space_map: none, ..self.superblock };
        self.held.put(nr, held);
        self.metadata.raise(from, held.mapping_root)?;
        self.metadata.raise(from, held.details_root)?;
        self.superblock.held_root = nr;
        Ok(())
    }

    /// A step of releasing the metadata snapshot; whether it is gone.
    fn release_snap(&mut self, from: Committed<'_>) -> Result<bool, EditError> {
        let nr = self.superblock.held_root;
        if nr == 0 {
            return Err(EditError::NotHeld);
        }
        let mut held = match self.held.get(nr) {
            Some(held) => *held,
            None => from.superblock(nr)?,
        };
        let mut trees = Trees { mapping: held.mapping_root, details: held.details_root };
        let shared = self.metadata.count(from, trees.mapping)? > 1;
        let first = tree::leaf(&mut self.roots, from, trees.mapping, 0)?.1.keys.first().copied();
        if let (false, Some(device)) = (shared, first) {
            self.delete(from, &mut trees, device)?;
            (held.mapping_root, held.details_root) = (trees.mapping, trees.details);
            self.superblock.held_root = self.metadata.take(from)?;
            self.held.put(self.superblock.held_root, held);
            self.drop_held(from, nr)?;
            return Ok(false);
        }
        let State { roots, details, metadata, .. } = self;
        Edit { nodes: roots, space: metadata, owner: &mut Roots, from }.drop_node(trees.mapping)?;
        let mut edit = Edit { nodes: details, space: metadata, owner: &mut Plain, from };
        edit.drop_tree(trees.details)?;
        self.superblock.held_root = 0;
        self.drop_held(from, nr)?;
        Ok(true)
    }

    fn drop_held(&mut self, from: Committed<'_>, nr: u64) -> Result<(), EditError> {
        if self.metadata.lower(from, nr)? == 0 && self.held.is_changed(nr) {
            self.held.remove(nr);
        }
        Ok(())
    }
}

impl<S: Space> Edit<'_, DeviceDetails, S, Plain> {
    /// One reference to a tree less, and to all below it that nobody else has.
    fn drop_tree(&mut self, root: u64) -> Result<(), EditError> {
        let mut left = vec![Place::root(root)];
        while let Some(place) = left.pop() {
            if let Node::Internal(children) = tree::read(self.nodes, self.from, place)? {
                let children = children.clone();
                if self.space.count(self.from, place.nr)? == 1 {
                    left.extend((0..children.keys.len()).map(|at| place.child(&children, at)));
                }
            }
            self.drop_node(place.nr)?;
        }
        Ok(())
    }
}

impl Editor {
    /// Makes a device that maps nothing.
    ///
    /// # Errors
    ///
    /// There is one with that number, or none can have it; [`EditError::NoMetadata`]; [`EditError::Missing`]; damage.
    pub fn create_device(&mut self, blocks: &dyn Blocks, device: u64) -> Result<(), EditError> {
        self.operation(blocks, Uses::Space, |state, from| state.create(from, device))
    }

    /// Makes a device that maps what `origin` does. As much work whatever its size. From now on every mapping that `origin` has may be
    /// shared.
    ///
    /// # Errors
    ///
    /// As for [`Editor::create_device`]; no such origin; 2^24 snapshots were made in this pool.
    pub fn create_snapshot(
        &mut self,
        blocks: &dyn Blocks,
        device: u64,
        origin: u64,
    ) -> Result<(), EditError> {
        self.operation(blocks, Uses::Space, |state, from| state.snapshot(from, device, origin))
    }

    /// Deletes a device, as far as a call goes. False: ask again; the device has lost some of its mappings.
    ///
    /// # Errors
    ///
    /// No such device; [`EditError::NoMetadata`]; [`EditError::Missing`]; damage.
    pub fn delete_device(&mut self, blocks: &dyn Blocks, device: u64) -> Result<bool, EditError> {
        self.by_leaves(blocks, |state, from| {
            let Superblock { mapping_root: mapping, details_root: details, .. } = state.superblock;
            let mut trees = Trees { mapping, details };
            let gone = state.delete(from, &mut trees, device)?;
            state.superblock.mapping_root = trees.mapping;
            state.superblock.details_root = trees.details;
            Ok(gone)
        })
    }

    /// What is known of a device.
    ///
    /// # Errors
    ///
    /// No such device; [`EditError::Missing`]; damage.
    pub fn details(&mut self, blocks: &dyn Blocks, device: u64) -> Result<DeviceDetails, EditError> {
        self.look(blocks, |state, from| state.details(from, device))
    }

    /// All devices, by their numbers, and what is known of them.
    ///
    /// # Errors
    ///
    /// [`EditError::Missing`]; damage.
    pub fn devices(&mut self, blocks: &dyn Blocks) -> Result<Vec<(u64, DeviceDetails)>, EditError> {
        self.look(blocks, |state, from| tree::all(&mut state.details, from, state.superblock.details_root))
    }

    /// Keeps the metadata as it is now for others to read, in the block that [`Superblock::held_root`] of the next commit names.
    ///
    /// # Errors
    ///
    /// There is one already; [`EditError::NoMetadata`]; [`EditError::Missing`]; damage.
    pub fn reserve_metadata_snap(&mut self, blocks: &dyn Blocks) -> Result<(), EditError> {
        self.operation(blocks, Uses::Space, State::reserve_snap)
    }

    /// Gives the metadata snapshot up, as far as a call goes. False: ask again.
    ///
    /// # Errors
    ///
    /// There is none; [`EditError::NoMetadata`]; [`EditError::Missing`]; damage.
    pub fn release_metadata_snap(&mut self, blocks: &dyn Blocks) -> Result<bool, EditError> {
        self.by_leaves(blocks, State::release_snap)
    }
}
