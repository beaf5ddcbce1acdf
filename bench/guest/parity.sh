# Writes to arrays with a parity by the kernel's md: a line of JSON for each job, with what its disks were asked for, for section `parity` of
# bench/run. The disks are /d/m0, /d/m1 and so on, of ours; ARRAYS has level, disks and chunk in KiB, JOBS rw, piece in KiB, depth, KiB to
# write and KiB to write them in, with slashes.

# Sectors that the disks of the array have been asked for: read, written.
sectors() {
    local disk read=0 written=0 stat
    for ((disk = 0; disk < disks; disk++)); do
        read -r -a stat <"/sys/block/$(basename "$(readlink -f "/d/m$disk")")/stat"
        read=$((read + stat[2])) written=$((written + stat[6]))
    done
    echo "$read $written"
}

for array in $ARRAYS; do
    IFS=/ read -r level disks chunk <<<"$array"
    members=()
    for ((disk = 0; disk < disks; disk++)); do
        members+=("/d/m$disk")
    done
    mdadm --create /dev/md0 --run --quiet --assume-clean --bitmap=none --level="$level" --raid-devices="$disks" --chunk="$chunk" "${members[@]}" >&2
    for job in $JOBS; do
        IFS=/ read -r rw piece depth size span <<<"$job"
        # What the last job left to be done is done.
        sync
        read -r read written <<<"$(sectors)"
        fio --name=load --ioengine=libaio --direct=1 --filename=/dev/md0 --bs="${piece}k" --rw="$rw" --iodepth="$depth" --size="${span}k" \
            --io_size="${size}k" --randrepeat=1 --output=/run/report >&2
        read -r read_after written_after <<<"$(sectors)"
        echo "{\"array\": \"$array\", \"job\": \"$job\", \"read\": $((read_after - read)), \"written\": $((written_after - written))}"
    done
    mdadm --stop --quiet /dev/md0
    mdadm --zero-superblock "${members[@]}"
done
