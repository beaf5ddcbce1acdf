//! Replies out of a stream: records are put together from their fragments, and the data of a READ goes straight from where it
//! was received to where it is wanted.

use blockwork_format::nfs3::{MARK_BYTES, REPLY_MAX, ReplyError, decode_mark};
use blockwork_memory::Segment;

/// Bytes of a reply that are looked at first: the head of most. What of these is data is copied twice.
const HEAD_FIRST: usize = 132;
/// And so many more, each time that they did not do.
const HEAD_MORE: usize = 64;

/// What to do with a reply whose beginning was understood.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rest {
    /// Nothing more of it is wanted.
    Skip,
    /// `len` bytes of data begin at `at` in the message.
    Data { at: usize, len: usize },
}

/// Who takes replies.
pub(super) trait Replies {
    /// A message begins with these bytes, or is these bytes.
    fn reply(&mut self, message: &[u8]) -> Result<Rest, ReplyError>;
    /// Data of the reply, `at` bytes from its start.
    fn bytes(&mut self, at: usize, data: &[u8]);
    /// The same, out of a segment.
    fn segment(&mut self, at: usize, data: &Segment);
    /// All data was given.
    fn end(&mut self);
}

/// Why a stream cannot be read any further.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Broken {
    /// A reply that contradicts the protocol.
    Reply(ReplyError),
    /// A reply whose head is longer than any, or whose record ends before its data.
    Length(usize),
}

#[derive(Debug)]
enum State {
    /// So many bytes of a record mark.
    Mark,
    /// The head of a message.
    Head,
    /// Data; how much was given, and how much there is.
    Data { given: usize, len: usize },
    /// The rest of a record.
    Skip,
}

/// Where in the stream we are.
#[derive(Debug)]
pub(super) struct Incoming {
    state: State,
    /// Bytes of a record mark, while one is read.
    mark: Vec<u8>,
    /// The beginning of the message.
    head: Vec<u8>,
    /// Bytes of this fragment that are still to come.
    left: usize,
    /// Whether it ends its record.
    last: bool,
    /// What follows the next mark belongs to the same record.
    after_mark: Option<State>,
}

impl Default for Incoming {
    fn default() -> Incoming {
        Incoming {
            state: State::Mark,
            mark: Vec::with_capacity(MARK_BYTES),
            head: Vec::with_capacity(REPLY_MAX),
            left: 0,
            last: false,
            after_mark: None,
        }
    }
}

impl Incoming {
    /// Takes what was received.
    pub(super) fn feed(&mut self, received: &Segment, replies: &mut impl Replies) -> Result<(), Broken> {
        let mut at = 0;
        while at < received.len() {
            let there = received.len() - at;
            let taken = match self.state {
                State::Mark => self.take_mark(received, at, there),
                State::Head => self.take_head(received, at, there.min(self.left), replies)?,
                State::Data { given, len } => {
                    let bytes = there.min(self.left).min(len - given);
                    replies.segment(given, &received.slice(at, bytes));
                    self.gave(given + bytes, len, replies);
                    bytes
                }
                State::Skip => there.min(self.left),
            };
            at += taken;
            if !matches!(self.state, State::Mark) || self.left > 0 {
                self.left -= taken.min(self.left);
            }
            self.end_fragment(replies)?;
        }
        Ok(())
    }

    fn take_mark(&mut self, received: &Segment, at: usize, there: usize) -> usize {
        let taken = there.min(MARK_BYTES - self.mark.len());
        copy_out(received, at, taken, &mut self.mark);
        if let Ok(mark) = <[u8; MARK_BYTES]>::try_from(&self.mark[..]) {
            let (len, last) = decode_mark(mark);
            self.mark.clear();
            (self.left, self.last) = (len as usize + taken, last);
            self.state = self.after_mark.take().unwrap_or(State::Head);
        }
        taken
    }

    fn take_head(
        &mut self,
        received: &Segment,
        at: usize,
        there: usize,
        replies: &mut impl Replies,
    ) -> Result<usize, Broken> {
        let want = if self.head.len() < HEAD_FIRST { HEAD_FIRST - self.head.len() } else { HEAD_MORE };
        let taken = there.min(want);
        copy_out(received, at, taken, &mut self.head);
        let whole = self.last && taken == self.left;
        match replies.reply(&self.head) {
            Err(ReplyError::Short) if !whole && self.head.len() < REPLY_MAX => {}
            Err(error) => return Err(Broken::Reply(error)),
            Ok(Rest::Skip) => self.state = State::Skip,
            Ok(Rest::Data { at, len }) => {
                let there = &self.head[at..];
                let given = there.len().min(len);
                replies.bytes(0, &there[..given]);
                self.gave(given, len, replies);
            }
        }
        Ok(taken)
    }

    fn gave(&mut self, given: usize, len: usize, replies: &mut impl Replies) {
        self.state = State::Data { given, len };
        if given == len {
            replies.end();
            self.state = State::Skip;
        }
    }

    fn end_fragment(&mut self, replies: &mut impl Replies) -> Result<(), Broken> {
        if self.left > 0 || matches!(self.state, State::Mark) {
            return Ok(());
        }
        let state = std::mem::replace(&mut self.state, State::Mark);
        if !self.last {
            self.after_mark = Some(state);
            return Ok(());
        }
        match state {
            State::Data { given, len } => return Err(Broken::Length(len - given)),
            // A record without a byte, or whose last fragment has none.
            State::Head => drop(replies.reply(&self.head).map_err(Broken::Reply)?),
            State::Mark | State::Skip => {}
        }
        self.head.clear();
        Ok(())
    }
}

fn copy_out(from: &Segment, at: usize, len: usize, to: &mut Vec<u8>) {
    let start = to.len();
    to.resize(start + len, 0);
    from.read_at(at, &mut to[start..]);
}

#[cfg(test)]
mod tests {
    use blockwork_memory::Buffer;

    use super::*;

    /// Messages of a test: the length of their data, the data, one byte that nobody wants.
    #[derive(Default)]
    struct Taken {
        data: Vec<Vec<u8>>,
        now: Vec<u8>,
    }

    impl Replies for Taken {
        fn reply(&mut self, message: &[u8]) -> Result<Rest, ReplyError> {
            let len = message.first_chunk().ok_or(ReplyError::Short)?;
            Ok(Rest::Data { at: 4, len: u32::from_be_bytes(*len) as usize })
        }
        fn bytes(&mut self, at: usize, data: &[u8]) {
            assert_eq!(at, self.now.len());
            self.now.extend(data);
        }
        fn segment(&mut self, at: usize, data: &Segment) {
            let mut bytes = vec![0; data.len()];
            data.read_at(0, &mut bytes);
            self.bytes(at, &bytes);
        }
        fn end(&mut self) {
            self.data.push(std::mem::take(&mut self.now));
        }
    }

    fn segment(bytes: &[u8]) -> Segment {
        let buffer = Buffer::new(bytes.len());
        buffer.write_at(0, bytes);
        Segment::new(buffer, 0, bytes.len())
    }

    /// A record of these bytes, in fragments of at most `most` bytes.
    fn record(bytes: &[u8], most: usize) -> Vec<u8> {
        let count = bytes.chunks(most).count();
        let fragments = (1..).zip(bytes.chunks(most));
        let fragments = fragments.map(|(number, fragment)| {
            let last = if number == count { 1u32 << 31 } else { 0 };
            let mark = last | u32::try_from(fragment.len()).unwrap();
            [&mark.to_be_bytes(), fragment].concat()
        });
        fragments.collect::<Vec<_>>().concat()
    }

    fn message(data: &[u8]) -> Vec<u8> {
        [&u32::try_from(data.len()).unwrap().to_be_bytes(), data, b"!"].concat()
    }

    #[test]
    fn messages_arrive_however_they_are_cut() {
        let data: Vec<Vec<u8>> =
            [0usize, 1, 127, 128, 129, 700].map(|len| (0..len).map(|i| i as u8).collect()).to_vec();
        for fragment in [1, 3, 64, 133, 10_000] {
            let stream: Vec<u8> = data.iter().flat_map(|data| record(&message(data), fragment)).collect();
            for piece in [1, 2, 5, 131, 132, 133, 1000, stream.len()] {
                let (mut incoming, mut taken) = (Incoming::default(), Taken::default());
                for bytes in stream.chunks(piece) {
                    incoming.feed(&segment(bytes), &mut taken).unwrap();
                }
                assert_eq!(taken.data, data, "fragments of {fragment}, pieces of {piece}");
            }
        }
    }

    #[test]
    fn a_record_that_ends_too_early_is_broken() {
        let mut cut = message(&[7; 300]);
        cut.truncate(200);
        let feed = |bytes: &[u8]| Incoming::default().feed(&segment(bytes), &mut Taken::default());
        assert_eq!(feed(&record(&cut, 1000)), Err(Broken::Length(104)));
        assert_eq!(feed(&record(&cut[..3], 1000)), Err(Broken::Reply(ReplyError::Short)));
        assert_eq!(feed(&[0x80, 0, 0, 0]), Err(Broken::Reply(ReplyError::Short)));
    }
}
