//! Exports in the control API: ways to a volume that come and go while it is served. Documented in `docs/control-api.md`.
//!
//! Who serves implements [`Exports`].

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::arrays::{Refusal, RefusalKind};

/// The body of `POST /v1/exports`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "verb", rename_all = "kebab-case")]
pub enum ExportRequest {
    /// One more way to a volume: as the disk of a guest.
    Add {
        /// Its name.
        volume: String,
        /// Of which.
        #[serde(flatten)]
        to: GuestDisk,
        /// Queues that a virtual machine may have on it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        queues: Option<u16>,
        /// What becomes of its memory; as the server was started where it is not said.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        guest_memory: Option<GuestMemory>,
    },
    /// Takes one away.
    Remove {
        /// As the server tells it: `vhost-user:PATH`, `xen:DOMID/VDEV`.
        address: String,
        /// Even if a guest is connected: what it has asked for and not been answered stays in its rings, for whoever serves it next.
        #[serde(default)]
        force: bool,
    },
}

/// What becomes of the memory of a virtual machine, as of `serve --guest-memory`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum GuestMemory {
    /// Nothing.
    AsIs,
    /// It is gathered in huge pages.
    Huge,
    /// It is locked.
    Pinned,
}

/// How a guest has a volume as its disk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", try_from = "Places")]
pub enum GuestDisk {
    /// At a socket: an absolute path.
    VhostUser(PathBuf),
    /// As a domain of Xen's: `DOMID/VDEV`.
    Xen(String),
}

/// What can be said of where.
#[derive(Deserialize)]
struct Places {
    vhost_user: Option<PathBuf>,
    xen: Option<String>,
}

impl TryFrom<Places> for GuestDisk {
    type Error = &'static str;

    fn try_from(places: Places) -> Result<GuestDisk, &'static str> {
        match (places.vhost_user, places.xen) {
            (Some(path), None) => Ok(GuestDisk::VhostUser(path)),
            (None, Some(disk)) => Ok(GuestDisk::Xen(disk)),
            (None, None) => Err("vhost_user or xen is missing"),
            (Some(_), Some(_)) => Err("a disk is at vhost_user or of xen: not both"),
        }
    }
}

/// The answer to `POST /v1/exports`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExportAnswer {
    /// What was done, in a sentence.
    pub said: String,
    /// The volume.
    pub volume: String,
    /// Where it is found now.
    pub exports: Vec<String>,
}

/// The exports of a server.
pub trait Exports: Send + Sync {
    /// Does what is asked.
    ///
    /// # Errors
    ///
    /// It is not done: why.
    fn change(&self, request: &ExportRequest) -> Result<ExportAnswer, Refusal>;
}

/// Of a server that has none to be changed.
pub(crate) struct FixedExports;

impl Exports for FixedExports {
    fn change(&self, _: &ExportRequest) -> Result<ExportAnswer, Refusal> {
        Err(Refusal::new(RefusalKind::Conflict, "the exports of this server cannot be changed"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_asked_reads_as_it_is_documented() {
        let read = |text: &str| serde_json::from_str::<ExportRequest>(text).unwrap();
        let add = |to, queues| {
            let guest_memory = None;
            ExportRequest::Add { volume: "vg/a".into(), to, queues, guest_memory }
        };
        let by_socket = r#"{"verb": "add", "volume": "vg/a", "vhost_user": "/run/a", "queues": 2}"#;
        assert_eq!(read(by_socket), add(GuestDisk::VhostUser("/run/a".into()), Some(2)));
        let (to, guest_memory) = (GuestDisk::VhostUser("/run/a".into()), Some(GuestMemory::Pinned));
        let pinned = r#"{"verb": "add", "volume": "vg/a", "vhost_user": "/run/a", "guest_memory": "pinned"}"#;
        let expected = ExportRequest::Add { volume: "vg/a".into(), to, queues: None, guest_memory };
        assert_eq!(read(pinned), expected);
        let of_xen = r#"{"verb": "add", "volume": "vg/a", "xen": "3/xvda"}"#;
        assert_eq!(read(of_xen), add(GuestDisk::Xen("3/xvda".into()), None));
        let remove = r#"{"verb": "remove", "address": "vhost-user:/run/a"}"#;
        let expected = ExportRequest::Remove { address: "vhost-user:/run/a".into(), force: false };
        assert_eq!(read(remove), expected);
        let nowhere = serde_json::from_str::<ExportRequest>(r#"{"verb": "add", "volume": "vg/a"}"#);
        assert!(nowhere.unwrap_err().to_string().contains("vhost_user or xen is missing"));
        let both = r#"{"verb": "add", "volume": "vg/a", "xen": "3/xvda", "vhost_user": "/run/a"}"#;
        let both = serde_json::from_str::<ExportRequest>(both);
        assert!(both.unwrap_err().to_string().contains("not both"));
        // What is sent is what is read.
        for request in [by_socket, of_xen].map(read) {
            assert_eq!(read(&serde_json::to_string(&request).unwrap()), request);
        }
    }
}
