policy = nn.Sequential(net(2), nn.Softmax(-1))
opt = torch.optim.Adam(policy.parameters(), 1e-2)
for _ in range(12):
    state, log_probs, rewards = torch.randn(10), [], []
    for _ in range(10):
        choice = torch.distributions.Categorical(policy(state))
        action = choice.sample()
        log_probs.append(choice.log_prob(action))
        rewards.append(float(action == (state[0] > 0)))
        state = torch.randn(10)
    returns = torch.tensor(rewards).flip(0).cumsum(0).flip(0)
    returns = (returns - returns.mean()) / (returns.std() + 1e-6)
    loss = 0
    for log_prob, value in zip(log_probs, returns, strict=True):
        loss = loss - log_prob * value
    opt.zero_grad()
    loss.backward()
    opt.step()
