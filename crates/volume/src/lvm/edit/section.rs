//! Sections of a group's text, with the keys that LVM writes, in its order.

use blockwork_format::lvm2::vg::{PvIndex, VolumeGroup};
use blockwork_format::lvm2::{Node, Section, Uuid, Value};

/// Keys of a section that come before `tags`.
pub(super) const BEFORE_TAGS: &[&str] =
    &["id", "seqno", "format", "device", "device_id_type", "device_id", "status", "flags"];

/// A list of strings.
pub(super) fn strings<S: AsRef<str>>(values: impl IntoIterator<Item = S>) -> Node {
    Node::Array(values.into_iter().map(|value| Value::from(value.as_ref())).collect())
}

/// A number that metadata holds.
pub(super) fn number(n: u64) -> Node {
    Node::from(i64::try_from(n).expect("extents and sectors are below 2^63"))
}

/// A section being written, key by key.
#[derive(Default)]
pub(super) struct Keys(Section);

impl Keys {
    pub(super) fn text(mut self, key: &str, value: &str) -> Keys {
        self.0.set(key, value.into());
        self
    }

    pub(super) fn number(mut self, key: &str, value: u64) -> Keys {
        self.0.set(key, number(value));
        self
    }

    pub(super) fn strings<S: AsRef<str>>(mut self, key: &str, values: impl IntoIterator<Item = S>) -> Keys {
        self.0.set(key, strings(values));
        self
    }

    /// Nothing where there are none.
    pub(super) fn tags(self, tags: &[String]) -> Keys {
        if tags.is_empty() { self } else { self.strings("tags", tags) }
    }

    pub(super) fn section(mut self, key: &str, section: Section) -> Keys {
        self.0.set(key, Node::Section(section));
        self
    }

    pub(super) fn done(self) -> Section {
        self.0
    }
}

/// When and where an LV is made.
pub(super) struct Birth<'a> {
    pub(super) id: Uuid,
    pub(super) time: i64,
    pub(super) host: &'a str,
}

/// The section of an LV.
pub(super) fn volume(birth: &Birth<'_>, status: &[&str], tags: &[String], segments: Vec<Section>) -> Section {
    let mut keys = Keys::default()
        .text("id", &birth.id.to_string())
        .strings("status", status)
        .strings("flags", [] as [&str; 0])
        .tags(tags);
    keys.0.set("creation_time", birth.time.into());
    keys = keys.text("creation_host", birth.host).number("segment_count", segments.len() as u64);
    for (nr, segment) in (1..).zip(segments) {
        keys = keys.section(&segment_key(nr), segment);
    }
    keys.done()
}

/// The key of an LV's `nr`-th segment, from 1.
pub(super) fn segment_key(nr: usize) -> String {
    format!("segment{nr}")
}

/// A segment of stripes on PVs; one of them is a linear segment. `extents`: of each stripe.
pub(super) fn striped(
    vg: &VolumeGroup,
    start: u64,
    extents: u64,
    stripe_sectors: u64,
    starts: &[(PvIndex, u64)],
) -> Section {
    let count = starts.len() as u64;
    let mut keys = Keys::default()
        .number("start_extent", start)
        .number("extent_count", extents * count)
        .text("type", "striped")
        .number("stripe_count", count);
    if count > 1 {
        keys = keys.number("stripe_size", stripe_sectors);
    }
    let mut section = keys.done();
    section.set("stripes", stripes(vg, starts));
    section
}

fn stripes(vg: &VolumeGroup, starts: &[(PvIndex, u64)]) -> Node {
    let values = starts.iter().flat_map(|(pv, extent)| {
        let Node::Value(extent) = number(*extent) else { unreachable!("a number is a value") };
        [Value::from(vg.pvs[pv.0].name.as_str()), extent]
    });
    Node::Array(values.collect())
}
