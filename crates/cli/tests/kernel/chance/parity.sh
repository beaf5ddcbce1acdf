# What the scripts of arrays with parity have beside those of other arrays (md.sh).

# Where the kernel stops to fill or compare, so that it can be stopped there: pause_at NUMBER, of 16, and go_on.
pause_at() {
    local chunk size
    chunk=$(($(md_reads $array chunk_size) / 512)) size=$(($(md_reads $array component_size) * 2))
    echo $((size * $1 / 16 / chunk * chunk)) >$(md_sysfs $array)/sync_max || echo "! not paused" >&2
}
paused() {
    local at
    at=$(md_reads $array sync_completed)
    [ "$at" = none ] || [ "${at%% *}" = "$(md_reads $array sync_max)" ]
}
go_on() { echo max >$(md_sysfs $array)/sync_max; }
half() {
    local tries=0
    until is sync_action idle || paused || [ $tries = 300 ]; do
        tries=$((tries + 1))
        busybox usleep 20000
    done
    return 0
}
eval "whole_$(declare -f idle)"
idle() { go_on 2>/dev/null; whole_idle; }
# bad DISK SECTOR SECTORS: notes sectors of its data as bad.
bad() {
    [ -n "$1" ] || return
    echo "+ bad" >&2
    echo "$2 $3" >"$(place_of $1)/bad_blocks" || echo "! exit status 1" >&2
}
# Where each disk is that has a place: member DISK PLACE STATE.
members() {
    local disk place
    for disk in /d/*; do
        place=$(place_of $disk)
        [ ! -e $place ] || echo "member ${disk##*/} $(cat $place/slot) $(cat $place/state)"
    done
}
is_there() { [ -e $(md_sysfs $array)/array_state ] && ! is array_state inactive && ! is array_state clear; }
# Of one that was not stopped a member may be missing: Linux takes the parity as it is where it is told to.
assemble() {
    # No member is filled before it is told which ones are.
    echo 100 | tee /proc/sys/dev/raid/speed_limit_min >/proc/sys/dev/raid/speed_limit_max
    try mdadm --assemble --run $array --uuid=$uuid $(fresh) "$@"
    is_there || {
        mdadm --stop $array >&2
        echo forced
        try mdadm --assemble --run --force $array --uuid=$uuid $(fresh)
    }
    echo assembled
    members | sed 's/^member/before/'
    md_ready >/dev/null
    cat /proc/mdstat >&2
}
# What the array is, and holds; then it is stopped, and read without some of its members, if its parity makes up for them: tell PARITIES
# NUMBER.
tell() {
    local disk kind=clean gone=() rest=() there=() left
    RANDOM=$2
    is_there || { echo "no array"; return; }
    forget
    cat /proc/mdstat >&2
    mdadm --detail $array >&2
    held $array held
    members
    ! cat /sys/block/md0/md/dev-*/bad_blocks | grep -q . || echo bad_blocks
    ! is consistency_policy ppl || echo ppl
    left=$(($1 - $(md_reads $array degraded)))
    for disk in /d/*; do
        rest+=($disk)
        [[ $(cat "$(place_of $disk)/state" 2>/dev/null) == in_sync* ]] || continue
        there+=(${disk##*/})
        if [ $left -gt 0 ] && [ $((RANDOM % 3)) = 0 ]; then
            gone+=(${disk##*/}) left=$((left - 1))
            unset 'rest[-1]'
        fi
    done
    mdadm --stop $array >&2
    for disk in /d/*; do mdadm --examine $disk >/out/examine.${disk##*/} 2>&1; done
    cat /out/examine.* >&2
    for disk in ${there[@]}; do ! grep -q 'State : active' /out/examine.$disk || kind=dirty; done
    echo "state $kind"
    [ ${#gone[@]} != 0 ] && [ $kind = clean ] || return 0
    mdadm --assemble --run --readonly $array --uuid=$uuid $(fresh "${rest[@]}") >&2
    if is_there; then
        held $array without
        echo "without ${gone[*]}"
    fi
    mdadm --stop $array >&2
}
