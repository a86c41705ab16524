"""The twin of gan.rs in PyTorch: one network draws digits, the other tells them from real ones."""
import math

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader

import twin

BATCH_SIZE = 50
N_LATENT = 16


def generator():
    return nn.Sequential(nn.Linear(N_LATENT, 128), nn.ReLU(), nn.Linear(128, 64), nn.Sigmoid())


class Discriminator(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(64, 128)
        self.fc2 = nn.Linear(128, 1)

    def forward(self, images):
        return self.fc2(F.leaky_relu(self.fc1(images), 0.2))


def should_say(logits, verdict):
    return F.binary_cross_entropy_with_logits(logits, torch.full_like(logits, verdict))


def uniform(n):
    x = n * 0x9E3779B1 % 2**32
    x = (x ^ x >> 15) * 0x85EBCA77 % 2**32
    return (x ^ x >> 13) / 2**32


def normal(n):
    u, v = uniform(2 * n), uniform(2 * n + 1)
    return math.sqrt(-2 * math.log(1 - u)) * math.cos(math.tau * v)


def train(generator, discriminator, steps):
    digits, _ = twin.digits()
    noise = lambda i: torch.tensor([normal(n) for n in range(i * N_LATENT, (i + 1) * N_LATENT)])
    samples = [(digits[i % len(digits)], noise(i)) for i in range(steps * BATCH_SIZE)]
    loader = DataLoader(samples, BATCH_SIZE)
    g_optimizer = torch.optim.Adam(generator.parameters(), lr=5e-4, betas=(0.5, 0.999))
    d_optimizer = torch.optim.Adam(discriminator.parameters(), lr=5e-4, betas=(0.5, 0.999))

    losses = []
    for real, noise in loader:
        drawn = generator(noise)

        on_real = should_say(discriminator(real), 1.0)
        on_drawn = should_say(discriminator(drawn.detach()), 0.0)
        d_loss = on_real + on_drawn
        d_loss.backward()
        d_optimizer.step()
        d_optimizer.zero_grad()

        g_loss = should_say(discriminator(drawn), 1.0)
        g_loss.backward()
        g_optimizer.step()
        g_optimizer.zero_grad()
        # The loss of the generator went through the discriminator and left gradients there.
        d_optimizer.zero_grad()

        losses += [d_loss.item(), g_loss.item()]
    return losses


if __name__ == "__main__":
    twin.run(train, generator(), Discriminator())
