class ActorCritic(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.actor, self.critic = net(16), nn.Linear(16, 2), nn.Linear(16, 1)

    def forward(self, state):
        h = self.body(state).relu()
        return self.actor(h), self.critic(h).squeeze(-1)


model = ActorCritic()
opt = torch.optim.Adam(model.parameters(), 1e-3)
for _ in range(25):
    states = torch.randn(32, 10)
    with torch.no_grad():
        logits, old_values = model(states)
        actions = torch.distributions.Categorical(logits=logits).sample()
        old = torch.distributions.Categorical(logits=logits).log_prob(actions)
    returns = (actions == (states[:, 0] > 0)).float()
    for part in torch.randperm(32).split(16):
        logits, values = model(states[part])
        dist = torch.distributions.Categorical(logits=logits)
        gain = (returns - old_values)[part]
        ratio = (dist.log_prob(actions[part]) - old[part]).exp()
        loss = -torch.min(ratio * gain, ratio.clamp(0.8, 1.2) * gain).mean()
        loss = loss + 0.5 * F.mse_loss(values, returns[part]) - 0.01 * dist.entropy().mean()
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        opt.step()
