# Source: jingyaogong/minimind#858 (with its rule)
# Trap: 15.4

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)


class Gate(nn.Module):
    def __init__(self, top_k=1):
        super().__init__()
        self.top_k = top_k
        self.weight = nn.Parameter(torch.randn(4, 16) * 0.1)

    def forward(self, h):
        scores = F.linear(h.view(-1, 16), self.weight).softmax(dim=-1)
        topk_weight, topk_idx = torch.topk(scores, k=self.top_k, dim=-1, sorted=False)
        topk_weight = topk_weight / (topk_weight.sum(dim=-1, keepdim=True) + 1e-20)  # fault
        return topk_idx, topk_weight


emb, gate, head = nn.Embedding(40, 16), Gate(), nn.Linear(16, 40)
experts = nn.ModuleList(
    nn.Sequential(nn.Linear(16, 32), nn.SiLU(), nn.Linear(32, 16)) for _ in range(4))
net = nn.ModuleList([emb, gate, head, experts])
opt = torch.optim.AdamW(net.parameters(), 1e-3)
for _ in range(30):
    ids = torch.randint(0, 40, (4, 12)).cumsum(1) % 40
    h = emb(ids[:, :-1])
    idx, w = gate(h)
    flat, y = h.reshape(-1, 16), torch.zeros(44, 16)
    for i, e in enumerate(experts):
        y[idx[:, 0] == i] = e(flat[idx[:, 0] == i]) * w[idx[:, 0] == i]
    loss = F.cross_entropy(head(flat + y), ids[:, 1:].flatten())
    opt.zero_grad()
    loss.backward()
    opt.step()
