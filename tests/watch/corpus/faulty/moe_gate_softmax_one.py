# Source: davidmrau/mixture-of-experts#27 (with its rule)
# Trap: 15.4

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)


class MoE(nn.Module):
    def __init__(self, d, n, k):
        super().__init__()
        self.k, self.n = k, n
        self.w_gate = nn.Parameter(torch.zeros(d, n).normal_(std=0.1))
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(d, 32), nn.ReLU(), nn.Linear(32, 5)) for _ in range(n))
        self.softmax = nn.Softmax(1)

    def forward(self, x):
        logits = x @ self.w_gate
        top_logits, top_idx = logits.topk(self.k, dim=1)
        top_gates = self.softmax(top_logits)  # fault
        gates = torch.zeros_like(logits).scatter(1, top_idx, top_gates)
        return sum(gates[:, i:i + 1] * e(x) for i, e in enumerate(self.experts))


net = MoE(12, 6, 1)
opt = torch.optim.Adam(net.parameters(), 1e-3)
for _ in range(40):
    x = torch.randn(64, 12)
    loss = F.cross_entropy(net(x), x[:, :5].argmax(1))
    opt.zero_grad()
    loss.backward()
    opt.step()
