//! Which names and tags LVM takes for what is new. What is in metadata already is held to less (`vg`): older versions took more.
//!
//! Sources: lvm(8) on names, and `lib/misc/lvm-string.c` of lvm2 as documentation of the reserved ones.

use super::vg::NAME_MAX;

/// Longest tag, bytes.
pub const TAG_MAX: usize = 1024;

/// What an LV's name must not begin with: LVM gives such names itself.
const RESERVED_STARTS: &[&str] = &["snapshot", "pvmove"];

/// What must not be in an LV's name: parts of other volumes are called so.
const RESERVED_PARTS: &[&str] = &[
    "_cdata", "_cmeta", "_corig", "_cpool", "_cvol", "_wcorig", "_iorig", "_imeta", "_mimage", "_mlog",
    "_rimage", "_rmeta", "_tdata", "_tmeta", "_vdata", "_vorigin", "_pmspare",
];

/// Longest name in the kernel's device mapper, bytes, without the NUL.
const DM_NAME_MAX: usize = 127;

/// What LVM puts behind an LV's name at most, for its parts: `_rimage_9999`.
const PART_BYTES: usize = 12;

/// Why a VG cannot be called so.
pub fn refuse_group(name: &str) -> Option<String> {
    refuse(name)
}

/// Why an LV of the group cannot be called so.
pub fn refuse_volume(group: &str, name: &str) -> Option<String> {
    if let Some(why) = refuse(name) {
        return Some(why);
    }
    if let Some(start) = RESERVED_STARTS.iter().find(|start| name.starts_with(**start)) {
        return Some(format!("names that begin with \"{start}\" are LVM's own"));
    }
    if let Some(part) = RESERVED_PARTS.iter().find(|part| name.contains(**part)) {
        return Some(format!("names with \"{part}\" in them are LVM's own, for parts of volumes"));
    }
    let bytes = dm_bytes(group) + 1 + dm_bytes(name) + PART_BYTES;
    (bytes > DM_NAME_MAX).then(|| {
        format!(
            "it is too long: with the group's name and what LVM puts behind it, it has {bytes} bytes in the device mapper, \
             which takes {DM_NAME_MAX}"
        )
    })
}

/// Why something cannot have this tag.
pub fn refuse_tag(tag: &str) -> Option<String> {
    let allowed = |c: char| c.is_ascii_alphanumeric() || "_+.-/=!:#&".contains(c);
    if tag.is_empty() || tag.len() > TAG_MAX {
        return Some(format!("it has {} bytes, expected 1 to {TAG_MAX}", tag.len()));
    }
    if tag.starts_with('-') {
        return Some("it begins with a hyphen".into());
    }
    let strange = tag.chars().find(|c| !allowed(*c))?;
    Some(format!("{strange:?} is in it, expected a-zA-Z0-9 and _+.-/=!:#& only"))
}

fn refuse(name: &str) -> Option<String> {
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '+' | '_' | '.' | '-');
    if name.is_empty() || name.len() > NAME_MAX {
        return Some(format!("it has {} bytes, expected 1 to {NAME_MAX}", name.len()));
    }
    if matches!(name, "." | "..") || name.starts_with('-') {
        return Some("names are not . or .., and do not begin with a hyphen".into());
    }
    let strange = name.chars().find(|c| !allowed(*c))?;
    Some(format!("{strange:?} is in it, expected a-zA-Z0-9+_.- only"))
}

/// Bytes of a name in the device mapper, where each hyphen is doubled.
fn dm_bytes(name: &str) -> usize {
    name.len() + name.bytes().filter(|byte| *byte == b'-').count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_held_to_the_rules_of_lvm() {
        for name in ["a", "root", "+x", "_", "a.b-c", "snap", "rimage", "x_rmet"] {
            assert_eq!(refuse_volume("vg", name), None, "{name}");
        }
        for (name, why) in [
            ("", "0 bytes"),
            (".", "not . or .."),
            ("..", "not . or .."),
            ("-a", "hyphen"),
            ("a b", "' ' is in it"),
            ("a/b", "'/' is in it"),
            ("ä", "'ä' is in it"),
            ("snapshot0", "begin with \"snapshot\""),
            ("pvmove1", "begin with \"pvmove\""),
            ("a_rimage_0", "\"_rimage\" in them"),
            ("pool_tdata", "\"_tdata\" in them"),
        ] {
            let said = refuse_volume("vg", name).expect(name);
            assert!(said.contains(why), "{name}: {said}");
        }
        assert_eq!(refuse_volume("vg", &"x".repeat(127 - 12 - 3)), None);
        assert!(refuse_volume("vg", &"x".repeat(127 - 12 - 2)).is_some());
        assert!(refuse_volume(&"-v".repeat(30), &"x".repeat(30)).unwrap().contains("133 bytes"));
        assert_eq!(refuse_group(&"x".repeat(127)), None);
        assert!(refuse_group(&"x".repeat(128)).is_some());
    }

    #[test]
    fn tags_are_held_to_the_rules_of_lvm() {
        assert_eq!(refuse_tag("db/fast=1!:#&+.-_"), None);
        for tag in ["", "-a", "@a", "a b", "a\"", &"x".repeat(TAG_MAX + 1)] {
            assert!(refuse_tag(tag).is_some(), "{tag:?}");
        }
    }
}
