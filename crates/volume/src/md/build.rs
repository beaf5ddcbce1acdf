//! The array as a device, with its layer.

use blockwork_engine::Sectors;
use blockwork_format::escape;
use blockwork_format::md::Superblock;

use super::Array;
use super::choose::Choice;
use crate::assembly::Assembly;
use crate::graph::{ArrayId, DeviceKind, NewDevice, Stack};

impl Assembly {
    /// Makes an array of what was chosen. One that cannot be assembled becomes a device that says why.
    pub(crate) fn assemble_array(&mut self, choice: Choice) {
        let Choice { truth, members, refusal, warnings } = choice;
        let name = self.graph.unused_name(&format!("md/{}", name_of(&truth)));
        let mut below: Vec<_> = members.iter().map(|member| member.device).collect();
        below.sort_unstable();
        let array = ArrayId(self.graph.arrays.len());
        let sectors = match &*truth {
            Superblock::V1(superblock) => superblock.array_sectors(),
            Superblock::V0(_) => None,
        };
        let device = self.graph.add(NewDevice {
            name: name.clone(),
            kind: DeviceKind::Array(array),
            sectors: Sectors(sectors.unwrap_or(0)),
            below,
            stack: Stack::Refused(refusal.unwrap_or_else(|| "arrays cannot be served yet".into())),
            is_offered: true,
            read_only: None,
        });
        self.graph.add_alias(format!("md/{}", truth.uuid()), device);
        self.graph.arrays.push(Array { name, device: Some(device), truth, members, warnings });
    }
}

/// What people call an array: its name without the host's, or its number; its UUID where that is no name.
fn name_of(superblock: &Superblock) -> String {
    match superblock {
        Superblock::V0(superblock) => superblock.md_minor.to_string(),
        Superblock::V1(superblock) => {
            let name = std::str::from_utf8(superblock.set_name.without_homehost()).unwrap_or_default();
            let is_plain = !name.is_empty()
                && !name.contains('/')
                && escape(name) == name
                && name != "."
                && name != "..";
            if is_plain { name.to_owned() } else { superblock.set_uuid.to_string() }
        }
    }
}
