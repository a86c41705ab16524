"""The twin of distillation.rs in PyTorch, with the models of transformers: a small student learns from a text and from a
larger teacher."""
import json, os

import torch
from torch.nn import functional as F
from torch.utils.data import DataLoader
from transformers import AutoModelForCausalLM

import twin

LEN = 32
BATCH_SIZE = 8
NUM_EPOCHS = 3
LR = 1e-2
WEIGHT_DECAY = 0.01
WARMUP_STEPS = 5
# What "auto" in student.json stands for.
GRADIENT_CLIPPING = 1.0
ALPHA = 0.5
TEMPERATURE = 2.0
IGNORED = -100
MODELS = os.path.join(twin.HERE, "../tests/golden/distillation")


def rows():
    ids = []
    with open(os.path.join(twin.HERE, "reviews/train.jsonl")) as file:
        for line in file:
            ids += [byte + 1 for byte in json.loads(line)["text"].encode()] + [0]
    n_rows = len(ids) // LEN // BATCH_SIZE * BATCH_SIZE
    return torch.tensor(ids[: n_rows * LEN]).reshape(n_rows, LEN)


def collate(rows):
    ids = torch.stack(rows)
    return ids, F.pad(ids[:, 1:], (0, 1), value=IGNORED)


def loss_of(logits, taught, labels):
    logits, taught = logits.flatten(0, 1), taught.flatten(0, 1)
    hard = F.cross_entropy(logits, labels.flatten())
    said = F.log_softmax(logits / TEMPERATURE, dim=-1)
    soft = F.kl_div(said, F.softmax(taught / TEMPERATURE, dim=-1), reduction="batchmean")
    return (1 - ALPHA) * hard + ALPHA * TEMPERATURE**2 * soft


def warmup(step):
    """DeepSpeed's WarmupLR, by the logarithm of the step."""
    scale = torch.tensor(float(WARMUP_STEPS)).log()
    return min(1.0, (torch.tensor(float(max(step, 1))).log() / scale).item())


def train(steps):
    train_dataloader = DataLoader(rows(), BATCH_SIZE, collate_fn=collate)
    model = lambda name: AutoModelForCausalLM.from_pretrained(os.path.join(MODELS, name), dtype=torch.float32)
    student_model, teacher_model = model("student"), model("teacher")
    optimizer = torch.optim.AdamW(student_model.parameters(), lr=LR, weight_decay=WEIGHT_DECAY)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, warmup)

    teacher_model.eval()
    student_model.train()
    losses = []
    for _epoch in range(NUM_EPOCHS):
        for ids, labels in train_dataloader:
            with torch.no_grad():
                taught = teacher_model(ids).logits
            loss = loss_of(student_model(ids).logits, taught, labels)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(student_model.parameters(), GRADIENT_CLIPPING)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
            losses.append(loss.item())
    return losses[:steps]


if __name__ == "__main__":
    twin.run(train)
