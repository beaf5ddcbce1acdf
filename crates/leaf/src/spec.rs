//! How a disk is named on the command line: `PATH[,option=value...]`, `nfs://SERVER/PATH`, `null:SIZE`, `memory:SIZE`.
//!
//! A comma in a path is written twice, as QEMU has it.

use std::path::PathBuf;

use crate::cache::Cache;
use crate::error::LeafError;
use crate::file::Direct;
use crate::nfs::NfsAddress;
use crate::size::parse_size;

/// What kind of leaf.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A regular file or a block device.
    File(PathBuf),
    /// A file on an NFS server.
    Nfs(NfsAddress),
    /// Reads as zeros, forgets what is written. Size in bytes.
    Null(u64),
    /// In memory. Size in bytes.
    Memory(u64),
}

/// A disk's name, taken apart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Spec {
    /// What it is called: the text up to the options.
    pub name: String,
    /// What it is.
    pub kind: Kind,
    /// `direct=on|off|auto`.
    pub direct: Direct,
    /// `cache=none|writeback|directsync|writethrough|unsafe`, which decides on `direct` as well.
    pub cache: Option<Cache>,
    /// `ro`, or `ro=on|off`.
    pub read_only: bool,
    /// `lock=on|off`.
    pub lock: bool,
    /// `logical_block_size=512|1024|2048|4096`: that of the disk, as sysfs calls it, where it is told.
    pub logical_block_size: Option<u32>,
    /// Queue settings by their sysfs names.
    pub settings: Vec<(String, String)>,
}

impl Spec {
    /// Takes `text` apart. Whether the settings exist is found out when they are applied.
    pub fn parse(text: &str) -> Result<Spec, LeafError> {
        let refuse = |problem: String| LeafError::Spec { spec: text.to_owned(), problem };
        let mut parts = split_at_commas(text).into_iter();
        let name = parts.next().expect("a split text has at least one part");
        if name.is_empty() {
            return Err(refuse(
                "no disk is named: expected PATH[,option=value...], nfs://SERVER/PATH, null:SIZE or memory:SIZE".into(),
            ));
        }
        let kind = match (name.strip_prefix("null:"), name.strip_prefix("memory:")) {
            (Some(size), _) => Kind::Null(parse_size(size).map_err(refuse)?),
            (_, Some(size)) => Kind::Memory(parse_size(size).map_err(refuse)?),
            _ => match name.strip_prefix("nfs://") {
                Some(place) => Kind::Nfs(NfsAddress::parse(place).map_err(refuse)?),
                None => Kind::File(PathBuf::from(&name)),
            },
        };
        let mut spec = Spec {
            name,
            kind,
            direct: Direct::Auto,
            cache: None,
            read_only: false,
            lock: true,
            logical_block_size: None,
            settings: Vec::new(),
        };
        for option in parts {
            spec.set(&option).map_err(refuse)?;
        }
        Ok(spec)
    }

    fn set(&mut self, option: &str) -> Result<(), String> {
        let (key, value) = option.split_once('=').unwrap_or((option, "on"));
        let is_file = matches!(self.kind, Kind::File(_));
        let has_cache = is_file || matches!(self.kind, Kind::Nfs(_));
        match key {
            "" => Err("an option is empty (a comma in a path is written twice)".into()),
            "direct" | "lock" if !is_file => Err(format!("{key}= is for files and block devices only")),
            "cache" if !has_cache => {
                Err("cache= is for files, block devices and files on NFS servers only".into())
            }
            "direct" => {
                if self.cache.is_some() {
                    return Err(
                        "direct= says again, or otherwise, what cache= has said: leave one of them out"
                            .into(),
                    );
                }
                self.direct = match value {
                    "on" => Direct::On,
                    "off" => Direct::Off,
                    "auto" => Direct::Auto,
                    _ => return Err(format!("direct={value}: expected on, off or auto")),
                };
                Ok(())
            }
            "cache" if self.direct != Direct::Auto => {
                Err("cache= says again, or otherwise, what direct= has said: leave one of them out".into())
            }
            "cache" => Cache::parse(value).map(|cache| {
                self.cache = Some(cache);
                self.direct = cache.direct();
            }),
            "logical_block_size" if matches!(self.kind, Kind::Nfs(_)) => {
                Err("logical_block_size= is for files, block devices, null: and memory: only".into())
            }
            "logical_block_size" => {
                let known = ["512", "1024", "2048", "4096"].contains(&value);
                self.logical_block_size = value.parse().ok().filter(|_| known);
                self.logical_block_size
                    .map(|_| ())
                    .ok_or_else(|| format!("logical_block_size={value}: expected 512, 1024, 2048 or 4096"))
            }
            "ro" => on_or_off(key, value).map(|on| self.read_only = on),
            "lock" => on_or_off(key, value).map(|on| self.lock = on),
            _ if option.contains('=') => {
                self.settings.push((key.to_owned(), value.to_owned()));
                Ok(())
            }
            _ => Err(format!(
                "{option:?} is no option: expected ro, direct=on|off|auto, cache=MODE, lock=on|off, \
                 logical_block_size=512|1024|2048|4096, or a queue setting such as \
                 nomerges=2 (a comma in a path is written twice)"
            )),
        }
    }
}

fn on_or_off(key: &str, value: &str) -> Result<bool, String> {
    match value {
        "on" => Ok(true),
        "off" => Ok(false),
        _ => Err(format!("{key}={value}: expected on or off")),
    }
}

/// Splits at single commas; a double one stands for itself.
fn split_at_commas(text: &str) -> Vec<String> {
    let mut parts = vec![String::new()];
    let mut letters = text.chars().peekable();
    while let Some(letter) = letters.next() {
        let part = parts.last_mut().expect("never empty");
        if letter != ',' {
            part.push(letter);
        } else if letters.next_if_eq(&',').is_some() {
            part.push(',');
        } else {
            parts.push(String::new());
        }
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_may_hold_commas_written_twice() {
        let spec = Spec::parse("/srv/a,,b.img,direct=off,ro,nomerges=2").unwrap();
        assert_eq!(spec.kind, Kind::File("/srv/a,b.img".into()));
        assert_eq!((spec.direct, spec.read_only, spec.lock), (Direct::Off, true, true));
        assert_eq!(spec.settings, [("nomerges".to_owned(), "2".to_owned())]);
        assert_eq!(split_at_commas("a,,,b,"), ["a,", "b", ""]);
    }

    #[test]
    fn null_and_memory_have_a_size() {
        assert_eq!(Spec::parse("null:1G").unwrap().kind, Kind::Null(1 << 30));
        assert_eq!(Spec::parse("memory:64KiB,ro=off").unwrap().kind, Kind::Memory(1 << 16));
        assert_eq!(Spec::parse("null:1G,logical_block_size=4096").unwrap().logical_block_size, Some(4096));
        assert_eq!(Spec::parse("./null:1G").unwrap().kind, Kind::File("./null:1G".into()));
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (text, word) in [
            ("", "PATH"),
            ("null:", "size"),
            ("null:5Q", "5Q"),
            ("a.img,direct=maybe", "direct=maybe"),
            ("a.img,", "empty"),
            ("a.img,writable", "writable"),
            ("a.img,ro=yes", "ro=yes"),
            ("null:1G,direct=on", "files"),
            ("null:1G,cache=none", "files"),
            ("nfs://server/a.img,cache=fast", "none, writeback, directsync, writethrough, unsafe"),
            ("nfs://server/a.img,direct=on", "files and block devices"),
            ("a.img,cache=fast", "none, writeback, directsync, writethrough, unsafe"),
            ("a.img,cache=none,direct=off", "cache="),
            ("a.img,logical_block_size=8192", "512, 1024, 2048 or 4096"),
            ("a.img,logical_block_size", "512, 1024, 2048 or 4096"),
            ("nfs://server/a.img,logical_block_size=4096", "files, block devices"),
        ] {
            let error = Spec::parse(text).unwrap_err().to_string();
            assert!(error.contains(word), "{text}: {error}");
        }
    }
}
