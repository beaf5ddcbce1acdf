//! Encodes and decodes records.
//!
//! We write version 7, little-endian: what every blkparse reads. Payloads of X, U, UT and A are big-endian whatever the
//! record's byte order is; a cgroup's id and a timestamp are in the record's order.

use std::borrow::Cow;
use std::fmt;

use super::action::{Act, Action, Category, Note};
use crate::FormatError;
use crate::bytes::{array, length};

/// Bytes of a version 7 record before its payload.
pub const HEADER_BYTES: usize = 48;

/// Bytes of a version 8 record before its payload.
pub const HEADER_BYTES_V8: usize = 64;

/// Longest payload of a record that we write; the kernel's own messages end there too (`BLK_TN_MAX_MSG`).
pub const PAYLOAD_MAX: usize = 1024;

/// Longest name in a process note (`TASK_COMM_LEN`).
pub const COMM_BYTES: usize = 16;

const MAGIC: u32 = 0x6561_7400;
const CGROUP_BYTES: usize = 8;
const PLACE: &str = "blktrace record";

/// A device's number as in a trace: major in the bits from 20 up, minor below.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Device(pub u32);

impl Device {
    /// The number of `major:minor`; bits that do not fit (12 and 20) are an error of the caller's.
    pub fn new(major: u32, minor: u32) -> Device {
        assert!(major < 1 << 12, "major {major} has 12 bits at most");
        assert!(minor < 1 << 20, "minor {minor} has 20 bits at most");
        Device(major << 20 | minor)
    }

    /// Major number.
    pub fn major(self) -> u32 {
        self.0 >> 20
    }

    /// Minor number.
    pub fn minor(self) -> u32 {
        self.0 & 0xf_ffff
    }
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{},{}", self.major(), self.minor())
    }
}

/// Byte order of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ByteOrder {
    /// x86, ARM, RISC-V, POWER.
    Little,
    /// s390.
    Big,
}

/// Version of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Version {
    /// 48 bytes: all kernels before 6.19.
    V7,
    /// 64 bytes: kernels that were asked for it.
    V8,
}

impl Version {
    fn header_bytes(self) -> usize {
        match self {
            Version::V7 => HEADER_BYTES,
            Version::V8 => HEADER_BYTES_V8,
        }
    }
}

/// One record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record<'a> {
    /// Counts the events of a CPU; 0 for notes.
    pub sequence: u32,
    /// Monotonic, ns.
    pub time_ns: u64,
    /// First sector of the I/O, on `device`.
    pub sector: u64,
    /// Length of the I/O, bytes.
    pub bytes: u32,
    /// What happened.
    pub action: Action,
    /// Who did it.
    pub pid: u32,
    /// Where.
    pub device: Device,
    /// On which CPU.
    pub cpu: u32,
    /// Error of a completion: a negative errno in 16 bits, as the kernel stores it.
    pub error: u16,
    /// The cgroup's id (its inode number, and a generation in the upper half), where the trace has it. blkparse 1.2.0
    /// leaves such records out, with a complaint: do not write it into a file for blkparse.
    pub cgroup: Option<u64>,
    /// What follows the record.
    pub payload: Cow<'a, [u8]>,
    /// How it was encoded.
    pub order: ByteOrder,
}

/// Payload of A: from which device and sector a bio came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Remap {
    /// The device that it was for.
    pub from: Device,
    /// The device that it goes to; the record's own.
    pub to: Device,
    /// The sector that it was for, on `from`.
    pub sector_from: u64,
}

impl Remap {
    /// The payload's bytes.
    pub fn encode(self) -> [u8; 16] {
        let mut out = [0; 16];
        out[..4].copy_from_slice(&self.from.0.to_be_bytes());
        out[4..8].copy_from_slice(&self.to.0.to_be_bytes());
        out[8..].copy_from_slice(&self.sector_from.to_be_bytes());
        out
    }
}

impl<'a> Record<'a> {
    /// An act on an I/O, without payload; the fields that are not given are 0.
    pub fn new(act: Act, io: Category, device: Device, sector: u64, bytes: u32) -> Self {
        Self {
            sequence: 0,
            time_ns: 0,
            sector,
            bytes,
            action: Action::new(act, io),
            pid: 0,
            device,
            cpu: 0,
            error: 0,
            cgroup: None,
            payload: Cow::Borrowed(&[]),
            order: ByteOrder::Little,
        }
    }

    /// A: `device` and `sector` are the new ones.
    pub fn remap(io: Category, bytes: u32, sector: u64, remap: Remap) -> Record<'static> {
        let payload = Cow::Owned(remap.encode().to_vec());
        Record { payload, ..Record::new(Act::Remap, io, remap.to, sector, bytes) }
    }

    /// X: the I/O was cut before `split_sector`.
    pub fn split(
        io: Category,
        device: Device,
        sector: u64,
        bytes: u32,
        split_sector: u64,
    ) -> Record<'static> {
        let payload = Cow::Owned(split_sector.to_be_bytes().to_vec());
        Record { payload, ..Record::new(Act::Split, io, device, sector, bytes) }
    }

    /// U: `requests` were in the plug.
    pub fn unplug(device: Device, requests: u64) -> Record<'static> {
        let payload = Cow::Owned(requests.to_be_bytes().to_vec());
        Record { payload, ..Record::new(Act::UnplugIo, Category(0), device, 0, 0) }
    }

    /// The name of a process; what does not fit 15 bytes and a NUL is cut, as the kernel does.
    pub fn process(pid: u32, name: &str) -> Record<'static> {
        let mut comm = vec![0; COMM_BYTES];
        let bytes = &name.as_bytes()[..name.len().min(COMM_BYTES - 1)];
        comm[..bytes.len()].copy_from_slice(bytes);
        Record { pid, ..Record::note(Note::Process, comm) }
    }

    /// The wall clock at `time_ns`.
    pub fn timestamp(seconds: u32, nanoseconds: u32) -> Record<'static> {
        let mut payload = seconds.to_le_bytes().to_vec();
        payload.extend(nanoseconds.to_le_bytes());
        Record::note(Note::Timestamp, payload)
    }

    /// A message about a device; what exceeds [`PAYLOAD_MAX`] is cut.
    pub fn message(device: Device, text: &str) -> Record<'static> {
        let bytes = &text.as_bytes()[..text.len().min(PAYLOAD_MAX)];
        Record { device, ..Record::note(Note::Message, bytes.to_vec()) }
    }

    fn note(note: Note, payload: Vec<u8>) -> Record<'static> {
        let payload = Cow::Owned(payload);
        Record {
            action: Action::note(note),
            payload,
            ..Record::new(Act::Queue, Category(0), Device(0), 0, 0)
        }
    }

    /// Length of the I/O, sectors; what is not a whole one is left out, as blkparse does.
    pub fn sectors(&self) -> u32 {
        self.bytes >> 9
    }

    /// X: the sector of the second part. U, UT: the number of requests. `None` where the payload is too short.
    pub fn payload_number(&self) -> Option<u64> {
        self.payload.get(..8).map(|bytes| u64::from_be_bytes(array(bytes, 0)))
    }

    /// A: where the bio came from. `None` where the payload is too short.
    pub fn payload_remap(&self) -> Option<Remap> {
        let payload = self.payload.get(..16)?;
        Some(Remap {
            from: Device(u32::from_be_bytes(array(payload, 0))),
            to: Device(u32::from_be_bytes(array(payload, 4))),
            sector_from: u64::from_be_bytes(array(payload, 8)),
        })
    }

    /// Note of a timestamp: seconds and nanoseconds. `None` where the payload is too short.
    pub fn payload_timestamp(&self) -> Option<(u32, u32)> {
        let payload = self.payload.get(..8)?;
        Some((self.order.u32(payload, 0), self.order.u32(payload, 4)))
    }

    /// Note of a process or message: the text up to its NUL. What is no UTF-8 becomes U+FFFD; `escape` it for printing.
    pub fn payload_text(&self) -> Cow<'_, str> {
        let end = self.payload.iter().position(|byte| *byte == 0).unwrap_or(self.payload.len());
        String::from_utf8_lossy(&self.payload[..end])
    }

    /// Appends the record, version 7, little-endian, and its payload.
    ///
    /// # Panics
    ///
    /// Where the payload, with the cgroup's id, exceeds 65535 bytes, or the action's categories version 7. Both are
    /// errors of the one who made the record.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let cgroup = self.cgroup.map(u64::to_le_bytes);
        let payload = self.payload.len() + cgroup.map_or(0, |id| id.len());
        let payload = u16::try_from(payload).expect("a payload's length has 16 bits");
        let action = self.action.with_cgroup(cgroup.is_some());
        let action = u32::try_from(action.0).expect("version 7 has no categories above bit 31");
        out.reserve(HEADER_BYTES + usize::from(payload));
        out.extend((MAGIC | 7).to_le_bytes());
        out.extend(self.sequence.to_le_bytes());
        out.extend(self.time_ns.to_le_bytes());
        out.extend(self.sector.to_le_bytes());
        out.extend(self.bytes.to_le_bytes());
        out.extend(action.to_le_bytes());
        out.extend(self.pid.to_le_bytes());
        out.extend(self.device.0.to_le_bytes());
        out.extend(self.cpu.to_le_bytes());
        out.extend(self.error.to_le_bytes());
        out.extend(payload.to_le_bytes());
        out.extend(cgroup.iter().flatten());
        out.extend(self.payload.iter());
    }
}

impl ByteOrder {
    fn u16(self, from: &[u8], at: usize) -> u16 {
        match self {
            ByteOrder::Little => u16::from_le_bytes(array(from, at)),
            ByteOrder::Big => u16::from_be_bytes(array(from, at)),
        }
    }

    fn u32(self, from: &[u8], at: usize) -> u32 {
        match self {
            ByteOrder::Little => u32::from_le_bytes(array(from, at)),
            ByteOrder::Big => u32::from_be_bytes(array(from, at)),
        }
    }

    fn u64(self, from: &[u8], at: usize) -> u64 {
        match self {
            ByteOrder::Little => u64::from_le_bytes(array(from, at)),
            ByteOrder::Big => u64::from_be_bytes(array(from, at)),
        }
    }
}

/// Decodes the record at the start of `bytes`, and says how many bytes it took. `Ok(None)` where more bytes are needed:
/// a stream that is still being written ends anywhere. `offset` (bytes) is where `bytes` starts in the whole, for errors.
///
/// # Errors
///
/// What is there is no record.
pub fn decode(bytes: &[u8], offset: u64) -> Result<Option<(Record<'_>, usize)>, FormatError> {
    let Some(magic) = bytes.get(..4) else { return Ok(None) };
    let (order, version) = identify(array(magic, 0), offset)?;
    let header_bytes = version.header_bytes();
    let Some(header) = bytes.get(..header_bytes) else { return Ok(None) };
    let (action, pid, rest) = match version {
        Version::V7 => (u64::from(order.u32(header, 28)), order.u32(header, 32), 36),
        Version::V8 => (order.u64(header, 32), order.u32(header, 28), 40),
    };
    let end = header_bytes + usize::from(order.u16(header, rest + 10));
    let Some(mut payload) = bytes.get(header_bytes..end) else { return Ok(None) };
    let action = Action(action);
    let cgroup = match payload.get(..CGROUP_BYTES) {
        Some(id) if action.has_cgroup() => {
            payload = &payload[CGROUP_BYTES..];
            Some(order.u64(id, 0))
        }
        None if action.has_cgroup() => {
            let expected = "at least 8, as the action says that a cgroup's id is in it";
            return Err(FormatError::invalid(PLACE, offset, "payload length", payload.len(), expected));
        }
        _ => None,
    };
    let record = Record {
        sequence: order.u32(header, 4),
        time_ns: order.u64(header, 8),
        sector: order.u64(header, 16),
        bytes: order.u32(header, 24),
        action,
        pid,
        device: Device(order.u32(header, rest)),
        cpu: order.u32(header, rest + 4),
        error: order.u16(header, rest + 8),
        cgroup,
        payload: Cow::Borrowed(payload),
        order,
    };
    Ok(Some((record, end)))
}

fn identify(magic: [u8; 4], offset: u64) -> Result<(ByteOrder, Version), FormatError> {
    let little = u32::from_le_bytes(magic);
    let (order, value) = match u32::from_be_bytes(magic) {
        big if big & !0xff == MAGIC => (ByteOrder::Big, big),
        _ => (ByteOrder::Little, little),
    };
    if value & !0xff != MAGIC {
        let expected = format!("{MAGIC:#010x} and a version, in either byte order");
        return Err(FormatError::invalid(PLACE, offset, "magic", format!("{little:#010x}"), expected));
    }
    match value & 0xff {
        7 => Ok((order, Version::V7)),
        8 => Ok((order, Version::V8)),
        other => Err(FormatError::invalid(PLACE, offset, "version", other, "7 or 8")),
    }
}

/// The records of a whole file, in order. Ends after the first error; a record that is cut at the end is one.
#[derive(Debug, Clone)]
pub struct Decoder<'a> {
    bytes: &'a [u8],
    at: usize,
    failed: bool,
}

impl<'a> Decoder<'a> {
    /// Reads `bytes` from their start.
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0, failed: false }
    }

    /// Bytes that were taken so far: the end of the last good record.
    pub fn consumed(&self) -> usize {
        self.at
    }
}

impl<'a> Iterator for Decoder<'a> {
    type Item = Result<Record<'a>, FormatError>;

    fn next(&mut self) -> Option<Self::Item> {
        let rest = &self.bytes[self.at..];
        if self.failed || rest.is_empty() {
            return None;
        }
        let offset = length(self.at);
        match decode(rest, offset) {
            Ok(Some((record, bytes))) => {
                self.at += bytes;
                Some(Ok(record))
            }
            Ok(None) => {
                self.failed = true;
                let expected = "a whole record and its payload";
                let error = FormatError::invalid(PLACE, offset, "length", rest.len(), expected)
                    .with_remedy("the trace was cut there; the records before it are good");
                Some(Err(error))
            }
            Err(error) => {
                self.failed = true;
                Some(Err(error))
            }
        }
    }
}
