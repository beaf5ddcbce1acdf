//! Amounts as people write them: `10G`, `+512M`, `100`, `-20`, `100%FREE`, `50%VG`.

use anyhow::Result;
use blockwork_volume::lvm::edit::{Resize, Size};

use crate::sizes::{MIB, bytes};
use crate::usage::{bail_usage, usage};

/// What `--size` and `--extents` of a new volume say; one of them is there. A + in front means nothing, as for lvcreate.
pub(super) fn new_size(size: Option<&str>, extents: Option<&str>) -> Result<Size> {
    if let Some(text) = size {
        return bytes("--size", without_plus(text), MIB).map(Size::Bytes);
    }
    let text = without_plus(extents.unwrap_or_default());
    match text.split_once('%') {
        None => Ok(Size::Extents(number(text, "extents, or N%FREE, or N%VG")?)),
        Some((hundredths, unit)) => {
            let hundredths = number(hundredths, "hundredths before the %")?;
            if hundredths > 100 {
                bail_usage!("--extents {text}: there is no more than 100%");
            }
            match unit.to_ascii_uppercase().as_str() {
                "FREE" => Ok(Size::PercentFree(hundredths)),
                "VG" => Ok(Size::PercentGroup(hundredths)),
                _ => bail_usage!("--extents {text}: expected N, N%FREE or N%VG"),
            }
        }
    }
}

/// What `--size` and `--extents` of a volume that is there say; one of them is there.
pub(super) fn resize(size: Option<&str>, extents: Option<&str>) -> Result<Resize> {
    if let Some(text) = size {
        let (sign, rest) = signed(text);
        let bytes = bytes("--size", rest, MIB)?;
        return Ok(match sign {
            Some('+') => Resize::MoreBytes(bytes),
            Some(_) => Resize::LessBytes(bytes),
            None => Resize::ToBytes(bytes),
        });
    }
    let text = extents.unwrap_or_default();
    let (sign, rest) = signed(text);
    if let Some((hundredths, unit)) = rest.split_once('%') {
        if sign != Some('+') || !unit.eq_ignore_ascii_case("FREE") {
            bail_usage!("--extents {text}: expected [+|-]N, or +N%FREE for hundredths of what is free");
        }
        let hundredths = number(hundredths, "hundredths before the %")?;
        if hundredths > 100 {
            bail_usage!("--extents {text}: there is no more than 100%");
        }
        return Ok(Resize::MorePercentFree(hundredths));
    }
    let extents = number(rest, "extents, with + or - in front if it is by how much, or +N%FREE")?;
    Ok(match sign {
        Some('+') => Resize::MoreExtents(extents),
        Some(_) => Resize::LessExtents(extents),
        None => Resize::ToExtents(extents),
    })
}

pub(super) fn without_plus(text: &str) -> &str {
    text.strip_prefix('+').unwrap_or(text)
}

fn signed(text: &str) -> (Option<char>, &str) {
    let sign = text.chars().next().filter(|c| matches!(c, '+' | '-'));
    (sign, sign.map_or(text, |_| &text[1..]))
}

fn number(text: &str, expected: &str) -> Result<u64> {
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let parsed = digits.then(|| text.parse().ok()).flatten();
    parsed.ok_or_else(|| usage!("--extents: {text:?} is no number; expected {expected}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_of_new_volumes() {
        assert_eq!(new_size(Some("10G"), None).unwrap(), Size::Bytes(10 << 30));
        assert_eq!(new_size(Some("100"), None).unwrap(), Size::Bytes(100 << 20), "as lvcreate -L 100");
        assert_eq!(new_size(None, Some("7")).unwrap(), Size::Extents(7));
        assert_eq!(new_size(None, Some("100%FREE")).unwrap(), Size::PercentFree(100));
        assert_eq!(new_size(None, Some("5%vg")).unwrap(), Size::PercentGroup(5));
        for wrong in ["", "x", "-1", "++1", "101%FREE", "10%ORIGIN", "%FREE"] {
            assert!(new_size(None, Some(wrong)).is_err(), "{wrong}");
        }
        assert_eq!(new_size(Some("+1G"), None).unwrap(), Size::Bytes(1 << 30), "as lvcreate -L +1G");
        assert_eq!(new_size(None, Some("+100%FREE")).unwrap(), Size::PercentFree(100));
        assert!(new_size(Some("-1G"), None).is_err());
    }

    #[test]
    fn sizes_of_volumes_that_are_there() {
        assert_eq!(resize(Some("+1G"), None).unwrap(), Resize::MoreBytes(1 << 30));
        assert_eq!(resize(Some("-1K"), None).unwrap(), Resize::LessBytes(1024));
        assert_eq!(resize(Some("2M"), None).unwrap(), Resize::ToBytes(2 << 20));
        assert_eq!(resize(Some("+1.5"), None).unwrap(), Resize::MoreBytes(3 << 19));
        assert_eq!(resize(None, Some("-3")).unwrap(), Resize::LessExtents(3));
        assert_eq!(resize(None, Some("3")).unwrap(), Resize::ToExtents(3));
        assert_eq!(resize(None, Some("+100%FREE")).unwrap(), Resize::MorePercentFree(100));
        for wrong in ["100%FREE", "-5%FREE", "++1", "1.5", ""] {
            assert!(resize(None, Some(wrong)).is_err(), "{wrong}");
        }
    }
}
