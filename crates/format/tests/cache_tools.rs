//! Metadata of dm-cache that `cache_restore` wrote, of both versions: random mappings, read as they were given to it; and damaged.

mod tool;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::process::Command;

use blockwork_format::FormatError;
use blockwork_format::cache::Kept;
use blockwork_format::cache::blocks::{Superblock, read};

/// xorshift64*
struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) % n
    }
}

/// A cache: of each block that has one, the origin's block, and whether it was written to.
struct Cache {
    blocks: u64,
    mappings: BTreeMap<u64, (u64, bool)>,
}

impl Cache {
    fn random(random: &mut Random) -> Cache {
        let blocks = 1 + random.below(3000);
        let mut origin: Vec<u64> = (0..2 * blocks).map(|n| n * (1 + random.below(2))).collect();
        origin.dedup();
        let mut mappings = BTreeMap::new();
        for block in 0..blocks {
            if random.below(3) > 0 {
                let at = usize::try_from(random.below(origin.len() as u64)).unwrap();
                mappings.insert(block, (origin.swap_remove(at), random.below(2) == 0));
            }
        }
        let mut known = std::collections::BTreeSet::new();
        mappings.retain(|_, (block, _)| known.insert(*block));
        Cache { blocks, mappings }
    }

    fn xml(&self) -> String {
        let mut xml = format!(
            "<superblock uuid=\"\" block_size=\"320\" nr_cache_blocks=\"{}\" policy=\"smq\" hint_width=\"4\">\n<mappings>\n",
            self.blocks
        );
        for (block, (origin, dirty)) in &self.mappings {
            let _ = writeln!(
                xml,
                "<mapping cache_block=\"{block}\" origin_block=\"{origin}\" dirty=\"{dirty}\"/>"
            );
        }
        xml.push_str("</mappings>\n<hints>\n");
        for block in self.mappings.keys() {
            let _ = writeln!(xml, "<hint cache_block=\"{block}\" data=\"AAAAAA==\"/>");
        }
        xml + "</hints>\n</superblock>\n"
    }

    /// Its metadata, by the tool.
    fn restored(&self, version: u32, is_clean: bool) -> Vec<u8> {
        let folder = tempfile::tempdir().unwrap();
        let (xml, device) = (folder.path().join("xml"), folder.path().join("metadata"));
        fs::write(&xml, self.xml()).unwrap();
        fs::write(&device, vec![0; 2 << 20]).unwrap();
        let mut command = Command::new("cache_restore");
        command.arg("-q").arg("-i").arg(&xml).arg("-o").arg(&device);
        command.args(["--metadata-version", &version.to_string()]);
        if !is_clean {
            command.arg("--omit-clean-shutdown");
        }
        let output = tool::output(&mut command, "thin-provisioning-tools");
        assert!(output.status.success(), "{output:?}");
        fs::read(&device).unwrap()
    }

    /// What a reader has to take from the cache.
    fn kept(&self, is_clean: bool) -> Vec<(u64, u32)> {
        let is_kept = |(_, (_, dirty)): &(&u64, &(u64, bool))| *dirty || !is_clean;
        let kept = self.mappings.iter().filter(is_kept);
        let mut kept: Vec<_> =
            kept.map(|(block, (origin, _))| (*origin, u32::try_from(*block).unwrap())).collect();
        kept.sort_unstable();
        kept
    }
}

fn contents(device: &[u8]) -> Result<(Superblock, Kept), FormatError> {
    Ok(read(&device)?.expect("it was used"))
}

#[test]
fn what_only_the_cache_has_is_found_in_metadata_of_both_versions() {
    let mut random = Random(0x6361_6368_6501);
    for round in 0..12 {
        let cache = Cache::random(&mut random);
        for (version, is_clean) in [(1, true), (1, false), (2, true), (2, false)] {
            let (superblock, kept) = contents(&cache.restored(version, is_clean)).unwrap();
            assert_eq!((superblock.version, superblock.is_clean), (version, is_clean));
            assert_eq!(u64::from(superblock.blocks), cache.blocks);
            assert!(!superblock.needs_check);
            assert_eq!((kept.block_sectors, kept.start), (320, 0));
            assert_eq!(
                kept.blocks,
                cache.kept(is_clean),
                "round {round}, version {version}, clean {is_clean}"
            );
        }
    }
}

#[test]
fn a_damaged_block_is_refused_whichever_it_is() {
    let cache = Cache::random(&mut Random(0x6361_6368_6502));
    for version in [1, 2] {
        let device = cache.restored(version, true);
        let whole = contents(&device).unwrap();
        let mut refused = 0;
        for nr in 0..device.len() / 4096 {
            let mut damaged = device.clone();
            damaged[nr * 4096 + 100] ^= 1;
            match contents(&damaged) {
                // Not one that is read: of the hints, of the space map.
                Ok(found) => assert_eq!(found, whole),
                Err(error) => {
                    refused += 1;
                    let said = error.to_string();
                    assert!(said.contains("checksum") && said.contains("cache_repair"), "{said}");
                }
            }
        }
        assert!(refused >= 3, "superblock, tree, array: {refused}");
    }
}

#[test]
fn metadata_that_was_never_used_or_is_no_caches_is_told() {
    assert_eq!(read(&vec![0; 64 << 10]).unwrap(), None);
    let error = read(&vec![7; 64 << 10]).unwrap_err().to_string();
    assert!(error.contains("is this the metadata of a cache?"), "{error}");
    assert!(read(&vec![0; 100]).unwrap_err().to_string().contains("cannot be read"));
}
