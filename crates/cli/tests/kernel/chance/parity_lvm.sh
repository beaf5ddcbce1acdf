# What the scripts of volumes with parity have beside those of other volumes (lvm.sh).

raid='lv_layout=raid && lv_role=public'
# pv NUMBER VOLUME: a disk of it.
pv() {
    local found
    found=($(lvs -a --noheadings -o devices -S "lv_name=~^$2_rimage" $VG 2>/tmp/said | grep -o '/d[^( ]*' | sort -u))
    ! grep -i selection /tmp/said >&2 || kill $$
    [ ${#found[@]} = 0 ] || echo "${found[$1 % ${#found[@]}]}"
}
# slowly VOLUME: what is filled or compared from now on takes longer than a script.
slowly() { try lvchange -y --maxrecoveryrate 20k $VG/$1; }
fast() { try lvchange -y --maxrecoveryrate 0 $VG/$1; }
# Each volume: how its legs are (health VOLUME A...), and what it holds.
tell() {
    local lv
    forget
    lvs -a -o +devices,seg_type,chunksize,sync_percent,lv_health_status $VG >&2
    dmsetup status >&2
    for lv in $(lvs --noheadings -o lv_name -S "$raid" $VG); do
        [ -e /dev/$VG/$lv ] || { echo "inactive $lv"; continue; }
        echo "health $lv $(dmsetup status $VG-$lv | cut -d ' ' -f 6)"
        held /dev/$VG/$lv held.$lv
    done
}
