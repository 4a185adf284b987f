class SAM(torch.optim.Optimizer):
    def __init__(self, params, base, rho=0.05, **kwargs):
        super().__init__(params, {"rho": rho, **kwargs})
        self.base = base(self.param_groups, **kwargs)

    @torch.no_grad()
    def first_step(self):
        for group in self.param_groups:
            for p in group["params"]:
                e = group["rho"] * p.grad / (p.grad.norm() + 1e-12)
                self.state[p]["old"] = p.clone()
                p.add_(e)
        self.zero_grad()

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                p.copy_(self.state[p]["old"])
        self.base.step()
        self.zero_grad()


model = net()
opt = SAM(model.parameters(), torch.optim.SGD, lr=0.1)
for _ in range(20):
    F.cross_entropy(model(x), y).backward()
    opt.first_step()
    F.cross_entropy(model(x), y).backward()
    opt.step()
