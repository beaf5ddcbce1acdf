//! Device-mapper tables as text.

use blockwork_format::table::{SECTORS_MAX, Table, TargetKind, parse};

use crate::{assert_printable, reached};

/// Any text; what is not UTF-8 is replaced.
pub fn dm_table(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    match parse(&text) {
        Ok(table) => check(&table),
        Err(error) => {
            reached("refused");
            assert_printable(&error.to_string());
        }
    }
}

fn check(table: &Table) {
    reached("table");
    assert!(!table.devices.is_empty());
    for device in &table.devices {
        let mut end = 0;
        for target in &device.targets {
            assert_eq!(target.start, end, "{device:?}");
            assert!(target.length > 0, "{device:?}");
            end = target.start.checked_add(target.length).filter(|end| *end <= SECTORS_MAX).expect("an end");
            let below = target.kind.below();
            if let TargetKind::Raid(raid) = &target.kind {
                reached("raid");
                assert!(
                    raid.device_sectors(target.length).is_some_and(|each| each <= target.length),
                    "{target:?}"
                );
                assert!(
                    raid.rebuild.iter().all(|role| usize::from(*role) < raid.devices.len()),
                    "{target:?}"
                );
                continue;
            }
            let share = target.length / u64::try_from(below.len().max(1)).expect("a count");
            assert_eq!(share * u64::try_from(below.len()).expect("a count") % target.length, 0, "{target:?}");
            assert!(below.iter().all(|below| below.offset <= SECTORS_MAX - share), "{target:?}");
        }
        assert!(end > 0, "{device:?}");
        assert_eq!(end, device.sectors());
    }
    let mut again = parse(&table.to_string()).expect("what was printed");
    let lines = table.devices.iter().flat_map(|device| &device.targets).map(|target| target.line_number);
    let targets = again.devices.iter_mut().flat_map(|device| &mut device.targets);
    targets.zip(lines).for_each(|(target, line)| target.line_number = line);
    assert_eq!(&again, table);
}
