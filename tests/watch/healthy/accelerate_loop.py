from accelerate import Accelerator

accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
rows = torch.utils.data.TensorDataset(x, y)
model = nn.Sequential(net(16), nn.Dropout(0.1), nn.Linear(16, 3))
opt = torch.optim.AdamW(model.parameters(), 1e-2)
loader = torch.utils.data.DataLoader(rows, batch_size=8, shuffle=True)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(opt, 12)
model, opt, loader, schedule = accelerator.prepare(model, opt, loader, schedule)
for epoch in range(3):
    model.train()
    for a, b in loader:
        with accelerator.accumulate(model):
            loss = F.cross_entropy(model(a), b)
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            opt.step()
            schedule.step()
            opt.zero_grad()
    model.eval()
    with torch.no_grad():
        hits = (accelerator.gather_for_metrics(model(x).argmax(1)) == y).sum()
