//! What a front end says: each message with its payload.

use super::{CONFIG_PART_MAX, HEADER_BYTES, Header, TABLE_REGIONS_MAX};
use crate::bytes::{array, index};
use crate::error::FormatError;

/// A range of the guest's memory; its file goes beside the message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Region {
    /// The guest's address.
    pub guest: u64,
    /// Bytes.
    pub size: u64,
    /// The front end's address.
    pub user: u64,
    /// Where it begins in its file, bytes.
    pub offset: u64,
}

const REGION_BYTES: usize = 32;

impl Region {
    fn decode(bytes: &[u8]) -> Region {
        let field = |i: usize| u64::from_ne_bytes(array(bytes, i * 8));
        Region { guest: field(0), size: field(1), user: field(2), offset: field(3) }
    }

    fn encode(&self) -> [u8; REGION_BYTES] {
        let mut bytes = [0; REGION_BYTES];
        for (to, from) in bytes.chunks_exact_mut(8).zip([self.guest, self.size, self.user, self.offset]) {
            to.copy_from_slice(&from.to_ne_bytes());
        }
        bytes
    }
}

/// A queue, and a number that belongs to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VringState {
    /// Which queue.
    pub index: u32,
    /// The number.
    pub num: u32,
}

/// Where a ring's areas are, as addresses of the front end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VringAddr {
    /// Which queue.
    pub index: u32,
    /// [`VringAddr::LOGGED`], or none.
    pub flags: u32,
    /// Descriptors.
    pub descriptors: u64,
    /// Used ring; of a packed ring what the device says about events.
    pub used: u64,
    /// Available ring; of a packed ring what the driver says about events.
    pub available: u64,
    /// The used ring's guest address, for the log.
    pub log: u64,
}

impl VringAddr {
    /// Flag: writes to the used ring are logged, at the address for that.
    pub const LOGGED: u32 = 1;
}

/// A queue, and whether a file descriptor comes with the message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VringFile {
    /// Which queue.
    pub index: u32,
    /// Whether there is one.
    pub has_file: bool,
}

/// A part of the device's configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigPart {
    /// Where it begins, bytes.
    pub offset: u32,
    /// Of a change: 1 while migrating.
    pub flags: u32,
    /// Its bytes.
    pub bytes: Vec<u8>,
}

impl ConfigPart {
    /// To the bytes of a payload.
    ///
    /// # Panics
    /// If it has more than [`CONFIG_PART_MAX`] bytes.
    pub fn encode(&self) -> Vec<u8> {
        assert!(self.bytes.len() <= CONFIG_PART_MAX);
        let size = u32::try_from(self.bytes.len()).expect("a part is short");
        [&words([self.offset, size, self.flags])[..], &self.bytes].concat()
    }
}

/// Where requests in flight are marked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InflightArea {
    /// Bytes.
    pub size: u64,
    /// Where it begins in its file.
    pub offset: u64,
    /// Queues.
    pub queues: u16,
    /// Descriptors of each.
    pub queue_size: u16,
}

impl InflightArea {
    /// To the bytes of a payload.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = [self.size.to_ne_bytes(), self.offset.to_ne_bytes()].concat();
        bytes.extend(self.queues.to_ne_bytes());
        bytes.extend(self.queue_size.to_ne_bytes());
        // Padded to eight bytes, as a C compiler lays it out for QEMU.
        bytes.extend([0; 4]);
        bytes
    }
}

/// Where written pages are marked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogArea {
    /// Bytes.
    pub size: u64,
    /// Where it begins in its file.
    pub offset: u64,
}

/// What a front end says. Where an answer is due, its payload is of the same kind, if nothing else is said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// Asks for the device's features; answered by a u64.
    GetFeatures,
    /// The features that the driver takes.
    SetFeatures(u64),
    /// The session begins.
    SetOwner,
    /// Not used any more.
    ResetOwner,
    /// All of the guest's memory, with a file for each region.
    SetMemTable(Vec<Region>),
    /// Where to mark written pages, with a file.
    SetLogBase(LogArea),
    /// Whom to tell that a page was marked, with a file.
    SetLogFd,
    /// A ring's size.
    SetVringNum(VringState),
    /// Where a ring is.
    SetVringAddr(VringAddr),
    /// Where a ring begins.
    SetVringBase(VringState),
    /// Stops a ring, and asks how far it came.
    GetVringBase(VringState),
    /// Who tells us of available buffers; starts a ring.
    SetVringKick(VringFile),
    /// Whom we tell of used buffers.
    SetVringCall(VringFile),
    /// Whom we tell of errors.
    SetVringErr(VringFile),
    /// Asks for features of the protocol; answered by a u64.
    GetProtocolFeatures,
    /// Those that the front end takes.
    SetProtocolFeatures(u64),
    /// Asks how many queues there may be; answered by a u64.
    GetQueueNum,
    /// Lets a ring go on (1) or not (0).
    SetVringEnable(VringState),
    /// The socket for messages of ours, with a file.
    SetBackendReqFd,
    /// Asks for a part of the configuration, whose content does not matter.
    GetConfig(ConfigPart),
    /// Changes a part of it.
    SetConfig(ConfigPart),
    /// Asks for memory to mark requests in; answered with a file.
    GetInflightFd(InflightArea),
    /// The memory in which requests were marked, with a file.
    SetInflightFd(InflightArea),
    /// Resets the device.
    ResetDevice,
    /// Asks how many regions of memory there may be; answered by a u64.
    GetMaxMemSlots,
    /// One more region, with a file.
    AddMemReg(Region),
    /// One less.
    RemMemReg(Region),
    /// The device's status, as the driver has set it.
    SetStatus(u64),
    /// Asks for it; answered by a u64.
    GetStatus,
    /// One that we do not know.
    Unknown(u32),
}

impl Message {
    /// From a payload.
    ///
    /// # Errors
    /// It has not the size that its message has, or a field that cannot be.
    pub fn decode(header: &Header, payload: &[u8]) -> Result<Message, FormatError> {
        let payload = Payload(payload);
        Ok(match header.request {
            1 => Message::GetFeatures,
            2 => Message::SetFeatures(payload.number()?),
            3 => Message::SetOwner,
            4 => Message::ResetOwner,
            5 => Message::SetMemTable(payload.table()?),
            6 => Message::SetLogBase(payload.log()?),
            7 => Message::SetLogFd,
            8 => Message::SetVringNum(payload.state()?),
            9 => Message::SetVringAddr(payload.address()?),
            10 => Message::SetVringBase(payload.state()?),
            11 => Message::GetVringBase(payload.state()?),
            12 => Message::SetVringKick(payload.file()?),
            13 => Message::SetVringCall(payload.file()?),
            14 => Message::SetVringErr(payload.file()?),
            15 => Message::GetProtocolFeatures,
            16 => Message::SetProtocolFeatures(payload.number()?),
            17 => Message::GetQueueNum,
            18 => Message::SetVringEnable(payload.state()?),
            21 => Message::SetBackendReqFd,
            24 => Message::GetConfig(payload.config()?),
            25 => Message::SetConfig(payload.config()?),
            31 => Message::GetInflightFd(payload.inflight()?),
            32 => Message::SetInflightFd(payload.inflight()?),
            34 => Message::ResetDevice,
            36 => Message::GetMaxMemSlots,
            37 => Message::AddMemReg(payload.region()?),
            38 => Message::RemMemReg(payload.region()?),
            39 => Message::SetStatus(payload.number()?),
            40 => Message::GetStatus,
            other => Message::Unknown(other),
        })
    }

    /// Its number.
    pub fn number(&self) -> u32 {
        match self {
            Message::GetFeatures => 1,
            Message::SetFeatures(_) => 2,
            Message::SetOwner => 3,
            Message::ResetOwner => 4,
            Message::SetMemTable(_) => 5,
            Message::SetLogBase(_) => 6,
            Message::SetLogFd => 7,
            Message::SetVringNum(_) => 8,
            Message::SetVringAddr(_) => 9,
            Message::SetVringBase(_) => 10,
            Message::GetVringBase(_) => 11,
            Message::SetVringKick(_) => 12,
            Message::SetVringCall(_) => 13,
            Message::SetVringErr(_) => 14,
            Message::GetProtocolFeatures => 15,
            Message::SetProtocolFeatures(_) => 16,
            Message::GetQueueNum => 17,
            Message::SetVringEnable(_) => 18,
            Message::SetBackendReqFd => 21,
            Message::GetConfig(_) => 24,
            Message::SetConfig(_) => 25,
            Message::GetInflightFd(_) => 31,
            Message::SetInflightFd(_) => 32,
            Message::ResetDevice => 34,
            Message::GetMaxMemSlots => 36,
            Message::AddMemReg(_) => 37,
            Message::RemMemReg(_) => 38,
            Message::SetStatus(_) => 39,
            Message::GetStatus => 40,
            Message::Unknown(number) => *number,
        }
    }

    /// How many files must come with it, and how many may.
    pub fn files(&self) -> (usize, usize) {
        match self {
            Message::SetMemTable(regions) => (regions.len(), regions.len()),
            Message::SetVringKick(file) | Message::SetVringCall(file) | Message::SetVringErr(file) => {
                (usize::from(file.has_file), usize::from(file.has_file))
            }
            Message::SetLogBase(_)
            | Message::SetLogFd
            | Message::SetBackendReqFd
            | Message::SetInflightFd(_)
            | Message::AddMemReg(_) => (1, 1),
            // Older front ends send one, which is of no use.
            Message::RemMemReg(_) => (0, 1),
            _ => (0, 0),
        }
    }

    /// The bytes of the whole message; its flags say whether an answer is wanted.
    pub fn encode(&self, need_reply: bool) -> Vec<u8> {
        let payload = self.payload();
        let size = u32::try_from(payload.len()).expect("a payload is short");
        let flags = if need_reply { 1 | super::header_flag::NEED_REPLY } else { 1 };
        [&Header { request: self.number(), flags, size }.encode()[..], &payload].concat()
    }

    fn payload(&self) -> Vec<u8> {
        match self {
            Message::SetFeatures(n) | Message::SetProtocolFeatures(n) | Message::SetStatus(n) => {
                n.to_ne_bytes().to_vec()
            }
            Message::SetMemTable(regions) => {
                let count = u32::try_from(regions.len()).expect("a table is short");
                let regions: Vec<u8> = regions.iter().flat_map(Region::encode).collect();
                [&words([count, 0])[..], &regions].concat()
            }
            Message::SetLogBase(log) => [log.size.to_ne_bytes(), log.offset.to_ne_bytes()].concat(),
            Message::SetVringNum(state)
            | Message::SetVringBase(state)
            | Message::GetVringBase(state)
            | Message::SetVringEnable(state) => words([state.index, state.num]),
            Message::SetVringAddr(address) => {
                let VringAddr { index, flags, descriptors, used, available, log } = *address;
                let addresses = [descriptors, used, available, log].map(u64::to_ne_bytes).concat();
                [&words([index, flags])[..], &addresses].concat()
            }
            Message::SetVringKick(file) | Message::SetVringCall(file) | Message::SetVringErr(file) => {
                let invalid = if file.has_file { 0 } else { VringFile::NO_FILE };
                (u64::from(file.index) | invalid).to_ne_bytes().to_vec()
            }
            Message::GetConfig(part) | Message::SetConfig(part) => part.encode(),
            Message::GetInflightFd(area) | Message::SetInflightFd(area) => area.encode(),
            Message::AddMemReg(region) | Message::RemMemReg(region) => {
                [&[0; 8][..], &region.encode()].concat()
            }
            _ => Vec::new(),
        }
    }
}

impl VringFile {
    const NO_FILE: u64 = 1 << 8;
}

fn words<const N: usize>(words: [u32; N]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_ne_bytes()).collect()
}

/// A payload that is being read.
struct Payload<'a>(&'a [u8]);

impl Payload<'_> {
    fn size(&self, expected: usize) -> Result<(), FormatError> {
        if self.0.len() == expected {
            return Ok(());
        }
        let at = HEADER_BYTES as u64;
        Err(FormatError::invalid(
            "vhost-user message",
            at,
            "payload",
            self.0.len(),
            format!("{expected} bytes"),
        ))
    }

    fn u32(&self, at: usize) -> u32 {
        u32::from_ne_bytes(array(self.0, at))
    }

    fn u64(&self, at: usize) -> u64 {
        u64::from_ne_bytes(array(self.0, at))
    }

    fn number(&self) -> Result<u64, FormatError> {
        self.size(8)?;
        Ok(self.u64(0))
    }

    fn state(&self) -> Result<VringState, FormatError> {
        self.size(8)?;
        Ok(VringState { index: self.u32(0), num: self.u32(4) })
    }

    fn file(&self) -> Result<VringFile, FormatError> {
        let value = self.number()?;
        let index = u32::try_from(value & 0xff).expect("eight bits");
        Ok(VringFile { index, has_file: value & VringFile::NO_FILE == 0 })
    }

    fn address(&self) -> Result<VringAddr, FormatError> {
        self.size(40)?;
        Ok(VringAddr {
            index: self.u32(0),
            flags: self.u32(4),
            descriptors: self.u64(8),
            used: self.u64(16),
            available: self.u64(24),
            log: self.u64(32),
        })
    }

    fn table(&self) -> Result<Vec<Region>, FormatError> {
        if self.0.len() < 8 {
            return self.size(8).map(|()| Vec::new());
        }
        let count = index(self.u32(0));
        if count > TABLE_REGIONS_MAX {
            let expected = format!("at most {TABLE_REGIONS_MAX}");
            let at = HEADER_BYTES as u64;
            return Err(FormatError::limit(
                "vhost-user memory table",
                at,
                "number of regions",
                count,
                expected,
            ));
        }
        self.size(8 + count * REGION_BYTES)?;
        Ok(self.0[8..].chunks_exact(REGION_BYTES).map(Region::decode).collect())
    }

    fn region(&self) -> Result<Region, FormatError> {
        self.size(8 + REGION_BYTES)?;
        Ok(Region::decode(&self.0[8..]))
    }

    fn log(&self) -> Result<LogArea, FormatError> {
        self.size(16)?;
        Ok(LogArea { size: self.u64(0), offset: self.u64(8) })
    }

    fn config(&self) -> Result<ConfigPart, FormatError> {
        if self.0.len() < 12 {
            self.size(12)?;
        }
        let size = index(self.u32(4));
        if size > CONFIG_PART_MAX {
            let expected = format!("at most {CONFIG_PART_MAX} bytes");
            let at = HEADER_BYTES as u64 + 4;
            return Err(FormatError::limit("vhost-user configuration", at, "size", size, expected));
        }
        self.size(12 + size)?;
        Ok(ConfigPart { offset: self.u32(0), flags: self.u32(8), bytes: self.0[12..].to_vec() })
    }

    fn inflight(&self) -> Result<InflightArea, FormatError> {
        // Some front ends leave the padding at the end out.
        if self.0.len() != 20 {
            self.size(24)?;
        }
        let short = |at: usize| u16::from_ne_bytes(array(self.0, at));
        Ok(InflightArea { size: self.u64(0), offset: self.u64(8), queues: short(16), queue_size: short(18) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all() -> Vec<Message> {
        let region = Region { guest: 0x1000, size: 0x2000, user: 0x7f00_0000_0000, offset: 0x3000 };
        let state = VringState { index: 3, num: 128 };
        let part = ConfigPart { offset: 32, flags: 0, bytes: vec![1] };
        let area = InflightArea { size: 8192, offset: 64, queues: 2, queue_size: 256 };
        vec![
            Message::GetFeatures,
            Message::SetFeatures(1 << 32),
            Message::SetOwner,
            Message::ResetOwner,
            Message::SetMemTable(vec![region, Region { guest: 0x10_0000, ..region }]),
            Message::SetMemTable(Vec::new()),
            Message::SetLogBase(LogArea { size: 4096, offset: 8 }),
            Message::SetLogFd,
            Message::SetVringNum(state),
            Message::SetVringAddr(VringAddr {
                index: 1,
                flags: 1,
                descriptors: 2,
                used: 3,
                available: 4,
                log: 5,
            }),
            Message::SetVringBase(state),
            Message::GetVringBase(state),
            Message::SetVringKick(VringFile { index: 7, has_file: true }),
            Message::SetVringCall(VringFile { index: 7, has_file: false }),
            Message::SetVringErr(VringFile { index: 255, has_file: true }),
            Message::GetProtocolFeatures,
            Message::SetProtocolFeatures(9),
            Message::GetQueueNum,
            Message::SetVringEnable(state),
            Message::SetBackendReqFd,
            Message::GetConfig(part.clone()),
            Message::SetConfig(part),
            Message::GetInflightFd(area),
            Message::SetInflightFd(area),
            Message::ResetDevice,
            Message::GetMaxMemSlots,
            Message::AddMemReg(region),
            Message::RemMemReg(region),
            Message::SetStatus(4),
            Message::GetStatus,
            Message::Unknown(99),
        ]
    }

    #[test]
    fn every_message_comes_back_as_it_was() {
        for message in all() {
            let bytes = message.encode(true);
            let header = Header::decode(bytes[..HEADER_BYTES].try_into().unwrap()).unwrap();
            assert!(header.needs_reply());
            assert_eq!(Message::decode(&header, &bytes[HEADER_BYTES..]), Ok(message));
        }
    }

    #[test]
    fn a_payload_of_another_size_is_refused_by_every_message_that_has_one() {
        for message in all() {
            let bytes = message.encode(false);
            if bytes.len() == HEADER_BYTES {
                continue;
            }
            let header = Header { request: message.number(), flags: 1, size: 0 };
            for len in 0..bytes.len() - HEADER_BYTES {
                let payload = &bytes[HEADER_BYTES..HEADER_BYTES + len];
                let padded = matches!(message, Message::GetInflightFd(_) | Message::SetInflightFd(_));
                assert!(
                    Message::decode(&header, payload).is_err() || padded && len == 20,
                    "{message:?} of {len}"
                );
            }
            let long = [&bytes[HEADER_BYTES..], &[0]].concat();
            assert!(Message::decode(&header, &long).is_err(), "{message:?}");
        }
    }

    #[test]
    fn counts_beyond_the_limits_are_refused() {
        let decode =
            |request, payload: &[u8]| Message::decode(&Header { request, flags: 1, size: 0 }, payload);
        let table = [&words([9, 0])[..], &[0; 9 * REGION_BYTES]].concat();
        assert!(decode(5, &table).unwrap_err().to_string().contains("at most 8"));
        let part = [&words([0, 257, 0])[..], &[0; 257]].concat();
        assert!(decode(24, &part).unwrap_err().to_string().contains("at most 256"));
    }
}
