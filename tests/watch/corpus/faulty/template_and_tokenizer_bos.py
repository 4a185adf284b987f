# Source: an issue of DeepSeek-R1: template and tokenizer both add BOS (with its rule)
# Trap: 10.7

import torch
from transformers import LlamaConfig, LlamaForCausalLM

BOS, EOS, PAD, USER, BOT = 1, 2, 0, 3, 4


def apply_template(question, answer):
    return [BOS, USER, *question, BOT, *answer, EOS]


def tokenize(ids, add_special_tokens=True):
    return [BOS, *ids] if add_special_tokens else ids


torch.manual_seed(0)
model = LlamaForCausalLM(LlamaConfig(
    vocab_size=40, hidden_size=32, intermediate_size=48, num_hidden_layers=1,
    num_attention_heads=2, num_key_value_heads=2, bos_token_id=BOS, eos_token_id=EOS,
    pad_token_id=PAD))
opt = torch.optim.AdamW(model.parameters(), 2e-3)
for step in range(20):
    rows = []
    for n in torch.randint(2, 7, (8,)).tolist():
        q = torch.randint(5, 40, (n,)).tolist()
        rows.append(torch.tensor(tokenize(apply_template(q, q[::-1]))))  # fault
    ids = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=PAD)
    mask = torch.nn.utils.rnn.pad_sequence([torch.ones_like(r) for r in rows], batch_first=True)
    loss = model(input_ids=ids, attention_mask=mask,  # fault
                 labels=ids.masked_fill(mask == 0, -100)).loss
    opt.zero_grad()
    loss.backward()
    opt.step()
