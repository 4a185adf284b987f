model = net()
model.load_state_dict(net().state_dict())  # found
for layer in (model[0], model[2]):
    nn.init.xavier_uniform_(layer.weight)  # repaired: pass
    nn.init.zeros_(layer.bias)  # repaired: pass
model(x)
