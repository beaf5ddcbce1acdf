//! LVM2: what is on a physical volume, and the text that describes a volume group.

use std::collections::BTreeMap;

use blockwork_format::lvm2::vg::{Area, SECTORS_MAX, STACK_MAX};
use blockwork_format::lvm2::{
    AreaHeader, BLOCK_BYTES, DiskArea, Extension, FoundLabel, Label, PvHeader, RawLocation, Section, Style,
    Uuid, VolumeGroup, mend_header_crc, mend_label_crc,
};
use blockwork_format::{Piece, Source, Sparse};

use crate::input::Input;
use crate::{assert_printable, reached};

/// Flags of an input of [`lvm2_pv`]: CRCs of the label and of the area's header are mended; the slot's is, too.
pub(crate) const MEND_HEADERS: u8 = 1;
pub(crate) const MEND_TEXT: u8 = 2;
/// Where the area's header of an input lies on its disk.
pub(crate) const AREA_AT: u64 = 4096;
/// Bytes of an input's label and of its header that are not zero at most.
pub(crate) const LABEL_BYTES: usize = 256;
pub(crate) const HEADER_BYTES: usize = 88;

/// A disk. The input: flags u8; its size u16, in KiB (below 4 MiB); the label's sector u8; the first 256 bytes of the label; the first 88 of
/// an area's header; what lies behind that header.
pub fn lvm2_pv(data: &[u8]) {
    let mut input = Input(data);
    let flags = input.u8();
    let size = u64::from(input.u16() % 4096) * 1024;
    let sector = u64::from(input.u8() % 5);
    let mut label: [u8; BLOCK_BYTES] = padded(input.bytes(LABEL_BYTES));
    let mut header: [u8; BLOCK_BYTES] = padded(input.bytes(HEADER_BYTES));
    if flags & MEND_HEADERS != 0 {
        mend_label_crc(&mut label);
        mend_header_crc(&mut header);
    }
    let ring = Piece { offset: AREA_AT + 512, bytes: input.0.to_vec() };
    let at = sector * 512;
    let label = Piece { offset: at, bytes: label.to_vec() };
    let disk = Sparse::new(size, vec![ring, Piece { offset: AREA_AT, bytes: header.to_vec() }, label]);
    match Label::find(&disk) {
        Ok(None) => reached("no label"),
        Ok(Some(found)) => check_label(&disk, &found, flags),
        Err(error) => refused(&error.to_string()),
    }
}

fn padded(bytes: &[u8]) -> [u8; BLOCK_BYTES] {
    let mut block = [0; BLOCK_BYTES];
    block[..bytes.len()].copy_from_slice(bytes);
    block
}

fn refused(error: &str) {
    reached("refused");
    assert_printable(error);
}

fn check_label(disk: &Sparse, found: &FoundLabel, flags: u8) {
    reached("label");
    let label = &found.label;
    let sector = label.encode().map(|sector| Label::parse(&sector, label.sector));
    // With the header behind its usual place there may have been room for one area more.
    if let Ok(again) = sector {
        assert_eq!(again.as_ref(), Ok(label));
    }
    // More of them would only be slow: one text may be as long as the disk.
    for area in label.pv.metadata_areas.iter().take(2) {
        match AreaHeader::read(disk, *area) {
            Ok(header) => check_area(disk, &header, flags),
            Err(error) => refused(&error.to_string()),
        }
    }
}

fn check_area(disk: &Sparse, header: &AreaHeader, flags: u8) {
    reached("area");
    let area = header.area;
    assert!(area.offset + area.size <= disk.size());
    assert_eq!(AreaHeader::parse(&header.encode(), area).as_ref(), Ok(header));
    for slot in [header.committed(), header.precommitted()].into_iter().flatten() {
        let text = read_text(disk, header, slot, flags);
        if let Some(text) = text {
            reached("text");
            assert_eq!(u64::try_from(text.len()), Ok(slot.size));
            check_text(&text);
        }
    }
    match header.place(b"vg {\n}\n") {
        Ok(place) => {
            reached("place");
            for piece in header.pieces(&place, b"vg {\n}\n").expect("a place of the ring") {
                assert!(piece.offset >= area.offset + 512 && piece.end() <= area.offset + area.size);
            }
        }
        Err(error) => refused(&error.to_string()),
    }
}

fn read_text(disk: &Sparse, header: &AreaHeader, mut slot: RawLocation, flags: u8) -> Option<Vec<u8>> {
    let mut found = header.read_text(disk, &slot);
    if let Err(error) = found.as_ref().map_err(|error| error.clone()) {
        // The CRC that was computed is in the error.
        let computed = error.found.strip_prefix("0x").and_then(|hex| u32::from_str_radix(hex, 16).ok());
        if let (Some(checksum), true) = (computed, flags & MEND_TEXT != 0 && error.field == "CRC") {
            slot.checksum = checksum;
            found = header.read_text(disk, &slot);
            assert!(found.is_ok(), "it has its own CRC");
        }
    }
    found.map_err(|error| refused(&error.to_string())).ok()
}

/// A text, as it is in a metadata area or in a backup file. The input: flags u8, the text. With bit 0 of the flags whatever
/// is not printable becomes a digit, so that changes of single bytes reach the numbers and names.
pub fn lvm2_text(data: &[u8]) {
    let mut input = Input(data);
    let digits = input.u8() & 1 != 0;
    let printable = |byte: u8| byte.is_ascii_graphic() || byte == b' ' || byte == b'\n' || byte == b'\t';
    let text = input.0.iter().map(|byte| if digits && !printable(*byte) { b'1' } else { *byte });
    check_text(&text.collect::<Vec<u8>>());
}

fn check_text(data: &[u8]) {
    let tree = match Section::parse(data) {
        Ok(tree) => tree,
        Err(error) => return refused(&error.to_string()),
    };
    reached("tree");
    for style in [Style::Disk, Style::File] {
        assert_eq!(Section::parse(&tree.print(style)).as_ref(), Ok(&tree));
    }
    match VolumeGroup::from_tree(&tree) {
        Ok(vg) => check_vg(&vg),
        Err(error) => refused(&error.to_string()),
    }
}

fn check_vg(vg: &VolumeGroup) {
    reached("volume group");
    assert_eq!(vg.visible().len(), vg.lvs.len());
    assert!(
        vg.snapshots().all(|snapshot| snapshot.store.0 < vg.lvs.len() && snapshot.origin.0 < vg.lvs.len())
    );
    let mut heights = BTreeMap::new();
    for (index, lv) in vg.lvs.iter().enumerate() {
        assert_printable(&lv.name);
        let mut end = 0;
        for segment in &lv.segments {
            assert_eq!(segment.start_extent, end);
            assert!(segment.extent_count > 0);
            end += segment.extent_count;
            let (areas, count) = segment.areas();
            for area in areas {
                let (extent, size) = match *area {
                    Area::Pv { pv, extent } => (extent, vg.pvs[pv.0].pe_count),
                    Area::Lv { lv, extent } => (extent, vg.lvs[lv.0].extents()),
                };
                assert!(extent.checked_add(count).expect("an end") <= size, "{lv:?}");
            }
        }
        assert!(end.checked_mul(vg.extent_sectors).expect("a size") <= SECTORS_MAX);
        assert!(height(vg, index, 0, &mut heights) <= STACK_MAX);
    }
}

/// How many LVs are on top of each other, the uppermost this one; `known` are those that were asked for before.
fn height(vg: &VolumeGroup, lv: usize, above: usize, known: &mut BTreeMap<usize, usize>) -> usize {
    assert!(above < STACK_MAX, "it would go on for ever");
    if let Some(height) = known.get(&lv) {
        return *height;
    }
    let mut below: Vec<usize> = Vec::new();
    for segment in &vg.lvs[lv].segments {
        below.extend(segment.areas().0.iter().filter_map(|area| match area {
            Area::Lv { lv, .. } => Some(lv.0),
            Area::Pv { .. } => None,
        }));
        below.extend(segment.kind.whole_lvs().iter().chain(&segment.kind.shared_lvs()).map(|lv| lv.0));
    }
    let height = 1 + below.into_iter().map(|lv| height(vg, lv, above + 1, known)).max().unwrap_or(0);
    known.insert(lv, height);
    height
}

/// Texts that mutations start from.
pub(crate) const TEXTS: &[(&str, &str)] = &[
    ("linear", include_str!("lvm2/linear.vg")),
    ("raid", include_str!("lvm2/raid.vg")),
    ("thin", include_str!("lvm2/thin.vg")),
    ("syntax", "# c\na = [1, -2, \"x\\\"\", 'y', 0.5, ] b{c{}\n\"d#\" = 010}e=bare\n"),
];

/// A disk of 512 KiB with a text, and one that was precommitted.
pub(crate) fn pv_input(flags: u8, sector: u8, text: &str) -> Vec<u8> {
    let area = DiskArea { offset: AREA_AT, size: 64 << 10 };
    let pv = PvHeader {
        id: Uuid::from_compact(&[b'p'; 32]).expect("an identifier"),
        device_bytes: 512 << 10,
        data_areas: vec![DiskArea { offset: 128 << 10, size: 0 }],
        metadata_areas: vec![area],
        extension: Some(Extension { version: 2, flags: 1, bootloader_areas: Vec::new() }),
    };
    let label = Label { sector: u64::from(sector), pv }.encode().expect("a label");
    let mut header = AreaHeader::new(area).expect("an area");
    header.slots[0] = header.place(text.as_bytes()).expect("room");
    let mut ring = header.pieces(&header.slots[0], text.as_bytes()).expect("a place").remove(0).bytes;
    header.slots[1] = header.place(b"vg {\n}\n").expect("room");
    ring.extend(b"vg {\n}\n\0");
    let header = header.encode();
    [&[flags, 0, 2, sector], &label[..LABEL_BYTES], &header[..HEADER_BYTES], &ring].concat()
}
