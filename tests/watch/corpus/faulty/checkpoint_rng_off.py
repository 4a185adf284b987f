# Source: allenai/OLMo-core#828 (with its rule)
# Trap: 15.6

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

torch.manual_seed(0)


class Block(nn.Module):
    def __init__(self, d=32):
        super().__init__()
        self.layers = nn.Sequential(nn.LayerNorm(d), nn.Linear(d, d), nn.GELU(), nn.Dropout(0.1))

    def forward(self, h):
        return h + self.layers(h)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb, self.head = nn.Embedding(50, 32), nn.Linear(32, 50)
        self.blocks = nn.ModuleList(Block() for _ in range(3))

    def forward(self, h):
        h = self.emb(h)
        for block in self.blocks:
            h = checkpoint(block, h, use_reentrant=False, preserve_rng_state=False)  # fault
        return self.head(h)


model = Model()
opt = torch.optim.AdamW(model.parameters(), 1e-3)
for _ in range(20):
    ids = torch.randint(0, 50, (4, 9)).cumsum(1) % 50
    loss = nn.functional.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
    opt.zero_grad()
    loss.backward()
    opt.step()
