"""Writes crates/oarlock/tests/golden/twins: the losses of the examples' twins in PyTorch, NAME.json for each.

    python make_twins.py crates/oarlock/tests/golden/twins [NAME ..]

A test of Oarlock writes the initial weights of each example, from which its twin then trains 20 steps; distillation and
text_classifier read folders of transformers, which they and lora need besides torch. Without a NAME all twins are run.
"""
import glob, json, os, subprocess, sys, tempfile

import torch

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../..")
WRITE = ["cargo", "test", "-p", "oarlock", "--test", "suite", "twins::write_initial_weights_by_hand", "--", "--ignored"]
READ_FOLDERS = ["distillation", "text_classifier"]


def main(out, names):
    os.makedirs(out, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(WRITE, cwd=ROOT, env={**os.environ, "TWINS_FOLDER": folder}, check=True)
        weights = {}
        for path in sorted(glob.glob(os.path.join(folder, "*.safetensors"))):
            weights.setdefault(os.path.basename(path).split(".")[0], []).append(path)
        for name in names or sorted([*weights, *READ_FOLDERS]):
            program = os.path.join(ROOT, "crates/oarlock/examples", name + ".py")
            run = subprocess.run([sys.executable, program, *weights.get(name, [])], stdout=subprocess.PIPE, check=True)
            losses = json.loads(run.stdout)
            with open(os.path.join(out, name + ".json"), "w") as file:
                json.dump({"torch": torch.__version__.split("+")[0], "losses": losses}, file, indent=1)
                file.write("\n")
            print(f"{name}: {losses[0]:.4f} to {losses[-1]:.4f}")


main(sys.argv[1], sys.argv[2:])
