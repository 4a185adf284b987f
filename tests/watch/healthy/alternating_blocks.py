left, right = nn.Linear(10, 4), nn.Linear(4, 3)
opts = [torch.optim.Adam(part.parameters(), 1e-2) for part in (left, right)]
for step in range(30):
    # One loss for both blocks, of which each step moves one: the other's penalty reaches nobody.
    loss = F.cross_entropy(right(left(x)), y) + 1e-3 * left.weight.square().sum() + (
        1e-3 * right.weight.square().sum())
    for opt in opts:
        opt.zero_grad()
    loss.backward()
    opts[step % 2].step()
