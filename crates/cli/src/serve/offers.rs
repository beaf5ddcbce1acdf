//! By what clients reach the volumes of a server, where these come, change and go.
//!
//! An NBD server offers what comes later as well. A folder of files (FUSE) and a guest's disk (vhost-user, Xen) stay with what they were
//! started with; a guest is told of a new size.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anyhow::{Result, anyhow, bail};
use blockwork_daemon::Volumes;
use blockwork_engine::{Volume, VolumeId};
use blockwork_export::nbd::{Export, Exports};
use blockwork_format::escape;

use super::guests::Guest;

/// See the module's head.
#[derive(Clone, Default)]
pub(crate) struct Offers {
    nbd: Option<Exports>,
    /// Where the NBD server is.
    nbd_addresses: Vec<String>,
    mounts: Arc<Mutex<Vec<Mounted>>>,
    guests: Arc<Mutex<Vec<(VolumeId, Guest)>>>,
    /// What the control API tells of them.
    told: Volumes,
    /// Whatever comes is read-only.
    read_only: bool,
}

/// Where files of volumes are, and of which.
#[derive(Debug)]
struct Mounted {
    address: String,
    volumes: HashSet<VolumeId>,
}

/// Somebody has a volume open.
#[derive(Debug)]
pub(crate) struct InUse {
    /// Which.
    pub(crate) volume: String,
    /// Who, in words.
    pub(crate) by: String,
    /// What ends that, in words.
    pub(crate) until: &'static str,
}

impl Offers {
    pub(super) fn new(read_only: bool) -> Offers {
        Offers { read_only, ..Offers::default() }
    }

    /// What the control API tells of volumes is changed with them.
    pub(super) fn tell(&mut self, told: Volumes) {
        self.told = told;
    }

    pub(super) fn by_nbd(&mut self, exports: Exports, addresses: &[String]) {
        self.nbd = Some(exports);
        self.nbd_addresses = addresses.to_vec();
    }

    pub(super) fn by_files(&self, address: String, volumes: impl Iterator<Item = VolumeId>) {
        self.mounts().push(Mounted { address, volumes: volumes.collect() });
    }

    /// A mount is gone, and not by the server's own doing. Whether clients still reach volumes by anything.
    pub(super) fn has_lost(&self, address: &str) -> bool {
        self.told.forget_export(address);
        let mut mounts = self.mounts();
        mounts.retain(|mount| mount.address != address);
        self.nbd.is_some() || !mounts.is_empty() || !self.guests().is_empty()
    }

    fn mounts(&self) -> MutexGuard<'_, Vec<Mounted>> {
        self.mounts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Where a volume is a file.
    fn files_of(&self, id: VolumeId) -> Vec<String> {
        let mounts = self.mounts();
        mounts.iter().filter(|mount| mount.volumes.contains(&id)).map(|mount| mount.address.clone()).collect()
    }

    pub(super) fn by_guest(&mut self, volume: VolumeId, guest: impl Into<Guest>) {
        self.guests().push((volume, guest.into()));
    }

    fn guests(&self) -> MutexGuard<'_, Vec<(VolumeId, Guest)>> {
        self.guests.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Where clients find a volume.
    pub(super) fn of(&self, id: VolumeId) -> Vec<String> {
        let mut all = [&self.nbd_addresses[..], &self.files_of(id)].concat();
        let guests = self.guests();
        all.extend(guests.iter().filter(|(of, _)| *of == id).map(|(_, guest)| guest.address().to_owned()));
        all
    }

    /// A volume has come.
    ///
    /// # Errors
    ///
    /// It cannot be offered under its name.
    pub(crate) fn add(&self, id: VolumeId, volume: &Volume) -> Result<Vec<String>> {
        if let Some(exports) = &self.nbd {
            exports.add(Export::new(id, volume, self.read_only))?;
        }
        self.told.add(volume, self.of(id));
        Ok(self.of(id))
    }

    /// A volume has another size, or another name than `name`.
    ///
    /// # Errors
    ///
    /// It cannot be offered under its name.
    pub(crate) fn change(&self, name: &str, id: VolumeId, volume: &Volume) -> Result<()> {
        self.told.replace(name, volume);
        for (_, guest) in self.guests().iter().filter(|(of, _)| *of == id) {
            guest.set_volume(volume);
        }
        match &self.nbd {
            Some(exports) => Ok(exports.replace(name, Export::new(id, volume, self.read_only))?),
            None => Ok(()),
        }
    }

    /// Who has a volume whether clients come or not, and until when.
    fn lasting_user(&self, id: VolumeId) -> Option<(String, &'static str)> {
        let files = self.files_of(id);
        if !files.is_empty() {
            let until = "that is unmounted, or the server started anew";
            return Some((format!("it is a file of {}", files.join(", ")), until));
        }
        let guests = self.guests();
        let (_, guest) = guests.iter().find(|(of, _)| *of == id)?;
        Some((format!("it is the disk at {}", guest.address()), "the server is started anew"))
    }

    /// Lets no client that comes open volumes of these names, or lets them again.
    pub(crate) fn withhold(&self, names: &[String], withheld: bool) {
        self.nbd.iter().for_each(|exports| exports.withhold(names, withheld));
    }

    /// Withholds volumes that nobody has open: all of them, or none.
    ///
    /// # Errors
    ///
    /// Somebody has one of them open.
    pub(crate) fn withhold_unused(&self, volumes: &[(VolumeId, Volume)]) -> Result<(), InUse> {
        for (id, volume) in volumes {
            if let Some((by, until)) = self.lasting_user(*id) {
                return Err(InUse { volume: volume.name.clone(), by, until });
            }
        }
        let names: Vec<String> = volumes.iter().map(|(_, volume)| volume.name.clone()).collect();
        let withheld = self.nbd.as_ref().map_or(Ok(()), |exports| exports.withhold_unused(&names));
        let until = "the last client has gone";
        withheld.map_err(|(volume, error)| InUse { volume, by: error.to_string(), until })
    }

    /// Has `hook` called whenever a client may have closed a volume.
    pub(super) fn when_closed(&self, hook: impl Fn() + Send + Sync + 'static) {
        if let Some(exports) = &self.nbd {
            exports.when_closed(hook);
        }
    }

    /// A volume goes: nobody can open it any more.
    ///
    /// # Errors
    ///
    /// A client has it open.
    pub(crate) fn remove(&self, id: VolumeId, name: &str) -> Result<()> {
        let shown = escape(name);
        if let Some((by, until)) = self.lasting_user(id) {
            bail!("{shown} is in use: {by}; it can be removed when {until}");
        }
        if let Some(exports) = &self.nbd {
            let addresses = self.nbd_addresses.join(", ");
            exports.remove(name).map_err(|error| anyhow!("{shown} is in use: {error} ({addresses})"))?;
        }
        self.told.remove(name);
        Ok(())
    }

    /// What people should know of a volume that has come.
    pub(crate) fn note(&self) -> Option<String> {
        let mounts = self.mounts();
        let Mounted { address, .. } = mounts.first()?;
        Some(format!("it becomes a file of {address} when the server is started anew"))
    }

    /// What guests have is about to end, before the workers do.
    pub(super) fn ask_guests_to_end(&self) {
        self.guests().iter().for_each(|(_, guest)| guest.ask_to_end());
    }

    /// Ends what guests have. Mounts and the NBD server have their own ends.
    pub(super) fn stop_guests(&self) {
        self.guests().drain(..).for_each(|(_, guest)| guest.stop());
    }
}
