# What every script of a scenario has. The disks are /d/NAME, files from the host are in /in, what is left in /out goes back to it.
set -eu -o pipefail -o errtrace
trap 'status=$?; echo "line $LINENO: exit status $status: $BASH_COMMAND" >&2' ERR
exec 9>&1

# The power goes: nothing that the kernel has not written yet is written. For Scenario::run_until_power_cut.
power_cut() { echo '@@ power cut @@' >&9; sleep infinity; }

# wait_for COMMAND...: until it succeeds, for 30 s.
wait_for() {
    local tries=0
    until "$@" 2>/dev/null; do
        tries=$((tries + 1))
        [ $tries -lt 3000 ] || { echo "waited 30 s in vain for: $*" >&2; return 1; }
        busybox usleep 10000
    done
}

# pattern write|verify FILE OFFSET LENGTH SEED: the 64-bit word at byte o is (o / 8) XOR SEED.
pattern() { /run/agent pattern "$@"; }
# whole write|verify DEVICE SEED: the same over all of it.
whole() { pattern "$1" "$2" 0 "$(blockdev --getsize64 "$2")" "$3"; }
sha256() { sha256sum "$1" | cut -d ' ' -f 1; }
# Reads from the disks and not from memory from now on.
forget() { sync; echo 3 >/proc/sys/vm/drop_caches; }

# An array resynchronizes as fast as it can, here.
md_ready() { modprobe md-mod; echo 2000000 | tee /proc/sys/dev/raid/speed_limit_min >/proc/sys/dev/raid/speed_limit_max; }
# md_create DEVICE NAME ARGUMENTS...: an array, run at once.
md_create() {
    local device=$1 name=$2
    shift 2
    md_ready
    mdadm --create "$device" --homehost=any --name="$name" --run "$@" >&2
}
# md_assemble DEVICE MEMBERS...
md_assemble() { md_ready; mdadm --assemble --run "$@" >&2; }
# All arrays of all disks, as a machine does when it boots.
md_assemble_all() { md_ready; mdadm --assemble --scan --run >&2; }
# md_wait DEVICE: until a resync or recovery has ended. mdadm exits with 1 where there is none.
md_wait() { mdadm --wait "$1" || [ $? = 1 ]; }
# md_stop DEVICE: cleanly.
md_stop() { md_wait "$1"; mdadm --stop "$1" >&2; }

# All volume groups, as a machine does when it boots.
lvm_up() { vgchange -ay "$@" >&2; }

# Takes down all that stands on the disks: mounts, volume groups, bare dm devices, arrays; in turns, as they may stand on each other.
stop_all() {
    local device turn
    sync
    for device in $(awk '$1 ~ "^/dev/" && $2 != "/" {print $2}' /proc/mounts | tac); do umount "$device"; done
    losetup -D
    for turn in 1 2 3; do
        [ ! -e /dev/mapper/control ] || vgchange -an >/dev/null 2>&1 || true
        [ ! -e /dev/mapper/control ] || dmsetup remove_all >/dev/null 2>&1 || true
        for device in /sys/block/md*; do
            [ ! -d "$device/md" ] || mdadm --stop "/dev/${device##*/}" >/dev/null 2>&1 || true
        done
    done
    sync
    ! ls -d /sys/block/md*/md /sys/block/dm-* 2>/dev/null || { dmsetup ls; cat /proc/mdstat; return 1; } >&2
}

disk_there() { ls -d "/sys/bus/scsi/devices/0:0:$1:0/block/"*/ >/dev/null; }
disk_gone() { [ ! -e "/sys/block/$1" ]; }
# disks_in TARGET:NAME...: until each is there and its partitions are read.
disks_in() {
    local disk device
    for disk; do
        wait_for disk_there "${disk%%:*}"
        device=$(basename "/sys/bus/scsi/devices/0:0:${disk%%:*}:0/block/"*)
        blockdev --rereadpt "/dev/$device"
        ln -s "/dev/$device" "/d/${disk#*:}"
    done
}
# disks_out NAME...: written out, and forgotten by the kernel.
disks_out() {
    local disk device
    for disk; do
        device=$(basename "$(readlink "/d/$disk")")
        # A script may have taken it out itself.
        disk_gone "$device" || { blockdev --flushbufs "/dev/$device"; echo 1 >"/sys/block/$device/device/delete"; }
        wait_for disk_gone "$device"
        rm "/d/$disk"
    done
}
