# What the scripts of arrays by chance have. A command that cannot do what chance wants of it says so, and the next one is tried.
set +e +u +o errtrace +o pipefail
trap - ERR
md_ready >/dev/null

array=/dev/md0
try() { echo "+ $*" >&2; timeout 100 "$@" >&2 </dev/null || echo "! exit status $?" >&2; }
is() { md_is $array "$@"; }
# Nothing is being filled or compared, and nothing is about to be.
idle() {
    [ -e $(md_sysfs $array)/sync_action ] || return
    for _ in 1 2 3 4; do wait_for is sync_action idle && break; done
    busybox usleep 300000
    for _ in 1 2 3 4; do wait_for is sync_action idle && break; done
}
# fill TIMES SEED: writes here and there, and says where, and what pattern: write OFFSET LENGTH SEED.
fill() {
    local size at length seed
    size=$(size_of $array) RANDOM=$2
    for ((i = 0; i < $1; i++)); do
        at=$(((RANDOM * 32768 + RANDOM) % (size / 4096) * 4096)) length=$(((1 + RANDOM % 100) * 4096))
        [ $((at + length)) -le $size ] || length=$((size - at))
        seed=$((RANDOM * 77777 + RANDOM))
        echo "write $at $length $seed"
        timeout 60 /run/agent pattern write $array $at $length $seed >&2 || echo "! not written" >&2
    done
    sync
}
place_of() { echo "$(md_sysfs $array)/dev-$(basename "$(device "$1")")"; }
# member NUMBER: one that is in sync. outside NUMBER: a disk that the array has not.
member() {
    local disk found=()
    for disk in /d/*; do
        [[ $(cat "$(place_of $disk)/state" 2>/dev/null) != *in_sync* ]] || found+=($disk)
    done
    [ ${#found[@]} = 0 ] || device "${found[$1 % ${#found[@]}]}"
}
outside() {
    local disk found=()
    for disk in /d/*; do [ -e "$(place_of $disk)" ] || found+=($disk); done
    [ ${#found[@]} = 0 ] || device "${found[$1 % ${#found[@]}]}"
}
# lose COPIES NUMBER: a member fails and is taken out, unless no copy would be left of something.
lose() {
    local lost
    [ "$(md_reads $array degraded)" -lt $(($1 - 1)) ] || return
    lost=$(member $2)
    try mdadm $array --fail $lost
    # The last one that the kernel has is refused, and would be waited for in vain.
    [[ $(cat "$(place_of $lost)/state") == *faulty* ]] || return
    wait_for mdadm -q $array --remove $lost
}
# The disks that have heard of everything, as far as they say; of those, where some are named.
fresh() {
    local disk at most=0 events=()
    [ $# != 0 ] || set -- /d/*
    for disk; do
        at=$(examine $disk Events 2>/dev/null)
        events+=(${at:--2})
        [ ${at:-0} -le $most ] || most=$at
    done
    for at in ${events[@]}; do
        [ $at -lt $((most - 1)) ] || device $1
        shift
    done
}
assemble() { try mdadm --assemble --run $array --uuid=$uuid $(fresh); cat /proc/mdstat >&2; }
# lose_power MICROSECONDS STEP: the power goes so long after the array is written to and the step has begun.
lose_power() {
    fill 60 $1 &
    eval "$2" &
    busybox usleep $1
    power_cut
}
# What the array is: how many sectors its copies differ in, and what it holds. Then it is stopped.
tell() {
    local disk
    [ -e $(md_sysfs $array)/array_state ] || { echo "no array"; return; }
    idle
    cat /proc/mdstat >&2
    mdadm --detail $array >&2
    forget
    if [ -e $(md_sysfs $array)/sync_action ]; then
        echo check >$(md_sysfs $array)/sync_action
        idle
        echo "differs $(md_reads $array mismatch_cnt)"
    fi
    echo "sum array $(size_of $array) $(sha256 $array)"
    mdadm --stop $array >&2
    for disk in /d/*; do mdadm --examine $disk >&2; done
    true
}
