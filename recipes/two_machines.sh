#!/usr/bin/env bash
# Runs a command as four ranks on two network namespaces that stand for machines: two_machines.sh oarlock train FILE.yaml
# Needs root and iproute2. Variables are passed on; NETEM limits the links, in words of tc-netem: NETEM="rate 10gbit delay 0.5ms".
set -euo pipefail

[ $# -gt 0 ] || { echo "usage: $0 COMMAND…" >&2; exit 2; }
bridge=oar$$
cleanup() {
  for i in 0 1; do
    ip link del "$bridge-$i" 2>/dev/null || true
    ip netns del "$bridge-$i" 2>/dev/null || true
  done
  ip link del "$bridge" 2>/dev/null || true
}
trap cleanup EXIT

ip link add "$bridge" type bridge
ip link set "$bridge" up
for i in 0 1; do
  ip netns add "$bridge-$i"
  ip link add "$bridge-$i" type veth peer name eth0 netns "$bridge-$i"
  ip link set "$bridge-$i" master "$bridge" up
  ip -n "$bridge-$i" link set lo up
  ip -n "$bridge-$i" addr add "10.77.0.$((i + 1))/24" dev eth0
  ip -n "$bridge-$i" link set eth0 up
  # shellcheck disable=SC2086
  [ -z "${NETEM:-}" ] || ip netns exec "$bridge-$i" tc qdisc add dev eth0 root netem $NETEM
done

pids=()
for rank in 0 1 2 3; do
  machine=$bridge-$((rank / 2))
  RANK=$rank WORLD_SIZE=4 LOCAL_RANK=$((rank % 2)) LOCAL_WORLD_SIZE=2 MASTER_ADDR=10.77.0.1 MASTER_PORT=29500 \
    ip netns exec "$machine" unshare --uts sh -c 'hostname "$0" && exec "$@"' "$machine" "$@" &
  pids+=($!)
done
code=0
for pid in "${pids[@]}"; do wait "$pid" || code=$?; done
exit "$code"
