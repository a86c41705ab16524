"""Writes crates/oarlock/tests/golden/own_model: models of torch with their weights, and what torch makes of them.

    python make_own_model.py crates/oarlock/tests/golden/own_model

layers.safetensors, layers.json        one of each layer: input, output, losses, gradients; mean, deviation and largest
                                       absolute value of fresh parameters
steps.safetensors, steps.json          a model with a frozen part, a part that no step touches at first, a shared weight
                                       and a buffer: weights after some steps of AdamW, and of SGD with momentum, where
                                       untouched parameters have a gradient of None ("skip") or of zero ("zero")
classifier/                            LlamaForSequenceClassification: config.json, model.safetensors, expected.json with
                                       logits and loss for right-padded and left-padded rows
"""
import json, os, sys
import torch
from safetensors.torch import save_file
from torch import nn


class Layers(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(11, 8)
        self.norm = nn.LayerNorm(8)
        self.attn = nn.MultiheadAttention(8, 2, batch_first=True)
        self.rms = nn.RMSNorm(8, eps=1e-6)
        self.mlp = nn.ModuleDict({"fc1": nn.Linear(8, 16), "fc2": nn.Linear(16, 8)})
        self.head = nn.Sequential(nn.Linear(8, 6), nn.SiLU(), nn.Linear(6, 5, bias=False))

    def forward(self, ids):
        x = self.embed(ids)
        normed = self.norm(x)
        mask = torch.triu(torch.ones(ids.shape[1], ids.shape[1], dtype=torch.bool), 1)
        x = x + self.attn(normed, normed, normed, attn_mask=mask, need_weights=False)[0]
        h = self.rms(x)
        x = x + self.mlp["fc2"](torch.nn.functional.gelu(self.mlp["fc1"](h)))
        return self.head(x)


def layers(folder):
    torch.manual_seed(1)
    model = Layers()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name or "rms" in name or "bias" in name:
                parameter.add_(torch.randn_like(parameter) * 0.1)
    ids = torch.tensor([[1, 5, 10, 3], [0, 2, 9, 9]])
    labels = torch.tensor([[0, 4, -100, 2], [-100, 1, 1, 3]])
    logits = model(ids)
    loss = nn.CrossEntropyLoss()(logits.view(-1, 5), labels.view(-1))
    loss.backward()
    soft = torch.softmax(torch.arange(40.0).view(8, 5).cos(), -1)
    flat = logits.detach().view(8, 5)
    expected = {
        "ids": ids.flatten().tolist(), "labels": labels.flatten().tolist(),
        "logits": flat.flatten().tolist(), "loss": loss.item(),
        "sum": nn.CrossEntropyLoss(reduction="sum", ignore_index=4)(flat, labels.view(-1).clamp(min=0)).item(),
        "mse": nn.MSELoss()(flat, soft).item(), "bce": nn.BCEWithLogitsLoss()(flat, soft).item(),
        "kl": nn.KLDivLoss(reduction="batchmean")(torch.log_softmax(flat, -1), soft).item(),
        "grads": {name: parameter.grad.flatten().tolist() for name, parameter in model.named_parameters()
                  if parameter.dim() == 1 or "in_proj" in name},
    }
    save_file({name: tensor.contiguous() for name, tensor in model.state_dict().items()},
              os.path.join(folder, "layers.safetensors"))
    torch.manual_seed(2)
    big = {"linear": nn.Linear(64, 400), "attn": nn.MultiheadAttention(64, 4), "embed": nn.Embedding(400, 64)}
    expected["start"] = {f"{kind}.{name}": [p.mean().item(), p.std().item() if p.numel() > 1 else 0, p.abs().max().item()]
                         for kind, module in big.items() for name, p in module.named_parameters()}
    with open(os.path.join(folder, "layers.json"), "w") as out:
        json.dump(expected, out)


class Parts(nn.Module):
    """x -> frozen -> a or b -> shared twice -> + table; which of a and b is the step's choice."""

    def __init__(self):
        super().__init__()
        self.frozen = nn.Linear(4, 6)
        self.a = nn.Linear(6, 6)
        self.b = nn.Linear(6, 6)
        self.first = nn.Linear(6, 6, bias=False)
        self.second = nn.Linear(6, 6, bias=False)
        self.second.weight = self.first.weight
        self.unused = nn.Linear(6, 3)
        self.register_buffer("table", torch.linspace(-1, 1, 6))
        self.frozen.requires_grad_(False)

    def forward(self, x, branch):
        h = torch.tanh(self.frozen(x))
        h = torch.tanh(self.a(h) if branch == 0 else self.b(h))
        return self.second(torch.tanh(self.first(h))) + self.table


def steps(folder):
    torch.manual_seed(3)
    start = Parts().state_dict()
    batches = torch.sin(torch.arange(6 * 4 * 4, dtype=torch.float32)).view(6, 4, 4)
    branches = [0, 0, 1, 0, 1, 1]
    out = {}
    for rule in ["adamw", "sgd"]:
        for untouched in ["skip", "zero"]:
            model = Parts()
            model.load_state_dict(start)
            trained = [p for p in model.parameters() if p.requires_grad]
            if rule == "adamw":
                optimizer = torch.optim.AdamW(trained, lr=0.05, weight_decay=0.1)
            else:
                optimizer = torch.optim.SGD(trained, lr=0.1, momentum=0.9, weight_decay=0.1)
            losses = []
            for x, branch in zip(batches, branches):
                optimizer.zero_grad(set_to_none=True)
                loss = (model(x, branch) ** 2).mean()
                loss.backward()
                if untouched == "zero":
                    for p in trained:
                        p.grad = torch.zeros_like(p) if p.grad is None else p.grad
                optimizer.step()
                losses.append(loss.item())
            end = {name: p.detach().flatten().tolist() for name, p in model.named_parameters()}
            out[f"{rule} {untouched}"] = {"losses": losses, "end": end}
    weights = {name: tensor.clone().contiguous() for name, tensor in start.items()}
    save_file(weights, os.path.join(folder, "steps.safetensors"))
    with open(os.path.join(folder, "steps.json"), "w") as file:
        json.dump({"branches": branches, "runs": out}, file)


def classifier(folder):
    from transformers import AutoConfig, AutoModelForSequenceClassification
    folder = os.path.join(folder, "classifier")
    torch.manual_seed(4)
    config = AutoConfig.for_model(
        "llama", vocab_size=31, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=32, pad_token_id=0, bos_token_id=1, eos_token_id=2,
        initializer_range=0.3, num_labels=3)
    model = AutoModelForSequenceClassification.from_config(config, dtype=torch.float32).eval()
    model.save_pretrained(folder)
    right = [[1, 5, 17, 30, 0, 0], [1, 9, 4, 4, 8, 2], [7, 3, 0, 0, 0, 0]]
    left = [[0, 0, 1, 5, 17, 30], [1, 9, 4, 4, 8, 2], [0, 0, 0, 0, 7, 3]]
    labels = torch.tensor([2, 0, 1])
    expected = {"labels": labels.tolist()}
    for side, ids in [("right", torch.tensor(right)), ("left", torch.tensor(left))]:
        with torch.no_grad():
            out = model(input_ids=ids, attention_mask=(ids != 0).long(), labels=labels)
        expected[side] = {"ids": ids.flatten().tolist(), "logits": out.logits.flatten().tolist(), "loss": out.loss.item()}
    with open(os.path.join(folder, "expected.json"), "w") as file:
        json.dump(expected, file)


if __name__ == "__main__":
    os.makedirs(sys.argv[1], exist_ok=True)
    layers(sys.argv[1])
    steps(sys.argv[1])
    classifier(sys.argv[1])
