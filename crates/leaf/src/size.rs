//! Sizes as people write them: `512M`, `1.5G`, `64KiB`, `2048s`, or plain bytes.

/// Bytes of a sector of the suffix S.
const SECTOR_BYTES: u64 = 512;

/// Digits that may stand behind the point.
const FRACTION_DIGITS_MAX: usize = 9;

/// Bytes. Suffixes K, M, G, T, P, E, with or without `iB`, are powers of 1024, S is sectors of 512 bytes; `B` or none are bytes.
/// With a point it is rounded down.
///
/// # Errors
///
/// What is no size, or 2^64 and more.
pub fn parse_size(text: &str) -> Result<u64, String> {
    parse_size_in(text, 1)
}

/// The same, where a number without a suffix counts so many bytes.
///
/// # Errors
///
/// What is no size, or 2^64 and more.
pub fn parse_size_in(text: &str, plain: u64) -> Result<u64, String> {
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, suffix) = text.split_at(end);
    let unit = unit_of(suffix, plain).ok_or_else(|| {
        format!("the size {text:?} has the suffix {suffix:?}: expected B, S (sectors), K, M, G, T, P or E, such as 512M or 10GiB")
    })?;
    let (whole, fraction) = number.split_once('.').unwrap_or((number, "0"));
    let is_number = |digits: &str| !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    if !is_number(whole) || !is_number(fraction) || fraction.len() > FRACTION_DIGITS_MAX {
        return Err(format!(
            "the size {text:?} is not one: expected a number, with a suffix such as 512M, 1.5G or 10GiB"
        ));
    }
    let whole = whole.parse::<u64>().ok().and_then(|whole| whole.checked_mul(unit));
    let tenths = 10_u128.pow(fraction.len() as u32);
    let part = fraction.parse::<u128>().expect("some digits") * u128::from(unit) / tenths;
    let part = u64::try_from(part).expect("less than the unit");
    whole
        .and_then(|whole| whole.checked_add(part))
        .ok_or_else(|| format!("the size {text:?} is larger than 2^64 bytes"))
}

/// Bytes that a suffix stands for; `plain` if there is none.
fn unit_of(suffix: &str, plain: u64) -> Option<u64> {
    let (letters, is_binary) = match suffix.strip_suffix("iB") {
        Some(letters) => (letters, true),
        None => (suffix, false),
    };
    Some(match letters.to_ascii_uppercase().as_str() {
        "" if !is_binary => plain,
        "B" if !is_binary => 1,
        "S" if !is_binary => SECTOR_BYTES,
        "K" => 1 << 10,
        "M" => 1 << 20,
        "G" => 1 << 30,
        "T" => 1 << 40,
        "P" => 1 << 50,
        "E" => 1 << 60,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_powers_of_1024() {
        for (text, bytes) in [
            ("0", 0),
            ("512", 512),
            ("512B", 512),
            ("64KiB", 65536),
            ("64k", 65536),
            ("10G", 10 << 30),
            ("3T", 3 << 40),
            ("15E", 15 << 60),
            ("1.5G", 3 << 29),
            ("0.3333K", 341),
            ("15.999999999E", 18_446_744_072_556_630_111),
            ("8s", 4096),
        ] {
            assert_eq!(parse_size(text), Ok(bytes), "{text}");
        }
    }

    #[test]
    fn a_number_alone_counts_what_the_caller_says() {
        for (text, bytes) in [("7", 7 << 20), ("1.5", 3 << 19), ("7B", 7), ("7K", 7 << 10), ("7g", 7 << 30)] {
            assert_eq!(parse_size_in(text, 1 << 20), Ok(bytes), "{text}");
        }
        assert!(parse_size_in("99999999999999", 1 << 20).is_err());
    }

    #[test]
    fn what_is_not_a_size_is_refused_with_an_example() {
        for text in [
            "",
            "G",
            "-1",
            "1.G",
            ".5G",
            "1.2.3G",
            "1.5.G",
            "0.1234567890K",
            "10GB",
            "1iB",
            "1siB",
            "10 G",
            "99999999999999999999",
            "16E",
            "1X",
        ] {
            assert!(parse_size(text).unwrap_err().contains(text), "{text}");
        }
    }
}
