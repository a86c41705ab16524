"""The twin of char_gpt.rs in PyTorch: a small GPT that learns to write stories, letter by letter."""
import os

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader

import twin

TEXT = open(os.path.join(twin.HERE, "data/stories.txt"), "rb").read()
VOCAB = 128
DIM = 64
LENGTH = 64
BATCH_SIZE = 16


class Mlp(nn.Module):
    def __init__(self, dim, hidden):
        super().__init__()
        self.fc1 = nn.Linear(dim, hidden)
        self.fc2 = nn.Linear(hidden, dim)

    def forward(self, x):
        return self.fc2(F.gelu(self.fc1(x)))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln1 = nn.LayerNorm(DIM)
        self.attn = nn.MultiheadAttention(DIM, 4, batch_first=True)
        self.ln2 = nn.LayerNorm(DIM)
        self.mlp = Mlp(DIM, 4 * DIM)

    def forward(self, x):
        h, mask = self.ln1(x), nn.Transformer.generate_square_subsequent_mask(x.shape[1])
        x = x + self.attn(h, h, h, attn_mask=mask, is_causal=True, need_weights=False)[0]
        return x + self.mlp(self.ln2(x))


class Gpt(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(VOCAB, DIM)
        nn.init.normal_(self.tokens.weight, std=0.02)
        self.positions = nn.Parameter(0.02 * torch.randn(LENGTH, DIM))
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.norm = nn.LayerNorm(DIM)
        self.head = nn.Linear(DIM, VOCAB)

    def forward(self, ids):
        x = self.tokens(ids) + self.positions[: ids.shape[1]]
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def train(model, steps):
    window = lambda at: torch.tensor(list(TEXT[at : at + LENGTH + 1]))
    windows = [window(at) for at in range(0, len(TEXT) - LENGTH, LENGTH)]
    samples = [(window[:LENGTH], window[1:]) for window in windows]
    loader = DataLoader(samples, BATCH_SIZE, sampler=twin.Shuffled(samples), drop_last=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)

    losses = []
    while len(losses) < steps:
        for ids, next in loader:
            loss = F.cross_entropy(model(ids).flatten(0, 1), next.flatten())
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
            losses.append(loss.item())
            if len(losses) == steps:
                break
    return losses


if __name__ == "__main__":
    twin.run(train, Gpt())
