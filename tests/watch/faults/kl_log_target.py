student, teacher = net(), net()
opt = torch.optim.SGD(student.parameters(), lr=0.1)
criterion = nn.KLDivLoss(reduction="batchmean")
for _ in range(2):
    with torch.no_grad():
        target = F.log_softmax(teacher(x), dim=1)  # repaired: target = F.softmax(teacher(x), dim=1)
    loss = criterion(F.log_softmax(student(x), dim=1), target)  # found
    opt.zero_grad()
    loss.backward()
    opt.step()
