"""The twin of cnn_digits.rs in PyTorch: a convolutional network that learns to read digits of 8 by 8 pixels."""
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import twin

BATCH_SIZE = 50
N_TRAIN = 400


def model():
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(32 * 2 * 2, 10),
    )


def train(model, steps):
    images, labels = twin.digits()
    samples = TensorDataset(images[:N_TRAIN], labels[:N_TRAIN])
    loader = DataLoader(samples, BATCH_SIZE, sampler=twin.Shuffled(samples))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)

    losses = []
    while len(losses) < steps:
        for images, labels in loader:
            logits = model(images.reshape(-1, 1, 8, 8))
            loss = F.cross_entropy(logits, labels)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
            if len(losses) == steps:
                break
    return losses


if __name__ == "__main__":
    twin.run(train, model())
