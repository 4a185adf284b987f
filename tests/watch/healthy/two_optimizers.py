body, head = net(16), nn.Linear(16, 3)
slow = torch.optim.SGD(body.parameters(), 1e-3)
fast = torch.optim.Adam(head.parameters(), 1e-2)
for number in range(30):
    slow.zero_grad()
    fast.zero_grad()
    F.cross_entropy(head(body(x).relu()), y).backward()
    fast.step()
    if number % 3 == 0:
        slow.step()
