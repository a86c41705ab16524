#!/usr/bin/env bash
# Checks the wheel as its user meets it: an empty environment, the first run, the Python module, a notebook, and what is left
# after it is uninstalled.
#
#   packaging/check.sh                    # builds it first
#   packaging/check.sh --local            # builds one for this machine alone, of the program that cargo has built
#   packaging/check.sh oarlock-….whl      # one that was built
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
began=$SECONDS
fail() { printf '%s\n' "$*" >&2; exit 1; }
step() { printf '\n== %s (%d s)\n' "$*" $((SECONDS - began)); }

if [ "${1-}" = --local ]; then
  step "the wheel is packed"
  wheel=$(python3 "$root/packaging/wheel.py" --local | tail -1)
elif [ $# -gt 0 ]; then
  wheel=$(readlink -f "$1")
  python3 "$root/packaging/check_wheel.py" "$wheel"
else
  step "the wheel is built"
  wheel=$(python3 "$root/packaging/wheel.py" | tail -1)
fi

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
cd "$scratch"
python3 -m venv venv
pip() { venv/bin/python -m pip --disable-pip-version-check "$@"; }
list() { find venv \( -type f -o -type l \) ! -name '*.pyc' | sort; }
list >before

step "installed, and the first loss of a run"
now() { date +%s.%N; }
start=$(now)
pip install -q --no-index "$wheel"
installed=$(now)
mkdir first && cd first
coproc run { exec ../venv/bin/oarlock train pretrain logging_steps=1 max_steps=20 eval_strategy=no; }
exec 3<&"${run[0]}"
pid=$run_PID
until grep -q '^step 1/20 ' <<<"${line-}"; do read -r line <&3 || fail "the run ended without a step"; done
first=$(now)
cat <&3 >/dev/null
wait "$pid" || fail "oarlock train ended with $?"
test -s out/pretrain/model.safetensors || fail "the run left no model"
awk -v a="$start" -v b="$installed" -v c="$first" \
  'BEGIN { printf "pip install took %.1f s, the first loss came after %.1f s\n", b - a, c - a }'
cd ..

step "commands"
venv/bin/oarlock init sft river >said
grep -q 'oarlock train recipes/sft.yaml' said || fail "oarlock init says: $(cat said)"
[ "$(venv/bin/python -m oarlock --version)" = "$(venv/bin/oarlock --version)" ] || fail "python -m oarlock is another program"
others=$(comm -13 <(sed 's/.*venv.bin.//' before | sort) <(ls venv/bin | sort))
[ "$others" = oarlock ] || fail "the wheel installs these programs: $others"

step "the tests of the package"
cp -r "$root/python/tests" tests
venv/bin/python -W error::ResourceWarning -m unittest discover -s tests

step "the example of docs/python.md"
awk '/^```python$/ { on = 1; next } /^```$/ { if (on) exit } on' "$root/docs/python.md" >example.py
(cd first && ../venv/bin/python ../example.py >../said) || fail "the example of docs/python.md fails"
[ "$(grep -c '^[0-9]' said)" -gt 5 ] || fail "the example prints: $(cat said)"

step "uninstalled"
pip uninstall -q -y oarlock
list >after
diff before after || fail "the wheel leaves files behind"
[ -z "$(find venv -name 'oarlock*')" ] || fail "the wheel leaves folders behind"
pip install -q --no-index "$wheel"

# Two network namespaces stand for two machines, which share nothing but the wheel.
step "two machines, by torchrun"
# The names of Gloo's own types in C++ are there where Gloo is.
if ! grep -aq 'N4gloo' venv/bin/oarlock; then
  echo "NOT TESTED: this wheel has no Gloo inside, so its ranks are on one machine"
elif [ "$(id -u)" != 0 ] || ! command -v ip >/dev/null; then
  echo "NOT TESTED: two machines need root and iproute2"
else
  venv/bin/oarlock link-tools links >/dev/null
  for machine in 0 1; do venv/bin/oarlock init pretrain "machine$machine" >/dev/null; done
  PATH=$scratch/links:$PATH "$root/bench/netns/run" 2 -- sh -c 'cd machine$MACHINE && exec torchrun --master_port 29500 \
    --nproc_per_node=2 --nnodes=2 --node_rank=$MACHINE --master_addr=192.168.0.1 src/train.py recipes/pretrain.yaml \
    num_processes=4 max_steps=20 logging_steps=5 eval_strategy=no' 2>&1 | tee said
  grep -q 'done: 20 steps' said && grep -q ' 4 rank(s)' said || fail "two machines did not train"
fi

step "types"
pip install -q mypy pyright
cat >typed.py <<'END'
import oarlock

for log in oarlock.train("pretrain", ranks=2, max_steps=5):
    step: int = log["step"]
    loss: float = log.get("loss", 0.0)
text: str = oarlock.generate("out/pretrain", "a", temperature=0)
for piece in oarlock.generate("out/pretrain", "a", stream=True):
    text += piece
result: oarlock.Result = oarlock.train({"output_dir": "out"}).wait(5)
END
venv/bin/mypy --strict typed.py
venv/bin/pyright --pythonpath venv/bin/python typed.py
(cd "$root" && "$scratch/venv/bin/mypy" && "$scratch/venv/bin/pyright" --pythonpath "$scratch/venv/bin/python")

step "a notebook"
pip install -q nbconvert ipykernel
venv/bin/python "$root/packaging/notebook.py" write first/run.ipynb
(cd first && PATH="$scratch/venv/bin:$PATH" ../venv/bin/python -m nbconvert --to notebook --execute --inplace run.ipynb)
venv/bin/python "$root/packaging/notebook.py" check first/run.ipynb

left=$(pgrep -f "$scratch/venv/bin/oarlock" || true)
[ -z "$left" ] || fail "processes are left: $left"
printf '\nthe wheel is good, in %d s\n' $((SECONDS - began))
