teacher, student = nn.Sequential(net(32), nn.ReLU(), nn.Dropout(0.3), nn.Linear(32, 3)), net()
opt = torch.optim.Adam(teacher.parameters(), 1e-2)
for _ in range(10):
    opt.zero_grad()
    F.cross_entropy(teacher(x), y).backward()
    opt.step()
teacher.eval().requires_grad_(False)
opt = torch.optim.Adam(student.parameters(), 1e-2)
for _ in range(20):
    logits = student(x)
    with torch.no_grad():
        goal = teacher(x)
    soft = F.kl_div(F.log_softmax(logits / 4, 1), F.softmax(goal / 4, 1), reduction="batchmean")
    loss = 0.5 * 16 * soft + 0.5 * F.cross_entropy(logits, y)
    opt.zero_grad()
    loss.backward()
    opt.step()
