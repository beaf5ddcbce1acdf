//! What every change of a group has in common: who makes it, and how it is written.

use std::fs;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, anyhow};
use blockwork_format::SECTOR_BYTES;
use blockwork_format::lvm2::Uuid;
use blockwork_volume::lvm::edit::{Author, GroupEditor, TagChange};
use ring::rand::{SecureRandom, SystemRandom};
use serde_json::{Value, json};

use super::args::Tags;
use crate::scan::size;
use crate::{at_once, out};

/// Characters of a command line that a group's text keeps at most.
const COMMAND_MAX: usize = 1024;

/// This host, now, by this command line.
pub(crate) fn author() -> Result<Author> {
    author_of(Some(&std::env::args().skip(1).collect::<Vec<_>>().join(" ")))
}

/// This host, now, by the command of that name and these words.
pub(crate) fn author_of(words: Option<&str>) -> Result<Author> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).context("the clock stands before 1970")?;
    let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let words: String = words.unwrap_or("serve").chars().take(COMMAND_MAX).collect();
    // Asked for once now, as one could not say later that there are none.
    let random = SystemRandom::new();
    random.fill(&mut [0; 32]).map_err(|_| anyhow!("the kernel gives no random numbers"))?;
    let new_id = move || {
        let mut bytes = [0; 32];
        random.fill(&mut bytes).expect("there were random numbers when this was made");
        Uuid::from_random(bytes)
    };
    Ok(Author {
        host: host.trim().to_owned(),
        time: i64::try_from(now.as_secs()).context("the clock is wrong")?,
        command: format!("blockwork {words}"),
        ids: Box::new(new_id),
    })
}

/// Writes what was planned.
pub(crate) fn commit(editor: &mut GroupEditor) -> Result<()> {
    for warning in editor.assembly().warnings() {
        log::warn!("{warning}");
    }
    write(editor)
}

/// The same, where everything there is to know about the disks was said before.
pub(crate) fn write(editor: &mut GroupEditor) -> Result<()> {
    let commit = editor.plan()?;
    at_once::run(editor.assembly(), |cx| async move { commit.run(&cx).await })??;
    Ok(())
}

impl From<&Tags> for TagChange {
    fn from(tags: &Tags) -> TagChange {
        TagChange { add: tags.addtag.clone(), remove: tags.deltag.clone() }
    }
}

/// What a group has after a change, in a sentence.
pub(crate) fn room(editor: &GroupEditor) -> String {
    let vg = editor.draft().group();
    let bytes = |extents: u64| size(extents * vg.extent_sectors * SECTOR_BYTES);
    let all = vg.pvs.iter().map(|pv| pv.pe_count).sum();
    let disks = if vg.pvs.len() == 1 { "disk" } else { "disks" };
    format!(
        "{}: {} {disks}, {}, {} free",
        vg.name,
        vg.pvs.len(),
        bytes(all),
        bytes(editor.draft().free().total())
    )
}

/// The same for programs.
pub(crate) fn json(editor: &GroupEditor) -> Value {
    let vg = editor.draft().group();
    let bytes = |extents: u64| extents * vg.extent_sectors * SECTOR_BYTES;
    json!({
        "group": vg.name,
        "uuid": vg.id.to_string(),
        "seqno": editor.seqno(),
        "extent_bytes": vg.extent_sectors * SECTOR_BYTES,
        "disks": vg.pvs.len(),
        "volumes": vg.visible().iter().filter(|visible| **visible).count(),
        "bytes": bytes(vg.pvs.iter().map(|pv| pv.pe_count).sum()),
        "free_bytes": bytes(editor.draft().free().total()),
        "tags": vg.tags,
    })
}

/// Says what was done: `said`, or the group and `more` of JSON.
pub(crate) fn announce(editor: &GroupEditor, said: &str, more: Option<Value>, as_json: bool) -> Result<()> {
    if as_json {
        let mut value = json(editor);
        if let Some(more) = more {
            value["volume"] = more;
        }
        out::print_json_done(&value)
    } else {
        out::print_done(&format!("{said}\n"))
    }
}
