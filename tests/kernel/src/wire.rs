//! The line between host and guest: frames of a kind, a length and a payload, over a virtio-serial port.
//!
//! Compiled into the library and into the guest's agent. Host to guest: files for the script, the script, and perhaps the order to
//! kill it. Guest to host: that it is ready, then for each script what it says as it says it, its files, and its exit status.

use std::io::{self, Read, Write};

/// A larger payload is refused: nothing that goes over the line is so large, unless the line is out of step.
pub const PAYLOAD_MAX: u32 = 256 << 20;

/// What a frame is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// To the guest: a file for `/in`: name, a zero byte, contents.
    Input,
    /// To the guest: a bash script to run.
    Script,
    /// To the guest: kill the script.
    Kill,
    /// From the guest: ready for scripts; the kernel's release.
    Ready,
    /// From the guest: what the script wrote to its standard output.
    Stdout,
    /// From the guest: what the script wrote to its standard error.
    Stderr,
    /// From the guest: a file of `/out`: path below it, a zero byte, contents.
    Result,
    /// From the guest: the script ended; its exit status in decimal.
    Exit,
}

const KINDS: [(u8, Kind); 8] = [
    (b'i', Kind::Input),
    (b's', Kind::Script),
    (b'k', Kind::Kill),
    (b'r', Kind::Ready),
    (b'o', Kind::Stdout),
    (b'e', Kind::Stderr),
    (b'f', Kind::Result),
    (b'x', Kind::Exit),
];

/// Writes one frame. Errors: as writing has them, or a payload of more than [`PAYLOAD_MAX`] bytes.
pub fn write_frame(to: &mut impl Write, kind: Kind, payload: &[u8]) -> io::Result<()> {
    let byte = KINDS.iter().find(|(_, other)| *other == kind).map_or(0, |(byte, _)| *byte);
    let length = u32::try_from(payload.len()).ok().filter(|length| *length <= PAYLOAD_MAX);
    let Some(length) = length else {
        let what = format!("{} bytes in one frame, limit {PAYLOAD_MAX}", payload.len());
        return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
    };
    let mut head = [byte, 0, 0, 0, 0];
    head[1..].copy_from_slice(&length.to_le_bytes());
    to.write_all(&head)?;
    to.write_all(payload)?;
    to.flush()
}

/// Reads one frame. Errors: as reading has them, or bytes that are no frame.
pub fn read_frame(from: &mut impl Read) -> io::Result<(Kind, Vec<u8>)> {
    let mut head = [0; 5];
    from.read_exact(&mut head)?;
    let length = u32::from_le_bytes([head[1], head[2], head[3], head[4]]);
    let kind = KINDS.iter().find(|(byte, _)| *byte == head[0]).map(|(_, kind)| *kind);
    let (Some(kind), true) = (kind, length <= PAYLOAD_MAX) else {
        return Err(io::Error::new(io::ErrorKind::InvalidData, format!("no frame: {head:02x?}")));
    };
    let mut payload = vec![0; length as usize];
    from.read_exact(&mut payload)?;
    Ok((kind, payload))
}
