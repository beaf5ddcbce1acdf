//! What a socket's front ends may have written into the log: it is this process's only one, so this is a process of its own.

mod lines;
mod vhost_support;

use blockwork_format::vhost_user::{Message, VringState};
use blockwork_format::virtio::blk::{feature, status};
use vhost_support::{Rig, write};
use vhostload::{Client, Options};

/// As a front end that does not ask how large its disk is, and stops and starts a queue that was used.
fn tell_of_a_size_again_and_again(rig: &Rig) {
    let mut disk = rig.disk(Options::default());
    assert_eq!(write(&mut disk, 0, 0, &[1; 512]).status, status::OK);
    for num in (0..400).map(|n| n % 2) {
        disk.client().unwrap().tell(&Message::SetVringEnable(VringState { index: 0, num }), &[]).unwrap();
    }
    disk.wait_for_config_change().unwrap();
}

/// As one that comes while another has the disk, and goes.
fn wait_again_and_again(rig: &Rig) {
    let mut first = rig.disk(Options::default());
    assert_eq!(write(&mut first, 0, 0, &[1; 512]).status, status::OK);
    for _ in 0..100 {
        drop(rig.disk(Options::default()));
    }
    assert_eq!(write(&mut first, 0, 0, &[1; 512]).status, status::OK);
}

/// As a front end whose driver may make requests that its ring has no room for.
fn start_a_short_ring_again_and_again(rig: &Rig) {
    let disk = rig.disk(Options { indirect: false, ..Options::default() });
    disk.config().unwrap();
    let client = disk.client().unwrap();
    client.tell(&Message::SetFeatures(disk.features | feature::SEG_MAX), &[]).unwrap();
    for _ in 0..400 {
        client.tell(&Message::SetVringNum(VringState { index: 0, num: 64 }), &[]).unwrap();
    }
}

#[test]
fn who_sends_what_is_no_message_again_and_again_does_not_fill_the_log() {
    lines::count();
    let rig = Rig::new("memory:16M", 1);
    let begun = std::time::Instant::now();
    for _ in 0..500 {
        let client = Client::connect(&rig.socket()).unwrap();
        client.send_raw(b"GET / HTTP/1.1\r\n\r\n", &[]).unwrap();
        assert!(client.is_closed());
    }
    tell_of_a_size_again_and_again(&rig);
    wait_again_and_again(&rig);
    start_a_short_ring_again_and_again(&rig);
    rig.stop();
    // Of seven kinds of lines, one each in ten seconds; and few others.
    let most = 10 + 7 * (begun.elapsed().as_secs() as usize / 10);
    let lines = lines::so_far();
    assert!((1..=most).contains(&lines), "{lines} lines, expected 1 to {most}");
}
