//! What Linux does between two lives: it resyncs what may differ, and rebuilds members that are back.

use blockwork_engine::Sector;
use blockwork_format::md::bitmap::Bits;
use blockwork_format::md::v1::Features;
use blockwork_format::md::{IN_SYNC, Role};
use blockwork_layer::md::Places;
use blockwork_sim::World;

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
    write_state(plan, world, found, rebuild);
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
