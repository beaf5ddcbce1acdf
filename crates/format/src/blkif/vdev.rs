//! Names and numbers of a guest's disks.
//!
//! Source: Xen's `docs/man/xen-vbd-interface.7`.

use std::fmt;
use std::str::FromStr;

/// Linux' number of `xvd` disks.
const XVD_MAJOR: u32 = 202;
/// With it, numbers of disks and partitions beyond what a byte holds.
const EXTENDED: u32 = 1 << 28;
/// Disks and partitions that have a number of the older form.
const OLD_MAX: u32 = 16;
/// Partitions of a disk, with the disk itself, of the newer form; and its disks.
const PARTITIONS_MAX: u32 = 256;
const DISKS_MAX: u32 = 1 << 20;

/// A guest's disk, or a partition of one that it sees without the disk: a *vdev*.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VirtualDevice {
    /// As in xenstore: `51712` is `xvda`.
    pub number: u32,
}

/// A text that names no disk.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("\"{0}\" is no virtual disk, expected a name such as xvda or xvdb1, or its number, such as 51712")]
pub struct NotADevice(String);

impl FromStr for VirtualDevice {
    type Err = NotADevice;

    fn from_str(text: &str) -> Result<VirtualDevice, NotADevice> {
        let number = match text.strip_prefix("xvd") {
            Some(name) => xvd(name),
            None => text.parse().ok().filter(|number| *number > 0 && *number < 2 * EXTENDED),
        };
        let number = number.ok_or_else(|| NotADevice(crate::escape(text).to_string()))?;
        Ok(VirtualDevice { number })
    }
}

/// The number of `a`, `b7`, `aa`.
fn xvd(name: &str) -> Option<u32> {
    let letters = name.find(|c: char| !c.is_ascii_lowercase()).unwrap_or(name.len());
    let (letters, digits) = name.split_at(letters);
    let mut disk: u32 = 0;
    for letter in letters.bytes() {
        disk = disk.checked_mul(26)?.checked_add(u32::from(letter - b'a') + 1)?;
    }
    let disk = disk.checked_sub(1)?;
    let partition = match digits {
        "" => 0,
        digits => digits.parse().ok().filter(|number| *number > 0 && !digits.starts_with(['0', '+']))?,
    };
    match (disk, partition) {
        (disk, partition) if disk < OLD_MAX && partition < OLD_MAX => {
            Some(XVD_MAJOR << 8 | disk << 4 | partition)
        }
        (disk, partition) if disk < DISKS_MAX && partition < PARTITIONS_MAX => {
            Some(EXTENDED | disk << 8 | partition)
        }
        _ => None,
    }
}

impl fmt::Display for VirtualDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let number = self.number;
        let (mut disk, partition) = match number {
            number if number & EXTENDED != 0 => ((number & !EXTENDED) >> 8, number & 0xff),
            number if number >> 8 == XVD_MAJOR => (number >> 4 & 0xf, number & 0xf),
            number => return write!(f, "{number}"),
        };
        let mut letters = Vec::new();
        loop {
            letters.push(char::from(b'a' + u8::try_from(disk % 26).expect("below 26")));
            match disk / 26 {
                0 => break,
                more => disk = more - 1,
            }
        }
        write!(f, "xvd{}", letters.iter().rev().collect::<String>())?;
        if partition > 0 { write!(f, "{partition}") } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_numbers_and_back() {
        for (name, number) in [
            ("xvda", 51712),
            ("xvdb", 51728),
            ("xvdb1", 51729),
            ("xvdp15", 51967),
            ("xvdq", 1 << 28 | 16 << 8),
            ("xvda16", 1 << 28 | 16),
            ("xvdaa3", 1 << 28 | 26 << 8 | 3),
            ("xvdba", 1 << 28 | 52 << 8),
        ] {
            let device: VirtualDevice = name.parse().unwrap();
            assert_eq!((device.number, device.to_string().as_str()), (number, name));
            assert_eq!(number.to_string().parse(), Ok(device));
        }
        // A disk that Linux calls hda, or of another system.
        assert_eq!("768".parse::<VirtualDevice>().unwrap().to_string(), "768");
    }

    #[test]
    fn what_names_no_disk_is_refused() {
        for text in [
            "",
            "xvd",
            "xvd1",
            "xvda0",
            "xvda01",
            "xvda256",
            "xvdA",
            "sda",
            "0",
            "-1",
            "xvdzzzzz",
            "536870912",
        ] {
            let error = text.parse::<VirtualDevice>().unwrap_err().to_string();
            assert!(error.contains("expected a name such as xvda"), "{error}");
        }
    }
}
