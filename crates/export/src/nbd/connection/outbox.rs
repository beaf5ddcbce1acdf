//! Replies on their way out: gathered while others are being sent.
//!
//! Heads of replies are written one after the other into a buffer, data is sent from where it was read to. Everything
//! that is queued when a send ends leaves in the next one.
//!
//! Accounting: [`Outbox::replies`] and [`Outbox::held`] count what was queued until it was sent, so that a client that
//! does not read pays for it out of its own limits.

use blockwork_memory::{Pool, Segment};

/// Size of a buffer for heads, bytes.
const HEADS: usize = 16 << 10;
/// Most segments in one send.
const SEGMENTS_MAX: usize = 1024;

/// See the module.
#[derive(Default)]
pub(super) struct Outbox {
    heads: Option<Segment>,
    heads_used: usize,
    queued: Batch,
    sending: Batch,
    /// Segments of `sending` that were sent, or are in the send under way.
    started: usize,
}

#[derive(Default)]
struct Batch {
    segments: Vec<Segment>,
    replies: usize,
    held: usize,
}

impl Outbox {
    /// Queues bytes of ours.
    #[inline]
    pub(super) fn bytes(&mut self, pool: &Pool, mut bytes: &[u8]) {
        self.queued.held += bytes.len();
        while !bytes.is_empty() {
            self.make_room(pool);
            let (heads, used) = (self.heads.as_ref().expect("room was made"), self.heads_used);
            let take = bytes.len().min(heads.len() - used);
            heads.write_at(used, &bytes[..take]);
            let segment = heads.slice(used, take);
            self.heads_used += take;
            let extended = self.queued.segments.last_mut().is_some_and(|last| last.extend(&segment));
            if !extended {
                self.queued.segments.push(segment);
            }
            bytes = &bytes[take..];
        }
    }

    /// Queues a whole reply without data, or the head of one.
    #[inline]
    pub(super) fn reply(&mut self, pool: &Pool, head: &[u8]) {
        self.queued.replies += 1;
        self.bytes(pool, head);
    }

    /// Queues a reply's data, whose memory costs `held` bytes.
    #[inline]
    pub(super) fn data(&mut self, data: impl IntoIterator<Item = Segment>, held: usize) {
        self.queued.held += held;
        self.queued.segments.extend(data);
    }

    #[inline]
    fn make_room(&mut self, pool: &Pool) {
        let full = self.heads_used == HEADS;
        if full && self.heads.as_ref().is_some_and(|heads| heads.buffer().is_unique()) {
            self.heads_used = 0; // all that was written there has been sent
        } else if full || self.heads.is_none() {
            self.heads_used = 0;
            self.heads = Some(Segment::new(pool.get(HEADS), 0, HEADS));
        }
    }

    /// Replies that have not been sent.
    #[inline]
    pub(super) fn replies(&self) -> usize {
        self.queued.replies + self.sending.replies
    }

    /// Bytes of memory that wait to be sent.
    #[inline]
    pub(super) fn held(&self) -> usize {
        self.queued.held + self.sending.held
    }

    /// Bytes of memory for which no send has begun.
    #[inline]
    pub(super) fn queued(&self) -> usize {
        self.queued.held
    }

    /// Whether everything was sent.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.queued.segments.is_empty() && self.sending.segments.is_empty()
    }

    /// What to send next, none if there is nothing. Only when no send is under way; ends with [`Outbox::sent`].
    #[inline]
    pub(super) fn next(&mut self) -> Option<&[Segment]> {
        self.gather();
        let first = self.started;
        self.started = self.sending.segments.len().min(first + SEGMENTS_MAX);
        let batch = &self.sending.segments[first..self.started];
        (!batch.is_empty()).then_some(batch)
    }

    /// All that is to be sent next, for someone who takes it piece by piece and says [`Outbox::taken`] at the end.
    pub(super) fn whole(&mut self) -> &[Segment] {
        self.gather();
        &self.sending.segments
    }

    #[inline]
    fn gather(&mut self) {
        if self.sending.segments.is_empty() {
            std::mem::swap(&mut self.queued, &mut self.sending);
        }
    }

    /// What [`Outbox::next`] gave has been sent.
    #[inline]
    pub(super) fn sent(&mut self) {
        if self.started == self.sending.segments.len() {
            self.taken();
        }
    }

    /// All of what [`Outbox::whole`] gave has been taken.
    #[inline]
    pub(super) fn taken(&mut self) {
        self.sending.segments.clear();
        (self.sending.replies, self.sending.held, self.started) = (0, 0, 0);
        if self.queued.segments.is_empty()
            && self.heads.as_ref().is_some_and(|heads| heads.buffer().is_unique())
        {
            self.heads_used = 0;
        }
    }

    /// Forgets what has not been sent; what is being sent is kept alive by the environment.
    pub(super) fn clear(&mut self) {
        *self = Outbox::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(segments: &[Segment]) -> Vec<u8> {
        let mut out = Vec::new();
        for segment in segments {
            let mut bytes = vec![0; segment.len()];
            segment.read_at(0, &mut bytes);
            out.extend(bytes);
        }
        out
    }

    #[test]
    fn answers_without_data_leave_as_one_segment() {
        let pool = Pool::new(1 << 20);
        let mut outbox = Outbox::default();
        for i in 0..100u8 {
            outbox.reply(&pool, &[i; 16]);
        }
        let batch = outbox.next().unwrap();
        assert_eq!(batch.len(), 1);
        let expected: Vec<u8> = (0..100).flat_map(|i| [i; 16]).collect();
        assert_eq!(text(batch), expected);
        outbox.sent();
        assert!(outbox.is_empty());
    }

    #[test]
    fn everything_leaves_in_order_in_sends_of_at_most_1024_segments() {
        let pool = Pool::new(1 << 20);
        let mut outbox = Outbox::default();
        let mut expected = Vec::new();
        for i in 0..3000u32 {
            let data = Segment::new(pool.get(8), 0, 8);
            data.write_at(0, &[(i % 251) as u8; 8]);
            outbox.reply(&pool, &i.to_be_bytes());
            outbox.data([data], 4096);
            expected.extend(i.to_be_bytes());
            expected.extend([(i % 251) as u8; 8]);
        }
        assert_eq!((outbox.replies(), outbox.held()), (3000, 3000 * 4100));
        let mut seen = Vec::new();
        while let Some(batch) = outbox.next() {
            assert!(batch.len() <= SEGMENTS_MAX);
            seen.extend(text(batch));
            outbox.sent();
        }
        assert!(seen == expected);
        assert_eq!((outbox.replies(), outbox.held()), (0, 0));
    }

    #[test]
    fn in_steady_state_one_buffer_for_heads_is_enough() {
        let pool = Pool::new(1 << 20);
        let mut outbox = Outbox::default();
        for _ in 0..10_000 {
            (0..32).for_each(|_| outbox.reply(&pool, &[7; 16]));
            assert_eq!(outbox.next().unwrap().len(), 1);
            outbox.sent();
        }
        assert_eq!(pool.kept_bytes(), 0, "no second buffer was ever taken");
    }
}
