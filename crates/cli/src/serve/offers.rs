//! By what clients reach the volumes of a server, where these come, change and go.
//!
//! An NBD server and a folder of files (FUSE) offer what comes later as well. A file alone and a guest's disk (vhost-user, Xen) stay with the
//! volume that they were started with; a guest is told of a new size, and guests' disks come and go themselves.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anyhow::{Result, anyhow, bail};
use blockwork_daemon::Volumes;
use blockwork_engine::{Volume, VolumeId};
use blockwork_export::fuse::{Files, Served};
use blockwork_export::nbd::{self, Export, Exports};
use blockwork_export::offered::OfferedError;
use blockwork_format::escape;

use super::guests::Guest;

/// See the module's head.
#[derive(Clone, Default)]
pub(crate) struct Offers {
    nbd: Option<Exports>,
    /// Where the NBD server is.
    nbd_addresses: Vec<String>,
    mounts: Arc<Mutex<Vec<Mounted>>>,
    /// What is found in these.
    files: Option<Files>,
    guests: Arc<Mutex<Guests>>,
    /// What the control API tells of them.
    told: Volumes,
    /// Whatever comes is read-only.
    read_only: bool,
}

/// Guests' disks. Held while one is made, and not while one ends, which may wait for what others do: for a disk to answer, or for space in a
/// pool. Before mounts, where both are.
#[derive(Default)]
struct Guests {
    all: Vec<(VolumeId, Guest)>,
    /// Volumes that are in use until what their guests have under way is answered, and where these had them.
    ending: Vec<(VolumeId, String)>,
    /// Volumes that no guest gets now, by their names: they are about to go, or to be something else.
    withheld: HashSet<String>,
}

impl Guests {
    fn of(&self, id: VolumeId) -> impl Iterator<Item = &Guest> {
        self.all.iter().filter(move |(of, _)| *of == id).map(|(_, guest)| guest)
    }

    /// Where a volume was the disk of a guest, which still has something under way.
    fn ending_of(&self, id: VolumeId) -> Option<&str> {
        self.ending.iter().find(|(of, _)| *of == id).map(|(_, address)| address.as_str())
    }

    fn come<G: Into<Guest>, E>(
        &mut self,
        (id, volume): (VolumeId, &Volume),
        told: &Volumes,
        start: impl FnOnce() -> Result<G, E>,
    ) -> Result<String, E> {
        let guest = start()?.into();
        let address = guest.address().to_owned();
        told.add_export(&volume.name, &address);
        if let Some(locked) = guest.locked() {
            told.add_pinned(&volume.name, &address, locked);
        }
        self.all.push((id, guest));
        Ok(address)
    }

    fn withhold(&mut self, names: &[String]) {
        self.withheld.extend(names.iter().cloned());
    }

    fn give(&mut self, names: &[String]) {
        self.withheld.retain(|name| !names.contains(name));
    }

    /// A volume is called otherwise now; whether it is withheld stays.
    fn rename(&mut self, old: &str, new: &str) {
        if old != new && self.withheld.remove(old) {
            self.withheld.insert(new.to_owned());
        }
    }
}

/// Where files are: of all volumes, or of the first alone.
#[derive(Debug)]
struct Mounted {
    address: String,
    is_folder: bool,
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

    /// Tells it of these volumes, which are there from the beginning.
    pub(super) fn tell_all(&self, volumes: &[(VolumeId, Volume)]) {
        for (id, volume) in volumes {
            self.told.add(volume, self.of(*id, &volume.name));
            for guest in self.guests().of(*id) {
                guest
                    .locked()
                    .into_iter()
                    .for_each(|locked| self.told.add_pinned(&volume.name, guest.address(), locked));
            }
        }
    }

    pub(super) fn by_nbd(&mut self, exports: Exports, addresses: &[String]) {
        self.nbd = Some(exports);
        self.nbd_addresses = addresses.to_vec();
    }

    pub(super) fn by_files(&mut self, files: Files) {
        self.files = Some(files);
    }

    pub(super) fn by_mount(&self, address: String, is_folder: bool) {
        self.mounts().push(Mounted { address, is_folder });
    }

    /// A mount is gone, and not by the server's own doing. Whether clients still reach volumes by anything.
    pub(super) fn has_lost(&self, address: &str) -> bool {
        self.told.forget_export(address);
        let is_last = {
            let mut mounts = self.mounts();
            mounts.retain(|mount| mount.address != address);
            mounts.is_empty()
        };
        self.nbd.is_some() || !is_last || !self.guests().all.is_empty()
    }

    fn mounts(&self) -> MutexGuard<'_, Vec<Mounted>> {
        self.mounts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Where a volume is a file, or is one of a folder.
    fn files_of(&self, id: VolumeId) -> Vec<String> {
        let is_first = self.is_first(id);
        let mounts = self.mounts();
        let shows = mounts.iter().filter(|mount| mount.is_folder || is_first);
        shows.map(|mount| mount.address.clone()).collect()
    }

    /// Whether a volume is the one that a file alone is.
    fn is_first(&self, id: VolumeId) -> bool {
        let first =
            self.files.as_ref().and_then(|files| files.look(|all| all.next().map(|seen| seen.one.volume)));
        first == Some(id)
    }

    fn served(&self, id: VolumeId, volume: &Volume) -> Served {
        Served::new(id, volume, self.read_only)
    }

    /// A volume becomes the disk of a guest, by what `start` makes; where it is found.
    pub(super) fn by_guest<G: Into<Guest>, E>(
        &self,
        (id, volume): (VolumeId, &Volume),
        start: impl FnOnce() -> Result<G, E>,
    ) -> Result<String, E> {
        self.guests().come((id, volume), &self.told, start)
    }

    /// The same while volumes come and go: `find` says which it is now. None: there is none.
    ///
    /// # Errors
    ///
    /// It has a guest, or is about to go; or what `start` says.
    pub(super) fn by_new_guest<G: Into<Guest>>(
        &self,
        find: impl FnOnce() -> Option<(VolumeId, Volume)>,
        start: impl FnOnce(VolumeId, &Volume) -> Result<G>,
    ) -> Result<Option<(VolumeId, String)>> {
        let mut guests = self.guests();
        let Some((id, volume)) = find() else { return Ok(None) };
        let name = escape(&volume.name);
        if let Some(guest) = guests.of(id).next() {
            bail!("{name} is the disk at {} already, and a disk has one guest", guest.address());
        }
        if let Some(address) = guests.ending_of(id) {
            bail!("{name} was the disk at {address}, and what its guest has under way is not answered yet");
        }
        if guests.withheld.contains(&volume.name) {
            bail!("{name} is about to go, or to become what a snapshot of it was");
        }
        let address = guests.come((id, &volume), &self.told, || start(id, &volume))?;
        Ok(Some((id, address)))
    }

    /// Where a volume is the disk of a guest.
    pub(crate) fn guest_of(&self, id: VolumeId) -> Option<String> {
        let guests = self.guests();
        guests.of(id).map(Guest::address).chain(guests.ending_of(id)).next().map(str::to_owned)
    }

    /// Lets these volumes become no guest's disk any more, or again.
    pub(crate) fn withhold_from_guests(&self, names: &[String], withheld: bool) {
        let mut guests = self.guests();
        if withheld {
            guests.withhold(names);
        } else {
            guests.give(names);
        }
    }

    /// A guest's disk ends: what was taken is answered, the rest stays in its rings. The volume; none: no guest has a disk there.
    ///
    /// # Errors
    ///
    /// The guest is connected, and that is not to end by `force`; or its disk comes and goes.
    pub(super) fn end_guest(&self, address: &str, force: bool) -> Result<Option<VolumeId>> {
        let mut guests = self.guests();
        let Some(at) = guests.all.iter().position(|(_, guest)| guest.address() == address) else {
            return Ok(None);
        };
        if guests.all[at].1.comes_and_goes() {
            bail!(
                "{address}: it is there for as long as this server, and has its disk while a guest uses that (--migratable): end the guest, or the \
                 server"
            );
        }
        if guests.all[at].1.is_connected() && !force {
            bail!(
                "{address}: a guest has it: shut that down, or have it let go of the disk first (QEMU: device_del, and then chardev-remove); \
                 --force ends it all the same, and what it has asked for since stays in its rings, for whoever serves it next"
            );
        }
        let (id, guest) = guests.all.remove(at);
        guests.ending.push((id, address.to_owned()));
        // Nobody reaches the volume there any more, and another one may be there before this has ended.
        self.told.forget_export(address);
        drop(guests);
        guest.stop();
        // Of a volume there is one.
        self.guests().ending.retain(|(of, _)| *of != id);
        Ok(Some(id))
    }

    fn guests(&self) -> MutexGuard<'_, Guests> {
        self.guests.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a guest has a disk that does not come and go with it.
    pub(super) fn has_lasting_guests(&self) -> bool {
        self.guests().all.iter().any(|(_, guest)| !guest.comes_and_goes())
    }

    /// Guests that have gone for good have no disks any more. Whether there were any.
    pub(super) fn forget_gone_guests(&self) -> bool {
        let mut guests = self.guests();
        let gone: Vec<_> = guests.all.extract_if(.., |(_, guest)| guest.has_ended()).collect();
        gone.iter().for_each(|(_, guest)| self.told.forget_export(guest.address()));
        !gone.is_empty()
    }

    /// Where clients find a volume.
    pub(super) fn of(&self, id: VolumeId, name: &str) -> Vec<String> {
        let mut all: Vec<_> = self.nbd_addresses.iter().map(|address| nbd::uri_of(address, name)).collect();
        all.extend(self.files_of(id));
        all.extend(self.guests().of(id).map(|guest| guest.address().to_owned()));
        all
    }

    /// A volume has come.
    ///
    /// # Errors
    ///
    /// It cannot be offered under its name.
    pub(crate) fn add(&self, id: VolumeId, volume: &Volume) -> Result<Vec<String>> {
        if let Some(files) = &self.files {
            let served = self.served(id, volume);
            if self.mounts().iter().any(|mount| mount.is_folder) {
                served.check_path()?;
            }
            files.add(served)?;
        }
        if let Some(exports) = &self.nbd
            && let Err(error) = exports.add(Export::new(id, volume, self.read_only))
        {
            self.files.iter().for_each(|files| drop(files.remove(&volume.name)));
            return Err(error.into());
        }
        self.guests().give(std::slice::from_ref(&volume.name));
        let exports = self.of(id, &volume.name);
        self.told.add(volume, exports.clone());
        Ok(exports)
    }

    /// A volume has another size, or another name than `name`.
    ///
    /// # Errors
    ///
    /// It cannot be offered under its name.
    pub(crate) fn change(&self, name: &str, id: VolumeId, volume: &Volume) -> Result<()> {
        self.told.replace(name, volume);
        for address in &self.nbd_addresses {
            self.told.replace_export(&nbd::uri_of(address, name), &nbd::uri_of(address, &volume.name));
        }
        let mut guests = self.guests();
        guests.rename(name, &volume.name);
        guests.of(id).for_each(|guest| guest.set_volume(volume));
        drop(guests);
        let filed = self.files.as_ref().map_or(Ok(()), |files| files.replace(name, self.served(id, volume)));
        let exported = self
            .nbd
            .as_ref()
            .map_or(Ok(()), |exports| exports.replace(name, Export::new(id, volume, self.read_only)));
        Ok(filed.and(exported)?)
    }

    /// Who has a volume whether clients come or not, and until when.
    fn lasting_user(&self, guests: &Guests, id: VolumeId) -> Option<(String, &'static str)> {
        let alone = self.mounts().iter().find(|mount| !mount.is_folder).map(|mount| mount.address.clone());
        if let Some(address) = alone.filter(|_| self.is_first(id)) {
            return Some((
                format!("it is the file {address}"),
                "that is unmounted, or the server started anew",
            ));
        }
        if let Some(address) = guests.ending_of(id) {
            let by = format!("it was the disk at {address}, whose guest still has requests under way");
            return Some((by, "these are answered"));
        }
        let until = "that export is removed (`blockwork export remove`), or the server started anew";
        Some((format!("it is the disk at {}", guests.of(id).next()?.address()), until))
    }

    /// Lets no client that comes open volumes of these names, or lets them again.
    pub(crate) fn withhold(&self, names: &[String], withheld: bool) {
        self.nbd.iter().for_each(|exports| exports.withhold(names, withheld));
        self.files.iter().for_each(|files| files.withhold(names, withheld));
        self.withhold_from_guests(names, withheld);
    }

    /// Withholds volumes that nobody has open: all of them, or none.
    ///
    /// # Errors
    ///
    /// Somebody has one of them open.
    pub(crate) fn withhold_unused(&self, volumes: &[(VolumeId, Volume)]) -> Result<(), InUse> {
        let mut guests = self.guests();
        for (id, volume) in volumes {
            if let Some((by, until)) = self.lasting_user(&guests, *id) {
                return Err(InUse { volume: volume.name.clone(), by, until });
            }
        }
        let names: Vec<String> = volumes.iter().map(|(_, volume)| volume.name.clone()).collect();
        let in_use = |(volume, error): (String, OfferedError)| InUse {
            volume,
            by: error.to_string(),
            until: "the last client has gone",
        };
        let exports = self.nbd.as_ref().map_or(Ok(Vec::new()), |exports| exports.withhold_unused(&names));
        let exports = exports.map_err(in_use)?;
        let files = self.files.as_ref().map_or(Ok(Vec::new()), |files| files.withhold_unused(&names));
        files.map_err(|open| {
            self.nbd.iter().for_each(|nbd| nbd.withhold(&exports, false));
            in_use(open)
        })?;
        guests.withhold(&names);
        Ok(())
    }

    /// Has `hook` called whenever a client may have closed a volume.
    pub(super) fn when_closed(&self, hook: impl Fn() + Clone + Send + Sync + 'static) {
        self.files.iter().for_each(|files| files.when_closed(hook.clone()));
        self.nbd.iter().for_each(|exports| exports.when_closed(hook.clone()));
    }

    /// A volume goes: nobody can open it any more.
    ///
    /// # Errors
    ///
    /// A client has it open.
    pub(crate) fn remove(&self, id: VolumeId, name: &str) -> Result<()> {
        let shown = escape(name);
        let mut guests = self.guests();
        if let Some((by, until)) = self.lasting_user(&guests, id) {
            bail!("{shown} is in use: {by}; it can be removed when {until}");
        }
        let names = [name.to_owned()];
        let newly = match &self.files {
            Some(files) => files.withhold_unused(&names).map_err(|(_, error)| {
                anyhow!("{shown} is in use: {error} ({})", self.files_of(id).join(", "))
            })?,
            None => Vec::new(),
        };
        if let Some(exports) = &self.nbd
            && let Err(error) = exports.remove(name)
        {
            self.files.iter().for_each(|files| files.withhold(&newly, false));
            bail!("{shown} is in use: {error} ({})", self.nbd_addresses.join(", "));
        }
        if let Some(files) = &self.files {
            // It is withheld, so nobody has opened it since.
            files.remove(name)?;
        }
        guests.withhold(&names);
        self.told.remove(name);
        Ok(())
    }

    /// A volume that was removed is nobody's any more: there is nothing of that name that a guest could get.
    pub(super) fn is_gone(&self, name: &str) {
        self.guests().withheld.remove(name);
    }

    /// What guests have is about to end, before the workers do.
    pub(super) fn ask_guests_to_end(&self) {
        self.guests().all.iter().for_each(|(_, guest)| guest.ask_to_end());
    }

    /// Ends what guests have. Mounts and the NBD server have their own ends.
    pub(super) fn stop_guests(&self) {
        self.guests().all.drain(..).for_each(|(_, guest)| guest.stop());
    }
}
