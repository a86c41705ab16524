#!/usr/bin/env bash
# Whether several builds of the program compute the same bits: 20 steps of recipes/pretrain.yaml leave the same log, but for
# times and memory, and the same model.safetensors.
#
#   packaging/same_bits.sh PROGRAM|WHEEL PROGRAM|WHEEL…
set -euo pipefail
[ $# -gt 1 ] || { echo "usage: $0 PROGRAM|WHEEL PROGRAM|WHEEL…" >&2; exit 2; }
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
program_of='import sys, zipfile
wheel = zipfile.ZipFile(sys.argv[1])
(name,) = [name for name in wheel.namelist() if name.endswith(".data/scripts/oarlock")]
sys.stdout.buffer.write(wheel.read(name))'

number=0 differ=0
for given; do
  number=$((number + 1))
  mkdir "$scratch/$number"
  case $given in
    *.whl) python3 -c "$program_of" "$given" >"$scratch/program-$number" && chmod +x "$scratch/program-$number" ;;
    *) ln -s "$(readlink -f "$given")" "$scratch/program-$number" ;;
  esac
  # Each has a folder of its own, so that none reads what another has prepared.
  cd "$scratch/$number"
  ../program-$number train pretrain max_steps=20 logging_steps=1 >said 2>&1 || { cat said >&2; exit 1; }
  cd - >/dev/null
  out=$scratch/$number/out/pretrain
  sed -E 's/,"(elapsed_time|remaining_time)":"[^"]*"//g; s/,"(throughput|memory_gb)":[^,}]*//g' "$out/trainer_log.jsonl" >"$out/log"
  (cd "$out" && sha256sum log model.safetensors) >"$scratch/sums-$number"
  printf '%s\n' "$given"
  sed 's/^/  /' "$scratch/sums-$number"
  cmp -s "$scratch/sums-1" "$scratch/sums-$number" || differ=1
done
[ "$differ" = 0 ] || { echo "the bits differ" >&2; exit 1; }
echo "the same bits in $number builds"
