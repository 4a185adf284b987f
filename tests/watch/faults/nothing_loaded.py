source, model = net(), net()
state = {f"module.{key}": value for key, value in source.state_dict().items()}  # repaired: state = source.state_dict()
model.load_state_dict(state, strict=False)  # found
