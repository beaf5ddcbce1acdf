//! Pages, event channels and a store within one worker: both ends of the protocol without Xen.
//!
//! Bells ring at once, and give the other end's port a turn of the same worker; nothing here takes time or draws a number,
//! so that in the simulator a seed gives one history.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

use blockwork_engine::{Completion, Context, Env, PortId, RingStats, Volume, VolumeId};
use blockwork_format::blkif::{BackFeatures, BackProperties, FrontParameters, PAGE_BYTES, QueueParameters};
use blockwork_memory::{Buffer, Segment};
use slab::Slab;

use super::{
    Access, BackConfig, BackDevice, BackEnd, BackPort, BackRing, BackStep, ConnectError, EventChannel,
    FrontConfig, FrontDevice, FrontQueue, FrontRing, FrontStep, FrontWants, GrantError, GrantRef, Grants,
    Offers, SharedPages, StoreError, Xenstore, describe,
};

/// Numbers below this are Xen's own.
const FIRST_GRANT: GrantRef = 8;

/// A domain's grants. Cloning gives another handle: one for the end that grants, one for the end that maps.
#[derive(Clone, Default)]
pub struct GrantTable {
    table: Rc<RefCell<Slab<(Segment, Access)>>>,
}

impl GrantTable {
    /// Grants that have not been taken back.
    pub fn len(&self) -> usize {
        self.table.borrow().len()
    }

    /// Whether nothing is granted.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

fn place(gref: GrantRef) -> Option<usize> {
    usize::try_from(gref.checked_sub(FIRST_GRANT)?).ok()
}

impl Offers for GrantTable {
    fn grant(&mut self, page: Segment, access: Access) -> GrantRef {
        let place = self.table.borrow_mut().insert((page, access));
        GrantRef::try_from(place).expect("fewer than 2^32 grants in memory") + FIRST_GRANT
    }

    fn end(&mut self, gref: GrantRef) {
        let place = place(gref).expect("a grant that was made");
        self.table.borrow_mut().remove(place);
    }
}

impl Grants for GrantTable {
    fn map(&mut self, refs: &[GrantRef], access: Access, out: &mut Vec<Segment>) -> Result<(), GrantError> {
        let table = self.table.borrow();
        let before = out.len();
        for &gref in refs {
            let granted = place(gref).and_then(|place| table.get(place));
            let reason = match granted {
                Some((page, allowed)) if access == Access::Read || *allowed == Access::Write => {
                    out.push(page.clone());
                    continue;
                }
                Some((_, allowed)) => format!("granted {allowed}, expected {access}"),
                None => "no such grant".to_owned(),
            };
            out.truncate(before);
            return Err(GrantError { gref, reason, no_room: false });
        }
        Ok(())
    }
}

/// One end of an event channel between two ports of a worker.
pub struct Bell {
    mine: Rc<Cell<Option<PortId>>>,
    other: Rc<Cell<Option<PortId>>>,
}

impl Bell {
    /// Both ends.
    pub fn pair() -> (Bell, Bell) {
        let (a, b) = (Rc::new(Cell::new(None)), Rc::new(Cell::new(None)));
        (Bell { mine: a.clone(), other: b.clone() }, Bell { mine: b, other: a })
    }
}

impl<E: Env> EventChannel<E> for Bell {
    fn open(&mut self, cx: &mut Context<'_, E>) {
        self.mine.set(Some(cx.id()));
        // What the other end has put in before there was anybody to hear of it.
        cx.wake_me();
    }

    fn event(&mut self, _: &mut Context<'_, E>, _: u32, _: Completion) {}

    fn notify(&mut self, cx: &mut Context<'_, E>) {
        if let Some(port) = self.other.get() {
            cx.wake(port);
        }
    }

    fn close(&mut self, _: &mut Context<'_, E>) {
        self.mine.set(None);
    }
}

/// A store of keys. Cloning gives another handle on the same one.
#[derive(Clone, Debug, Default)]
pub struct Store {
    keys: Rc<RefCell<BTreeMap<String, String>>>,
}

impl Xenstore for Store {
    fn read(&self, path: &str) -> Result<Option<String>, StoreError> {
        Ok(self.keys.borrow().get(path).cloned())
    }

    fn write(&mut self, path: &str, value: &str) -> Result<(), StoreError> {
        self.keys.borrow_mut().insert(path.to_owned(), value.to_owned());
        Ok(())
    }

    fn remove(&mut self, path: &str) -> Result<(), StoreError> {
        let is_below =
            |key: &str| key.strip_prefix(path).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
        self.keys.borrow_mut().retain(|key, _| !is_below(key));
        Ok(())
    }
}

/// Both ends of a device, connected.
pub struct Device<E: Env> {
    /// The front end's queues, each with its end of an event channel.
    pub front: Vec<(FrontQueue, Bell)>,
    /// The back end's queues, in the same order, with the handles on them. Each is to be added to the same worker as its
    /// front end's port.
    pub back: Vec<(BackPort<E>, BackEnd)>,
    /// What the front end was told of the device.
    pub properties: BackProperties,
    /// What the front end has granted.
    pub grants: GrantTable,
}

/// Connects a guest to a volume, by the keys and states that both ends would write in Xen's own store. `stats` makes the
/// figures of a queue, by its number and the requests that fit its ring.
///
/// # Errors
/// The back end cannot do what the guest would like, and the guest not without.
pub fn connect<E: Env>(
    wants: FrontWants,
    id: VolumeId,
    volume: &Volume,
    mut stats: impl FnMut(u32, u32) -> Arc<RingStats>,
) -> Result<Device<E>, ConnectError> {
    const BACK: &str = "/local/domain/0/backend/vbd/1/51712";
    const FRONT: &str = "/local/domain/1/device/vbd/51712";
    let (store, grants) = (Store::default(), GrantTable::default());
    let (features, properties) = describe(volume);
    let mut front_device = FrontDevice::new(store.clone(), FRONT, BACK, wants)?;
    let mut back_device = BackDevice::new(store, BACK, FRONT, features)?;
    let (wants, offered) = match front_device.back_changed()? {
        FrontStep::SetUp(wants, offered) => (wants, offered),
        step => unreachable!("a new device is set up, found {step:?}"),
    };
    let rings: Vec<_> = (0..wants.queues).map(|_| ring(&grants, &wants)).collect();
    front_device.publish(&published(&wants, &rings))?;
    let found = match back_device.front_changed()? {
        BackStep::Connect(found) => found,
        step => unreachable!("rings that are published are connected, found {step:?}"),
    };
    let mut device = Device { front: Vec::new(), back: Vec::new(), properties, grants: grants.clone() };
    for (number, (pages, _)) in (0..).zip(rings) {
        let ring = BackRing::new(pages.clone(), found.abi);
        let config = BackConfig {
            name: format!("queue {number}"),
            volume: id,
            persistent: found.persistent,
            max_indirect_segments: offered.max_indirect_segments,
            stats: stats(number, ring.slots()),
        };
        let (front, back) = Bell::pair();
        device.back.push(BackPort::new(config, ring, Box::new(back), Box::new(grants.clone())));
        let queue = FrontQueue::new(
            agreed(&wants, &offered),
            FrontRing::new(pages, wants.abi),
            Box::new(grants.clone()),
        );
        device.front.push((queue, front));
    }
    back_device.connected(&properties)?;
    match front_device.back_changed()? {
        FrontStep::Use(properties) => Ok(Device { properties, ..device }),
        step => unreachable!("a device that is connected is used, found {step:?}"),
    }
}

fn agreed(wants: &FrontWants, offered: &BackFeatures) -> FrontConfig {
    FrontConfig {
        abi: wants.abi,
        persistent: wants.persistent,
        max_indirect_segments: wants.max_indirect_segments,
        barrier: offered.barrier,
    }
}

/// Pages of a ring, and their grants.
fn ring(grants: &GrantTable, wants: &FrontWants) -> (SharedPages, Vec<GrantRef>) {
    let page = |_| Segment::new(Buffer::new(PAGE_BYTES), 0, PAGE_BYTES);
    let pages: Vec<_> = (0..wants.ring_pages).map(page).collect();
    let refs = pages.iter().map(|page| grants.clone().grant(page.clone(), Access::Write)).collect();
    (SharedPages::new(pages).expect("the number of pages that was agreed upon"), refs)
}

fn published(wants: &FrontWants, rings: &[(SharedPages, Vec<GrantRef>)]) -> FrontParameters {
    let queue = |(event_channel, (_, refs)): (u32, &(_, Vec<GrantRef>))| QueueParameters {
        ring_refs: refs.clone(),
        event_channel,
    };
    let queues = (1..).zip(rings).map(queue).collect();
    FrontParameters { abi: wants.abi, persistent: wants.persistent, queues }
}

#[cfg(test)]
mod tests {
    use super::*;
    use blockwork_memory::Buffer;

    #[test]
    fn a_page_is_mapped_as_it_was_granted_and_stays_mapped_when_the_grant_ends() {
        let page = Segment::new(Buffer::new(4096), 0, 4096);
        let mut offers = GrantTable::default();
        let mut grants = offers.clone();
        let (read, write) = (offers.grant(page.clone(), Access::Read), offers.grant(page, Access::Write));
        let mut out = Vec::new();
        grants.map(&[read, write], Access::Read, &mut out).unwrap();
        let error = grants.map(&[write, read], Access::Write, &mut out).unwrap_err();
        assert_eq!(error.to_string(), format!("grant {read}: granted to read, expected to write"));
        assert_eq!(out.len(), 2, "what failed appended nothing");
        offers.end(read);
        out[0].write_at(0, b"still there");
        assert!(grants.map(&[read], Access::Read, &mut out).is_err());
        assert!(grants.map(&[3], Access::Read, &mut out).is_err(), "one of Xen's own");
    }
}
