#!/usr/bin/env bash
# The first minute of a new user, in a bare Debian with nothing but Python and pip: what the wheel takes, in seconds and
# megabytes, from `pip install` to the first loss; what it asks glibc for; what is left after it is uninstalled.
#
#   packaging/debian.sh oarlock-….whl [SUITE]     # bookworm unless named
#
# It needs root, debootstrap and objdump. OARLOCK_ROOT names a folder that keeps the bare system for the next time.
set -euo pipefail
[ $# -gt 0 ] || { echo "usage: $0 oarlock-….whl [SUITE]" >&2; exit 2; }
wheel=$(readlink -f "$1")
suite=${2-bookworm}
fail() { printf '%s\n' "$*" >&2; exit 1; }

scratch=$(mktemp -d)
root=$scratch/root
bare=${OARLOCK_ROOT-$scratch/bare}
cleanup() {
  for place in "$root/dev" "$root/proc" "$root" "$scratch/over"; do ! mountpoint -q "$place" || umount -l "$place"; done
  rm -rf --one-file-system "$scratch"
}
trap cleanup EXIT

if [ ! -x "$bare/usr/bin/pip3" ]; then
  debootstrap --variant=minbase --include=python3,python3-pip "$suite" "$bare" >"$scratch/log" || { tail "$scratch/log"; exit 1; }
fi
# What is done in it lies in memory and leaves the bare system as it is.
mkdir -p "$root" "$scratch/over"
mount -t tmpfs tmpfs "$scratch/over"
mkdir "$scratch/over/upper" "$scratch/over/work"
mount -t overlay overlay -o "lowerdir=$bare,upperdir=$scratch/over/upper,workdir=$scratch/over/work" "$root"
mount --rbind /dev "$root/dev"
mount -t proc proc "$root/proc"
cp "$wheel" "$root/tmp/"
inside() { env -i PATH=/usr/local/bin:/usr/bin:/bin:/usr/sbin HOME=/tmp TERM=dumb chroot "$root" "$@"; }

. "$bare/etc/os-release"
printf '%s, %s, glibc %s\n' "$PRETTY_NAME" "$(inside python3 --version)" "$(inside ldd --version | sed -n '1s/.* //p')"
for tool in cc gcc rustc cargo; do
  ! inside sh -c "command -v $tool" >/dev/null || fail "$tool is there, so this is no bare system"
done
# Distributions that manage Python's packages ask for a word before pip installs beside theirs.
options=(--no-index --disable-pip-version-check --root-user-action=ignore)
! inside pip3 install --help | grep -q break-system-packages || options+=(--break-system-packages)
list() { inside find / -xdev \( -path /proc -o -path /dev -o -path /tmp -o -name __pycache__ \) -prune -o \( -type f -o -type l \) -print | sort; }
size() { du -s --apparent-size -B1 "$scratch/over/upper" | cut -f1; }
list >"$scratch/before"
before=$(size)

now() { date +%s.%N; }
start=$(now)
inside pip3 install -q "${options[@]}" "/tmp/$(basename "$wheel")"
installed=$(now)
coproc run { inside sh -c 'mkdir /tmp/run && cd /tmp/run && exec oarlock train pretrain logging_steps=1'; }
exec 3<&"${run[0]}"
pid=$run_PID
line=
until grep -q '^step 1/' <<<"$line"; do read -r line <&3 || fail "the run ended without a step"; done
first=$(now)
after=$(size)
rest=$(cat <&3)
wait "$pid" || fail "oarlock train ended with $?"
ended=$(now)
grep -q '^done: ' <<<"$rest" || fail "the run says: $rest"
awk -v a="$start" -v b="$installed" -v c="$first" -v d="$ended" -v w="$(stat -c %s "$wheel")" -v n=$((after - before)) 'BEGIN {
  printf "the wheel has %.1f MB; pip install took %.1f s; the first loss came %.1f s after its begin, %.1f MB are on the disk then\n", w / 1e6, b - a, c - a, n / 1e6
  printf "the model is trained after %.0f s\n", d - a }'
inside sh -c 'cd /tmp/run && oarlock generate --model out/pretrain --temperature 0.3 --prompt "Nils and Wren"'

inside pip3 uninstall -q -y "${options[@]:1}" oarlock
list >"$scratch/after"
diff "$scratch/before" "$scratch/after" || fail "the wheel leaves files behind"
echo "uninstalled: nothing is left"
