//! What people do to an array that is served: add, fail, remove and replace devices, check, repair, set its speed.
//!
//! Each verb takes the array's turn, so it happens before or after whatever else changes the array, never in the middle of it; and
//! what it has done is on record on all members when it returns.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use blockwork_engine::{Layer, SECTOR, Sector, Sectors, TaskContext};
use blockwork_format::md::v1::{Features, Superblock};
use blockwork_format::md::{self, Region, Role, Uuid, bad_blocks};

use super::array::Array;
use super::bad_blocks::BadBlockLog;
use super::devices::{ADDED_MAX, DeviceIndex, Holders};
use super::io;
use super::member::{Member, MemberConfig};
use super::record::{NewSite, Record, RecordError, Site};
use super::sync_status::SyncAction;
use super::verb_error::VerbError;

/// A device that is to become part of an array.
#[derive(Clone, Debug)]
pub struct NewMember {
    /// What people call it.
    pub name: String,
    /// The whole device.
    pub layer: Arc<dyn Layer>,
    /// Its superblock, if it has one of this array: it may be one that comes back. None: what is on it does not count.
    pub superblock: Option<Box<Superblock>>,
    /// What it is called in its superblock, where it gets a new one: drawn at random by the caller.
    pub device_uuid: Uuid,
}

/// What became of a device that was added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Added {
    /// It has its old place again, and lacks only what the bitmap says.
    ReAdded {
        /// That place.
        role: u16,
    },
    /// It takes the place of a missing member, and is filled.
    Recovering {
        /// That place.
        role: u16,
    },
    /// It waits for a place.
    Spare,
}

impl Array {
    /// Adds a device: with its old role, if the bitmap knows what it lacks (as `mdadm --re-add`); otherwise as a spare, which
    /// takes the place of a missing member at once, and has nothing any more by which it could be taken for what it was before. Filling it
    /// goes on after this returns: [`Array::wait_sync`].
    ///
    /// # Errors
    ///
    /// A device that cannot be a member, or belongs to the array already; an array that cannot be changed.
    pub async fn add(&self, new: NewMember, cx: &TaskContext) -> Result<Added, VerbError> {
        let record = self.changeable()?;
        self.check_new(&new)?;
        self.leave_past(record, &new, cx).await?;
        self.choose_with_care();
        cx.quiesce().await;
        let _turn = self.turns.take().await;
        self.settle_with_turn(cx).await.map_err(|errno| self.io("its state cannot be written", errno))?;
        // Whoever had the turn before may have added the same device, or have grown the array.
        self.check_new(&new)?;
        let old_role =
            new.superblock.as_deref().and_then(|own| self.role_to_come_back_to(record, own, &new, cx));
        let index = self.join(record, &new, old_role, cx).await?;
        self.sync.state().halted = false;
        if let Some(role) = old_role {
            let replacement = self.devices.holders(role).replacement();
            self.assign(index, role, Holders::new(Some(index), replacement));
        }
        self.record_change(cx).await.map_err(|errno| self.io("the new device is not on record", errno))?;
        if self.devices.get(index).is_none_or(Member::is_faulty) {
            return Err(
                self.io(&format!("{} refuses its superblock", new.name), blockwork_engine::Errno::EIO)
            );
        }
        if old_role.is_none() {
            self.fill_roles(cx).await;
        }
        self.look_for_sync(cx);
        Ok(match (old_role, self.devices.role_of(index)) {
            (Some(role), _) => Added::ReAdded { role },
            (None, Some(role)) => Added::Recovering { role },
            (None, None) => Added::Spare,
        })
    }

    /// Declares a device faulty: a member, one that is being filled, or a spare. A spare takes its place. Gives its name.
    ///
    /// # Errors
    ///
    /// No such device; a member without which some data would have no copy.
    pub async fn fail(&self, device: &str, cx: &TaskContext) -> Result<String, VerbError> {
        self.writable()?;
        let _turn = self.turns.take().await;
        self.settle_with_turn(cx).await.map_err(|errno| self.io("its state cannot be written", errno))?;
        let index = self.find_device(device)?;
        let member = self.devices.get(index).ok_or_else(|| self.no_device(device))?;
        let name = member.name.clone();
        if self.is_needed(index) {
            let role = self.devices.role_of(index).unwrap_or(0);
            return Err(VerbError::LastCopy { array: self.name.clone(), device: name, role });
        }
        if !member.is_faulty() {
            self.leave_out(member);
            log::warn!(
                "{}: {name} was declared faulty by `md fail`; the array goes on without it",
                self.name
            );
        }
        self.record_change(cx).await.map_err(|errno| self.io("the failure is not on record", errno))?;
        self.sync.state().halted = false;
        self.look_for_sync(cx);
        Ok(name)
    }

    /// Takes a faulty device or a spare out of the array; with `failed` or `detached`, all that are faulty. Gives their names.
    ///
    /// # Errors
    ///
    /// No such device, or one that is in use.
    pub async fn remove(&self, device: &str, cx: &TaskContext) -> Result<Vec<String>, VerbError> {
        let record = self.changeable()?;
        let gone = {
            let _turn = self.turns.take().await;
            self.settle_with_turn(cx).await.map_err(|errno| self.io("its state cannot be written", errno))?;
            self.take_out(device)?
        };
        // Nothing is on its way to them any more when they are free for something else.
        cx.quiesce().await;
        let _turn = self.turns.take().await;
        let mut names = Vec::new();
        for index in gone {
            let Some(member) = self.devices.get(index).filter(|member| !member.is_removed()) else {
                continue;
            };
            member.remove();
            if let Some((site, _)) = member.site {
                record.remove(site);
            }
            names.push(member.name.clone());
        }
        self.record_change(cx).await.map_err(|errno| self.io("the removal is not on record", errno))?;
        Ok(names)
    }

    /// Has a spare (`with`, or the first that is large enough) take the place of a member that still serves: it is filled, then the
    /// member is faulty.
    ///
    /// # Errors
    ///
    /// No such device or spare, a member that is being replaced already.
    pub async fn replace(&self, device: &str, with: Option<&str>, cx: &TaskContext) -> Result<(), VerbError> {
        self.changeable()?;
        self.choose_with_care();
        cx.quiesce().await;
        let _turn = self.turns.take().await;
        self.settle_with_turn(cx).await.map_err(|errno| self.io("its state cannot be written", errno))?;
        let old = self.find_device(device)?;
        let role = self.devices.role_of(old);
        let role = role.filter(|role| self.devices.holders(*role).member() == Some(old));
        let role = role.ok_or_else(|| self.state_error(old, "a member that is in use"))?;
        let holders = self.devices.holders(role);
        if self.devices.get(old).is_none_or(Member::is_faulty) || holders.replacement().is_some() {
            return Err(self.state_error(old, "a member that works and is not being replaced"));
        }
        let needed = self.geometry().sectors_on_member(role);
        let spare = match with {
            Some(name) => self.named_spare(name, needed)?,
            None => {
                self.spare(needed).ok_or_else(|| VerbError::NoSpare { array: self.name.clone(), needed })?
            }
        };
        self.assign(spare, role, Holders::new(Some(old), Some(spare)));
        self.record_change(cx).await.map_err(|errno| self.io("the replacement is not on record", errno))?;
        self.sync.state().halted = false;
        self.look_for_sync(cx);
        Ok(())
    }

    /// Begins a check or repair; with [`SyncAction::Idle`], stops what runs, after a checkpoint: nothing begins by itself then
    /// until the array changes. With the other two, what is due and was stopped goes on.
    ///
    /// # Errors
    ///
    /// Something else runs; nothing is due.
    pub async fn start_sync(&self, action: SyncAction, cx: &TaskContext) -> Result<(), VerbError> {
        self.writable()?;
        match action {
            SyncAction::Idle => {
                self.sync.state().requested = None;
                self.sync.stop.store(true, Ordering::Release);
                drop(self.sync.running.take().await);
                return Ok(());
            }
            SyncAction::Check | SyncAction::Repair => {
                let mut state = self.sync.state();
                if state.status.action != SyncAction::Idle {
                    return Err(VerbError::Busy { array: self.name.clone(), action: state.status.action });
                }
                state.requested = Some((action, 0));
            }
            SyncAction::Resync | SyncAction::Recover => {
                let due = match action {
                    SyncAction::Resync => self.may_differ_anywhere() || self.resync_from().is_some(),
                    _ => self
                        .devices
                        .all()
                        .any(|(_, member)| !member.is_faulty() && member.recovered().is_some()),
                };
                if !due {
                    return Err(VerbError::NothingDue { array: self.name.clone(), action });
                }
                self.sync.state().halted = false;
            }
        }
        self.look_for_sync(cx);
        Ok(())
    }

    /// Goes on with a recovery or resync that was stopped ([`SyncAction::Idle`]), or that stopped by itself; tells with which.
    ///
    /// # Errors
    ///
    /// Nothing is due.
    pub async fn resume_sync(&self, cx: &TaskContext) -> Result<SyncAction, VerbError> {
        match self.start_sync(SyncAction::Recover, cx).await {
            Err(VerbError::NothingDue { .. }) => {
                self.start_sync(SyncAction::Resync, cx).await.map(|()| SyncAction::Resync)
            }
            recover => recover.map(|()| SyncAction::Recover),
        }
    }

    /// Sets how fast resync, recovery, check and repair go, KiB per second and member: at least, also while clients are at work,
    /// and at most.
    pub fn set_speed(&self, min_kib: u64, max_kib: u64) {
        self.sync.speed_min.store(min_kib, Ordering::Relaxed);
        self.sync.speed_max.store(max_kib.max(min_kib), Ordering::Relaxed);
    }

    /// How fast they go: at least, and at most.
    pub fn speed(&self) -> (u64, u64) {
        (self.sync.speed_min.load(Ordering::Relaxed), self.sync.speed_max.load(Ordering::Relaxed))
    }

    pub(super) fn io(&self, what: &str, errno: blockwork_engine::Errno) -> VerbError {
        VerbError::Io { array: self.name.clone(), what: what.to_owned(), errno }
    }

    /// A device that is to come, and cannot be written to.
    fn not_taken_in(&self, site: &Site, what: &str, errno: blockwork_engine::Errno) -> VerbError {
        let name = &site.name;
        self.io(&format!("{name} is not taken in, and can be added when it is well again: {what}"), errno)
    }

    /// The record, where something may be written at all.
    pub(super) fn writable(&self) -> Result<&dyn Record, VerbError> {
        if !self.geometry().is_redundant() {
            return Err(VerbError::NotRedundant { array: self.name.clone() });
        }
        let record = self.record.as_deref().filter(|_| !self.form().shape.limits.read_only);
        record.ok_or_else(|| VerbError::ReadOnly { array: self.name.clone() })
    }

    /// The record, where devices come and go by us.
    pub(super) fn changeable(&self) -> Result<&dyn Record, VerbError> {
        let record = self.writable()?;
        if record.is_fixed() {
            return Err(VerbError::Lvm { array: self.name.clone() });
        }
        Ok(record)
    }

    /// Whether a device can be a member.
    fn check_new(&self, new: &NewMember) -> Result<(), VerbError> {
        let (array, device) = (self.name.clone(), new.name.clone());
        if self.devices.all().any(|(_, member)| member.layer().node() == new.layer.node()) {
            return Err(VerbError::Known { array, device });
        }
        // Before anything is wiped from it.
        if !self.devices.have_room() {
            return Err(self.is_full());
        }
        let limits = new.layer.limits();
        if limits.read_only {
            return Err(VerbError::State { array, device, found: "read-only".into(), expected: "writable" });
        }
        let (found, expected) = (limits.logical_block_size, self.form().shape.limits.logical_block_size);
        if found > expected {
            return Err(VerbError::Blocks { array, device, found, expected });
        }
        let before = self.taking_part().map(|(_, member)| member.data_start).max();
        let needed = self.data_needed() + Sectors(before.unwrap_or_default().0);
        if new.layer.sectors() < needed {
            return Err(VerbError::Small { array, device, found: new.layer.sectors(), needed });
        }
        Ok(())
    }

    /// The role that a device had and can have again, with only the bitmap's chunks to copy: it was a member when bits were last
    /// cleared, nobody has its place, and it has no writes that the others have not.
    pub(super) fn role_to_come_back_to(
        &self,
        record: &dyn Record,
        own: &Superblock,
        new: &NewMember,
        cx: &TaskContext,
    ) -> Option<u16> {
        let intent = self.intent()?;
        let Role::Active(role) = own.role() else { return None };
        let partial =
            own.features.has(Features::RECOVERY_OFFSET) && !own.features.has(Features::RECOVERY_BITMAP);
        let free = role < self.geometry().members() && self.member(role).is_none();
        let room = new.layer.sectors().0.saturating_sub(own.data_offset);
        let fits = room >= self.geometry().sectors_on_member(role).0;
        let known = record.knows(own) && own.events >= intent.events_cleared();
        if !(free && fits && known) || partial || own.features.has(Features::REPLACEMENT) {
            return None;
        }
        if record.was_apart(own, &self.state(cx)) {
            log::warn!(
                "{}: {} may have been written to without the members that are here: it is copied whole",
                self.name,
                new.name
            );
            return None;
        }
        Some(role)
    }

    /// A device becomes a spare in memory, or one that comes back. What lies before its superblock in the order of writes is written.
    async fn join(
        &self,
        record: &dyn Record,
        new: &NewMember,
        old_role: Option<u16>,
        cx: &TaskContext,
    ) -> Result<DeviceIndex, VerbError> {
        let superblock = new.superblock.clone().filter(|_| old_role.is_some());
        let has_bad = superblock.as_ref().is_some_and(|own| own.features.has(Features::BAD_BLOCKS));
        let site = NewSite {
            name: new.name.clone(),
            layer: new.layer.clone(),
            superblock,
            device_uuid: new.device_uuid,
        };
        let (number, mut site) = record.add(site).map_err(|error| self.record_error(&new.name, error))?;
        site.by_bitmap = old_role.is_some();
        let joined = self.join_site(number, site, has_bad, old_role.is_some(), cx).await;
        if joined.is_err() {
            record.remove(number);
        }
        joined
    }

    async fn join_site(
        &self,
        number: usize,
        site: Site,
        has_bad: bool,
        comes_back: bool,
        cx: &TaskContext,
    ) -> Result<DeviceIndex, VerbError> {
        if !comes_back {
            self.wipe(number, &site, cx).await?;
        }
        let bad = match &site.bad_blocks {
            Some(log) if has_bad => self.read_bad_blocks(&site, log, cx).await?,
            Some(log) if !comes_back => {
                let empty = bad_blocks::encode(&[], log.shift, log.sectors);
                let empty = empty.map_err(|error| self.format(&site.name, error))?;
                let written = io::write_bytes(cx, &log.layer, log.start, &empty).await;
                written.map_err(|errno| self.io(&format!("{}: its list of bad blocks", site.name), errno))?;
                Vec::new()
            }
            _ => Vec::new(),
        };
        self.write_first_bitmap(&site, cx).await?;
        let config = MemberConfig {
            name: site.name.clone(),
            layer: site.layer.clone(),
            data_start: site.data_start,
            recovered: None,
            write_mostly: false,
            bad,
        };
        let member = Member::new(config, Some((number, site)));
        member.bad.widen(&self.form().shape.limits);
        self.devices.add(member).ok_or_else(|| self.is_full())
    }

    fn is_full(&self) -> VerbError {
        let reason = format!("{ADDED_MAX} devices were added since it was opened; serve it anew to add more");
        VerbError::Full { array: self.name.clone(), reason }
    }

    /// Zeros wherever a device has something by which it could be taken for what it was, in an order that a power cut cannot break
    /// ([`md::Remains`]), durable before anything of this array is on it.
    async fn wipe(&self, number: usize, site: &Site, cx: &TaskContext) -> Result<(), VerbError> {
        let record = self.changeable()?;
        let device_sectors = site.layer.sectors().0;
        let block_sectors = u64::from(site.layer.limits().logical_block_size) / SECTOR;
        let mut remains = md::Remains::new(device_sectors, block_sectors);
        for suspect in md::suspects(device_sectors) {
            let Region { start, sectors } = suspect.region;
            let read = io::read_bytes(cx, &site.layer, Sector(start), Sectors(sectors)).await;
            remains.look(suspect, read.as_deref().ok());
        }
        for Region { start, sectors } in record.wipes(number, &remains) {
            let zeros = vec![0; Sectors(sectors).byte_len()];
            let wiped = io::write_bytes(cx, &site.layer, Sector(start), &zeros).await;
            wiped.map_err(|errno| {
                let what = format!("what was at sector {start} before could not be overwritten");
                self.not_taken_in(site, &what, errno)
            })?;
        }
        Ok(())
    }

    /// The bitmap as it is now: from its first superblock on, a device says that it has one.
    async fn write_first_bitmap(&self, site: &Site, cx: &TaskContext) -> Result<(), VerbError> {
        let (Some(start), Some(intent)) = (site.bitmap, self.intent()) else { return Ok(()) };
        let runs = intent.disk().whole();
        for run in runs {
            let written = io::write_bytes(cx, &site.layer, start + run.offset, &run.bytes).await;
            let what = "its write-intent bitmap could not be written";
            written.map_err(|errno| self.not_taken_in(site, what, errno))?;
        }
        Ok(())
    }

    async fn read_bad_blocks(
        &self,
        site: &Site,
        log: &BadBlockLog,
        cx: &TaskContext,
    ) -> Result<Vec<(Sector, Sectors)>, VerbError> {
        let bytes = io::read_bytes(cx, &log.layer, log.start, Sectors(log.sectors.into())).await;
        let bytes =
            bytes.map_err(|errno| self.io(&format!("{}: its list of bad blocks", site.name), errno))?;
        let list = bad_blocks::decode(&bytes, log.shift, log.start.0 * 512, log.layer.sectors().0);
        let list = list.map_err(|error| self.format(&site.name, error))?;
        let start = site.data_start.0;
        let of_data = list.iter().filter(|region| region.end() > start);
        let range = |first: u64, end: u64| (Sector(first - start), Sectors(end - first));
        Ok(of_data.map(|region| range(region.start.max(start), region.end())).collect())
    }

    /// What each member needs for data.
    fn data_needed(&self) -> Sectors {
        let data = (0..self.geometry().members()).map(|role| self.geometry().sectors_on_member(role)).max();
        data.unwrap_or(Sectors::ZERO)
    }

    /// Frees the roles of devices that are to be removed.
    fn take_out(&self, device: &str) -> Result<Vec<DeviceIndex>, VerbError> {
        let all_faulty = matches!(device, "failed" | "detached" | "faulty");
        let gone: Vec<DeviceIndex> = if all_faulty {
            self.devices.all().filter(|(_, member)| member.is_faulty()).map(|(index, _)| index).collect()
        } else {
            vec![self.find_device(device)?]
        };
        for index in &gone {
            let role = self.devices.role_of(*index);
            let Some(member) = self.devices.get(*index) else { continue };
            let Some(role) = role else {
                // It must not get a role any more while what is on its way to it comes to its end.
                member.fail();
                continue;
            };
            if !member.is_faulty() {
                return Err(VerbError::InUse { array: self.name.clone(), device: device.to_owned(), role });
            }
            let holders = self.devices.holders(role);
            let stays = |holder: Option<DeviceIndex>| holder.filter(|holder| holder != index);
            let left = Holders::new(stays(holders.member()), stays(holders.replacement()));
            self.devices.set_holders(role, left);
        }
        Ok(gone)
    }

    fn named_spare(&self, name: &str, needed: Sectors) -> Result<DeviceIndex, VerbError> {
        let index = self.find_device(name)?;
        let member = self.devices.get(index).filter(|member| self.is_spare(index, member));
        let member = member.ok_or_else(|| self.state_error(index, "a spare"))?;
        if !self.has_blocks_of(member) {
            let found = member.layer().limits().logical_block_size;
            let expected = self.form().shape.limits.logical_block_size;
            return Err(VerbError::Blocks {
                array: self.name.clone(),
                device: name.to_owned(),
                found,
                expected,
            });
        }
        if member.room() < needed {
            return Err(VerbError::Small {
                array: self.name.clone(),
                device: name.to_owned(),
                found: member.layer().sectors(),
                needed: needed + Sectors(member.data_start.0),
            });
        }
        Ok(index)
    }

    /// A device by its name, the end of its path, or its role. A number alone is a role: of partitions it would be the end of many paths.
    fn find_device(&self, device: &str) -> Result<DeviceIndex, VerbError> {
        if let Some((index, _)) = self.devices.all().find(|(_, member)| member.name == device) {
            return Ok(index);
        }
        if let Ok(role) = device.parse() {
            return self.devices.holders(role).member().ok_or_else(|| self.no_device(device));
        }
        let found: Vec<_> =
            self.devices.all().filter(|(_, member)| is_same_path(&member.name, device)).collect();
        match &found[..] {
            [] => Err(self.no_device(device)),
            [(index, _)] => Ok(*index),
            several => Err(VerbError::Ambiguous {
                array: self.name.clone(),
                device: device.to_owned(),
                found: several.iter().map(|(_, member)| &*member.name).collect::<Vec<_>>().join(", "),
            }),
        }
    }

    fn no_device(&self, device: &str) -> VerbError {
        VerbError::NoDevice {
            array: self.name.clone(),
            device: device.to_owned(),
            known: self.devices.all().map(|(_, member)| &*member.name).collect::<Vec<_>>().join(", "),
        }
    }

    fn state_error(&self, index: DeviceIndex, expected: &'static str) -> VerbError {
        let member = self.devices.get(index);
        let found = match (member, self.devices.role_of(index)) {
            (Some(member), _) if member.is_faulty() => "faulty".to_owned(),
            (_, None) => "a spare".to_owned(),
            (Some(member), Some(role)) if member.is_replacement() => {
                format!("the replacement of member {role}")
            }
            (_, Some(role)) => format!("member {role}"),
        };
        let device = member.map_or(String::new(), |member| member.name.clone());
        VerbError::State { array: self.name.clone(), device, found, expected }
    }

    pub(super) fn format(&self, device: &str, error: blockwork_format::FormatError) -> VerbError {
        VerbError::Format { array: self.name.clone(), device: device.to_owned(), error: Box::new(error) }
    }

    pub(super) fn record_error(&self, device: &str, error: RecordError) -> VerbError {
        match error {
            RecordError::Fixed => VerbError::Lvm { array: self.name.clone() },
            RecordError::Full(reason) => VerbError::Full { array: self.name.clone(), reason },
            RecordError::Format(error) => self.format(device, *error),
        }
    }
}

/// Whether two paths have the same end, as far as the shorter one goes. What the volumes of disks begin with is none of a path, and
/// nor is `.`: `disk/a.img/2`, `a.img/2`, `./a.img/2` and `/srv/a.img/2` may be one partition, and `b.img/2` is another one.
fn is_same_path(one: &str, other: &str) -> bool {
    fn from_the_end(path: &str) -> impl Iterator<Item = &str> {
        path.strip_prefix("disk/").unwrap_or(path).rsplit('/').filter(|part| *part != ".")
    }
    let (one, other) = (from_the_end(one), from_the_end(other));
    one.zip(other).all(|(one, other)| one == other)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_partition_is_no_other_disks_of_that_number() {
        for same in ["disk/a.img/2", "a.img/2", "./a.img/2", "/srv/a.img/2", "2"] {
            assert!(is_same_path("disk/a.img/2", same) && is_same_path(same, "disk/a.img/2"), "{same}");
        }
        for other in ["b.img/2", "disk/b.img/2", "a.img/1", "a.img", "/srv/xa.img/2"] {
            assert!(!is_same_path("disk/a.img/2", other), "{other}");
        }
        assert!(is_same_path("/srv/a.img", "a.img") && !is_same_path("/srv/a.img", "/other/a.img"));
    }
}
