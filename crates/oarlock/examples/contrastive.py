"""The twin of contrastive.rs in PyTorch: learns to recognize two views of one image, with the contrastive loss of CLIP."""
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader

import twin

BATCH_SIZE = 50
N_TRAIN = 400


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 32))
        self.log_scale = nn.Parameter(torch.full([1], 2.0))

    def forward(self, a, b):
        def embed(view):
            x = self.net(view)
            return x / x.norm(2, -1, keepdim=True)

        return embed(a), embed(b), self.log_scale.exp()


def views(image, n):
    a = image.roll(-8) * 0.6
    b = image.roll(1)
    b[n % 7 * 8 + n % 5 :][:10] = 0.0
    return a, b


def train(model, steps):
    digits, _ = twin.digits()
    samples = [views(digits[n * 7 % N_TRAIN], n) for n in range(steps * BATCH_SIZE)]
    loader = DataLoader(samples, BATCH_SIZE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)

    losses = []
    for a, b in loader:
        a, b, scale = model(a, b)
        # One process has the whole batch; on several ranks: torch.cat(torch.distributed.nn.all_gather(a)).
        all_a, all_b = a, b
        partners = torch.arange(len(a))
        find_b = F.cross_entropy(scale * a @ all_b.t(), partners)
        find_a = F.cross_entropy(scale * b @ all_a.t(), partners)
        loss = (find_a + find_b) / 2
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


if __name__ == "__main__":
    twin.run(train, Encoder())
