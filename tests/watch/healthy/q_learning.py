online = net(4)
target = copy.deepcopy(online)
opt = torch.optim.Adam(online.parameters(), 1e-3)
memory = []
state = torch.randn(10)
for step in range(60):
    with torch.no_grad():
        action = int(online(state[None]).argmax(1)) if torch.rand(()) > 0.2 else int(torch.randint(4, ()))
    after = torch.randn(10)
    memory.append((state, action, float(after[0] > 0), after))
    state = after
    if len(memory) < 16:
        continue
    picks = [memory[i] for i in torch.randint(len(memory), (16,))]
    states, actions, rewards, afters = (list(part) for part in zip(*picks, strict=True))
    with torch.no_grad():
        goal = torch.tensor(rewards) + 0.9 * target(torch.stack(afters)).max(1).values
    value = online(torch.stack(states)).gather(1, torch.tensor(actions)[:, None]).squeeze(1)
    loss = F.smooth_l1_loss(value, goal)
    opt.zero_grad()
    loss.backward()
    nn.utils.clip_grad_value_(online.parameters(), 1.0)
    opt.step()
    if step % 10 == 0:
        target.load_state_dict(online.state_dict())
