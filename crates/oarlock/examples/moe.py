"""The twin of moe.rs in PyTorch: a mixture of experts with a router and a balancing loss."""
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader

import twin

BATCH_SIZE = 50
DIM = 32
N_EXPERTS = 8
TOP_K = 2
BALANCE = 0.01


class Mlp(nn.Module):
    def __init__(self, dim, hidden):
        super().__init__()
        self.fc1 = nn.Linear(dim, hidden)
        self.fc2 = nn.Linear(hidden, dim)

    def forward(self, x):
        return self.fc2(F.gelu(self.fc1(x)))


class MixtureOfExperts(nn.Module):
    def __init__(self):
        super().__init__()
        self.router = nn.Linear(DIM, N_EXPERTS, bias=False)
        self.experts = nn.ModuleList(Mlp(DIM, 2 * DIM) for _ in range(N_EXPERTS))

    def forward(self, x):
        probs = self.router(x).softmax(-1)
        gates, chosen = probs.topk(TOP_K, -1)
        gates = (gates / gates.sum(-1, keepdim=True)).flatten()
        y = torch.zeros_like(x)
        for index, expert in enumerate(self.experts):
            places = (chosen.flatten() == index).nonzero().flatten()
            rows = places // TOP_K
            y = y.index_add(0, rows, expert(x[rows]) * gates[places].unsqueeze(-1))
        return y, (probs, chosen)


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Linear(64, DIM)
        self.moe = MixtureOfExperts()
        self.head = nn.Linear(DIM, 10)

    def forward(self, images):
        x = F.relu(self.stem(images))
        y, routing = self.moe(x)
        return self.head(x + y), routing


def train(model, steps):
    samples = list(zip(*twin.digits()))
    loader = DataLoader(samples, BATCH_SIZE, sampler=twin.Shuffled(samples), drop_last=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)

    losses = []
    while len(losses) < steps:
        for images, digits in loader:
            logits, (probs, chosen) = model(images)
            share = F.one_hot(chosen, N_EXPERTS).float().mean((0, 1))
            balance = (share * probs.mean(0)).sum() * N_EXPERTS
            loss = F.cross_entropy(logits, digits) + BALANCE * balance
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
            if len(losses) == steps:
                break
    return losses


if __name__ == "__main__":
    twin.run(train, Classifier())
