//! What one client asks keeps its worker from the others for a moment only.

mod nbd_support;

use std::sync::Arc;
use std::sync::atomic::Ordering;

use nbd_support::slow::{GatedSource, PuzzledSource};
use nbd_support::{Disk, Raw, Rig, request};

const READ: u16 = 0;
const BLOCK_STATUS: u16 = 7;
const MIB: u64 = 1 << 20;

/// Up to the transmission phase of the default export, with structured replies and `base:allocation`.
fn go_for_status(rig: &Rig) -> Raw {
    let mut raw = Raw::connect(rig);
    raw.write(&3u32.to_be_bytes());
    raw.option(8, b"");
    assert_eq!(raw.option_reply().0, 1);
    raw.option(10, b"\0\0\0\0\0\0\0\x01\0\0\0\x0fbase:allocation");
    assert_eq!((raw.option_reply().0, raw.option_reply().0), (4, 1));
    raw.option(7, &[0; 6]);
    while raw.option_reply().0 != 1 {}
    raw
}

/// The cookie of a block status reply, and its extents: lengths and flags.
fn status(raw: &mut Raw) -> (u64, Vec<(u32, u32)>) {
    let head = raw.read(20);
    let word = |bytes: &[u8]| u32::from_be_bytes(bytes[..4].try_into().unwrap());
    assert_eq!(head[..8], [0x66, 0x8e, 0x33, 0xef, 0, 1, 0, 5], "one chunk with extents");
    let payload = raw.read(word(&head[16..]) as usize);
    let extents = payload[4..].chunks(8).map(|pair| (word(pair), word(&pair[4..]))).collect();
    (u64::from_be_bytes(head[8..16].try_into().unwrap()), extents)
}

#[test]
fn many_long_questions_about_what_is_allocated_do_not_keep_others_waiting() {
    const QUESTIONS: u64 = 64;
    let disk = Arc::new(PuzzledSource::new(64 << 30));
    let seen = disk.seen.clone();
    let rig = Rig::new(&[Disk::of("d", disk)]);
    let (mut asking, mut reading) = (go_for_status(&rig), Raw::go(&rig));
    let questions: Vec<u8> =
        (0..QUESTIONS).flat_map(|n| request(0, BLOCK_STATUS, n, n * MIB, 1 << 30)).collect();
    asking.write(&questions);
    seen.first.wait();
    // The worker looks for the first answer now, and has all other questions.
    reading.request(0, READ, 1, 0, 4096);
    seen.first.wait();
    assert_eq!(reading.reply(), (0, 1));
    reading.read(4096);
    // Each look-up takes longer than a turn has for them.
    let before = *seen.before_read.get().expect("there was a read");
    assert!(before < 8, "the read waited for {before} look-ups");
    for n in 0..QUESTIONS {
        let (cookie, extents) = status(&mut asking);
        assert_eq!((cookie, extents), (n, vec![(1 << 20, 3)]), "an answer ends where its time is up");
    }
    assert_eq!(seen.questions.load(Ordering::SeqCst) as u64, QUESTIONS);
    // A question that is the last thing said is answered, too.
    asking.write(&[request(0, BLOCK_STATUS, 7, 0, 512).repeat(3), request(0, 2, 0, 0, 0)].concat());
    for _ in 0..3 {
        assert_eq!(status(&mut asking), (7, vec![(512, 3)]));
    }
    assert!(asking.is_closed());
}

#[test]
fn many_options_of_one_client_do_not_keep_others_waiting() {
    const OPTIONS: usize = 1000;
    const ERR_UNSUP: u32 = 1 << 31 | 1;
    let disk = Arc::new(GatedSource::new(MIB));
    let gate = disk.gate.clone();
    let rig = Rig::new(&[Disk::of("d", disk)]);
    let (mut asking, mut reading) = (Raw::connect(&rig), Raw::go(&rig));
    asking.write(&3u32.to_be_bytes());
    reading.request(0, READ, 1, 0, 4096);
    gate.wait();
    // The worker is in that read. What comes next it finds all at once.
    let option = [&b"IHAVEOPT"[..], &(1u32 << 20).to_be_bytes(), &[0; 4]].concat();
    asking.write(&option.repeat(OPTIONS));
    let mut answered = 0;
    for n in 2..=3 {
        reading.request(0, READ, n, 0, 4096);
        gate.wait();
        gate.wait();
        // Its next one: what was answered before was sent by then.
        answered = asking.waiting();
    }
    gate.wait();
    for n in 1..=3 {
        assert_eq!(reading.reply(), (0, n));
        reading.read(4096);
    }
    let mut all = 0;
    for _ in 0..OPTIONS {
        let (kind, text) = asking.option_reply();
        assert_eq!(kind, ERR_UNSUP);
        all += 20 + text.len();
    }
    assert!(answered < all / 10, "{answered} of {all} bytes of answers, before others were looked at");
}
