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
# held DEVICE NAME: what each of its sectors holds, for the host.
held() { /run/agent held "$1" "/out/$2"; }
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

# on_delay NAME: a dm-delay device is /d/NAME from now on, also to LVM, so that a script can have the kernel at something for as
# long as it needs. reads_take NAME MS: how long each read of it takes; writes are not delayed.
declare -A under_delay=()
delayed_by() { echo "0 $(blockdev --getsz "${under_delay[$1]}") delay ${under_delay[$1]} 0 $2 ${under_delay[$1]} 0 0"; }
on_delay() {
    under_delay[$1]=$(readlink -f "/d/$1")
    modprobe dm-delay
    dmsetup create "delay-$1" --table "$(delayed_by "$1" 0)"
    ln -sf "/dev/mapper/delay-$1" "/d/$1"
    mkdir -p /run/lvm-of-delayed
    sed "s#global_filter = \[#& \"r|^${under_delay[$1]}\$|\",#" "${LVM_SYSTEM_DIR:-/etc/lvm}/lvm.conf" >/run/lvm-of-delayed/new
    mv /run/lvm-of-delayed/new /run/lvm-of-delayed/lvm.conf
    export LVM_SYSTEM_DIR=/run/lvm-of-delayed
}
reads_take() {
    dmsetup suspend "delay-$1"
    dmsetup reload "delay-$1" --table "$(delayed_by "$1" "$2")"
    dmsetup resume "delay-$1"
}

# Starting a program takes an emulated processor a while, so what follows, which every scenario runs, makes do with bash's own.
there() { compgen -G "$1" >/dev/null; }
something_up() { there '/sys/block/dm-*' || there '/sys/block/md*/md'; }
# Takes down all that stands on the disks: mounts, loop devices, volume groups, bare dm devices, arrays; in turns, as they may stand
# on each other.
stop_all() {
    local device at rest turn mounts=()
    sync
    while read -r device at rest; do
        case $device in /dev/vda) ;; /dev/*) mounts=("$at" "${mounts[@]}") ;; esac
    done </proc/mounts
    for at in "${mounts[@]}"; do umount "$at"; done
    ! there '/sys/block/loop*/loop/backing_file' || losetup -D
    for turn in 1 2 3; do
        something_up || return 0
        ! there '/sys/block/dm-*' || { vgchange -an; dmsetup remove_all; } >/dev/null 2>&1 || true
        for device in /sys/block/md*; do
            [ ! -d "$device/md" ] || mdadm --stop "/dev/${device##*/}" >/dev/null 2>&1 || true
        done
    done
    ! something_up || { dmsetup ls; cat /proc/mdstat; return 1; } >&2
}

# Without udev it is LVM that makes the links to volumes, and takes them away: what a script removed by dmsetup has left some, and
# the next one could not make a group of that name.
forget_links() {
    local link
    for link in /dev/*/*; do
        if [ -L "$link" ] && [ ! -e "$link" ]; then
            rm -f "$link"
            rmdir "${link%/*}" 2>/dev/null || true
        fi
    done
}

# Sets `device` to the name of the disk at a SCSI target.
device_at() {
    local found=("/sys/bus/scsi/devices/0:0:$1:0/block/"*)
    device=${found[0]##*/}
}
disk_there() { there "/sys/bus/scsi/devices/0:0:$1:0/block/*"; }
disk_gone() { ! disk_there "$1"; }
# disks_in TARGET:NAME...: until each is there and its partitions are read.
disks_in() {
    local disk device devices=()
    for disk; do
        wait_for disk_there "${disk%%:*}"
        device_at "${disk%%:*}"
        devices+=("/dev/$device")
        ln -s "/dev/$device" "/d/${disk#*:}"
    done
    [ $# = 0 ] || blockdev --rereadpt "${devices[@]}"
}
# disks_out TARGET:NAME...: written out, and forgotten by the kernel, all at a time as that takes a while. A script may have taken
# one out itself.
disks_out() {
    local disk device devices=()
    for disk; do
        if disk_there "${disk%%:*}"; then
            device_at "${disk%%:*}"
            devices+=("/dev/$device")
        fi
    done
    [ ${#devices[@]} = 0 ] || blockdev --flushbufs "${devices[@]}"
    for device in "${devices[@]}"; do echo 1 >"/sys/block/${device##*/}/device/delete" & done
    wait
    for disk; do wait_for disk_gone "${disk%%:*}"; done
    rm -rf /d/*
    forget_links
}
