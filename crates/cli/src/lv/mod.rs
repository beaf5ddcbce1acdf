//! `blockwork lv`: logical volumes of LVM2 are made, changed and shown, on disks that nobody uses.

mod amount;
mod args;
mod merge;
mod show;
mod snapshot;
mod thin;

use anyhow::{Result, anyhow, bail};
use blockwork_volume::lvm::edit::{GroupEditor, NewVolume, Shape, TagChange};
use serde_json::{Value, json};

use crate::scan::size;
use crate::vg::change::{announce, author, commit, sectors};
pub(crate) use args::LvArgs;
use args::{CreateArgs, LvVerb, RemoveArgs, RenameArgs, ResizeArgs, TagArgs, Type};

pub(crate) fn run(args: &LvArgs) -> Result<()> {
    match &args.verb {
        LvVerb::Create(args) => create(args),
        LvVerb::Snapshot(args) => snapshot::run(args),
        LvVerb::Merge(args) => merge::run(args),
        LvVerb::Resize(args) => resize(args),
        LvVerb::Rename(args) => rename(args),
        LvVerb::Remove(args) => remove(args),
        LvVerb::Tag(args) => tag(args),
        LvVerb::Show(args) => show::run(args),
    }
}

fn create(args: &CreateArgs) -> Result<()> {
    let (group, name) = split(&args.volume)?;
    if args.thin.thin_pool {
        return thin::create_pool(args);
    }
    if let Some(pool) = &args.thin.thin {
        return thin::create_volume(args, pool);
    }
    let size = amount::new_size(args.size.as_deref(), args.extents.as_deref())?;
    let shape = shape(args)?;
    if args.nosync && !shape.is_raid() {
        bail!("--nosync: only the mirrors of a raid1 or raid10 are synced");
    }
    let new = NewVolume {
        name: name.to_owned(),
        size,
        shape,
        tags: args.addtag.clone(),
        wipe: !args.no_wipe,
        no_sync: args.nosync,
    };
    let mut editor = GroupEditor::open(&args.disks.disk, group, author()?)?;
    let created = editor.draft_mut().create_volume(&new)?;
    if let Some(rounded) = &created.rounded {
        log::warn!("{rounded}");
    }
    commit(&mut editor)?;
    let said = format!("{}: {}", args.volume, size_of(&editor, created.extents));
    announce(&editor, &said, Some(json_of(&editor, name)), args.disks.json);
    Ok(())
}

/// What a new volume is to be made of.
fn shape(args: &CreateArgs) -> Result<Shape> {
    let kind = args.kind.unwrap_or(match (args.mirrors, args.stripes) {
        (Some(1..), Some(2..)) => Type::Raid10,
        (Some(1..), _) => Type::Raid1,
        (_, Some(2..)) => Type::Striped,
        _ => Type::Linear,
    });
    let stripes = args.stripes.unwrap_or(2);
    let mirrors = args.mirrors.unwrap_or(1);
    let stripe_size = sectors("--stripesize", &args.stripesize)?;
    let region_size = sectors("--regionsize", &args.regionsize)?;
    let unfit = |option: &str| Err(anyhow!("{option}: a volume of that type has none"));
    match kind {
        Type::Linear | Type::Raid1 if args.stripes.is_some_and(|stripes| stripes != 1) => unfit("--stripes"),
        Type::Linear | Type::Striped if args.mirrors.is_some_and(|mirrors| mirrors != 0) => {
            unfit("--mirrors")
        }
        Type::Linear => Ok(Shape::Linear),
        Type::Striped => Ok(Shape::Striped { stripes, stripe_size }),
        Type::Raid1 => Ok(Shape::Raid1 { mirrors, region_size }),
        Type::Raid10 => Ok(Shape::Raid10 { stripes, mirrors, stripe_size, region_size }),
    }
}

fn resize(args: &ResizeArgs) -> Result<()> {
    let (group, name) = split(&args.volume)?;
    let map_size = args.pool_metadata_size.as_deref();
    let resize = amount::resize(map_size.or(args.size.as_deref()), args.extents.as_deref())?;
    let mut editor = thin::open(&args.disks.disk, group)?;
    let resized = match map_size {
        Some(_) => editor.draft_mut().grow_pool_metadata(name, resize)?,
        None => editor.draft_mut().resize_volume(name, resize, args.force)?,
    };
    if let Some(capped) = &resized.capped {
        log::warn!("{capped}");
    }
    if resized.from == resized.to {
        bail!("{}: it has {} already", args.volume, size_of(&editor, resized.to));
    }
    let editor = if editor.draft().is_thin_pool(name)? {
        thin::commit_and_grow(editor, name, &args.disks.disk)?
    } else {
        commit(&mut editor)?;
        editor
    };
    let sizes = [resized.from, resized.to].map(|extents| size_of(&editor, extents));
    let said = format!("{}: {}, before it was {}", args.volume, sizes[1], sizes[0]);
    announce(&editor, &said, Some(json_of(&editor, name)), args.disks.json);
    Ok(())
}

fn rename(args: &RenameArgs) -> Result<()> {
    let (group, old) = split(&args.volume)?;
    let new = match args.new.split_once('/') {
        None => args.new.as_str(),
        Some((same, new)) if same == group => new,
        Some((other, _)) => bail!("{}: a volume cannot go to another group ({other})", args.volume),
    };
    let mut editor = GroupEditor::open(&args.disks.disk, group, author()?)?;
    editor.draft_mut().rename_volume(old, new)?;
    commit(&mut editor)?;
    let said = format!("{} is {group}/{new} now", args.volume);
    announce(&editor, &said, Some(json_of(&editor, new)), args.disks.json);
    Ok(())
}

fn remove(args: &RemoveArgs) -> Result<()> {
    let volumes = args.volumes.iter().map(|volume| split(volume)).collect::<Result<Vec<_>>>()?;
    let (group, _) = volumes[0];
    if let Some((other, _)) = volumes.iter().find(|(other, _)| *other != group) {
        bail!("the volumes are of two groups ({group} and {other}): remove them one group at a time");
    }
    let mut editor = thin::open(&args.disks.disk, group)?;
    for (_, name) in &volumes {
        editor.draft_mut().remove_volume(name)?;
    }
    let editor = thin::commit_and_tell(editor, &args.disks.disk)?;
    announce(&editor, &format!("removed {}", args.volumes.join(", ")), None, args.disks.json);
    Ok(())
}

fn tag(args: &TagArgs) -> Result<()> {
    let (group, name) = split(&args.volume)?;
    let mut editor = GroupEditor::open(&args.disks.disk, group, author()?)?;
    editor.draft_mut().tag_volume(name, &TagChange::from(&args.tags))?;
    commit(&mut editor)?;
    let vg = editor.draft().group();
    let tags = vg.lv(name).map(|lv| vg.lvs[lv.0].tags.join(", ")).unwrap_or_default();
    announce(
        &editor,
        &format!("{}: tags {tags}", args.volume),
        Some(json_of(&editor, name)),
        args.disks.json,
    );
    Ok(())
}

/// `VG/LV` as two names.
fn split(volume: &str) -> Result<(&str, &str)> {
    let plain = volume.strip_prefix("/dev/").unwrap_or(volume);
    match plain.split_once('/') {
        Some((group, name)) if !group.is_empty() && !name.is_empty() => Ok((group, name)),
        _ => bail!("{volume:?}: expected VG/LV, the group's name and the volume's"),
    }
}

fn size_of(editor: &GroupEditor, extents: u64) -> String {
    size(extents * editor.draft().group().extent_sectors * 512)
}

/// A volume, for programs.
fn json_of(editor: &GroupEditor, name: &str) -> Value {
    let vg = editor.draft().group();
    vg.lv(name).map_or(Value::Null, |lv| {
        let volume = &vg.lvs[lv.0];
        json!({
            "name": volume.name,
            "uuid": volume.id.to_string(),
            "bytes": vg.lv_sectors(lv) * 512,
            "type": show::type_name(vg, lv),
            "origin": show::origin(vg, lv),
            "tags": volume.tags,
        })
    })
}
