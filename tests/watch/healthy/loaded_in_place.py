model = net()
opt = torch.optim.Adam(model.parameters())
for _ in range(8):
    opt.zero_grad()
    F.cross_entropy(model(x), y).backward()
    opt.step()
state = {key: value for key, value in model.state_dict().items()}
with torch.no_grad():
    for value in state.values():
        value.copy_(torch.randn_like(value))
model.load_state_dict(state)
