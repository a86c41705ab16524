"""The twin of lora.rs in PyTorch: adapters of low rank beside the projections of a frozen decoder of transformers."""
import os

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader
from transformers import AutoModelForCausalLM

import twin

TEXT = open(os.path.join(twin.HERE, "data/stories.txt"), "rb").read()
PRETRAINED = os.path.join(twin.HERE, "../tests/golden/distillation/teacher")
LENGTH = 32
BATCH_SIZE = 16
RANK = 4
SCALE = 2.0


class Lora(nn.Linear):
    def __init__(self, base):
        super().__init__(base.in_features, base.out_features, bias=False)
        self.weight = base.weight
        self.lora_a = nn.Linear(base.in_features, RANK, bias=False)
        self.lora_b = nn.Linear(RANK, base.out_features, bias=False)
        nn.init.zeros_(self.lora_b.weight)

    def forward(self, x):
        return super().forward(x) + self.lora_b(self.lora_a(x)) * SCALE


class Adapted(nn.Module):
    def __init__(self):
        super().__init__()
        self.model = AutoModelForCausalLM.from_pretrained(PRETRAINED, dtype=torch.float32).model
        self.requires_grad_(False)
        for layer in self.model.layers:
            for part in (layer.self_attn, layer.mlp):
                for name, linear in list(part.named_children()):
                    if isinstance(linear, nn.Linear):
                        setattr(part, name, Lora(linear))

    def forward(self, ids):
        return F.linear(self.model(ids).last_hidden_state, self.model.embed_tokens.weight)


def train(model, steps):
    tokens = torch.tensor([byte + 1 for byte in TEXT])
    windows = [tokens[at : at + LENGTH + 1] for at in range(0, len(tokens) - LENGTH, LENGTH)]
    samples = [(window[:LENGTH], window[1:]) for window in windows]
    loader = DataLoader(samples, BATCH_SIZE, sampler=twin.Shuffled(samples), drop_last=True)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2)

    losses = []
    while len(losses) < steps:
        for ids, next in loader:
            loss = F.cross_entropy(model(ids).flatten(0, 1), next.flatten())
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
            if len(losses) == steps:
                break
    return losses


if __name__ == "__main__":
    twin.run(train, Adapted())
