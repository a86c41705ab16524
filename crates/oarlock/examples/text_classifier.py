"""The twin of text_classifier.rs in PyTorch, with the model of transformers: is a review glad or sorry?"""
import json, os, sys

import torch
from torch.utils.data import DataLoader
from transformers import AutoModelForSequenceClassification

import twin

NUM_EPOCHS = 5
BATCH_SIZE = 8
LR = 5e-3
PAD = 0
CHECKPOINT = os.path.join(twin.HERE, "../tests/golden/text_classifier/model")


def reviews(name):
    with open(os.path.join(twin.HERE, "reviews", name)) as file:
        return [json.loads(line) for line in file]


def collate(reviews):
    texts = [[byte + 1 for byte in review["text"].encode()] for review in reviews]
    longest = max(map(len, texts))
    ids = torch.tensor([text + [PAD] * (longest - len(text)) for text in texts])
    return {"input_ids": ids, "attention_mask": ids != PAD}, torch.tensor([review["label"] for review in reviews])


def accuracy(model, dataloader):
    model.eval()
    with torch.no_grad():
        right = [model(**inputs).logits.argmax(-1) == labels for inputs, labels in dataloader]
    return torch.cat(right).float().mean().item()


def train(steps):
    train_dataloader = DataLoader(reviews("train.jsonl"), BATCH_SIZE, collate_fn=collate)
    eval_dataloader = DataLoader(reviews("eval.jsonl"), BATCH_SIZE, collate_fn=collate)
    model = AutoModelForSequenceClassification.from_pretrained(CHECKPOINT, num_labels=2, dtype=torch.float32)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LR)
    num_training_steps = NUM_EPOCHS * len(train_dataloader)
    lr_scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, num_training_steps)

    losses = []
    for epoch in range(1, NUM_EPOCHS + 1):
        model.train()
        for inputs, labels in train_dataloader:
            loss = model(**inputs, labels=labels).loss
            loss.backward()
            optimizer.step()
            lr_scheduler.step()
            optimizer.zero_grad()
            losses.append(loss.item())
            if len(losses) == steps:
                return losses
        print(f"epoch {epoch}: accuracy {accuracy(model, eval_dataloader):.3f}", file=sys.stderr)
    return losses


if __name__ == "__main__":
    twin.run(train)
