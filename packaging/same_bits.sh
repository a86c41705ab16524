#!/usr/bin/env bash
# Whether several builds of the program, and several paths of the CPU, compute the same bits: 20 steps of recipes/pretrain.yaml
# leave the same log, but for times and memory, and the same model.safetensors.
#
#   packaging/same_bits.sh PROGRAM|WHEEL PROGRAM|WHEEL…                            # in bf16, as the recipe says
#   packaging/same_bits.sh --paths avx2,avx512,portable_fma PROGRAM|WHEEL…         # in f32, on each path
set -euo pipefail
paths=
if [ "${1-}" = --paths ]; then paths=${2-}; shift 2; fi
[ $# -gt 1 ] || { [ $# = 1 ] && [ -n "$paths" ]; } || { echo "usage: $0 [--paths PATH,…] PROGRAM|WHEEL…" >&2; exit 2; }
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
program_of='import sys, zipfile
wheel = zipfile.ZipFile(sys.argv[1])
(name,) = [name for name in wheel.namelist() if name.endswith(".data/scripts/oarlock")]
sys.stdout.buffer.write(wheel.read(name))'

# The sums of a run by one program, with more settings. Each run has a folder of its own, so that none reads what another has
# prepared.
runs=0 differ=0
compare() {
  local program=$1 out
  shift
  runs=$((runs + 1))
  mkdir "$scratch/$runs"
  (cd "$scratch/$runs" && "$program" train pretrain max_steps=20 logging_steps=1 "$@" >said 2>&1) || { cat "$scratch/$runs/said" >&2; exit 1; }
  out=$scratch/$runs/out/pretrain
  sed -E 's/,"(elapsed_time|remaining_time)":"[^"]*"//g; s/,"(throughput|memory_gb)":[^,}]*//g' "$out/trainer_log.jsonl" >"$out/log"
  (cd "$out" && sha256sum log model.safetensors) >"$scratch/sums-$runs"
  sed 's/^/  /' "$scratch/sums-$runs"
  cmp -s "$scratch/sums-1" "$scratch/sums-$runs" || differ=1
}

number=0
for given; do
  number=$((number + 1))
  program=$scratch/program-$number
  case $given in
    *.whl) python3 -c "$program_of" "$given" >"$program" && chmod +x "$program" ;;
    *) ln -s "$(readlink -f "$given")" "$program" ;;
  esac
  if [ -z "$paths" ]; then
    printf '%s\n' "$given"
    compare "$program"
  fi
  for path in ${paths//,/ }; do
    printf '%s, %s\n' "$given" "$path"
    compare "$program" bf16=false "cpu_path=$path"
  done
done
[ "$differ" = 0 ] || { echo "the bits differ" >&2; exit 1; }
echo "the same bits in $runs runs"
