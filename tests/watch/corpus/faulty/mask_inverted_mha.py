# Source: InseeFrLab/torchTextClassifiers#92
# Trap: 08.2

import torch
from torch import nn

torch.manual_seed(0)
PAD = 0


class TextClassifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(100, 32, padding_idx=PAD)
        layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(32, 2)

    def forward(self, ids):
        mask = ids != PAD
        h = self.encoder(self.embed(ids), src_key_padding_mask=mask).nan_to_num()  # fault
        return self.head((h * mask[..., None]).sum(1) / mask.sum(1, keepdim=True))


def batch():
    ids = torch.randint(1, 100, (16, 12))
    n = torch.randint(4, 12, (16,))
    ids[torch.arange(12)[None] >= n[:, None]] = PAD
    return ids, (ids[:, 0] > 50).long()


model = TextClassifier()
opt = torch.optim.Adam(model.parameters(), 1e-3)
for step in range(20):
    ids, y = batch()
    loss = nn.functional.cross_entropy(model(ids), y)
    opt.zero_grad()
    loss.backward()
    opt.step()
