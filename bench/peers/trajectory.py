"""The loss and gradient norm of every optimizer step, as transformers + torch compute them; one JSON line a step.

    python trajectory.py --model DIR --dataset FILE.jsonl --cutoff 128 --batch 4 --steps 30 --lr 1e-3

--model is a Hugging Face folder with a tokenizer. --make-model CONFIG.json first writes it with seeded random weights and
the tokenizer of --tokenizer. The records are joined in file order, one end-of-text token after each, and chopped into
blocks of --cutoff tokens (the tail is dropped) that are taken in this order. AdamW with a constant learning rate; as in
transformers' Trainer, weight decay spares biases and norms.
"""
import argparse
import json
import os
import shutil

import torch
from tokenizers import Tokenizer
from transformers import AutoConfig, AutoModelForCausalLM


def arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", required=True)
    parser.add_argument("--make-model", metavar="CONFIG.json")
    parser.add_argument("--tokenizer", help="folder of the tokenizer that --make-model copies")
    parser.add_argument("--seed", type=int, default=0, help="of the weights that --make-model draws")
    parser.add_argument("--dataset", required=True)
    parser.add_argument("--cutoff", type=int, default=128)
    parser.add_argument("--batch", type=int, default=4, help="sequences of a micro-batch, over all ranks")
    parser.add_argument("--accumulate", type=int, default=1)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--weight-decay", type=float, default=0.0)
    parser.add_argument("--max-grad-norm", type=float, default=1.0)
    parser.add_argument("--bf16", action="store_true", help="bf16 autocast around the forward pass")
    return parser.parse_args()


def make_model(args):
    with open(args.make_model) as file:
        config = AutoConfig.for_model(**json.load(file))
    torch.manual_seed(args.seed)
    AutoModelForCausalLM.from_config(config).save_pretrained(args.model)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        if os.path.exists(os.path.join(args.tokenizer, name)):
            shutil.copy(os.path.join(args.tokenizer, name), args.model)


def blocks_of(args, eos):
    tokenizer = Tokenizer.from_file(os.path.join(args.model, "tokenizer.json"))
    ids = []
    with open(args.dataset, encoding="utf-8") as file:
        for line in filter(str.strip, file):
            ids += tokenizer.encode(json.loads(line)["text"], add_special_tokens=False).ids + [eos]
    n_blocks = len(ids) // args.cutoff
    return torch.tensor(ids[: n_blocks * args.cutoff]).view(n_blocks, args.cutoff)


def main():
    args = arguments()
    if args.make_model:
        make_model(args)
    model = AutoModelForCausalLM.from_pretrained(args.model, dtype=torch.float32).train()
    eos = model.config.eos_token_id
    blocks = blocks_of(args, eos[0] if isinstance(eos, list) else eos)
    n_blocks = args.steps * args.accumulate * args.batch
    if len(blocks) < n_blocks:
        raise SystemExit(f"{args.dataset} has {len(blocks)} blocks, {n_blocks} are needed; lower --steps or --cutoff")
    micro_batches = iter(blocks[:n_blocks].split(args.batch))
    groups = [
        {"params": [p for p in model.parameters() if p.ndim >= 2], "weight_decay": args.weight_decay},
        {"params": [p for p in model.parameters() if p.ndim < 2], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=args.lr)
    for step in range(1, args.steps + 1):
        mean = 0.0
        for _ in range(args.accumulate):
            ids = next(micro_batches)
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=args.bf16):
                loss = model(input_ids=ids, labels=ids).loss
            (loss / args.accumulate).backward()
            mean += loss.item() / args.accumulate
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), args.max_grad_norm).item()
        optimizer.step()
        optimizer.zero_grad()
        print(json.dumps({"step": step, "loss": mean, "grad_norm": norm, "lr": args.lr}), flush=True)


if __name__ == "__main__":
    main()
