# Source: an issue of CoMPM: RoBERTa gets padding and no attention mask (with its rule)
# Trap: 08.2

import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from transformers import RobertaConfig, RobertaModel

torch.manual_seed(0)
PAD = 1


class Emotion(nn.Module):
    def __init__(self):
        super().__init__()
        self.context = RobertaModel(RobertaConfig(
            vocab_size=50, hidden_size=32, num_hidden_layers=1, num_attention_heads=2,
            intermediate_size=48, max_position_embeddings=40, pad_token_id=PAD),
            add_pooling_layer=False)
        self.w = nn.Linear(32, 3)

    def forward(self, tokens):
        out = self.context(tokens).last_hidden_state[:, 0]  # fault
        return self.w(out)


model = Emotion()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for _ in range(25):
    rows = [torch.randint(5, 50, (n,)) for n in torch.randint(4, 20, (12,)).tolist()]
    batch = pad_sequence(rows, batch_first=True, padding_value=PAD)
    target = torch.stack([r[0] % 3 for r in rows])
    loss = nn.functional.cross_entropy(model(batch), target)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
