//! `serve --xen` where there is no Xen. What it does where there is: `tests/xen`.

use std::path::Path;

use crate::support::{Scratch, output};

fn refused(scratch: &Scratch, disk: &str) -> String {
    let done = output(&mut scratch.blockwork(["serve", "--disk", "memory:1M", "--xen", disk]));
    assert!(!done.status.success());
    String::from_utf8(done.stderr).unwrap()
}

#[test]
fn without_xen_it_says_what_is_missing_and_what_to_do() {
    assert!(!Path::new("/dev/xen/gntdev").exists(), "this test is for machines without Xen");
    let scratch = Scratch::new();
    let said = refused(&scratch, "3/xvda");
    assert!(said.contains("/dev/xen/gntdev: No such file or directory"), "{said}");
    assert!(
        said.contains("from dom0 or a driver domain") && said.contains("modprobe -a xen-gntdev"),
        "{said}"
    );
}

#[test]
fn a_disk_that_is_none_is_wrong_usage() {
    let scratch = Scratch::new();
    let said = refused(&scratch, "3/sda");
    assert!(said.contains("\"sda\" is no virtual disk, expected a name such as xvda"), "{said}");
    let said = refused(&scratch, "guest/xvda");
    assert!(said.contains("`xl domid NAME` tells it"), "{said}");
    let done = output(&mut scratch.blockwork("serve --disk memory:1M --xen 3/xvda --xen 3/xvdb".split(' ')));
    let said = String::from_utf8(done.stderr).unwrap();
    assert!(said.contains("2 times --xen for 1 volume:"), "{said}");
}
