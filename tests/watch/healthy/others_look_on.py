from torch.nn.attention.bias import causal_lower_right
from torch.overrides import TorchFunctionMode
from torch.utils.flop_counter import FlopCounterMode


class Calls(TorchFunctionMode):
    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.seen.append(func is F.scaled_dot_product_attention)
        return func(*args, **(kwargs or {}))


q, k = torch.randn(2, 3, 3, 8), torch.randn(2, 3, 5, 8)
lower = F.scaled_dot_product_attention(q, k, k, causal_lower_right(3, 5))
model = net()
with Calls() as calls:
    F.scaled_dot_product_attention(q, q, q)
    F.cross_entropy(model(x), y).backward()
with FlopCounterMode(display=False) as flops:
    F.scaled_dot_product_attention(q, q, q)
    F.cross_entropy(model(x), y).backward()
with torch.autograd.profiler.profile() as seen:
    F.cross_entropy(model(x), y).backward()
counted = torch.tensor([flops.get_total_flops(), len(calls.seen), sum(calls.seen),
                        sum(event.name.startswith("aten::") for event in seen.function_events)])
