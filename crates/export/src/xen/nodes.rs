//! A device's nodes in xenstore, both ends': where they are, and how they come to be there.
//!
//! Tools such as `xl` make them from a domain's configuration; here we do, since `xl` knows no back end like this one. The back
//! end's are of a kind of their own (`backend/blockwork`), so that dom0's kernel, whose driver takes what is in `backend/vbd`,
//! leaves them alone.

use blockwork_format::blkif::{VirtualDevice, XenbusState};

use super::store::Store;
use crate::blkif::{StoreError, Xenstore};

/// Kind of back end.
const KIND: &str = "blockwork";

/// Why a device cannot be served.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NodesError {
    /// No such domain.
    #[error("there is no domain {0}; `xl list` shows those that there are")]
    NoDomain(u16),
    /// Somebody else serves it.
    #[error(
        "{device} of domain {domain} has another back end, {back}; detach it first (`xl block-detach {domain} {device}`), or name \
         another disk"
    )]
    Taken {
        /// The guest.
        domain: u16,
        /// Its disk.
        device: VirtualDevice,
        /// The back end's folder, escaped.
        back: String,
    },
    /// The store.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// A device, and where its nodes are.
#[derive(Clone, Debug)]
pub(super) struct Nodes {
    domain: u16,
    device: VirtualDevice,
    /// The domain that we are in.
    own: u32,
    /// The front end's folder.
    pub(super) front: String,
    /// The back end's.
    pub(super) back: String,
}

impl Nodes {
    /// Where they are, of a domain that there is.
    pub(super) fn find(store: &Store, domain: u16, device: VirtualDevice) -> Result<Nodes, NodesError> {
        let own = store.read("domid")?.and_then(|own| own.trim().parse().ok()).unwrap_or(0);
        let home = format!("/local/domain/{domain}");
        if store.read(&home)?.is_none() {
            return Err(NodesError::NoDomain(domain));
        }
        let number = device.number;
        let back = format!("/local/domain/{own}/backend/{KIND}/{domain}/{number}");
        Ok(Nodes { domain, device, own, front: format!("{home}/device/vbd/{number}"), back })
    }

    /// Whether the front end uses rings that a back end like us has served, which must be gone; its nodes are then left as they are.
    /// It uses them until it is closed, see [`BackDevice`](crate::blkif::BackDevice).
    pub(super) fn is_connected(&self, store: &Store) -> Result<bool, NodesError> {
        match store.read(&format!("{}/backend", self.front))? {
            None => return Ok(false),
            Some(back) if back == self.back => {}
            Some(back) => {
                let (domain, device) = (self.domain, self.device);
                let back = blockwork_format::escape(&back).to_string();
                return Err(NodesError::Taken { domain, device, back });
            }
        }
        let uses = |state| matches!(state, XenbusState::Connected | XenbusState::Closing);
        Ok(uses(state(store, &self.front)?) && uses(state(store, &self.back)?))
    }

    /// Makes them, unless a front end has begun with those that are there.
    pub(super) fn make(&self, store: &mut Store, read_only: bool) -> Result<(), StoreError> {
        if self.is_there(store)? && self.has_begun(store)? {
            return Ok(());
        }
        store.remove(&self.front)?;
        store.remove(&self.back)?;
        let Nodes { domain, device, own, front, back } = self;
        let domain = u32::from(*domain);
        let initialising = XenbusState::Initialising.text();
        for (folder, owner, reader) in [(back, *own, domain), (front, domain, *own)] {
            store.write(folder, "")?;
            store.give(folder, owner, reader)?;
        }
        let number = device.number.to_string();
        for (key, value) in [
            ("frontend", front.as_str()),
            ("frontend-id", &domain.to_string()),
            ("online", "1"),
            ("dev", &device.to_string()),
            ("mode", if read_only { "r" } else { "w" }),
            ("device-type", "disk"),
            ("state", &initialising),
        ] {
            store.write(&format!("{back}/{key}"), value)?;
        }
        // The guest's kernel takes note of a device when it has a state, so that comes last.
        for (key, value) in [
            ("backend", back.as_str()),
            ("backend-id", &own.to_string()),
            ("virtual-device", &number),
            ("device-type", "disk"),
            ("state", &initialising),
        ] {
            store.write(&format!("{front}/{key}"), value)?;
        }
        Ok(())
    }

    /// Whether the front end's are there: tools remove them with their domain, or to take the disk away.
    pub(super) fn is_there(&self, store: &Store) -> Result<bool, StoreError> {
        Ok(store.read(&format!("{}/backend", self.front))?.is_some())
    }

    /// Removes ours.
    pub(super) fn remove(&self, store: &mut Store) -> Result<(), StoreError> {
        store.remove(&self.back)
    }

    /// What tells this domain from another that had or will have its number.
    pub(super) fn whose(&self, store: &Store) -> Result<String, StoreError> {
        Ok(store.read(&format!("/local/domain/{}/vm", self.domain))?.unwrap_or_default())
    }

    fn has_begun(&self, store: &Store) -> Result<bool, StoreError> {
        Ok(match state(store, &self.front)? {
            XenbusState::Initialising | XenbusState::Initialised => true,
            // It waits for whoever was about to serve it.
            XenbusState::Connected => {
                matches!(state(store, &self.back)?, XenbusState::Initialising | XenbusState::InitWait)
            }
            _ => false,
        })
    }
}

/// The state of one end.
fn state(store: &Store, folder: &str) -> Result<XenbusState, StoreError> {
    let state = store.read(&format!("{folder}/state"))?;
    Ok(state.map_or(XenbusState::Unknown, |state| XenbusState::from_text(&state)))
}
