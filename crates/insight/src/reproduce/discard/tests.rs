//! Counts of requests are exact; times lie where the report's do.

use super::*;

/// Devices of 8 GiB: all of it takes a moment.
fn small() -> DiscardPlan {
    DiscardPlan { device: Sectors(8 << 21), ..DiscardPlan::default() }
}

const MIRRORED: [&str; 3] = ["n2", "f2", "o2"];

fn run(plan: &DiscardPlan, client: Client, stack: &'static str, behaviour: Behaviour) -> Row {
    Run { client, stack, behaviour }.row(plan, Box::new(|_| ())).unwrap()
}

/// Chunks of each member that the array uses.
fn chunks_of_a_member(plan: &DiscardPlan, stack: &str) -> u64 {
    let rows = (plan.device.0 - DATA_START.0) / CHUNK.0;
    // Two copies far from each other: each half of a member has as many rows.
    if matches!(stack, "f2" | "o2") { rows / 2 * 2 } else { rows }
}

#[test]
fn mkfs_of_2020_made_a_request_of_each_chunk_and_copy() {
    for stack in MIRRORED {
        let row = run(&small(), Client::Mkfs2020, stack, Behaviour::Old);
        let expected = chunks_of_a_member(&small(), stack);
        for device in &row.devices {
            assert_eq!(device.discards, expected, "{stack}: {row:?}");
        }
    }
}

#[test]
fn a_discard_of_the_whole_array_is_one_request_a_member() {
    for stack in DiscardPlan::STACKS {
        for plan in [small(), DiscardPlan::default()] {
            let row = run(&plan, Client::Mkfs2020, stack, Behaviour::New);
            let copies = if *stack == "raid0" { 1 } else { 2 };
            let array = chunks_of_a_member(&plan, stack) * u64::from(DEVICES) / copies;
            // As many bios as may be under way are one request; RAID0 is so large that it takes two turns.
            let expected = array.div_ceil(8191).div_ceil(TAGS);
            let counts: Vec<_> = row.devices.iter().map(|device| device.discards).collect();
            assert_eq!(counts, [expected; 4], "{stack}: {row:?}");
        }
    }
}

/// Chunk by chunk, piece by piece: what the kernel's old way comes to.
fn requests_by_hand(geometry: &Geometry, extents: &[(Sector, Sectors)]) -> [u64; 4] {
    let mut counts = [0; 4];
    for (start, nr) in extents {
        let (mut at, mut end_of_piece) = (start.0, start.0 + CHUNK.0);
        while at < start.0 + nr.0 {
            let end = (at / CHUNK.0 * CHUNK.0 + CHUNK.0).min(end_of_piece).min(start.0 + nr.0);
            let mut places = Default::default();
            geometry.places(Sector(at), &mut places);
            places.iter().for_each(|place| counts[usize::from(place.member)] += 1);
            at = end;
            if at == end_of_piece {
                end_of_piece += CHUNK.0;
            }
        }
    }
    counts
}

#[test]
fn fstrim_cuts_pieces_at_chunks_again_where_an_extent_does_not_begin_with_one() {
    let plan = small();
    for stack in MIRRORED {
        let layout = Raid10Layout::from_short_name(stack, 4).unwrap();
        let geometry = Geometry::raid10(layout, CHUNK, Sectors(plan.device.0 - DATA_START.0)).unwrap();
        let lab = Lab::new(plan.seed, &DeviceModel::i3_nvme(plan.device), DEVICES);
        let (members, node) = lab.layers();
        let run_of = Run { client: Client::Fstrim, stack, behaviour: Behaviour::Old };
        let array = run_of.array(&plan, members, node).unwrap();
        let expected = requests_by_hand(&geometry, &Xfs::on(&*array).free_extents());
        let row = run(&plan, Client::Fstrim, stack, Behaviour::Old);
        let counts: Vec<_> = row.devices.iter().map(|device| device.discards).collect();
        assert_eq!(counts, expected, "{stack}");
    }
}

#[test]
fn fstrim_has_a_bounded_number_of_requests_for_each_extent() {
    // Ranges of whole chunks, and the two ragged ends.
    for (stack, ranges) in [("n2", 1), ("f2", 2), ("o2", 3), ("raid0", 1)] {
        let row = run(&DiscardPlan::default(), Client::Fstrim, stack, Behaviour::New);
        let extents = 32 + 1;
        for device in &row.devices {
            assert!((extents - 2..=extents * (ranges + 2)).contains(&device.discards), "{stack}: {row:?}");
        }
    }
}

#[test]
fn mkfs_6_asks_for_2_gib_at_a_time() {
    let plan = DiscardPlan::default();
    let row = run(&plan, Client::Mkfs6, "n2", Behaviour::New);
    let steps = (chunks_of_a_member(&plan, "n2") * 2 * CHUNK.0).div_ceil(xfs::DISCARD_STEP.0);
    assert!(row.devices.iter().all(|device| device.discards == steps), "{steps}: {row:?}");
}

/// What the old behaviour takes on devices of the report's size, by what the discards of a 256th of it take.
fn old_seconds(client: Client) -> f64 {
    let small = DiscardPlan { device: Sectors(DEVICE.0 / 256), ..DiscardPlan::default() };
    let seconds = |plan, behaviour| run(plan, client, "n2", behaviour).seconds;
    let discards = seconds(&small, Behaviour::Old) - seconds(&small, Behaviour::New);
    let (few, all) = (chunks_of_a_member(&small, "n2"), chunks_of_a_member(&DiscardPlan::default(), "n2"));
    discards * all as f64 / few as f64 + seconds(&DiscardPlan::default(), Behaviour::New)
}

#[test]
fn old_times_are_those_of_the_report_and_new_ones_a_fraction() {
    let old = old_seconds(Client::Mkfs2020);
    let reported = Client::Mkfs2020.reported("n2", Behaviour::Old).unwrap();
    assert!((old / reported - 1.0).abs() < 0.02, "{old} s, and the report has {reported}");
    for client in [Client::Mkfs2020, Client::Fstrim] {
        let (old, reported) = (old_seconds(client), client.reported("n2", Behaviour::Old).unwrap());
        assert!((0.5..2.0).contains(&(old / reported)), "{client:?}: {old} s, and the report has {reported}");
        let new = run(&DiscardPlan::default(), client, "n2", Behaviour::New).seconds;
        assert!(old / new > 50.0, "{client:?}: {old} s and {new} s");
        // The model leaves out what the device does for large discards: no more than this.
        let reported = client.reported("n2", Behaviour::New).unwrap();
        assert!(new < reported, "{client:?}: {new} s, and the report has {reported}");
    }
}

#[test]
fn a_seed_is_one_history() {
    let plan = DiscardPlan { stacks: vec!["n2", "raid0"], ..small() };
    let first = reproduce(&plan, &mut |_| ()).unwrap();
    assert_eq!(first, reproduce(&plan, &mut |_| ()).unwrap());
    assert_eq!(first.rows.len(), 5 + 3);
    assert_eq!(first.rows.iter().filter(|row| row.is_calibration).count(), 1);
}

#[test]
fn progress_goes_to_its_end() {
    let mut told = Vec::new();
    let plan = DiscardPlan { stacks: vec!["f2"], ..small() };
    reproduce(&plan, &mut |done| told.push(done)).unwrap();
    assert!(told.is_sorted(), "{told:?}");
    assert!((told.last().unwrap() - 1.0).abs() < 1e-6, "{told:?}");
}
