//! Sizes as people write them: `512M`, `10G`, `64KiB`, or plain bytes.

/// Bytes. Suffixes K, M, G, T, P, E, with or without `iB`, are powers of 1024; `B` or none are bytes.
pub fn parse_size(text: &str) -> Result<u64, String> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, suffix) = text.split_at(digits);
    let expected =
        "expected a number of bytes, or one with K, M, G, T, P or E (powers of 1024), such as 512M or 10GiB";
    let number: u64 = number.parse().map_err(|_| format!("the size {text:?} is not one: {expected}"))?;
    let power = match suffix.strip_suffix("iB").unwrap_or(suffix).to_ascii_uppercase().as_str() {
        "" | "B" if !suffix.ends_with("iB") => 0,
        "K" => 1,
        "M" => 2,
        "G" => 3,
        "T" => 4,
        "P" => 5,
        "E" => 6,
        _ => {
            return Err(format!("the size {text:?} has the suffix {suffix:?}: {expected}"));
        }
    };
    number
        .checked_mul(1 << (10 * power))
        .ok_or_else(|| format!("the size {text:?} is larger than 2^64 bytes"))
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
        ] {
            assert_eq!(parse_size(text), Ok(bytes), "{text}");
        }
    }

    #[test]
    fn what_is_not_a_size_is_refused_with_an_example() {
        for text in ["", "G", "-1", "1.5G", "10GB", "1iB", "10 G", "99999999999999999999", "16E", "1X"] {
            assert!(parse_size(text).unwrap_err().contains(text), "{text}");
        }
    }
}
