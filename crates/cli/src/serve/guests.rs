//! A guest that has a volume as its disk, by whichever way.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use anyhow::{Result, bail};
use blockwork_daemon::GuestMemory;
use blockwork_engine::{Fixed, Volume};
use blockwork_export::vhost::{GuestPages, VhostServer};
use blockwork_export::xen::XenServer;
use blockwork_format::escape;

/// What becomes of the pages of a guest's memory that has this volume. Nothing is pinned where no request goes by that.
///
/// # Errors
/// Why not.
pub(super) fn pages_of(asked: GuestMemory, volume: &Volume) -> Result<GuestPages> {
    Ok(match asked {
        GuestMemory::AsIs => GuestPages::AsIs,
        GuestMemory::Huge => GuestPages::Huge,
        GuestMemory::Pinned if volume.limits().fixed == Fixed::Off => bail!(
            "{}: a guest's memory would be pinned in vain, as requests do not go by registered buffers there (`fixed` of its disks is off, or they are \
             no files): start the server with --set fixed=auto, or pin nothing",
            escape(&volume.name)
        ),
        GuestMemory::Pinned => GuestPages::Pinned,
    })
}

/// Likewise, of one that is there from the beginning: if not, that is told, and it is as it is.
pub(super) fn pages_at_start(asked: GuestMemory, volume: &Volume) -> GuestPages {
    pages_of(asked, volume).unwrap_or_else(|error| {
        log::warn!("{error}");
        GuestPages::AsIs
    })
}

/// See the module's head.
pub(super) enum Guest {
    /// By a socket.
    Vhost(VhostServer),
    /// As a domain of Xen's.
    Xen(XenServer),
}

impl From<VhostServer> for Guest {
    fn from(server: VhostServer) -> Guest {
        Guest::Vhost(server)
    }
}

impl From<XenServer> for Guest {
    fn from(server: XenServer) -> Guest {
        Guest::Xen(server)
    }
}

impl Guest {
    /// Where it has the disk.
    pub(super) fn address(&self) -> &str {
        match self {
            Guest::Vhost(server) => server.address(),
            Guest::Xen(server) => server.address(),
        }
    }

    /// Where it is counted how much of its memory is locked, if that is pinned.
    pub(super) fn locked(&self) -> Option<Arc<AtomicU64>> {
        match self {
            Guest::Vhost(server) => server.locked(),
            Guest::Xen(_) => None,
        }
    }

    /// Whether it is gone, and nobody will come in its place.
    pub(super) fn has_ended(&self) -> bool {
        match self {
            Guest::Vhost(_) => false,
            Guest::Xen(server) => server.has_ended(),
        }
    }

    /// Whether it uses the disk. A domain of Xen's has it as long as it is there.
    pub(super) fn is_connected(&self) -> bool {
        match self {
            Guest::Vhost(server) => server.is_connected(),
            Guest::Xen(_) => true,
        }
    }

    /// Whether its disk comes and goes as it does itself.
    pub(super) fn comes_and_goes(&self) -> bool {
        match self {
            Guest::Vhost(server) => server.comes_and_goes(),
            Guest::Xen(_) => false,
        }
    }

    /// The volume has changed, such as its size: the guest is told of that.
    pub(super) fn set_volume(&self, volume: &Volume) {
        match self {
            Guest::Vhost(server) => server.set_volume(volume),
            Guest::Xen(server) => server.set_volume(volume),
        }
    }

    /// It is about to end, and the workers before it does.
    pub(super) fn ask_to_end(&self) {
        match self {
            // A front end whose queues are not served any more has them served by the next server.
            Guest::Vhost(_) => {}
            Guest::Xen(server) => server.ask_to_end(),
        }
    }

    /// What was taken is answered, the rest stays in the guest's rings.
    pub(super) fn stop(self) {
        match self {
            Guest::Vhost(server) => server.stop(),
            Guest::Xen(server) => server.stop(),
        }
    }
}
