# What scenarios are written with; runs the one that is named, and says PASS or FAIL.
scenario=$1
domain=
server=
work=/run/$scenario
mkdir -p "$work"

fail() {
    echo "FAIL $scenario: $*"
    echo "-- the server said:"
    tail -n 30 "$work/server.txt"
    if [ -n "$domain" ]; then
        echo "-- the guest's console:"
        tail -n 40 "$(console)"
        echo "-- xenstore:"
        xenstore-ls "/local/domain/$domain/device/vbd"
        xenstore-ls /local/domain/0/backend
        xl destroy "$domain"
    fi
    echo "-- dom0's kernel:"
    dmesg | tail -n 10
    [ -z "$server" ] || kill -9 "$server"
    exit 1
}

found() {
    echo "found $scenario: $* (after $SECONDS s)"
}

# wait_for SECONDS COMMAND...: until it succeeds.
wait_for() {
    local end=$((SECONDS + $1))
    shift
    until "$@"; do
        [ $SECONDS -lt $end ] || return 1
        usleep 200000
    done
}

# guest ARGS VCPUS: makes a guest, paused, whose init is told ARGS.
guest() {
    cat >"$work/guest.cfg" <<CFG
name="$scenario"
type="pv"
kernel="/test/vmlinuz"
ramdisk="/test/domU.cpio"
memory=400
vcpus=$2
extra="console=hvc0 quiet panic=1 $1"
on_crash="destroy"
on_poweroff="destroy"
on_reboot="destroy"
CFG
    rm -f "$(console)"
    xl create -p "$work/guest.cfg" >"$work/xl.txt" 2>&1 || { cat "$work/xl.txt"; fail "xl cannot make a guest"; }
    domain=$(xl domid "$scenario")
}

console() {
    echo "/var/log/xen/guest-$scenario.log"
}

go() {
    xl unpause "$domain"
    echo "$scenario: the guest goes after $SECONDS s"
}

said() {
    tr -d '\r' <"$(console)" 2>/dev/null | grep -q "$1"
}

# told NAME: what the guest has found.
told() {
    tr -d '\r' <"$(console)" | sed -n "s/^guest: $1=//p" | tail -n 1
}

gone() {
    ! xl domid "$scenario" >/dev/null 2>&1
}

# until_gone SECONDS: waits until the guest has ended by itself, well.
until_gone() {
    wait_for "$1" gone || fail "the guest does not end"
    said '^guest: done' || fail "the guest has ended too early"
    domain=
}

# serve ARGS...: starts a server, and waits until it is ready.
serve() {
    # What the one before has said is not taken for its own.
    rm -f "$work/ready.txt"
    blockwork serve --stats "$@" >"$work/ready.txt" 2>>"$work/server.txt" &
    server=$!
    wait_for 60 ready || fail "the server is not ready after 60 s"
    is_ready || fail "the server has ended before it was ready"
}

is_ready() {
    grep -qs '^ready' "$work/ready.txt"
}

# Or gone.
ready() {
    is_ready || ! kill -0 "$server" 2>/dev/null
}

# stop: ends the server as one should; its statistics are in server.txt.
stop() {
    kill "$server"
    wait "$server" || fail "the server has ended with an error"
    server=
}

export RUST_LOG=info
. "/test/$scenario"
echo "PASS $scenario"
