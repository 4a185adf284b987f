import io

file = io.BytesIO()
model = net()
opt = torch.optim.Adam(model.parameters(), lr=1e-3)

def train():
    for _ in range(7):
        opt.zero_grad()
        F.cross_entropy(model(x), y).backward()
        opt.step()

train()
torch.save({"model": model.state_dict(), "optimizer": opt.state_dict()}, file)
file.seek(0)
model = net()
kept = torch.load(file)  # found
model.load_state_dict(kept["model"])
opt = torch.optim.Adam(model.parameters(), lr=1e-3)
pass  # repaired: opt.load_state_dict(kept["optimizer"])
train()
