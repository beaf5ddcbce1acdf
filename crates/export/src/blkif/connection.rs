//! How both ends of a device find each other: keys and states in xenstore.
//!
//! ```text
//!   front end                       back end
//!   Initialising                    Initialising: publishes what it can do
//!                                   InitWait
//!   makes rings, publishes them
//!   Initialised                     maps the rings, publishes what the device is
//!                                   Connected
//!   Connected
//! ```
//!
//! Some front ends (edk2's, mini-os', U-Boot's) write `Connected` in the place of `Initialised` and wait for the back end; they are
//! served as those that take both steps.
//!
//! A front end that is `Closing` would like to let go, and may use its rings until it is `Closed`: Linux' says so while a disk that it
//! should give away is mounted. So the back end says `Closing` too, and serves on. Who was `Closed` may begin again.
//!
//! Either end may go away and begin again; then the other lets go of the old rings first, and the back end removes the front end's old keys
//! ([`FrontParameters::OPTIONAL`]) before it is `InitWait` again. A back end that comes up while the
//! front end is connected has two ways. With the ledgers of the one before it ([`Ledger`](super::Ledger)) it goes on with the same
//! rings ([`BackDevice::resume`]), and a front end sees nothing of it: Linux' needs that, since it takes a back end that closes
//! for a disk that is gone. Without ([`BackDevice::new`]), it is closed until the front end begins again: the rings alone do not tell
//! which requests are open. Nothing here watches the store or has rings: whoever runs a device calls it when the other end's state
//! has changed, and does what the step says.
//!
//! Invariant: a back end is `InitWait` only where the rings of a front end that says that it is connected are new, and nobody has
//! served them.

use blockwork_engine::Volume;
use blockwork_format::blkif::{
    Abi, BackFeatures, BackProperties, Discards, FrontParameters, KeyError, Limits, Pairs, XenbusState, ring,
    vdisk,
};

use super::{StoreError, Xenstore};

/// Why two ends do not come together.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConnectError {
    /// The other end's keys.
    #[error("{folder}: {source}")]
    Key {
        /// Its folder in the store.
        folder: String,
        /// Which key.
        source: KeyError,
    },
    /// The store.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Most segments of an indirect request that a back end offers: 1 MiB.
const INDIRECT_SEGMENTS: u32 = 256;
/// Most queues that it offers.
const QUEUES: u32 = 16;
/// What the `error` key tells at most, characters: xenstore takes 4096 bytes of path and value.
const ERROR_CHARS: usize = 800;

/// What a back end publishes of a volume.
pub fn describe(volume: &Volume) -> (BackFeatures, BackProperties) {
    let limits = volume.limits();
    let takes_discards = limits.discard_granularity > 0 && limits.max_discard.0 > 0;
    let discards =
        takes_discards.then_some(Discards { granularity: limits.discard_granularity, alignment: 0 });
    let features = BackFeatures {
        max_ring_page_order: ring::PAGES_MAX.ilog2(),
        max_queues: QUEUES,
        barrier: true,
        flush: true,
        discards,
        persistent: true,
        max_indirect_segments: INDIRECT_SEGMENTS,
    };
    let properties = BackProperties {
        sectors: volume.sectors().0,
        info: if volume.read_only { vdisk::READ_ONLY } else { 0 },
        sector_size: limits.logical_block_size,
        physical_sector_size: limits.physical_block_size,
    };
    (features, properties)
}

/// One end's side of the store.
#[derive(Debug)]
struct Folders<S> {
    store: S,
    mine: String,
    theirs: String,
    state: XenbusState,
}

impl<S: Xenstore> Folders<S> {
    fn new(store: S, mine: &str, theirs: &str) -> Folders<S> {
        let (mine, theirs) = (mine.to_owned(), theirs.to_owned());
        Folders { store, mine, theirs, state: XenbusState::Initialising }
    }

    fn publish(&mut self, pairs: Pairs) -> Result<(), StoreError> {
        pairs.into_iter().try_for_each(|(key, value)| {
            let path = format!("{}/{key}", self.mine);
            self.store.write(&path, &value)
        })
    }

    fn switch(&mut self, state: XenbusState) -> Result<(), StoreError> {
        self.state = state;
        self.publish(vec![("state".to_owned(), state.text())])
    }

    fn their_state(&self) -> Result<XenbusState, StoreError> {
        self.stored(&self.theirs)
    }

    /// The state in a folder.
    fn stored(&self, folder: &str) -> Result<XenbusState, StoreError> {
        let text = self.store.read(&format!("{folder}/state"))?;
        Ok(text.map_or(XenbusState::Unknown, |text| XenbusState::from_text(&text)))
    }

    /// Removes a key of the other end's.
    fn remove_theirs(&mut self, key: &str) -> Result<(), StoreError> {
        self.store.remove(&format!("{}/{key}", self.theirs))
    }

    /// Says in the `error` key what is wrong. Where it cannot be said there, the log has it all the same.
    fn explain(&mut self, reason: &str) {
        let mut cut: String = reason.chars().take(ERROR_CHARS).collect();
        if cut.len() < reason.len() {
            cut.push_str("...");
        }
        if let Err(error) = self.publish(vec![("error".to_owned(), cut)]) {
            log::debug!("{error}; it was to be told: {reason}");
        }
    }

    /// Reads something of the other end's keys.
    fn theirs<T>(
        &self,
        read: impl FnOnce(&mut dyn FnMut(&str) -> Option<String>) -> Result<T, KeyError>,
    ) -> Result<T, ConnectError> {
        let mut failed = None;
        let found = read(&mut |key| match self.store.read(&format!("{}/{key}", self.theirs)) {
            Ok(value) => value,
            Err(error) => {
                failed.get_or_insert(error);
                None
            }
        });
        match failed {
            Some(error) => Err(error.into()),
            None => found.map_err(|source| ConnectError::Key { folder: self.theirs.clone(), source }),
        }
    }
}

/// What whoever runs the back end does next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BackStep {
    /// Nothing.
    Wait,
    /// Maps these rings and serves them; then says [`BackDevice::connected`], or [`BackDevice::refuse`].
    Connect(FrontParameters),
    /// Stops serving the rings; then says [`BackDevice::disconnected`].
    Disconnect,
}

/// What a back end has of the front end's rings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rings {
    /// None.
    Nothing,
    /// Whoever runs the device serves them.
    Served,
    /// He was told to stop, and has not said that he has.
    LetGo,
}

/// The back end's side of a device.
#[derive(Debug)]
pub struct BackDevice<S> {
    folders: Folders<S>,
    features: BackFeatures,
    rings: Rings,
}

impl<S: Xenstore> BackDevice<S> {
    /// Publishes what it can do. Paths are the folders of both ends, such as `/local/domain/0/backend/vbd/3/51712` and
    /// `/local/domain/3/device/vbd/51712`. Where the front end has rings that another back end has served, it is closed until the
    /// front end begins again.
    ///
    /// # Errors
    /// The store.
    pub fn new(
        store: S,
        back: &str,
        front: &str,
        features: BackFeatures,
    ) -> Result<BackDevice<S>, StoreError> {
        let folders = Folders::new(store, back, front);
        let (before, theirs) = (folders.stored(back)?, folders.their_state()?);
        let mut device = BackDevice { folders, features, rings: Rings::Nothing };
        let has_served = !matches!(before, XenbusState::Initialising | XenbusState::InitWait);
        if has_served && matches!(theirs, XenbusState::Connected | XenbusState::Closing) {
            device.folders.switch(XenbusState::Closed)?;
            return Ok(device);
        }
        if has_served && theirs == XenbusState::Initialising {
            device.forget_rings()?;
        }
        device.offer()?;
        Ok(device)
    }

    /// Goes on for a back end that is gone, with the [rings](BackDevice::rings) that it had. As after [`BackStep::Connect`], they
    /// are to be mapped and served, then [`BackDevice::connected`] is to be said. Until then the front end hears of nothing.
    ///
    /// # Errors
    /// The store.
    pub fn resume(
        store: S,
        back: &str,
        front: &str,
        features: BackFeatures,
    ) -> Result<BackDevice<S>, StoreError> {
        let mut folders = Folders::new(store, back, front);
        folders.state = folders.stored(back)?;
        Ok(BackDevice { folders, features, rings: Rings::Served })
    }

    /// The rings that the front end's keys name.
    ///
    /// # Errors
    /// The store, or the front end's keys.
    pub fn rings(&self) -> Result<FrontParameters, ConnectError> {
        let BackFeatures { max_ring_page_order, max_queues, .. } = self.features;
        let limits = Limits { max_ring_page_order, max_queues };
        self.folders.theirs(|read| FrontParameters::read(read, limits))
    }

    /// Removes what the next front end might be taken to say, and has not written: it waits for `InitWait` with that.
    fn forget_rings(&mut self) -> Result<(), StoreError> {
        FrontParameters::OPTIONAL.iter().try_for_each(|key| match self.folders.remove_theirs(key) {
            // A driver domain's may be read only. Then it depends on the front end.
            Err(error) if error.is_refused => {
                log::debug!("{error}; the front end's keys of before stay there");
                Ok(())
            }
            other => other,
        })
    }

    fn offer(&mut self) -> Result<(), StoreError> {
        self.folders.publish(self.features.pairs())?;
        self.folders.switch(XenbusState::InitWait)
    }

    /// Where it is.
    pub fn state(&self) -> XenbusState {
        self.folders.state
    }

    /// The front end's state has changed, or may have.
    ///
    /// # Errors
    /// The store; or the front end's keys, and then the device is closed with the reason in its `error` key.
    pub fn front_changed(&mut self) -> Result<BackStep, ConnectError> {
        let (state, has_rings) = (self.folders.state, self.rings != Rings::Nothing);
        match self.folders.their_state()? {
            XenbusState::Initialised | XenbusState::Connected if state == XenbusState::InitWait => {
                match self.rings() {
                    Ok(parameters) => {
                        self.rings = Rings::Served;
                        Ok(BackStep::Connect(parameters))
                    }
                    Err(error) => {
                        self.refuse(&error.to_string())?;
                        Err(error)
                    }
                }
            }
            XenbusState::Closing if has_rings => {
                if state != XenbusState::Closing {
                    self.folders.switch(XenbusState::Closing)?;
                }
                Ok(BackStep::Wait)
            }
            XenbusState::Initialising | XenbusState::Closed | XenbusState::Unknown if has_rings => {
                self.let_go()
            }
            XenbusState::Initialising if state == XenbusState::Closed => {
                self.forget_rings()?;
                self.offer()?;
                Ok(BackStep::Wait)
            }
            XenbusState::Closing | XenbusState::Closed if state != XenbusState::Closed => {
                self.folders.switch(XenbusState::Closed)?;
                Ok(BackStep::Wait)
            }
            _ => Ok(BackStep::Wait),
        }
    }

    fn let_go(&mut self) -> Result<BackStep, ConnectError> {
        if self.rings == Rings::LetGo {
            return Ok(BackStep::Wait); // it was said before
        }
        self.rings = Rings::LetGo;
        self.folders.switch(XenbusState::Closing)?;
        Ok(BackStep::Disconnect)
    }

    /// The rings are served; the device is this.
    ///
    /// # Errors
    /// The store.
    pub fn connected(&mut self, properties: &BackProperties) -> Result<(), StoreError> {
        self.folders.publish(properties.pairs())?;
        match self.folders.state {
            // Rings that were taken up while their front end is about to let go.
            XenbusState::Closing => Ok(()),
            _ => self.folders.switch(XenbusState::Connected),
        }
    }

    /// The device has another size now. The front end looks at it when the back end's state is written again.
    ///
    /// # Errors
    /// The store.
    pub fn resized(&mut self, properties: &BackProperties) -> Result<(), StoreError> {
        if self.folders.state == XenbusState::Connected { self.connected(properties) } else { Ok(()) }
    }

    /// The rings cannot be served: the device is closed, and `error` says why.
    ///
    /// # Errors
    /// The store.
    pub fn refuse(&mut self, reason: &str) -> Result<(), StoreError> {
        self.rings = Rings::Nothing;
        self.folders.explain(reason);
        self.folders.switch(XenbusState::Closed)
    }

    /// Rings that another back end has served cannot be taken up: `error` says why, and nothing else changes until the front end lets
    /// go of them. To close the device would cost its user what is under way, where another attempt may well succeed.
    pub fn cannot_resume(&mut self, reason: &str) {
        self.folders.explain(reason);
    }

    /// The rings are not served any more. Where the front end begins again, so does this end.
    ///
    /// # Errors
    /// The store.
    pub fn disconnected(&mut self) -> Result<(), ConnectError> {
        self.rings = Rings::Nothing;
        self.folders.switch(XenbusState::Closed)?;
        self.front_changed().map(|_| ())
    }
}

/// What a front end would like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrontWants {
    /// Pages of each ring: a power of two.
    pub ring_pages: u32,
    /// Queues.
    pub queues: u32,
    /// Layout of its rings.
    pub abi: Abi,
    /// Whether to keep pages granted.
    pub persistent: bool,
    /// Most segments of an indirect request.
    pub max_indirect_segments: u32,
}

/// What whoever runs the front end does next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FrontStep {
    /// Nothing.
    Wait,
    /// Makes as many rings of that size as this says and grants them; then says [`FrontDevice::publish`].
    SetUp(FrontWants, BackFeatures),
    /// Uses them: the device is this.
    Use(BackProperties),
    /// Stops using them: the back end is gone, or goes. It may come back, and then [`FrontStep::SetUp`] comes again.
    Lost,
}

/// The front end's side of a device.
#[derive(Debug)]
pub struct FrontDevice<S> {
    folders: Folders<S>,
    wants: FrontWants,
    /// It was closed by its user, and does not begin again.
    ends: bool,
}

impl<S: Xenstore> FrontDevice<S> {
    /// Waits for the back end.
    ///
    /// # Errors
    /// The store.
    pub fn new(store: S, front: &str, back: &str, wants: FrontWants) -> Result<FrontDevice<S>, StoreError> {
        let mut device = FrontDevice { folders: Folders::new(store, front, back), wants, ends: false };
        device.folders.switch(XenbusState::Initialising)?;
        Ok(device)
    }

    /// Where it is.
    pub fn state(&self) -> XenbusState {
        self.folders.state
    }

    /// The back end's state has changed, or may have.
    ///
    /// # Errors
    /// The store, or the back end's keys.
    pub fn back_changed(&mut self) -> Result<FrontStep, ConnectError> {
        let state = self.folders.state;
        let uses_rings = matches!(state, XenbusState::Initialised | XenbusState::Connected);
        match self.folders.their_state()? {
            XenbusState::InitWait | XenbusState::Closed if uses_rings => {
                self.folders.switch(XenbusState::Initialising)?;
                Ok(FrontStep::Lost)
            }
            // It is not done with the rings: who begins again before it is would be taken for somebody who still uses them.
            XenbusState::Closing | XenbusState::Unknown if uses_rings => {
                self.folders.switch(XenbusState::Closed)?;
                Ok(FrontStep::Lost)
            }
            XenbusState::InitWait | XenbusState::Closed if state == XenbusState::Closed && !self.ends => {
                self.folders.switch(XenbusState::Initialising)?;
                self.back_changed()
            }
            XenbusState::Closing | XenbusState::Closed | XenbusState::Unknown
                if state == XenbusState::Closing =>
            {
                self.folders.switch(XenbusState::Closed)?;
                Ok(FrontStep::Wait)
            }
            XenbusState::InitWait if state == XenbusState::Initialising => {
                let features = self.folders.theirs(BackFeatures::read)?;
                let wants = FrontWants {
                    ring_pages: self
                        .wants
                        .ring_pages
                        .min(1 << features.max_ring_page_order)
                        .min(ring::PAGES_MAX),
                    queues: self.wants.queues.min(features.max_queues).max(1),
                    persistent: self.wants.persistent && features.persistent,
                    max_indirect_segments: self
                        .wants
                        .max_indirect_segments
                        .min(features.max_indirect_segments),
                    abi: self.wants.abi,
                };
                Ok(FrontStep::SetUp(wants, features))
            }
            XenbusState::Connected if state == XenbusState::Initialised => {
                let properties = self.folders.theirs(BackProperties::read)?;
                self.folders.switch(XenbusState::Connected)?;
                Ok(FrontStep::Use(properties))
            }
            _ => Ok(FrontStep::Wait),
        }
    }

    /// The rings are made.
    ///
    /// # Errors
    /// The store.
    pub fn publish(&mut self, parameters: &FrontParameters) -> Result<(), StoreError> {
        self.folders.publish(parameters.pairs())?;
        self.folders.switch(XenbusState::Initialised)
    }

    /// Uses the device no more: it is closed when the back end has heard of it.
    ///
    /// # Errors
    /// The store.
    pub fn close(&mut self) -> Result<(), StoreError> {
        self.ends = true;
        match self.folders.state {
            XenbusState::Closed => Ok(()),
            _ => self.folders.switch(XenbusState::Closing),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::blkif::in_process::Store;
    use blockwork_format::blkif::QueueParameters;

    const BACK: &str = "/local/domain/0/backend/vbd/3/51712";
    const FRONT: &str = "/local/domain/3/device/vbd/51712";

    fn features() -> BackFeatures {
        BackFeatures {
            max_ring_page_order: 3,
            max_queues: 4,
            barrier: true,
            flush: true,
            discards: None,
            persistent: true,
            max_indirect_segments: 256,
        }
    }

    const WANTS: FrontWants = FrontWants {
        ring_pages: 16,
        queues: 2,
        abi: Abi::Bits64,
        persistent: true,
        max_indirect_segments: 32,
    };

    const PROPERTIES: BackProperties =
        BackProperties { sectors: 2048, info: 0, sector_size: 512, physical_sector_size: 4096 };

    fn parameters(wants: &FrontWants) -> FrontParameters {
        let queue = |n| QueueParameters {
            ring_refs: (0..wants.ring_pages).map(|page| 8 + n * 100 + page).collect(),
            event_channel: n + 1,
        };
        FrontParameters {
            abi: wants.abi,
            persistent: wants.persistent,
            queues: (0..wants.queues).map(queue).collect(),
        }
    }

    fn ends() -> (Store, FrontDevice<Store>, BackDevice<Store>) {
        let store = Store::default();
        let front = FrontDevice::new(store.clone(), FRONT, BACK, WANTS).unwrap();
        let back = BackDevice::new(store.clone(), BACK, FRONT, features()).unwrap();
        (store, front, back)
    }

    fn connect(front: &mut FrontDevice<Store>, back: &mut BackDevice<Store>) -> FrontParameters {
        let FrontStep::SetUp(wants, _) = front.back_changed().unwrap() else { panic!("{front:?}") };
        front.publish(&parameters(&wants)).unwrap();
        let BackStep::Connect(found) = back.front_changed().unwrap() else { panic!("{back:?}") };
        back.connected(&PROPERTIES).unwrap();
        assert_eq!(front.back_changed(), Ok(FrontStep::Use(PROPERTIES)));
        assert_eq!(back.front_changed(), Ok(BackStep::Wait));
        assert_eq!((front.state(), back.state()), (XenbusState::Connected, XenbusState::Connected));
        found
    }

    #[test]
    fn both_ends_come_together_on_what_both_can_do() {
        let (_, mut front, mut back) = ends();
        assert_eq!(back.front_changed(), Ok(BackStep::Wait));
        let found = connect(&mut front, &mut back);
        assert_eq!(found, parameters(&FrontWants { ring_pages: 8, ..WANTS }));
    }

    #[test]
    fn a_back_end_that_is_started_anew_gets_the_front_end_again() {
        let (store, mut front, mut back) = ends();
        connect(&mut front, &mut back);
        drop(back); // killed: its state stays in the store
        let mut back = BackDevice::new(store, BACK, FRONT, features()).unwrap();
        assert_eq!(back.front_changed(), Ok(BackStep::Wait), "those rings are not its own");
        assert_eq!(front.back_changed(), Ok(FrontStep::Lost));
        assert_eq!(back.front_changed(), Ok(BackStep::Wait));
        connect(&mut front, &mut back);
    }

    #[test]
    fn a_back_end_that_has_the_ledgers_goes_on_with_the_same_rings() {
        let (store, mut front, mut back) = ends();
        let before = connect(&mut front, &mut back);
        drop(back); // killed: its state stays in the store
        let mut back = BackDevice::resume(store, BACK, FRONT, features()).unwrap();
        assert_eq!(back.rings(), Ok(before));
        assert_eq!(front.back_changed(), Ok(FrontStep::Wait), "it hears of nothing");
        assert_eq!(back.front_changed(), Ok(BackStep::Wait));
        back.connected(&PROPERTIES).unwrap();
        assert_eq!(front.back_changed(), Ok(FrontStep::Wait));
        front.close().unwrap();
        assert_eq!(back.front_changed(), Ok(BackStep::Wait));
        assert_eq!(front.back_changed(), Ok(FrontStep::Wait));
        assert_eq!(back.front_changed(), Ok(BackStep::Disconnect));
    }

    #[test]
    fn rings_that_cannot_be_taken_up_stay_the_front_ends_until_it_lets_go() {
        let (store, mut front, mut back) = ends();
        connect(&mut front, &mut back);
        let mut back = BackDevice::resume(store.clone(), BACK, FRONT, features()).unwrap();
        back.cannot_resume(&"not there ".repeat(1000));
        assert_eq!(store.read(&format!("{BACK}/error")).unwrap().unwrap().len(), ERROR_CHARS + 3);
        assert_eq!((back.front_changed(), front.back_changed()), (Ok(BackStep::Wait), Ok(FrontStep::Wait)));
        drop(front); // the guest has been started anew
        let mut front = FrontDevice::new(store, FRONT, BACK, WANTS).unwrap();
        assert_eq!(back.front_changed(), Ok(BackStep::Disconnect));
        back.disconnected().unwrap();
        connect(&mut front, &mut back);
    }

    /// As edk2, mini-os and U-Boot do it.
    #[test]
    fn a_front_end_that_says_connected_at_once_is_served_also_if_the_back_end_comes_after_it() {
        let (mut store, mut front, mut back) = ends();
        let FrontStep::SetUp(wants, _) = front.back_changed().unwrap() else { panic!("{front:?}") };
        let published = parameters(&wants);
        front.publish(&published).unwrap();
        store.write(&format!("{FRONT}/state"), &XenbusState::Connected.text()).unwrap();
        for _ in 0..2 {
            // Killed, before it has looked.
            back = BackDevice::new(store.clone(), BACK, FRONT, features()).unwrap();
        }
        assert_eq!(back.front_changed(), Ok(BackStep::Connect(published)));
        back.connected(&PROPERTIES).unwrap();
        assert_eq!(back.front_changed(), Ok(BackStep::Wait));
    }

    #[test]
    fn rings_that_another_has_served_are_not_served_however_often_the_back_end_is_started_anew() {
        let (store, mut front, mut back) = ends();
        connect(&mut front, &mut back);
        for _ in 0..3 {
            back = BackDevice::new(store.clone(), BACK, FRONT, features()).unwrap();
            assert_eq!(back.front_changed(), Ok(BackStep::Wait));
        }
        assert_eq!(front.back_changed(), Ok(FrontStep::Lost));
    }

    #[test]
    fn a_front_end_that_begins_again_is_let_go_first() {
        let (store, mut front, mut back) = ends();
        connect(&mut front, &mut back);
        drop(front);
        let mut front = FrontDevice::new(store, FRONT, BACK, WANTS).unwrap();
        assert_eq!(back.front_changed(), Ok(BackStep::Disconnect));
        assert_eq!(front.back_changed(), Ok(FrontStep::Wait));
        assert_eq!(back.front_changed(), Ok(BackStep::Wait));
        back.disconnected().unwrap();
        connect(&mut front, &mut back);
    }

    /// As Linux' does, which leaves its old keys where they are.
    #[test]
    fn a_front_end_that_comes_back_with_fewer_queues_and_pages_is_not_read_by_its_old_keys() {
        for restarted in [false, true] {
            let (store, mut front, mut back) = ends();
            connect(&mut front, &mut back);
            // The guest's kernel has crashed, and the next one has one queue.
            let one = FrontWants { ring_pages: 1, queues: 1, ..WANTS };
            let mut front = FrontDevice::new(store.clone(), FRONT, BACK, one).unwrap();
            if restarted {
                back = BackDevice::new(store, BACK, FRONT, features()).unwrap();
            } else {
                assert_eq!(back.front_changed(), Ok(BackStep::Disconnect));
                back.disconnected().unwrap();
            }
            assert_eq!(connect(&mut front, &mut back), parameters(&one), "restarted: {restarted}");
        }
    }

    #[test]
    fn a_front_end_that_closes_is_served_until_it_is_closed_and_then_let_go() {
        let (store, mut front, mut back) = ends();
        connect(&mut front, &mut back);
        front.close().unwrap();
        for _ in 0..2 {
            assert_eq!(back.front_changed(), Ok(BackStep::Wait), "its disk may be mounted still");
            assert_eq!(back.state(), XenbusState::Closing);
        }
        // A server that goes on meanwhile serves it, too, and does not say that it is connected.
        let mut back = BackDevice::resume(store, BACK, FRONT, features()).unwrap();
        back.connected(&PROPERTIES).unwrap();
        assert_eq!((back.front_changed(), back.state()), (Ok(BackStep::Wait), XenbusState::Closing));
        assert_eq!((front.back_changed(), front.state()), (Ok(FrontStep::Wait), XenbusState::Closed));
        assert_eq!(back.front_changed(), Ok(BackStep::Disconnect));
        assert_eq!(back.front_changed(), Ok(BackStep::Wait), "once");
        back.disconnected().unwrap();
        assert_eq!(back.state(), XenbusState::Closed);
        assert_eq!((front.back_changed(), front.state()), (Ok(FrontStep::Wait), XenbusState::Closed));
    }

    #[test]
    fn a_front_end_whose_back_end_closes_begins_again_when_that_is_closed() {
        let (mut store, mut front, mut back) = ends();
        connect(&mut front, &mut back);
        // Tools do that, to take a disk away.
        store.write(&format!("{BACK}/state"), &XenbusState::Closing.text()).unwrap();
        assert_eq!((front.back_changed(), front.state()), (Ok(FrontStep::Lost), XenbusState::Closed));
        assert_eq!(front.back_changed(), Ok(FrontStep::Wait));
        assert_eq!(back.front_changed(), Ok(BackStep::Disconnect));
        back.disconnected().unwrap();
        assert_eq!((front.back_changed(), front.state()), (Ok(FrontStep::Wait), XenbusState::Initialising));
        assert_eq!(back.front_changed(), Ok(BackStep::Wait));
        connect(&mut front, &mut back);
        // One that is closed at once.
        back.refuse("no more").unwrap();
        assert_eq!((front.back_changed(), front.state()), (Ok(FrontStep::Lost), XenbusState::Initialising));
        assert_eq!(back.front_changed(), Ok(BackStep::Wait));
        connect(&mut front, &mut back);
    }

    #[test]
    fn keys_that_make_no_sense_close_the_device_with_the_reason() {
        let (mut store, mut front, mut back) = ends();
        let FrontStep::SetUp(wants, _) = front.back_changed().unwrap() else { panic!("{front:?}") };
        front.publish(&parameters(&wants)).unwrap();
        store.write(&format!("{FRONT}/queue-1/ring-ref7"), "x").unwrap();
        let error = back.front_changed().unwrap_err().to_string();
        assert_eq!(
            error,
            "/local/domain/3/device/vbd/51712: queue-1/ring-ref7 is \"x\", expected a number from 0 to 4294967295"
        );
        assert_eq!(back.state(), XenbusState::Closed);
        assert_eq!(store.read(&format!("{BACK}/error")), Ok(Some(error)));
    }

    /// Takes no value of more than 2000 bytes; and nothing at all below some path.
    struct Narrow(Store, &'static str);

    impl Xenstore for Narrow {
        fn read(&self, path: &str) -> Result<Option<String>, StoreError> {
            self.0.read(path)
        }
        fn write(&mut self, path: &str, value: &str) -> Result<(), StoreError> {
            if value.len() > 2000 || path == self.1 {
                let reason = format!("{} bytes are not taken", value.len());
                return Err(StoreError { path: path.to_owned(), reason, is_refused: true });
            }
            self.0.write(path, value)
        }
        fn remove(&mut self, path: &str) -> Result<(), StoreError> {
            self.0.remove(path)
        }
    }

    #[test]
    fn a_device_is_closed_however_long_the_value_is_and_if_nothing_can_be_said_of_it() {
        for refused in ["", "/local/domain/0/backend/vbd/3/51712/error"] {
            let (mut store, mut front, _) = ends();
            let mut back = BackDevice::new(Narrow(store.clone(), refused), BACK, FRONT, features()).unwrap();
            let FrontStep::SetUp(wants, _) = front.back_changed().unwrap() else { panic!("{front:?}") };
            front.publish(&parameters(&wants)).unwrap();
            store.write(&format!("{FRONT}/protocol"), &"\u{1b}".repeat(4000)).unwrap();
            let error = back.front_changed().unwrap_err();
            assert!(matches!(error, ConnectError::Key { .. }), "{error}");
            assert_eq!(back.state(), XenbusState::Closed);
            assert_eq!(store.read(&format!("{BACK}/state")), Ok(Some("6".to_owned())));
            let said = store.read(&format!("{BACK}/error")).unwrap();
            assert_eq!(said, refused.is_empty().then(|| error.to_string()));
        }
    }

    #[test]
    fn a_device_that_grew_says_so() {
        let (_, mut front, mut back) = ends();
        connect(&mut front, &mut back);
        back.resized(&BackProperties { sectors: 4096, ..PROPERTIES }).unwrap();
        assert_eq!(front.back_changed(), Ok(FrontStep::Wait));
        let read = front.folders.theirs(BackProperties::read).unwrap();
        assert_eq!(read.sectors, 4096);
    }
}
