# Run in namespaces of its own (mounts and network): sets up the network and starts the port mapper, says so, and undoes it when its
# input ends.
set -e
ip link set lo up
mount -t tmpfs tmpfs /run
mkdir /run/rpcbind
rpcbind -f -w & mapper=$!
# A server that cannot register with it ends at once, so "up" is said once it answers; if it has ended itself, so does this.
until rpcinfo -p >/dev/null 2>&1; do kill -0 $mapper; done
echo up
cat
kill $mapper
