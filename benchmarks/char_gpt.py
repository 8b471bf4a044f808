# The model of examples/char_gpt in Python's PyTorch, trained as char_gpt.cpp trains it. Prints tokens a second, one a round.
#     python3 char_gpt.py UPDATES ROUNDS THREADS
import contextlib
import ctypes
import math
import sys
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

def begin(threads):
    """One process that trains: its threads, its memory, its random numbers."""
    torch.set_num_threads(threads)
    libc = ctypes.CDLL(None)
    libc.mallopt(-3, 1 << 30)  # M_MMAP_THRESHOLD
    libc.mallopt(-1, 1 << 30)  # M_TRIM_THRESHOLD
    torch.manual_seed(1337)


ROWS, CONTEXT, VOCABULARY, WIDTH, HEADS, LAYERS, DROPOUT = 8, 64, 96, 128, 4, 6, 0.1


def attention(query, key, value):
    if hasattr(F, "scaled_dot_product_attention"):
        return F.scaled_dot_product_attention(query, key, value, is_causal=True)
    scores = query @ key.transpose(-2, -1) / math.sqrt(query.size(-1))
    scores = scores + torch.full(scores.shape[-2:], -math.inf).triu(1)
    return scores.softmax(-1) @ value


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.query_key_value, self.merge = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.widen, self.narrow = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.dropout = nn.Dropout(DROPOUT)

    def forward(self, x):
        batch, length, width = x.shape
        parts = self.query_key_value(self.norm1(x)).view(batch, length, 3, HEADS, width // HEADS).permute(2, 0, 3, 1, 4).unbind(0)
        mixed = attention(*parts)
        x = x + self.dropout(self.merge(mixed.transpose(1, 2).reshape(batch, length, width)))
        return x + self.dropout(self.narrow(F.gelu(self.widen(self.norm2(x)))))


class Gpt(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.dropout = nn.Dropout(DROPOUT)

    def forward(self, ids):
        x = self.dropout(self.tokens(ids) + self.positions(torch.arange(ids.size(1))))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def make_model():
    model = Gpt()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() >= 2:
                writes = "merge" in name or "narrow" in name
                parameter.normal_(0.0, 0.02 / math.sqrt(2.0 * LAYERS) if writes else 0.02)
    return model


class Training:
    """Updates of two micro-batches each; of several ranks only the second one is reduced."""

    def __init__(self, model, make_optimizer=torch.optim.AdamW):
        self.model = model
        self.optimizer = make_optimizer(model.parameters(), lr=2e-3, betas=(0.9, 0.95), weight_decay=0.1)
        self.batches = [torch.randint(VOCABULARY, (ROWS, CONTEXT + 1)) for _ in range(16)]
        self.position = 0

    def backward(self):
        ids = self.batches[self.position % len(self.batches)]
        self.position += 1
        logits = self.model(ids[:, :CONTEXT]).flatten(0, 1)
        loss = F.cross_entropy(logits, ids[:, 1:].reshape(-1)) / 2
        loss.backward()
        loss.item()  # what a loop that logs its loss does

    def run(self, count):
        alone = getattr(self.model, "no_sync", contextlib.nullcontext)
        for _ in range(count):
            self.optimizer.zero_grad(set_to_none=True)
            with alone():
                self.backward()
            self.backward()
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.optimizer.step()


if __name__ == "__main__":
    updates, rounds, threads = (int(word) for word in sys.argv[1:4])
    begin(threads)
    training = Training(make_model())
    training.run(5)
    for _ in range(rounds):
        start = time.perf_counter()
        training.run(updates)
        print(f"{2 * ROWS * CONTEXT * updates / (time.perf_counter() - start):.1f}", flush=True)
