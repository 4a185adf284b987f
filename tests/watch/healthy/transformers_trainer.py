import tempfile

from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

config = GPT2Config(vocab_size=20, n_positions=16, n_embd=16, n_layer=1, n_head=2)
model = GPT2LMHeadModel(config)
rows = [{"input_ids": ids, "labels": ids} for ids in torch.randint(20, (32, 12))]
with tempfile.TemporaryDirectory() as folder:
    told = TrainingArguments(folder, max_steps=12, per_device_train_batch_size=8, report_to=[],
                             disable_tqdm=True, use_cpu=True, logging_strategy="no", save_strategy="no",
                             eval_strategy="steps", eval_steps=6, dataloader_pin_memory=False)
    trainer = Trainer(model, told, train_dataset=rows, eval_dataset=rows)
    trainer.train()
del trainer, told, folder
