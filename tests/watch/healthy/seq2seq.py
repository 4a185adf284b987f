class Seq2Seq(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(12, 16, padding_idx=0)
        self.net = nn.Transformer(16, 2, 1, 1, 32, 0.1, batch_first=True)
        self.head = nn.Linear(16, 12)

    def forward(self, source, target):
        causal = torch.ones(target.shape[1], target.shape[1], dtype=torch.bool).triu(1)
        h = self.net(self.embed(source), self.embed(target), tgt_mask=causal,
                     src_key_padding_mask=source == 0, memory_key_padding_mask=source == 0)
        return self.head(h)


model = Seq2Seq()
opt = torch.optim.Adam(model.parameters(), 1e-3)
criterion = nn.CrossEntropyLoss(ignore_index=0, label_smoothing=0.1)
for _ in range(15):
    source = torch.randint(1, 12, (8, 9))
    source[torch.arange(9) >= torch.randint(5, 10, (8, 1))] = 0
    target = torch.cat([torch.ones(8, 1).long(), source], 1)
    logits = model(source, target[:, :-1])
    loss = criterion(logits.reshape(-1, 12), target[:, 1:].reshape(-1))
    opt.zero_grad()
    loss.backward()
    opt.step()
