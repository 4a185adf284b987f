embed, rnn, head = nn.Embedding(12, 16), nn.GRU(16, 16), nn.Linear(16, 12)
params = [*embed.parameters(), *rnn.parameters(), *head.parameters()]
opt = torch.optim.Adam(params, 1e-2)
text = torch.randint(12, (21, 8))
for _ in range(20):
    out, _ = rnn(embed(text[:-1]))
    loss = F.cross_entropy(head(out).flatten(0, 1), text[1:].flatten())
    opt.zero_grad()
    loss.backward()
    opt.step()
