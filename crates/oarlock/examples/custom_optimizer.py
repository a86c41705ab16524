"""The twin of custom_optimizer.rs in PyTorch: an optimizer with a rule of its own, AdaBelief."""
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader

import twin

BATCH_SIZE = 50


class AdaBelief(torch.optim.Optimizer):
    def __init__(self, params, lr, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0):
        super().__init__(params, dict(lr=lr, betas=betas, eps=eps, weight_decay=weight_decay))

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            lr, (beta1, beta2), eps = group["lr"], group["betas"], group["eps"]
            for w in group["params"]:
                state = self.state[w]
                if not state:
                    state.update(step=0, exp_avg=torch.zeros_like(w), exp_avg_var=torch.zeros_like(w))
                state["step"] += 1
                g, m, s = w.grad, state["exp_avg"], state["exp_avg_var"]
                m.mul_(beta1).add_((1 - beta1) * g)
                s.mul_(beta2).add_((1 - beta2) * (g - m) ** 2 + eps)
                correction1, correction2 = 1 - beta1 ** state["step"], 1 - beta2 ** state["step"]
                w.sub_(lr * group["weight_decay"] * w)
                w.sub_(lr * (m / correction1) / ((s / correction2).sqrt() + eps))


def train(model, steps):
    samples = list(zip(*twin.digits()))
    loader = DataLoader(samples, BATCH_SIZE, sampler=twin.Shuffled(samples), drop_last=True)
    vectors = [p for p in model.parameters() if p.ndim < 2]
    matrices = [p for p in model.parameters() if p.ndim >= 2]
    groups = [{"params": matrices}, {"params": vectors, "weight_decay": 0.0}]
    optimizer = AdaBelief(groups, lr=1e-2, weight_decay=0.1)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)

    losses = []
    while len(losses) < steps:
        for images, digits in loader:
            loss = F.cross_entropy(model(images), digits)
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
    twin.run(train, nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10)))
