//! `blockwork lv merge`: a snapshot goes back into its origin.
//!
//! The text says first that it is being merged, then it is done, here, to the end; then the text has no snapshot any more. A signal
//! ends it between two steps: whoever opens the group next, this command, a server or Linux, goes on. A snapshot of a thin volume takes the
//! place of its origin, and nothing has to be copied. Without disks, the server that has the group is asked, and does all of it by itself.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use anyhow::{Result, anyhow};
use blockwork_daemon::SyncStatus;
use blockwork_engine::TaskContext;
use blockwork_layer::snapshot::{MergeError, SnapshotStatus, Step};
use blockwork_volume::lvm::edit::{Change, CommitError, GroupEditor, Merger};
use serde_json::json;
use signal_hook::flag;

use super::args::MergeArgs;
use super::split;
use crate::at_once;
use crate::md::Progress;
use crate::scan::size;
use crate::signals;
use crate::vg::change::{announce, author, commit};
use crate::vg::target::{change, commit_and_tell, open};

pub(super) fn run(args: &MergeArgs) -> Result<()> {
    let (group, name) = split(&args.volume)?;
    if args.place.disk.is_empty() {
        return change(&args.place, group, Change::Merge { volume: name.to_owned() });
    }
    // The disks must be left in order: a signal is looked at, and no end.
    let is_stopped = Arc::new(AtomicBool::new(false));
    for signal in signals::ending() {
        flag::register(signal, is_stopped.clone())?;
    }
    let disks = &args.place.disk;
    let mut editor = open(disks, group)?;
    if editor.draft().is_thin(name)? {
        return replace_origin(args, editor, name);
    }
    if editor.begin_merge(name)? {
        commit(&mut editor)?;
        // What the disks say now, and no longer what they said before, is served from here on.
        drop(editor);
        editor = GroupEditor::open(disks, group, author()?)?;
    }
    let merger = editor.merger(name)?;
    let work = Work { merger, is_stopped, progress: Progress::default() };
    let End { merged, left } = match at_once::run(editor.assembly(), |cx| work.run(cx))? {
        Ok(end) => end,
        Err(error) => {
            if let Some(MergeError::Invalid { .. }) = error.downcast_ref() {
                editor.draft_mut().give_up_merge(name)?;
                commit(&mut editor)?;
            }
            return Err(error);
        }
    };
    if left > 0 {
        return Err(anyhow!(
            "{}: the merge was stopped, {} are left, and its origin is what it was all the same; go on with: blockwork lv merge \
             {0} --disk {}",
            args.volume,
            size(left),
            disks.join(" ")
        ));
    }
    editor.draft_mut().end_merge(name)?;
    commit(&mut editor).map_err(|error| {
        let why = match error.downcast::<CommitError>() {
            Ok(error) => error.cause(),
            Err(error) => format!("{error:#}"),
        };
        anyhow!(
            "{}: all is merged, and the group's text cannot say so: {why}; go on with: blockwork lv merge {0} --disk {}",
            args.volume,
            disks.join(" ")
        )
    })?;
    let said = format!("{}: {} are merged into its origin, and it is gone", args.volume, size(merged));
    announce(&editor, &said, Some(json!({ "merged": args.volume, "bytes": merged })), args.place.json)
}

/// A thin snapshot takes the place of its origin.
fn replace_origin(args: &MergeArgs, mut editor: GroupEditor, name: &str) -> Result<()> {
    let origin = editor.draft_mut().end_thin_merge(name)?;
    let editor = commit_and_tell(editor, &args.place.disk)?;
    let origin = format!("{}/{origin}", editor.draft().group().name);
    let said = format!("{}: it has taken the place of its origin {origin}, and is gone", args.volume);
    announce(&editor, &said, Some(json!({ "merged": args.volume, "origin": origin })), args.place.json)
}

/// How it ended: bytes.
struct End {
    merged: u64,
    left: u64,
}

struct Work {
    merger: Merger,
    is_stopped: Arc<AtomicBool>,
    progress: Progress,
}

impl Work {
    async fn run(mut self, cx: TaskContext) -> Result<End> {
        let result = self.steps(&cx).await;
        // Whatever came of it, arrays below are put to rest.
        let closed = self.merger.close(&cx).await;
        let end = result?;
        closed.map_err(|errno| anyhow!("an array below could not record that it is in order: {errno}"))?;
        Ok(end)
    }

    async fn steps(&mut self, cx: &TaskContext) -> Result<End, MergeError> {
        let total = left(&self.merger.status());
        let begun = Instant::now();
        loop {
            let left = left(&self.merger.status());
            let done = total.saturating_sub(left);
            let seconds = begun.elapsed().as_secs_f64().max(0.001);
            self.progress.show(&SyncStatus {
                action: "merge".into(),
                done_sectors: done / 512,
                total_sectors: total / 512,
                speed_kib: (done as f64 / 1024.0 / seconds) as u64,
                mismatch_sectors: 0,
            });
            if self.is_stopped.load(Ordering::Relaxed) && left > 0 {
                return Ok(End { merged: done, left });
            }
            if self.merger.step(cx).await? == Step::Done {
                return Ok(End { merged: total, left: 0 });
            }
        }
    }
}

/// What a store has that is not merged yet, bytes.
fn left(status: &SnapshotStatus) -> u64 {
    match status {
        SnapshotStatus::Used { used, metadata, .. } => used.bytes().saturating_sub(metadata.bytes()),
        _ => 0,
    }
}
