# huggingface/transformers#26098: frozen after the adapters were added: repaired

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)


class LoraLinear(nn.Module):
    def __init__(self, base, r=2):
        super().__init__()
        self.base = base
        self.lora_A = nn.Parameter(torch.randn(r, base.in_features) / 4)
        self.lora_B = nn.Parameter(torch.zeros(base.out_features, r))

    def forward(self, h):
        return self.base(h) + h @ self.lora_A.T @ self.lora_B.T


def prepare(model):
    model.requires_grad_(False)
    model[0].register_forward_hook(lambda mod, given, out: out.requires_grad_(True))


model = nn.Sequential(nn.Embedding(20, 16), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 20))
prepare(model)
model[1] = LoraLinear(model[1])
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
for step in range(12):
    ids = (torch.randint(20, (16, 1)) + 3 * torch.arange(9)) % 20
    loss = F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
    optimizer.zero_grad(), loss.backward(), optimizer.step()
