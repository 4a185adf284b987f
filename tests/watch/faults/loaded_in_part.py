state = net().state_dict()
state = {k if k[0] == "0" else f"a.{k}": v for k, v in state.items()}  # repaired: pass
model = net()
model.load_state_dict(state, strict=False)  # found
