"""The twin of vae.rs in PyTorch: a variational autoencoder that squeezes digits of 64 pixels through 8 numbers."""
import math

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader

import twin

BATCH_SIZE = 50
N_LATENT = 8


class Vae(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Linear(64, 128)
        self.mean = nn.Linear(128, N_LATENT)
        self.log_var = nn.Linear(128, N_LATENT)
        self.decoder = nn.Sequential(nn.Linear(N_LATENT, 128), nn.ReLU(), nn.Linear(128, 64))

    def forward(self, images, noise):
        hidden = F.relu(self.encoder(images))
        mean, log_var = self.mean(hidden), self.log_var(hidden)
        latent = mean + noise * (0.5 * log_var).exp()
        return self.decoder(latent), mean, log_var


def uniform(n):
    x = n * 0x9E3779B1 % 2**32
    x = (x ^ x >> 15) * 0x85EBCA77 % 2**32
    return (x ^ x >> 13) / 2**32


def normal(n):
    u, v = uniform(2 * n), uniform(2 * n + 1)
    return math.sqrt(-2 * math.log(1 - u)) * math.cos(math.tau * v)


def train(model, steps):
    digits, _ = twin.digits()
    noise = lambda i: torch.tensor([normal(n) for n in range(i * N_LATENT, (i + 1) * N_LATENT)])
    samples = [(digits[i % len(digits)], noise(i)) for i in range(steps * BATCH_SIZE)]
    loader = DataLoader(samples, BATCH_SIZE)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)

    losses = []
    for images, noise in loader:
        logits, mean, log_var = model(images, noise)
        divergence = 0.5 * (mean.square() + log_var.exp() - log_var - 1).sum()
        reconstruction = F.binary_cross_entropy_with_logits(logits, images, reduction="sum")
        loss = (reconstruction + divergence) / len(images)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


if __name__ == "__main__":
    twin.run(train, Vae())
