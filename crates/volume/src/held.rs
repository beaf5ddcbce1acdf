//! What a device holds, in words: for whoever is about to overwrite it.

use blockwork_format::md::Superblock;
use blockwork_format::{Source, escape, md, partition};

use crate::graph::Content;

/// What would be lost, with the names by which its owner knows it; none where nothing is known to be there.
pub(crate) fn held(content: &Content, source: &dyn Source, block_bytes: u32) -> Option<String> {
    match content {
        Content::Unprobed | Content::Nothing => damaged(source, block_bytes),
        Content::Partitions(table) => {
            let count = table.partitions.len();
            Some(format!("a partition table ({}) with {count} partition{}", table.kind, plural(count)))
        }
        Content::MdMember(superblock) => Some(match &**superblock {
            Superblock::V1(it) => {
                format!("a member of the {} array \"{}\" ({})", it.level, it.set_name, it.set_uuid)
            }
            Superblock::V0(it) => format!("a member of a {} array ({})", it.level, it.uuid),
        }),
        Content::DamagedMember(_) => Some("a damaged md superblock".to_owned()),
        Content::FirmwareMember(firmware) => {
            Some(format!("a member of {} array of a disk controller's firmware", firmware.name()))
        }
        Content::Pv(pv) => {
            let id = &pv.label.pv.id;
            Some(match pv.newest() {
                Some(text) => format!("an LVM2 physical volume of the group {} ({id})", escape(&text.name)),
                None => format!("an LVM2 physical volume ({id})"),
            })
        }
        Content::Signature(signature) => {
            let label = signature.label.as_ref().map(|label| format!(" \"{}\"", escape(label)));
            let uuid = signature.uuid.as_ref().map(|uuid| format!(" ({})", escape(uuid)));
            Some(format!("{}{}{}", signature.kind, label.unwrap_or_default(), uuid.unwrap_or_default()))
        }
    }
}

/// What is too damaged to be used may still be all that is left of something.
fn damaged(source: &dyn Source, block_bytes: u32) -> Option<String> {
    if !md::find(source).refused.is_empty() {
        return Some("a damaged md superblock".to_owned());
    }
    partition::read(source, block_bytes).is_err().then(|| "a damaged partition table".to_owned())
}

fn plural(count: usize) -> &'static str {
    if count == 1 { "" } else { "s" }
}
