# What the scripts of these tests have beside the functions of the guest itself.

# fact NAME KEY VALUE: for the host.
fact() { echo "$*"; }
# The block device that a disk or partition is: part DISK NUMBER.
device() { readlink -f "$1"; }
part() { echo "$(device "$1")$2"; }
size_of() { blockdev --getsize64 "$1"; }
# The folder of a block device in sysfs.
sysfs() { echo "/sys/dev/block/$((0x$(stat -L -c %t "$1"))):$((0x$(stat -L -c %T "$1")))"; }
md_sysfs() { echo "/sys/block/$(basename "$(device "$1")")/md"; }
md_reads() { cat "$(md_sysfs "$1")/$2"; }
md_is() { [ "$(md_reads "$1" "$2")" = "$3" ]; }
# md_fail ARRAY DISK: fails it, and takes it out.
md_fail() { mdadm -q "$1" --fail "$2" && wait_for mdadm -q "$1" --remove "$2"; }
# md_scrub ARRAY: compares all copies, and prints how many sectors differ.
md_scrub() {
    wait_for md_is "$1" sync_action idle
    echo check >"$(md_sysfs "$1")/sync_action"
    wait_for md_is "$1" sync_action idle
    md_reads "$1" mismatch_cnt
}
# Sectors that were read from a device, and written to it, since it has been there.
sectors_read() { tr -s ' ' <"$(sysfs "$1")/stat" | cut -d ' ' -f 4; }
sectors_written() { tr -s ' ' <"$(sysfs "$1")/stat" | cut -d ' ' -f 8; }
# A field of mdadm --examine: examine DEVICE FIELD
examine() { mdadm --examine "$(device "$1")" | sed -n "s/^ *$2 : *//p"; }
