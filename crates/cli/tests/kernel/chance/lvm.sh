# What the scripts of groups by chance have. A command that cannot do what chance wants of it says so, and the next one is tried.
set +e +u +o errtrace +o pipefail
trap - ERR

try() { echo "+ $*" >&2; timeout 100 "$@" >&2 </dev/null || echo "! exit status $?" >&2; }
group() { vgs --noheadings -o vg_name 2>/dev/null | head -n 1 | tr -d ' '; }

# Kinds of volumes, as LVM selects them.
any='lv_role=public'
plain="lv_layout=linear && lv_role=public && origin=''"
linear='lv_layout=linear && lv_role=public'
grown="lv_role=public && pool_lv=''"
origin='lv_layout!=raid && lv_layout!=thin && lv_role=public && lv_role!=thicksnapshot'
no_thin='lv_role=public && lv_layout!=thin'
copies='lv_role=thicksnapshot || lv_role=thinsnapshot'
mirror='lv_layout={raid && raid1} && lv_role=public'
pool='lv_layout={thin && pool}'
thin='lv_layout={thin && sparse}'
# one NUMBER KIND: the name of a volume of that kind.
one() {
    local names
    # One that LVM does not understand would be a kind of which there never is one.
    names=($(lvs --noheadings -O lv_name -o lv_name -S "$2" "$VG" 2>/tmp/said | grep -v pmspare))
    ! grep -i selection /tmp/said >&2 || kill $$
    [ ${#names[@]} = 0 ] || echo "${names[$1 % ${#names[@]}]}"
}
# range SIZE MOST: sets `at` and `length`, of the volume of SIZE bytes, up to so many pages.
range() {
    at=$(((RANDOM * 32768 + RANDOM) % ($1 / 4096) * 4096)) length=$(((1 + RANDOM % $2) * 4096))
    [ $((at + length)) -le $1 ] || length=$(($1 - at))
}
# fill VOLUME TIMES SEED: writes here and there.
fill() {
    local size at length device=/dev/$VG/$1
    [ -n "$1" ] && [ -e $device ] && size=$(blockdev --getsize64 $device) && [ $size -ge 4096 ] || return
    RANDOM=$3
    for ((i = 0; i < $2; i++)); do
        range $size 200
        timeout 60 /run/agent pattern write $device $at $length $((RANDOM * 77777 + RANDOM)) >&2 ||
            echo "! $device is not written at $at" >&2
    done
}
# discard VOLUME SEED
discard() {
    local size at length device=/dev/$VG/$1
    [ -n "$1" ] && [ -e $device ] && size=$(blockdev --getsize64 $device) && [ $size -ge 4096 ] || return
    RANDOM=$2
    range $size 800
    try blkdiscard -o $at -l $length $device
}

in_sync() {
    ! lvs -a --noheadings -o sync_percent,lv_attr 2>/dev/null |
        awk '$1 != "" && $2 ~ /^[rRmp]/ && $1 != "100.00" {wait = 1} END {exit !wait}'
}
settle() { wait_for in_sync || wait_for in_sync; }
# What each volume has: sum VOLUME BYTES SHA-256, without a hash where it cannot be read; which are mirrors, and which LVM has not
# activated.
sums() {
    local vg lv kind size
    settle
    forget
    lvs -a -o +devices,seg_type,chunksize >&2
    lvs --noheadings --separator ' ' -o vg_name,lv_name,lv_attr "$VG" | while read -r vg lv kind; do
        # Pools, and what belongs to a volume, are nobody's to read.
        case $kind in t* | e* | l*) continue ;; esac
        case $kind in ????a*) ;; *) echo "inactive $lv" ;; esac
        # What a conversion that LVM has broken off has left suspended would be waited for, for ever.
        case $kind in ????[sS]*) continue ;; esac
        [ -e "/dev/$vg/$lv" ] || continue
        case $kind in r* | R* | m* | M*) echo "mirror $vg/$lv" ;; esac
        echo "sum $vg/$lv $(size_of "/dev/$vg/$lv") $(sha256sum "/dev/$vg/$lv" 2>/dev/null | cut -d ' ' -f 1)"
    done
}
# lose_power MICROSECONDS STEP: the power goes so long after all volumes are written to and the step has begun.
lose_power() {
    local lv seed=$1
    for lv in $(lvs --noheadings -o lv_name -S "$any" "$VG"); do
        seed=$((seed + 1))
        fill "$lv" 40 $seed &
    done
    eval "$2" &
    busybox usleep $1
    power_cut
}

lvm_up -K 2>/dev/null
VG=$(group)
