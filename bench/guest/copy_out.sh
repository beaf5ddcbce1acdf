# First writes to the chunks of an origin with the kernel's dm-snapshot, beside plain writes: one JSON line a run, for the section
# `snapshot` of bench/run. The disk is /d/a; it has room for all the volumes below.
vgcreate -s 256k vg /d/a >&2
lvcreate -y -n plain -L 40M vg >&2
lvcreate -y -n origin -L 40M vg >&2
blkdiscard /dev/vg/plain && blkdiscard /dev/vg/origin

# load WHAT CHUNK VOLUME RW DEPTH
load() {
    local size=16M
    fio --name=load --ioengine=libaio --direct=1 --filename=/dev/vg/$3 --bs=$2 --rw=$4 --iodepth=$5 --size=$size \
        --randseed=7 --output-format=json --output=/run/report >&2
    python3 - "$@" <<<'' 2>/dev/null || true
    local iops
    iops=$(grep -m 2 '"iops" :' /run/report | tail -n 1 | tr -dc '0-9.')
    echo "{\"what\": \"$1\", \"chunk\": \"$2\", \"rw\": \"$4\", \"depth\": $5, \"iops\": $iops}"
}
