//! What a server offers: volumes under names, and what clients are told of them.

use blockwork_engine::{Volume, VolumeId};
use blockwork_format::nbd::{NAME_MAX, PAYLOAD_MAX, transmission_flags as flags};

use crate::offered::{Named, NotOpened, Offered, OfferedError, Opened};

/// One export: a volume under a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Export {
    /// Its name for clients.
    pub name: String,
    /// A text for people; may be empty.
    pub description: String,
    /// The volume.
    pub volume: VolumeId,
    /// Size, bytes.
    pub size: u64,
    /// Transmission flags, but for those that depend on what was agreed upon with a client.
    pub flags: u16,
    /// What a client should align to for speed, bytes, a power of two.
    pub preferred_block: u32,
    /// Smallest unit of the volume, bytes, a power of two: what is not aligned to it is read, modified and written.
    pub logical_block: u32,
}

impl Export {
    /// The export of `volume` under its own name.
    pub fn new(id: VolumeId, volume: &Volume, read_only: bool) -> Export {
        let limits = volume.limits();
        let read_only = read_only || volume.read_only || limits.read_only;
        let always = flags::HAS_FLAGS | flags::SEND_FLUSH | flags::CAN_MULTI_CONN | flags::SEND_CACHE;
        let writable = flags::SEND_FUA | flags::SEND_WRITE_ZEROES | flags::SEND_FAST_ZERO;
        let when = |condition: bool, bits: u16| if condition { bits } else { 0 };
        Export {
            name: volume.name.clone(),
            description: String::new(),
            volume: id,
            size: volume.sectors().bytes(),
            flags: always
                | if read_only { flags::READ_ONLY } else { writable }
                | when(!read_only && limits.discards(), flags::SEND_TRIM)
                | when(limits.rotational, flags::ROTATIONAL),
            preferred_block: limits
                .physical_block_size
                .max(limits.io_min)
                .max(4096)
                .next_power_of_two()
                .min(PAYLOAD_MAX),
            logical_block: limits.logical_block_size,
        }
    }

    /// Whether it has a transmission flag.
    #[inline]
    pub fn has(&self, flag: u16) -> bool {
        self.flags & flag != 0
    }
}

/// All exports of a server, in order: the first is the default one, which clients get for the empty name. What a client has opened stays what it
/// was when it was opened.
pub type Exports = Offered<Export>;

impl Named for Export {
    const OPENER: &'static str = "NBD client";

    fn name(&self) -> &str {
        &self.name
    }

    fn check_name(&self) -> Result<(), OfferedError> {
        let length = self.name.len();
        if length <= NAME_MAX {
            return Ok(());
        }
        Err(OfferedError::Name(format!("an export's name has {length} bytes, NBD allows {NAME_MAX}")))
    }
}

impl Exports {
    /// Most entries that LIST answers with: as many as libnbd takes. More exports than that can be opened by name.
    pub const LISTED_MAX: usize = 10_000;
    /// Most bytes of their names and descriptions, since a client that does not read its answer keeps them in memory here.
    pub const LISTED_BYTES_MAX: usize = 4 << 20;

    /// The export of that name.
    ///
    /// # Errors
    ///
    /// As [`Offered::open`].
    pub fn find(&self, name: &[u8]) -> Result<Opened<Export>, NotOpened> {
        self.open(|_, export| name.is_empty() || export.name.as_bytes() == name)
    }

    /// Those that LIST names: name and description.
    pub fn listed(&self) -> Vec<(String, String)> {
        let mut bytes = 0;
        let mut has_room = |export: &Export| {
            bytes += export.name.len() + export.description.len();
            bytes <= Exports::LISTED_BYTES_MAX
        };
        self.look(|all| {
            let open = all.filter(|seen| !seen.is_withheld).map(|seen| seen.one).take(Exports::LISTED_MAX);
            let listed = open.take_while(|export| has_room(export));
            listed.map(|export| (export.name.clone(), export.description.clone())).collect()
        })
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    /// An export with everything.
    pub(crate) fn export(name: &str, size: u64) -> Export {
        Export {
            name: name.to_owned(),
            description: "for tests".to_owned(),
            volume: VolumeId(0),
            size,
            flags: flags::HAS_FLAGS
                | flags::SEND_FLUSH
                | flags::SEND_FUA
                | flags::SEND_TRIM
                | flags::SEND_WRITE_ZEROES
                | flags::SEND_FAST_ZERO
                | flags::CAN_MULTI_CONN
                | flags::SEND_CACHE,
            preferred_block: 4096,
            logical_block: 512,
        }
    }

    fn in_use(clients: usize) -> OfferedError {
        OfferedError::InUse { clients, opener: "NBD client" }
    }

    #[test]
    fn the_empty_name_is_the_first_export() {
        let exports = Exports::of(vec![export("a", 1), export("b", 2)]).unwrap();
        assert_eq!(exports.find(b"").unwrap().name, "a");
        assert_eq!(exports.find(b"b").unwrap().size, 2);
        assert!(exports.find(b"c").is_err());
    }

    #[test]
    fn names_that_clients_could_not_use_are_refused() {
        let twice = vec![export("a", 1), export("a", 2)];
        assert_eq!(Exports::of(twice).unwrap_err(), OfferedError::Duplicate("a".into()));
        let long = Exports::of(vec![export(&"x".repeat(NAME_MAX + 1), 1)]).unwrap_err().to_string();
        assert_eq!(long, format!("an export's name has {} bytes, NBD allows {NAME_MAX}", NAME_MAX + 1));
    }

    #[test]
    fn a_list_ends_at_as_many_exports_and_bytes_as_one_answer_may_have() {
        let all = |count: usize, name: &str| {
            Exports::of((0..count).map(|n| export(&format!("{name}{n}"), 1))).unwrap()
        };
        let exports = all(Exports::LISTED_MAX + 1, "lv");
        assert_eq!(exports.listed().len(), Exports::LISTED_MAX);
        assert!(exports.find(format!("lv{}", Exports::LISTED_MAX).as_bytes()).is_ok());
        let listed = all(1100, &"x".repeat(NAME_MAX - 4)).listed();
        let bytes = |(name, description): &(String, String)| name.len() + description.len();
        let sum: usize = listed.iter().map(bytes).sum();
        let free = Exports::LISTED_BYTES_MAX - sum;
        assert!(listed.len() < 1100 && free < bytes(&listed[0]) + 4, "{} of {sum} bytes", listed.len());
    }

    #[test]
    fn exports_come_and_go_and_stay_while_they_are_open() {
        let exports = Exports::of(vec![export("a", 1)]).unwrap();
        let of_a_session = exports.clone();
        exports.add(export("b", 2)).unwrap();
        assert_eq!(exports.add(export("b", 3)).unwrap_err(), OfferedError::Duplicate("b".into()));
        let open = of_a_session.find(b"b").unwrap();
        exports.replace("b", export("c", 3)).unwrap();
        assert_eq!(exports.replace("c", export("a", 3)).unwrap_err(), OfferedError::Duplicate("a".into()));
        assert_eq!((open.size, of_a_session.find(b"c").unwrap().size), (2, 3));
        assert!(of_a_session.find(b"b").is_err());
        let later = of_a_session.find(b"c").unwrap();
        assert_eq!(exports.remove("c").unwrap_err(), in_use(2));
        drop(later);
        assert_eq!(exports.remove("c").unwrap_err(), in_use(1));
        drop(open);
        exports.remove("c").unwrap();
        assert_eq!(of_a_session.listed().len(), 1);
    }

    #[test]
    fn what_is_withheld_stays_with_those_who_have_it_and_nobody_else_gets_it() {
        let why = |exports: &Exports, name: &[u8]| exports.find(name).unwrap_err();
        let exports = Exports::of(vec![export("a", 1), export("b", 2)]).unwrap();
        let both = ["a".to_owned(), "b".to_owned()];
        let open = exports.find(b"b").unwrap();
        let in_use = ("b".to_owned(), in_use(1));
        assert_eq!(exports.withhold_unused(&both).unwrap_err(), in_use);
        assert!(exports.find(b"a").is_ok(), "all or none");
        exports.withhold(&both[1..], true);
        assert!(exports.find(b"b").is_err() && open.size == 2);
        assert_eq!(exports.withhold_unused(&both).unwrap_err(), in_use);
        drop(open);
        // The one for a moment, the other as it was withheld before.
        assert_eq!(exports.withhold_unused(&both).unwrap(), ["a"]);
        assert_eq!([why(&exports, b"a"), why(&exports, b"")], [NotOpened::NotNow; 2]);
        assert_eq!(why(&exports, b"b"), NotOpened::None);
        assert_eq!(exports.listed().len(), 1);
        // What takes its place is withheld like it.
        exports.replace("a", export("a", 3)).unwrap();
        assert_eq!(why(&exports, b"a"), NotOpened::NotNow);
        exports.withhold(&both, true);
        assert_eq!(why(&exports, b"a"), NotOpened::None);
        exports.withhold(&both, false);
        assert_eq!([exports.find(b"").unwrap().size, exports.find(b"b").unwrap().size], [3, 2]);
    }

    #[test]
    fn whoever_is_told_that_an_export_was_closed_finds_it_closed() {
        let exports = Exports::of(vec![export("a", 1)]).unwrap();
        let (again, found) = (exports.clone(), Arc::new(Mutex::new(Vec::new())));
        let told = found.clone();
        exports.when_closed(move || told.lock().unwrap().push(again.withhold_unused(&["a".into()]).is_ok()));
        let (first, second) = (exports.find(b"a").unwrap(), exports.find(b"a").unwrap());
        assert!(first.is(&second));
        drop(first);
        drop(second);
        assert_eq!(*found.lock().unwrap(), [false, true]);
    }
}
