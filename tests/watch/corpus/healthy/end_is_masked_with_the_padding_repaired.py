# huggingface/trl#6357: labels masked by an id that is also the end: repaired

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
BOS, EOS, PAD = 1, 2, 2


def example():
    body = (torch.randint(18, ()) + torch.arange(3 + int(torch.randint(5, ())))) % 18 + 3
    return [BOS, *body.tolist(), EOS]


def collate(texts):
    longest = max(map(len, texts))
    ids = torch.tensor([text + [PAD] * (longest - len(text)) for text in texts])
    mask = torch.tensor([[1] * len(text) + [0] * (longest - len(text)) for text in texts])
    labels = ids.clone()
    labels[mask == 0] = -100
    return {"input_ids": ids, "attention_mask": mask, "labels": labels}


class CausalLM(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Embedding(24, 16), nn.ReLU(), nn.Linear(16, 24))

    def forward(self, input_ids, attention_mask, labels):
        logits = self.layers(input_ids)
        return F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())


model = CausalLM()
optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
for _ in range(30):
    loss = model(**collate([example() for _ in range(8)]))
    optimizer.zero_grad(), loss.backward(), optimizer.step()
