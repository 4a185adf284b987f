teacher = nn.Sequential(net(16), nn.Dropout(0.3), nn.Linear(16, 3))
pass  # repaired: teacher.eval()
student = net()
opt = torch.optim.SGD(student.parameters(), lr=0.1)
for _ in range(15):
    with torch.no_grad():
        wanted = teacher(x).softmax(1)  # found
    opt.zero_grad()
    F.kl_div(student(x).log_softmax(1), wanted, reduction="batchmean").backward()
    opt.step()
