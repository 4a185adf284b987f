class Writer(nn.Module):
    """Logits (N, 6) of the next of six letters."""

    def __init__(self):
        super().__init__()
        self.letters = nn.Embedding(6, 8)
        self.head = nn.Linear(8, 6)

    def forward(self, ids):
        return self.head(self.letters(ids))


policy = Writer()
reference = policy  # repaired: reference = copy.deepcopy(policy)
opt = torch.optim.AdamW(policy.parameters(), 1e-2)
for _ in range(8):
    prompt, chosen, rejected = torch.randint(6, (3, 16, 1))
    new = policy(prompt[:, 0]).log_softmax(-1)
    with torch.no_grad():
        old = reference(prompt[:, 0]).log_softmax(-1)
    ratio = new - old
    margin = ratio.gather(1, chosen) - ratio.gather(1, rejected)
    loss = -F.logsigmoid(0.1 * margin).mean()  # found
    opt.zero_grad()
    loss.backward()
    opt.step()
