model = net()
opt = torch.optim.LBFGS(model.parameters(), max_iter=10, line_search_fn="strong_wolfe")


def closure():
    opt.zero_grad()
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    return loss


for _ in range(5):
    opt.step(closure)
