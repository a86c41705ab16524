"""Writes golden trajectories of the losses of supervised fine-tuning that are not plain cross-entropy.

    python make_sft_losses.py LLaMA-Factory/src crates/oarlock/tests/golden

The model, the conversations and the steps are those of make_sft_trajectory.py. Label smoothing is transformers'
LabelSmoother; DFT and EAFT are LLaMA-Factory's own functions, cut out of its trainer_utils.py. Writes
sft-llama/losses.json.
"""
import ast
import json
import os
import sys
from typing import Optional

import torch
from transformers import PreTrainedTokenizerFast
from transformers.trainer_pt_utils import LabelSmoother

import original_chat
from make_sft_trajectory import BATCH, STEPS, conversations, encode, train


def functions(source, names):
    """These functions of LLaMA-Factory, without what its module imports."""
    with open(os.path.join(source, "llamafactory/train/trainer_utils.py"), encoding="utf-8") as file:
        tree = ast.parse(file.read())
    tree.body = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name in names]
    found = {"torch": torch, "Optional": Optional}
    exec(compile(tree, "trainer_utils.py", "exec"), found)
    return [found[name] for name in names]


def main(source, golden):
    module, supervised = original_chat.load(source)
    model = os.path.join(golden, "train-llama")
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=os.path.join(model, "tokenizer.json"),
                                        bos_token="<|begin|>", eos_token="<|end|>", pad_token="<|pad|>")
    rows = [encode(module, supervised, tokenizer, talk) for talk in conversations(STEPS * BATCH)]
    dft, eaft, _, _ = functions(
        source, ["dft_loss_func", "eaft_loss_func", "_dft_cross_entropy", "_eaft_cross_entropy"])
    count = lambda labels: (labels != -100).sum()
    losses = {
        "smoothed": lambda out, labels: LabelSmoother(epsilon=0.1)(out, labels, shift_labels=True),
        "dft": lambda out, labels: dft(out, labels, count(labels)),
        "eaft": lambda out, labels: eaft(out, labels, count(labels), 1.0),
    }
    out = {name: train(model, rows, tokenizer.pad_token_id, loss) for name, loss in losses.items()}
    with open(os.path.join(golden, "sft-llama", "losses.json"), "w") as file:
        json.dump(out, file, indent=1)
        file.write("\n")
    for name, run in out.items():
        print(f"{name}: loss {run['loss'][0]:.4f} to {run['loss'][-1]:.4f}")


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(*sys.argv[1:])
