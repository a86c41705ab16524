"""Writes golden trajectories of preferences, paired and unpaired, and rewards: LLaMA-Factory encodes the answers, torch trains.

    python make_preference.py LLaMA-Factory/src crates/oarlock/tests/golden

It trains the model of train-llama, which make_trajectory.py writes, on pairs of answers and unpaired preferences of its own,
under the template `default`, for 30 steps of six padded pairs in f32: each loss with all parameters against a frozen
copy, and some with the adapter adapters/lora (make_adapters.py) against a frozen copy of that. Some answers are cut to
cutoff_len. The folder preference holds the rows in LLaMA-Factory's formats, the first value head, and trajectory.json.
Without LLaMA-Factory's trainers, which the versions of TRL that it allows turn into other losses; the formulas are theirs.
"""
import copy
import json
import os
import random
import sys
from types import SimpleNamespace

import torch
import torch.nn.functional as F
from peft import PeftModel
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

import original_chat
from make_trajectory import DEEDS, ENDS, PLACES, ROWERS

STEPS, BATCH, N, LR, CLIP, CUTOFF, ROOM, BETA = 30, 6, 60, 1e-3, 1.0, 56, 96, 0.1
RUNS = {
    "sigmoid": {}, "hinge": {}, "ipo": {}, "orpo": {}, "simpo": {"beta": 2.0, "gamma": 0.5},
    "sigmoid_more": {"loss": "sigmoid", "smoothing": 0.1, "ftx": 0.2},
    "sigmoid_lora": {"loss": "sigmoid", "lora": True}, "kto": {}, "kto_weights": {"loss": "kto", "weights": (1.5, 0.5)},
    "kto_lora": {"loss": "kto", "lora": True}, "rm": {}, "rm_lora": {"loss": "rm", "lora": True},
}


def answer(draw, long):
    said = draw.choice(ROWERS)
    return f"{said} {draw.choice(DEEDS).format(draw.randint(2, 9))} it." if long else f"{said}."


def rows():
    draw = random.Random("preference")
    for _ in range(N):
        question = f"Who was at {draw.choice(PLACES)}?"
        earlier = [] if draw.random() < .8 else [("human", "Hi."), ("gpt", draw.choice(ENDS[:2]))]
        yield earlier + [("human", question)], answer(draw, draw.random() < .5), answer(draw, draw.random() < .5), draw.random() < .6


def message(role, content):
    return {"role": {"human": "user", "gpt": "assistant"}[role], "content": content}


def encoder(module, name, tokenizer, cutoff_len):
    import importlib
    processor = importlib.import_module(f"llamafactory.data.processor.{name}")
    kind = {"pairwise": "PairwiseDatasetProcessor", "feedback": "FeedbackDatasetProcessor"}[name]
    self = SimpleNamespace(template=copy.deepcopy(module.TEMPLATES["default"]), tokenizer=tokenizer, processor=None,
                           data_args=SimpleNamespace(cutoff_len=cutoff_len))
    encode = getattr(processor, kind)._encode_data_example
    return lambda *args: encode(self, *args, "", "", [], [], [])


def log_probs(model, sequences):
    """Sums and numbers of the log-probabilities of the labels, and the mean logits at them."""
    longest = max(len(ids) for ids, _ in sequences)
    def padded(lists, value):
        return torch.tensor([list(values) + [value] * (longest - len(values)) for values in lists])
    ids, labels = padded([ids for ids, _ in sequences], 0), padded([labels for _, labels in sequences], -100)[:, 1:]
    mask = padded([[1] * len(ids) for ids, _ in sequences], 0)
    logits = model(input_ids=ids, attention_mask=mask).logits[:, :-1]
    found = torch.gather(logits.log_softmax(-1), 2, labels.clamp(min=0).unsqueeze(2)).squeeze(2)
    is_label = labels != -100
    return (found * is_label).sum(-1), is_label.sum(-1), (logits.mean(-1) * is_label).sum(-1)


def preference(policy, reference, batch, args):
    n, beta, kind = len(batch), args.get("beta", BETA), args["loss"]
    sequences = [pair[:2] for pair in batch] + [pair[2:] for pair in batch]
    sums, counts, logits = log_probs(policy, sequences)
    values = sums / counts if kind in ("ipo", "orpo", "simpo") else sums
    c, r = values[:n], values[n:]
    sft = -(sums / counts)[:n]
    rewards = beta * c, beta * r
    if kind in ("sigmoid", "hinge", "ipo"):
        with torch.no_grad():
            theirs, _, _ = log_probs(reference, sequences)
        theirs = theirs / counts if kind == "ipo" else theirs
        rewards = beta * (c - theirs[:n]), beta * (r - theirs[n:])
        delta = (c - r) - (theirs[:n] - theirs[n:])
        smoothing = args.get("smoothing", 0.0)
        losses = {"sigmoid": -(1 - smoothing) * F.logsigmoid(beta * delta) - smoothing * F.logsigmoid(-beta * delta),
                  "hinge": torch.relu(1 - beta * delta), "ipo": (delta - 1 / (2 * beta)) ** 2}[kind]
    elif kind == "orpo":
        odds = (c - r) - (torch.log1p(-torch.exp(c)) - torch.log1p(-torch.exp(r)))
        losses = -c + beta * -F.logsigmoid(odds)
    else:
        losses = -F.logsigmoid(beta * (c - r) - args["gamma"])
    losses = losses + args.get("ftx", 0.0) * sft
    metrics = {"rewards/chosen": rewards[0].mean(), "rewards/rejected": rewards[1].mean(),
               "rewards/accuracies": (rewards[0] > rewards[1]).float().mean(),
               "rewards/margins": (rewards[0] - rewards[1]).mean(), "logps/chosen": c.mean(), "logps/rejected": r.mean(),
               "logits/chosen": logits[:n].sum() / counts[:n].sum(), "logits/rejected": logits[n:].sum() / counts[n:].sum()}
    if kind == "orpo":
        metrics |= {"sft_loss": sft.mean(), "odds_ratio_loss": ((losses - sft) / beta).mean()}
    return losses.mean(), metrics


def judgement(policy, reference, batch, args):
    wanted = torch.tensor([row[4] for row in batch])
    sums, counts, _ = log_probs(policy, [row[:2] for row in batch])
    with torch.no_grad():
        theirs, _, _ = log_probs(reference, [row[:2] for row in batch])
        others = [row[2:4] for row in batch]
        kl = (log_probs(policy, others)[0] - log_probs(reference, others)[0]).mean().clamp(min=0)
    ratios, weights = sums - theirs, args.get("weights", (1.0, 1.0))
    losses = torch.where(wanted, weights[0] * (1 - torch.sigmoid(BETA * (ratios - kl))),
                         weights[1] * (1 - torch.sigmoid(BETA * (kl - ratios))))
    metrics = {"kl": kl}
    for name, of in (("chosen", wanted), ("rejected", ~wanted)):
        if of.any():
            metrics |= {f"rewards/{name}": BETA * ratios[of].mean(), f"logps/{name}": sums[of].mean()}
    return losses.mean(), metrics


def reward(policy, head, batch):
    scores = []
    for sequences in ([pair[:2] for pair in batch], [pair[2:] for pair in batch]):
        # One by one, so that the last token is that of the answer.
        hidden = [policy(input_ids=torch.tensor([ids]), output_hidden_states=True).hidden_states[-1][0, -1] for ids, _ in sequences]
        scores.append(head(torch.stack(hidden)).squeeze(-1))
    return -F.logsigmoid(scores[0] - scores[1]).mean(), {"accuracy": (scores[0] > scores[1]).float().mean()}


def train(golden, name, args, pairs, judged):
    base = os.path.join(golden, "train-llama")
    args = {"loss": name, **args}
    def model(trained):
        model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
        if args.get("lora"):
            model = PeftModel.from_pretrained(model, os.path.join(golden, "adapters", "lora"), is_trainable=trained)
        return model.eval()
    policy, reference = model(True), model(False)
    head = torch.nn.Linear(32, 1)
    with torch.no_grad():
        draw = torch.Generator().manual_seed(7)
        head.weight.copy_(torch.rand(1, 32, generator=draw) * .3 - .15)
        head.bias.fill_(.05)
    if name == "rm":
        values = {"v_head.summary.weight": head.weight.detach().clone(), "v_head.summary.bias": head.bias.detach().clone()}
        save_file(values, os.path.join(golden, "preference", "value_head.safetensors"))
    params = [p for p in policy.parameters() if p.requires_grad] + (list(head.parameters()) if args["loss"] == "rm" else [])
    optimizer = torch.optim.AdamW(params, lr=LR, weight_decay=0.0)
    told = {"loss": [], "grad_norm": [], "metrics": {}}
    for step in range(STEPS):
        rows = judged if args["loss"] == "kto" else pairs
        batch = [rows[(step * BATCH + i) % N] for i in range(BATCH)]
        if args["loss"] == "kto":
            loss, metrics = judgement(policy, reference, batch, args)
        elif args["loss"] == "rm":
            loss, metrics = reward(policy, head, batch)
        else:
            loss, metrics = preference(policy, reference, batch, args)
        loss.backward()
        told["grad_norm"].append(torch.nn.utils.clip_grad_norm_(params, CLIP).item())
        told["loss"].append(loss.item())
        for key, value in metrics.items():
            told["metrics"].setdefault(key, []).append((step, round(value.item(), 6)))
        optimizer.step()
        optimizer.zero_grad()
    print(f"{name}: loss {told['loss'][0]:.6f} to {told['loss'][-1]:.6f}")
    return told


def main(source, golden):
    module, _ = original_chat.load(source)
    model = os.path.join(golden, "train-llama")
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=os.path.join(model, "tokenizer.json"),
                                        bos_token="<|begin|>", eos_token="<|end|>", pad_token="<|pad|>")
    folder = os.path.join(golden, "preference")
    os.makedirs(folder, exist_ok=True)
    all_rows = list(rows())
    said = lambda turns: [{"from": role, "value": text} for role, text in turns]
    lines = {"pairs": [{"conversations": said(turns), "chosen": {"from": "gpt", "value": good},
                        "rejected": {"from": "gpt", "value": bad}} for turns, good, bad, _ in all_rows],
             "judged": [{"conversations": said(turns + [("gpt", good if wanted else bad)]), "wanted": wanted}
                        for turns, good, bad, wanted in all_rows]}
    for name, found in lines.items():
        with open(os.path.join(folder, f"{name}.jsonl"), "w", encoding="utf-8") as out:
            out.writelines(json.dumps(line, ensure_ascii=False) + "\n" for line in found)
    entries = {"pairs": {"file_name": "pairs.jsonl", "formatting": "sharegpt", "ranking": True,
                         "columns": {"messages": "conversations", "chosen": "chosen", "rejected": "rejected"}},
               "judged": {"file_name": "judged.jsonl", "formatting": "sharegpt",
                          "columns": {"messages": "conversations", "kto_tag": "wanted"}}}
    with open(os.path.join(folder, "dataset_info.json"), "w") as out:
        json.dump(entries, out, indent=1)
        out.write("\n")
    pairwise, feedback = encoder(module, "pairwise", tokenizer, CUTOFF), encoder(module, "feedback", tokenizer, ROOM)
    prompts = [[message(*turn) for turn in turns] for turns, *_ in all_rows]
    both = [[message("gpt", good), message("gpt", bad)] for _, good, bad, _ in all_rows]
    pairs = [pairwise(prompt, answers) for prompt, answers in zip(prompts, both)]
    single = [[message("gpt", good), message("gpt", "")] if wanted else [message("gpt", ""), message("gpt", bad)]
              for _, good, bad, wanted in all_rows]
    judged = [feedback(prompt, answers, single[i - 1]) for i, (prompt, answers) in enumerate(zip(prompts, single))]
    cut = sum(max(len(pair[0]), len(pair[2])) == CUTOFF for pair in pairs)
    assert 5 < cut < 40, cut
    # What is cut here is cut from what is kept of another row, and there from all of it.
    longest = max(max(len(row[0]), len(row[2])) for row in judged)
    assert longest < ROOM, longest
    told = {name: train(golden, name, args, pairs, judged) for name, args in RUNS.items()}
    settings = {"cutoff_len": CUTOFF, "judged_cutoff_len": ROOM, "batch": BATCH, "learning_rate": LR, "max_grad_norm": CLIP,
                "tokens": sum(len(pair[0]) + len(pair[2]) for pair in pairs),
                "trained": sum(label != -100 for pair in pairs for labels in (pair[1], pair[3]) for label in labels)}
    with open(os.path.join(folder, "trajectory.json"), "w") as out:
        json.dump({**settings, "runs": told}, out)
        out.write("\n")


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(*sys.argv[1:])
