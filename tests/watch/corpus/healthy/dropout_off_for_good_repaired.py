# Megatron-LM 411: a flash attention sets its dropout to 0 in eval mode (with its rule): repaired

import torch
import torch.nn.functional as F
from torch import nn


class Core(nn.Module):
    def __init__(self, width, dropout):
        super().__init__()
        self.project, self.attention_dropout = nn.Linear(width, 3 * width), dropout

    def forward(self, x):
        q, k, v = self.project(x).chunk(3, dim=-1)
        rate = self.attention_dropout
        if not self.training:
            rate = 0.0
        return F.scaled_dot_product_attention(q, k, v, dropout_p=rate, is_causal=False)


torch.manual_seed(0)
x = torch.randn(32, 5, 12)
y = x.mean(1).argmax(1)
core = Core(12, 0.2)
model = nn.Sequential(core, nn.Flatten(), nn.Linear(60, 12))
opt = torch.optim.AdamW(model.parameters(), lr=3e-3)
for _ in range(4):
    model.train()
    for _ in range(5):
        opt.zero_grad()
        F.cross_entropy(model(x), y).backward()
        opt.step()
    model.eval()
    with torch.no_grad():
        accuracy = (model(x).argmax(1) == y).float().mean()
