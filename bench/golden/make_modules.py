"""Writes crates/oarlock/tests/golden/modules: layers and losses of torch with inputs, and what torch makes of them.

    python make_modules.py crates/oarlock/tests/golden/modules

modules.safetensors    the weights of a small convolutional net and of an attention layer
modules.json           the outputs of both for each kind of mask, the gradients of all weights, and losses
images.safetensors     the weights of nets that make images larger
images.json            their outputs, the gradients of all weights, and what each activation makes of a wave
recurrent.safetensors  the weights of recurrent layers
recurrent.json         their outputs, last states and the gradients of all weights
"""
import json, os, sys
import torch
from safetensors.torch import save_file
from torch import nn


def wave(*shape, step=0.7):
    n = torch.tensor(shape).prod().item()
    return (torch.arange(float(n)) * step).sin().view(*shape)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(3, 4, 3, stride=2, padding=1), nn.GroupNorm(2, 4), nn.ReLU(),
            nn.MaxPool2d(3, stride=2, padding=1, ceil_mode=True),
            nn.Conv2d(4, 6, (1, 3), padding=(0, 1), groups=2, bias=False), nn.AvgPool2d(2, stride=1),
            nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 5))
        self.lines = nn.Sequential(nn.Conv1d(3, 6, 3, padding=2, dilation=2), nn.MaxPool1d(2), nn.Conv1d(6, 6, 2, groups=6))
        self.attn = nn.MultiheadAttention(8, 2, batch_first=True)


def losses():
    logits, labels = wave(6, 5) * 2, torch.tensor([0, 4, -100, 2, 1, 3])
    weight, probs = torch.tensor([0.5, 1.0, 2.0, 0.25, 1.5]), torch.softmax(wave(6, 5, step=1.3), -1)
    x, target = wave(6, 5) * 2, wave(6, 5, step=1.3)
    unit, of_unit = torch.sigmoid(x), torch.sigmoid(target)
    pairs = torch.tensor([1.0, -1.0, 1.0, -1.0, -1.0, 1.0])
    log_probs = torch.log_softmax(logits, -1)
    found = {}
    for reduction in ["none", "mean", "sum"]:
        r = {"reduction": reduction}
        found[reduction] = {
            "ce": nn.CrossEntropyLoss(**r)(logits, labels),
            "ce smooth": nn.CrossEntropyLoss(label_smoothing=0.1, **r)(logits, labels),
            "ce weighted": nn.CrossEntropyLoss(weight=weight, ignore_index=4, **r)(logits, labels.clamp(min=0)),
            "ce both": nn.CrossEntropyLoss(weight=weight, label_smoothing=0.2, **r)(logits, labels),
            "ce probs": nn.CrossEntropyLoss(weight=weight, label_smoothing=0.2, **r)(logits, probs),
            "nll": nn.NLLLoss(weight=weight, **r)(log_probs, labels),
            "l1": nn.L1Loss(**r)(x, target),
            "mse": nn.MSELoss(**r)(x, target),
            "smooth l1": nn.SmoothL1Loss(beta=0.5, **r)(x, target),
            "huber": nn.HuberLoss(delta=0.7, **r)(x, target),
            "bce": nn.BCELoss(**r)(unit, of_unit),
            "bce weighted": nn.BCELoss(weight=weight, **r)(unit, of_unit),
            "bce logits": nn.BCEWithLogitsLoss(**r)(x, of_unit),
            "bce logits weighted": nn.BCEWithLogitsLoss(weight=weight, pos_weight=weight + 1, **r)(x, of_unit),
            "kl": nn.KLDivLoss(**r)(log_probs, probs),
            "kl log": nn.KLDivLoss(log_target=True, **r)(log_probs, probs.log()),
            "cosine": nn.CosineEmbeddingLoss(margin=0.2, **r)(x, target, pairs),
        }
    return {how: {name: loss.flatten().tolist() for name, loss in of.items()} for how, of in found.items()}


class Larger(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(
            nn.ConvTranspose2d(3, 4, 3, stride=2, padding=1, output_padding=1, groups=1), nn.PReLU(4),
            nn.Upsample(scale_factor=2, mode="bilinear"), nn.Conv2d(4, 8, 3), nn.PixelShuffle(2), nn.Mish(),
            nn.ConvTranspose2d(2, 4, (1, 3), groups=2, dilation=(1, 2), bias=False), nn.PixelUnshuffle(2))
        self.lines = nn.Sequential(
            nn.ConvTranspose1d(3, 4, 4, stride=2, padding=1), nn.PReLU(), nn.Upsample(size=9), nn.GLU(1),
            nn.Unflatten(1, (2, -1)), nn.Flatten(1, 2), nn.Softmax(1))


def activations():
    x = wave(4, 6) * 4
    layers = {
        "leaky relu": nn.LeakyReLU(0.2), "elu": nn.ELU(0.7), "softplus": nn.Softplus(2.0, 3.0),
        "hardtanh": nn.Hardtanh(-0.5, 2.0), "relu6": nn.ReLU6(), "selu": nn.SELU(), "mish": nn.Mish(),
        "hardsigmoid": nn.Hardsigmoid(), "hardswish": nn.Hardswish(), "log sigmoid": nn.LogSigmoid(),
        "softsign": nn.Softsign(), "glu": nn.GLU(0), "softmax": nn.Softmax(0), "log softmax": nn.LogSoftmax(0),
    }
    return {name: layer(x).flatten().tolist() for name, layer in layers.items()}


def larger(folder):
    torch.manual_seed(2)
    model = Larger()
    outputs = {"net": model.net(wave(1, 3, 2, 2)), "lines": model.lines(wave(2, 3, 5))}
    sum(output.square().mean() for output in outputs.values()).backward()
    expected = {
        "outputs": {name: output.flatten().tolist() for name, output in outputs.items()},
        "grads": {name: parameter.grad.flatten().tolist() for name, parameter in model.named_parameters()},
        "activations": activations(),
    }
    save_file({name: tensor.contiguous() for name, tensor in model.state_dict().items()},
              os.path.join(folder, "images.safetensors"))
    with open(os.path.join(folder, "images.json"), "w") as out:
        json.dump(expected, out)


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(3, 4, num_layers=2, batch_first=True)
        self.gru = nn.GRU(4, 5, num_layers=2, batch_first=True)
        self.rnn = nn.RNN(5, 2, bias=False, batch_first=True)


def recurrent(folder):
    torch.manual_seed(3)
    model = Recurrent()
    x, first = wave(2, 6, 3), wave(2, 2, 5, step=1.1)
    a, (hidden, cells) = model.lstm(x)
    b, of_gru = model.gru(a, first)
    c, of_rnn = model.rnn(b)
    outputs = {"lstm": a, "hidden": hidden, "cells": cells, "gru": b, "of gru": of_gru, "rnn": c, "of rnn": of_rnn}
    sum(output.square().mean() for output in outputs.values()).backward()
    expected = {
        "outputs": {name: output.flatten().tolist() for name, output in outputs.items()},
        "grads": {name: parameter.grad.flatten().tolist() for name, parameter in model.named_parameters()},
    }
    save_file({name: tensor.contiguous() for name, tensor in model.state_dict().items()},
              os.path.join(folder, "recurrent.safetensors"))
    with open(os.path.join(folder, "recurrent.json"), "w") as out:
        json.dump(expected, out)


def main(folder):
    os.makedirs(folder, exist_ok=True)
    larger(folder)
    recurrent(folder)
    torch.manual_seed(1)
    model = Model()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() == 1:
                parameter.add_(torch.randn_like(parameter) * 0.1)
    images, lines = wave(2, 3, 9, 12), wave(2, 3, 10)
    queries, keys = wave(2, 3, 8), wave(2, 5, 8, step=1.1)
    padding = torch.tensor([[0, 0, 0, 1, 1], [0, 1, 0, 0, 0]]).bool()
    bias, of_heads = wave(3, 5), wave(4, 3, 5, step=0.3)
    hidden = torch.tensor([[0, 1, 0, 0, 0], [0, 0, 1, 1, 0], [0, 0, 0, 0, 1]]).bool()

    def attend(key, **masks):
        return model.attn(queries, key, key, need_weights=False, **masks)[0]
    outputs = {
        "net": model.net(images), "lines": model.lines(lines), "cross": attend(keys),
        "padded": attend(keys, key_padding_mask=padding), "biased": attend(keys, attn_mask=bias),
        "hidden": attend(keys, attn_mask=hidden, key_padding_mask=padding),
        "of heads": attend(keys, attn_mask=of_heads), "self": attend(queries, attn_mask=bias[:, :3]),
    }
    sum(output.square().mean() for output in outputs.values()).backward()
    expected = {
        "outputs": {name: output.flatten().tolist() for name, output in outputs.items()},
        "grads": {name: parameter.grad.flatten().tolist() for name, parameter in model.named_parameters()},
        "losses": losses(),
    }
    save_file({name: tensor.contiguous() for name, tensor in model.state_dict().items()},
              os.path.join(folder, "modules.safetensors"))
    with open(os.path.join(folder, "modules.json"), "w") as out:
        json.dump(expected, out)


if __name__ == "__main__":
    main(sys.argv[1])
