# First writes to the chunks of an origin with the kernel's dm-snapshot, beside plain writes: a line of JSON for each run, for section
# `snapshot` of bench/run. /d/origin, /d/plain and /d/store are of one kind; CELLS has chunk, rw, depth and bytes, with slashes.
sectors=$(blockdev --getsz /d/origin)
dmsetup create plain --table "0 $sectors linear /d/plain 0"

# load WHAT DEVICE CHUNK_KIB RW DEPTH BYTES
load() {
    fio --name=load --ioengine=libaio --direct=1 --filename="/dev/mapper/$2" --bs="$3k" --rw="$4" --iodepth="$5" --size="$6" \
        --output-format=terse --terse-version=3 --output=/run/report >&2
    echo "{\"what\": \"$1\", \"chunk\": $3, \"rw\": \"$4\", \"depth\": $5, \"iops\": $(cut -d ';' -f 49 /run/report)}"
}

# Flushes of the store since the guest has it.
flushes() {
    local stat
    read -r -a stat <"/sys/block/$(basename "$(readlink -f /d/store)")/stat"
    echo "${stat[15]}"
}

for cell in $CELLS; do
    IFS=/ read -r chunk rw depth bytes <<<"$cell"
    dd if=/dev/zero of=/d/store bs=4k count=1 oflag=direct status=none
    dmsetup create snapshot --table "0 $sectors snapshot /d/origin /d/store P $((chunk * 2))"
    dmsetup create origin --table "0 $sectors snapshot-origin /d/origin"
    load plain plain "$chunk" "$rw" "$depth" "$bytes"
    before=$(flushes)
    load first origin "$chunk" "$rw" "$depth" "$bytes"
    echo "{\"what\": \"store\", \"chunk\": $chunk, \"rw\": \"$rw\", \"depth\": $depth, \"flushes\": $(($(flushes) - before))}"
    load again origin "$chunk" "$rw" "$depth" "$bytes"
    dmsetup remove origin
    dmsetup remove snapshot
done
