from torch.nn.utils import prune

pruned = nn.Linear(10, 3)
prune.l1_unstructured(pruned, "weight", amount=0.4)
prune.remove(pruned, "weight")  # found
model = copy.deepcopy(pruned)
# repaired: prune.custom_from_mask(model, "weight", pruned.weight != 0)
opt = torch.optim.Adam(model.parameters(), lr=1e-3)
for _ in range(3):
    opt.zero_grad()
    F.cross_entropy(model(x), y).backward()
    opt.step()
