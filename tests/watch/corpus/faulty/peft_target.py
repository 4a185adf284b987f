# Source: a question of the Hugging Face forum: the classifier is not in modules_to_save
# Trap: 10.4, 10.1

import torch
from peft import LoraConfig, get_peft_model
from transformers import BertConfig, BertForSequenceClassification

torch.manual_seed(0)
m = BertForSequenceClassification(
    BertConfig(
        vocab_size=60,
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=32,
    )
)
m = get_peft_model(m, LoraConfig(r=4, target_modules=["query", "value"]))  # fault
opt = torch.optim.AdamW([p for p in m.parameters() if p.requires_grad], 1e-3)
m.train()
for _ in range(12):
    x = torch.randint(1, 60, (8, 9))
    loss = m(input_ids=x, labels=(x[:, 0] > 30).long()).loss
    loss.backward()
    opt.step()
    opt.zero_grad()  # fault
