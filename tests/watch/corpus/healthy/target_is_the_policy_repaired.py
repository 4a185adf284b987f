# An issue of easy-rl: policy_net and target_net are one object: repaired

import copy
import random

import torch
from torch import nn

torch.manual_seed(0)
random.seed(0)


class DQN:
    def __init__(self, model):
        self.policy_net = model.to("cpu")
        self.target_net = copy.deepcopy(model).to("cpu")
        for t, p in zip(self.target_net.parameters(), self.policy_net.parameters()):
            t.data.copy_(p.data)
        self.optimizer = torch.optim.Adam(self.policy_net.parameters(), lr=1e-3)
        self.count = 0

    def update(self, s, a, r, s2):
        q = self.policy_net(s).gather(1, a)
        nxt = self.target_net(s2).max(1)[0].detach()
        loss = nn.MSELoss()(q, (r + 0.95 * nxt).unsqueeze(1))
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.count += 1
        if self.count % 25 == 0:
            self.target_net.load_state_dict(self.policy_net.state_dict())


agent = DQN(nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 2)))
for step in range(120):
    s, s2 = torch.randn(32, 4), torch.randn(32, 4)
    agent.update(s, torch.randint(2, (32, 1)), s[:, 0], s2)
