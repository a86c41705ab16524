#!/usr/bin/env bash
# Tries a static wheel where there is nothing else: pip takes it for musl, and in an empty root with what containers have (/proc
# and /dev) the program trains, also on two ranks of torchrun, and refuses what needs libraries.
#
#   packaging/static.sh oarlock-…-musllinux_1_1_x86_64.whl
#
# It needs root, and Python with pip.
set -euo pipefail
[ $# -eq 1 ] || { echo "usage: $0 oarlock-…-musllinux_1_1_x86_64.whl" >&2; exit 2; }
wheel=$(readlink -f "$1")
fail() { printf '%s\n' "$*" >&2; exit 1; }

scratch=$(mktemp -d)
root=$scratch/root
cleanup() {
  for place in "$root/dev" "$root/proc"; do ! mountpoint -q "$place" || umount -l "$place"; done
  rm -rf --one-file-system "$scratch"
}
trap cleanup EXIT

python3 -m pip install -q --disable-pip-version-check --root-user-action=ignore --no-index --no-deps --target "$scratch/taken" \
  --platform musllinux_1_1_x86_64 --only-binary=:all: "$wheel"
mkdir -p "$root/dev" "$root/proc"
cp "$scratch/taken/bin/oarlock" "$root/oarlock"
mount --rbind /dev "$root/dev"
mount --make-rslave "$root/dev"
mount -t proc proc "$root/proc"
into=$(command -v chroot)
set=()
inside() { env -i "${set[@]}" "$into" "$root" /oarlock "$@"; }

inside --version
inside train pretrain max_steps=20 logging_steps=10 eval_strategy=no >"$scratch/said" 2>&1 || fail "$(cat "$scratch/said")"
grep '^step 20/20' "$scratch/said"
inside torchrun --nproc_per_node=2 src/train.py recipes/pretrain.yaml max_steps=20 logging_steps=10 eval_strategy=no \
  >"$scratch/said" 2>&1 || fail "$(cat "$scratch/said")"
grep -q ' 2 rank(s)' "$scratch/said" || fail "torchrun started no two ranks: $(cat "$scratch/said")"
grep '^step 20/20' "$scratch/said"
inside generate --model out/pretrain --temperature 0 --max-new-tokens 8 --prompt "Nils and Wren"

refused() { # WORDS COMMAND…: it ends with an error that has these words, and not by a signal
  local words=$1 code=0
  shift
  # Errors are broken into lines, with a bar before each.
  "$@" 2>&1 | sed 's/│//g' | tr -s '[:space:]' ' ' >"$scratch/said" || code=$?
  { [ "$code" != 0 ] && [ "$code" -lt 128 ] && grep -q "$words" "$scratch/said"; } || fail "$* ended with $code: $(cat "$scratch/said")"
  printf 'refused: %s\n' "$(grep -o "$words[^.:;]*" "$scratch/said" | head -1)"
}
refused 'this program is static' inside train pretrain device=cuda max_steps=1
set=(RANK=0 WORLD_SIZE=2 LOCAL_RANK=0 LOCAL_WORLD_SIZE=1 MASTER_ADDR=127.0.0.1 MASTER_PORT=29500)
refused 'a static program opens no libraries' inside train pretrain max_steps=1
set=()
inside env | grep '^- GPU'
echo "the static program is good"
