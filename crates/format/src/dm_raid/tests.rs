//! Superblocks of dm-raid: what is read is what was written, and what no leg has is refused by its field.

use super::*;
use crate::ErrorKind;
use proptest::prelude::*;

fn superblock() -> Superblock {
    let mut bytes = [0; 512];
    put(&mut bytes, 0, &MAGIC.to_le_bytes());
    put(&mut bytes, 4, &1u32.to_le_bytes());
    put(&mut bytes, 8, &4u32.to_le_bytes());
    put(&mut bytes, 12, &2u32.to_le_bytes());
    put(&mut bytes, 48, &10u32.to_le_bytes());
    put(&mut bytes, 52, &0x102u32.to_le_bytes());
    Superblock::decode(&bytes).unwrap()
}

#[test]
fn fields_are_where_the_kernel_has_them() {
    // As `lvcreate --type raid1` leaves them on the second of two legs.
    let mut bytes = [0; 512];
    bytes[..4].copy_from_slice(b"DmRd");
    for (at, byte) in [(4, 1), (8, 2), (12, 1), (16, 18), (48, 1)] {
        bytes[at] = byte;
    }
    bytes[32..48].fill(0xff);
    let superblock = Superblock::decode(&bytes).unwrap();
    assert_eq!((superblock.num_devices, superblock.array_position, superblock.events), (2, 1, 18));
    assert_eq!((superblock.level, superblock.array_resync_offset), (Level::Raid1, IN_SYNC));
    assert_eq!(superblock.encode(), bytes);
    assert_eq!(superblock.supports(), Ok(()));
}

#[test]
fn failed_legs_are_bits_over_four_words() {
    let mut superblock = superblock();
    for position in [0, 63, 64, 252] {
        assert!(!superblock.has_failed(position));
        superblock.fail(position);
        assert!(superblock.has_failed(position), "{position}");
    }
    superblock.fail(256);
    assert!(!superblock.has_failed(256));
    let bytes = superblock.encode();
    assert_eq!((bytes[24], bytes[31], bytes[120], bytes[143]), (1, 0x80, 1, 0x10));
}

#[test]
fn what_no_leg_has_is_an_error_that_names_the_field() {
    type Change = fn(&mut Superblock);
    let changes: [(&str, ErrorKind, Change); 5] = [
        ("compat_features", ErrorKind::Unsupported, |s| s.compat_features = 2),
        ("incompat_features", ErrorKind::Unsupported, |s| s.incompat_features = 1),
        ("num_devices", ErrorKind::Limit, |s| s.num_devices = 0),
        ("num_devices", ErrorKind::Limit, |s| s.num_devices = 254),
        ("array_position", ErrorKind::Invalid, |s| s.array_position = 4),
    ];
    for (field, kind, change) in changes {
        let mut wrong = superblock();
        change(&mut wrong);
        let error = Superblock::decode(&wrong.encode()).unwrap_err();
        assert_eq!((error.field, error.kind), (field, kind), "{error}");
    }
    let error = Superblock::decode(&[0; 148]).unwrap_err();
    assert_eq!(error.to_string(), "dm-raid superblock at 0: magic is 0x00000000, expected 0x64526d44");
    assert!(Superblock::decode(&superblock().encode()[..147]).is_err());
}

#[test]
fn a_reshape_is_refused_where_the_fields_for_it_count() {
    for (flags, data_offset) in [(1, 0), (2, 0), (0, 8)] {
        let mut reshaping = Superblock { flags, data_offset, ..superblock() };
        assert_eq!(reshaping.supports().unwrap_err().kind, ErrorKind::Unsupported);
        reshaping.compat_features = 0;
        assert_eq!(reshaping.supports(), Ok(()));
    }
}

proptest! {
    #[test]
    fn bytes_that_decode_encode_to_themselves(filler in proptest::collection::vec(any::<u8>(), 148), devices in 1u32..254) {
        let mut bytes = [0; 512];
        bytes[..148].copy_from_slice(&filler);
        put(&mut bytes, 0, &MAGIC.to_le_bytes());
        put(&mut bytes, 4, &0u32.to_le_bytes());
        put(&mut bytes, 8, &devices.to_le_bytes());
        put(&mut bytes, 12, &(devices - 1).to_le_bytes());
        prop_assert_eq!(Superblock::decode(&bytes).unwrap().encode(), bytes);
    }
}

#[test]
fn a_type_with_parity_is_the_layout_that_superblocks_call_by_its_number() {
    // As Linux 6.1 wrote them into the superblocks of volumes of these types.
    let numbers = [
        ("raid4", 5, 4),
        ("raid5", 5, 2),
        ("raid5_ls", 5, 2),
        ("raid5_la", 5, 0),
        ("raid6", 6, 8),
        ("raid6_nc", 6, 10),
        ("raid6_n_6", 6, 5),
    ];
    for (name, level, number) in numbers {
        let kind = ParityType::of_segment(name).unwrap();
        assert_eq!((i32::from(kind.level()), kind.layout_number()), (level, number), "{name}");
    }
    for kind in ParityType::ALL {
        assert_eq!(ParityType::of_segment(kind.name()), Some(kind));
        let layout = kind.layout(kind.devices_min()).unwrap();
        assert_eq!(layout.parities(), kind.parities(), "{kind:?}");
        assert_eq!(kind.layout(kind.parities()), None, "{kind:?}: no room for data");
    }
    assert_eq!(["raid5", "raid6", "raid5_0"].map(ParityType::of_target), [None; 3]);
    assert_eq!(ParityType::of_target("raid6_ra_6"), Some(ParityType::Raid6Ra6));
}
