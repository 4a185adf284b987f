student, teacher = net(), net()
opt = torch.optim.SGD(student.parameters(), lr=0.1)
for _ in range(5):
    with torch.no_grad():
        target = F.softmax(teacher(x) / 2, dim=1)
    soft = F.softmax(student(x) / 2, dim=1)  # repaired: soft = F.log_softmax(student(x) / 2, dim=1)
    loss = F.kl_div(soft, target, reduction="batchmean")  # found
    opt.zero_grad()
    loss.backward()
    opt.step()
