//! What Linux does between two lives: it resyncs what may differ, and rebuilds members that are back. And what people have it do first where
//! parities may not fit and members are missing: take them as they are.

use blockwork_engine::Sector;
use blockwork_format::md::bitmap::Bits;
use blockwork_format::md::v1::Features;
use blockwork_format::md::{IN_SYNC, Role};
use blockwork_layer::md::Places;
use blockwork_sim::{Oracle, World};

use crate::arrays::rows::{Bytes, Row};

use super::disks::{ArrayPlan, Found};
use super::judge::Judge;

/// Resyncs the array; with `rebuild`, also gives every device its place and all data again.
pub fn take_over(plan: &ArrayPlan, world: &World, found: &Found, rebuild: bool) {
    let judge = Judge { plan, world, found };
    let intent = plan.intent(found);
    let geometry = plan.geometry();
    let mut places = Places::new();
    for sector in 0..geometry.sectors().0 {
        let marked = intent
            .as_ref()
            .is_none_or(|intent| intent.bits.is_dirty(sector / intent.superblock.chunk_sectors()));
        if plan.parity().is_some() {
            break;
        }
        let bytes = judge.copies(sector)[0].bytes;
        geometry.places(Sector(sector), &mut places);
        for place in &places {
            let in_sync = found.members[usize::from(place.member)].as_ref().map_or(0, |it| it.in_sync_to());
            if rebuild || (marked && place.sector.0 < in_sync) {
                let (_, device) = plan.numbered().nth(place.member.into()).expect("a member's device");
                world.preload(device, plan.data(place.sector), &bytes);
            }
        }
    }
    if let Some(layout) = plan.parity() {
        for at in 0..geometry.sync_sectors().0 {
            let marked = found.may_differ(intent.as_ref(), at);
            let row = judge.row(at).expect("a row has a parity").all;
            for (role, bytes) in
                (0..plan.members).zip(Row::made_to_fit(layout, at / u64::from(plan.chunk), row).all)
            {
                let in_sync = found.members[usize::from(role)].as_ref().map_or(0, |it| it.in_sync_to());
                if rebuild || (marked && at < in_sync) {
                    let (_, device) = plan.numbered().nth(role.into()).expect("a member's device");
                    world.preload(device, plan.data(Sector(at)), &bytes.expect("all data can be had"));
                }
            }
        }
    }
    write_state(plan, world, found, rebuild);
}

/// Parities that may not fit, in an array whose members are not all there, are made to, with what the missing ones have by them; the array is
/// clean then. Whoever knows what clients have written hears of what they get instead. Whether all of its data can be had.
pub fn force(plan: &ArrayPlan, world: &World, found: &Found, oracle: &mut Oracle) -> bool {
    let (Some(layout), judge) = (plan.parity(), Judge { plan, world, found }) else { return true };
    let geometry = plan.geometry();
    let row_of = |at: u64| at / u64::from(plan.chunk);
    let (start, sectors) = plan.volume();
    // What clients do not use may be lost with what they have beside it.
    for sector in (0..geometry.sectors().0).filter(|sector| judge.is_lost(*sector)) {
        let place = plan.place_of(sector);
        let row = judge.row(place.sector.0).expect("a row has a parity");
        let Some(bytes) = row.all[usize::from(place.member)] else { return false };
        let Some(sector) = sector.checked_sub(start).filter(|sector| *sector < sectors) else { continue };
        if oracle.settle(sector, &bytes).is_err() {
            overwrite(oracle, sector, &bytes);
        }
    }
    for at in (0..geometry.sync_sectors().0).filter(|at| judge.has_hole(*at)) {
        let row = Row::made_to_fit(layout, row_of(at), judge.row(at).expect("a row has a parity").all);
        for (role, bytes) in (0..plan.members).zip(row.all) {
            for (member, bytes) in found.holders(role).zip(bytes.into_iter().cycle()) {
                world.preload(member.device, plan.data(Sector(at)), &bytes);
            }
        }
    }
    let replacements = found.replacements.iter().map(|(_, member)| member);
    for member in found.members.iter().flatten().chain(replacements).chain(&found.spares) {
        let mut superblock = member.superblock.clone();
        superblock.roles = found.truth.roles.clone();
        (superblock.events, superblock.resync_offset) = (found.truth.events, IN_SYNC);
        plan.write_superblock(world, member.device, &superblock);
        if let Some(intent) = plan.intent(found) {
            let mut bitmap = intent.superblock.clone();
            bitmap.events = superblock.events;
            plan.write_bitmap(world, member.device, &bitmap, &intent.bits);
        }
    }
    true
}

/// What clients had there is gone.
fn overwrite(oracle: &mut Oracle, sector: u64, bytes: &Bytes) {
    let write = oracle.begin_write(sector * 512, bytes);
    oracle.end_write(write, true, true);
}

fn write_state(plan: &ArrayPlan, world: &World, found: &Found, rebuild: bool) {
    let intent = plan.intent(found);
    let whole = rebuild || !found.is_degraded();
    for (role, device) in plan.numbered() {
        let member = found.members[usize::from(role)].as_ref();
        if member.is_none() && !rebuild {
            continue;
        }
        let mut superblock = member.map_or_else(|| found.truth.clone(), |member| member.superblock.clone());
        superblock.dev_number = role.into();
        superblock.roles = found.truth.roles.clone();
        superblock.events = found.truth.events + 2;
        superblock.resync_offset = IN_SYNC;
        if rebuild {
            superblock.features = Features(superblock.features.0 & !Features::RECOVERY_OFFSET.0);
            plan.numbered().for_each(|(other, _)| superblock.roles[usize::from(other)] = Role::Active(other));
        }
        plan.write_superblock(world, device, &superblock);
        if let Some(intent) = &intent {
            let mut bitmap = intent.superblock.clone();
            bitmap.events = superblock.events;
            let clean = Bits::clean(bitmap.chunks());
            if whole {
                bitmap.events_cleared = superblock.events;
            }
            plan.write_bitmap(world, device, &bitmap, if whole { &clean } else { &intent.bits });
        }
    }
}
