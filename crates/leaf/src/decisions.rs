//! What is in force on a file of what can be done in several ways, and why: so or so because somebody has said it, because something was
//! tried when the file was opened (O_DIRECT), or because clients' requests are measured.

use blockwork_engine::{Decision, Fixed, Fua, Limits, Linearize};

use crate::cache::Cache;
use crate::file::Direct;

/// What the limits alone do not tell.
pub(crate) struct Told {
    direct: Direct,
    /// Why not by O_DIRECT, where that was left to us.
    why_buffered: Option<String>,
    is_direct: bool,
    cache: Option<Cache>,
    /// Settings by their names and values, the later ones in force.
    asked: Vec<(String, String)>,
}

impl Told {
    pub(crate) fn new(direct: Direct, is_direct: bool, why_buffered: Option<String>) -> Told {
        Told { direct, why_buffered, is_direct, cache: None, asked: Vec::new() }
    }

    /// By which words it was opened.
    pub(crate) fn by_words<'a>(
        &mut self,
        cache: Option<Cache>,
        settings: impl Iterator<Item = &'a (String, String)>,
    ) {
        self.cache = cache;
        self.asked = settings.cloned().collect();
    }

    /// All that can be done in several ways, under these limits.
    pub(crate) fn decisions(&self, limits: &Limits) -> Vec<Decision> {
        vec![self.direct(), self.linearize(limits), self.fua(limits), self.fixed(limits)]
    }

    fn direct(&self) -> Decision {
        let value = if self.is_direct { "on" } else { "off" };
        let asked = self.direct != Direct::Auto;
        let why = match (&self.cache, &self.why_buffered) {
            (Some(cache), _) => format!("cache={}", cache.name()),
            (None, Some(why)) => why.clone(),
            (None, None) if asked => format!("direct={value}"),
            (None, None) => "O_DIRECT was tried, and works".into(),
        };
        Decision { setting: "direct", value, asked, why }
    }

    fn linearize(&self, limits: &Limits) -> Decision {
        let value = limits.linearize.name();
        if limits.linearize == Linearize::Auto {
            return measured("linearize", value);
        }
        self.said("linearize", value).unwrap_or_else(|| chosen("linearize", value, ""))
    }

    fn fua(&self, limits: &Limits) -> Decision {
        let value = limits.fua.name();
        if limits.fua == Fua::Auto {
            return measured("fua", value);
        }
        if self.cache == Some(Cache::Unsafe) {
            let why = "cache=unsafe, which flushes nothing".into();
            return Decision { setting: "fua", value, asked: true, why };
        }
        // Whoever asks for auto gets the flush as well.
        self.said("fua", value).unwrap_or_else(|| {
            chosen("fua", value, "through the page cache a DSYNC write could hide a loss from flushes")
        })
    }

    fn fixed(&self, limits: &Limits) -> Decision {
        let value = limits.fixed.name();
        if limits.fixed == Fixed::Auto {
            return measured("fixed", value);
        }
        let why = if self.is_direct {
            "locked memory is limited, and all servers of a user share it (RLIMIT_MEMLOCK)"
        } else {
            "through the page cache there are no pages to be found"
        };
        self.said("fixed", value).unwrap_or_else(|| chosen("fixed", value, why))
    }

    /// What somebody has said: the last one counts.
    fn said(&self, setting: &'static str, value: &'static str) -> Option<Decision> {
        let (_, last) = self.asked.iter().rfind(|(key, _)| key == setting)?;
        (last == value).then(|| Decision { setting, value, asked: true, why: format!("{setting}={last}") })
    }
}

fn measured(setting: &'static str, value: &'static str) -> Decision {
    chosen(setting, value, "measured on clients' requests, class by class")
}

fn chosen(setting: &'static str, value: &'static str, why: &str) -> Decision {
    Decision { setting, value, asked: false, why: why.into() }
}
