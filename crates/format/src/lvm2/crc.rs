//! The CRC of labels, area headers and texts: CRC-32 with a start value of its own, and without the final inversion.

/// What `crc32fast` has to start from so that its register holds LVM's start value, 0xf597a6cf.
const START: u32 = !0xf597_a6cf;

/// The CRC of the parts, one after the other.
pub(super) fn crc<'a>(parts: impl IntoIterator<Item = &'a [u8]>) -> u32 {
    let mut hasher = crc32fast::Hasher::new_with_initial(START);
    for part in parts {
        hasher.update(part);
    }
    !hasher.finalize()
}

#[cfg(test)]
mod tests {
    use super::crc;

    #[test]
    fn the_crc_is_the_one_that_lvm_computes() {
        let all: Vec<u8> = (0..=255).collect();
        let vectors: [(&[u8], u32); 4] =
            [(b"", 0xf597_a6cf), (b"123456789", 0x4991_cf02), (&[0; 508], 0x6702_d122), (&all, 0x5af1_dacf)];
        for (bytes, expected) in vectors {
            assert_eq!(crc([bytes]), expected, "{} bytes", bytes.len());
            let (head, tail) = bytes.split_at(bytes.len() / 3);
            assert_eq!(crc([head, tail]), expected, "{} bytes in two parts", bytes.len());
        }
    }
}
