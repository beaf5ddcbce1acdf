# Run in namespaces of its own (mounts and network): sets up the network and starts the port mapper, says so, and undoes it when its
# input ends.
set -e
ip link set lo up
mount -t tmpfs tmpfs /run
mkdir /run/rpcbind
rpcbind -f -w & mapper=$!
echo up
cat
kill $mapper
