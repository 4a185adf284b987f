"""Ways to make a model smaller: fewer bits or weights, narrower layers, a student, ONNX."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dlsys_model.network import Network, Shape
from dlsys_model.pack import GROUP, halved
from dlsys_model.parts import Parts
from dlsys_model.text import Text, rows
from dlsys_model.training import Plan, Training


class Small(NamedTuple):
    """A model made smaller, and the bytes that it takes when it is stored."""

    model: nn.Module
    bytes: int


def whole(model: Network) -> Small:
    """The model as it is, in float32."""
    return Small(model, model.parts.stored_bytes(dict(model.state_dict())))


def in_bits(model: Network, bits: int) -> Small:
    """Matrices as codes of `bits` bits, with a scale (float16) and a zero for every 32 codes."""
    twin, stored = copy.deepcopy(model), {}
    for name, weight in twin.state_dict().items():
        if weight.dim() < 2:
            stored[name] = weight
            continue
        codes, scales, zeros = halved(weight, bits, model.parts.quantise(weight, bits, GROUP))
        stored[name] = [_packed(codes, bits), scales, zeros]
        levels = codes.view(len(weight), -1, GROUP).float() - zeros[..., None].float()
        weight.copy_((levels * scales[..., None].float()).view(weight.shape))
    return Small(twin, model.parts.stored_bytes(stored))


def _packed(codes: Tensor, bits: int) -> Tensor:
    """Two codes of 4 bits in a byte; others take a byte each."""
    if bits != 4:
        return codes
    pairs = codes.flatten().view(-1, 2)
    return pairs[:, 0] * 16 + pairs[:, 1]


def smallest(model: Network, share: float) -> dict[nn.Parameter, Tensor]:
    """Masks of the blocks' matrices, False for the share of their weights nearest to zero."""
    masks = {}
    for block in model.blocks:
        for layer in (block.qkv, block.out, block.up, block.down):
            weight = layer.weight.detach()
            cut = weight.abs().flatten().kthvalue(max(1, int(share * weight.numel()))).values
            masks[layer.weight] = model.parts.soft_threshold(weight, cut.item()) != 0
    return masks


def pruned(model: Network, text: Text, share: float = 0.5, steps: int = 20) -> Small:
    """The model without that share of its blocks' weights, then trained for some more steps.

    The stored bytes are the remaining weights and one bit for each position.
    """
    twin = copy.deepcopy(model)
    masks = smallest(twin, share)
    with torch.no_grad():
        for weight, mask in masks.items():
            weight.mul_(mask)
    run = Training(twin, text, Plan(steps=max(2, steps), warm=1, seed=1))
    optimizer = torch.optim.AdamW(twin.parameters(), lr=3e-4)
    for _ in range(steps):
        x, y = run.batch()
        optimizer.zero_grad()
        model.parts.class_loss(twin.train()(x).flatten(0, 1), y.flatten()).backward()
        model.parts.masked_step(optimizer, masks)
        run.step += 1
    left = sum(int(mask.sum()) for mask in masks.values())
    gone = sum(mask.numel() for mask in masks.values())
    rest = sum(p.numel() for p in twin.parameters()) - gone
    return Small(twin, 4 * (left + rest) + gone // 8)


def narrower(model: Network, x: Tensor, share: float = 0.25) -> Small:
    """Each MLP without that share of its hidden units, other weights adjusted to compensate.

    x: (B, T) letters, at least as many as an MLP has hidden units.
    """
    twin = copy.deepcopy(model).eval()
    for block in twin.blocks:
        hidden = _inputs(twin, block.down, x)
        order = (hidden.square().mean(0) * block.down.weight.square().sum(0)).argsort()
        drop = order[:int(share * len(order))].tolist()
        weight = model.parts.drop_inputs(block.down.weight.detach().double(), hidden.double(),
                                         drop)
        keep = torch.tensor(sorted(set(range(len(order))) - set(drop)))
        block.up, block.down = _cut(block.up, keep, 0), _cut(block.down, keep, 1)
        block.down.weight.data = weight[:, keep].float()
    return Small(twin, model.parts.stored_bytes(dict(twin.state_dict())))


def _inputs(model: Network, layer: nn.Linear, x: Tensor) -> Tensor:
    """The inputs of a layer, (B T, d_in)."""
    seen = []
    hook = layer.register_forward_pre_hook(lambda _, given: seen.append(given[0].flatten(0, 1)))
    model.parts.predict(model, x)
    hook.remove()
    return seen[0]


def _cut(layer: nn.Linear, keep: Tensor, axis: int) -> nn.Linear:
    """A linear layer with some rows (axis 0) or columns (axis 1) of another."""
    weight = layer.weight.detach().index_select(axis, keep)
    new = nn.Linear(weight.shape[1], weight.shape[0])
    new.weight.data = weight.clone()
    new.bias.data = layer.bias.detach()[keep if axis == 0 else slice(None)].clone()
    return new


def student(model: Network, text: Text, epochs: int = 2, steps: int = 20, T: float = 2.0,
            alpha: float = 0.5) -> Small:
    """A model of half the width, distilled from this one, as it was after its best epoch.

    steps: per epoch.
    """
    parts, shape = model.parts, model.shape
    small = Network(Shape(shape.letters, shape.width // 2, shape.layers, shape.heads,
                          shape.length), parts, 0.0)
    run = Training(small, text, Plan(steps=epochs * steps + 1, warm=min(10, steps), seed=2))
    optimizer = torch.optim.AdamW(small.parameters(), lr=3e-3)

    def epoch(_: nn.Module) -> None:
        for _ in range(steps):
            x, y = run.batch()
            taught = parts.stop_grad(parts.predict(model, x).flatten(0, 1))
            loss = parts.kd_loss(small.train()(x).flatten(0, 1), taught, y.flatten(), T, alpha)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(small.parameters(), 1.0)
            optimizer.step()
            run.step += 1

    parts.keep_best(small, epoch, lambda _: parts.evaluate(run.flat, run.validation())[0], epochs)
    return Small(small.eval(), parts.stored_bytes(dict(small.state_dict())))


class Letters(nn.Module):
    """A model of letters that takes their numbers as float32, as `disagreements` passes them."""

    def __init__(self, model: Network) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        return self.model(x.long())


def as_onnx(model: Network, x: Tensor, y: Tensor) -> tuple[bytes, Callable[[Tensor], Tensor]]:
    """The model as an ONNX file, and the program that runs it: letters (B, T) to logits.

    x, y: two inputs; the sizes in which they differ stay open. The weights are the model's, but the
    file is written from the stand-ins, because an exporter cannot read every learner's code.
    """
    import onnxruntime

    open_sizes = model.parts.free_dims([x, y])
    plain = model.with_parts(Parts()).eval()
    sizes = {axis: torch.export.Dim.AUTO for axis in open_sizes}
    program = torch.onnx.export(plain, (x,), dynamo=True, verbose=False,
                                dynamic_shapes=(sizes,))
    file = program.model_proto.SerializeToString()
    session = onnxruntime.InferenceSession(file)
    name = session.get_inputs()[0].name
    return file, lambda batch: torch.from_numpy(
        session.run(None, {name: batch.long().numpy()})[0])


def loss(small: nn.Module, text: Text, parts: Parts, length: int, most: int = 8) -> float:
    """Validation loss of a model in nats a letter, over at most `most` rows."""
    x, y = (part[:most] for part in rows(text.valid, length))
    return F.cross_entropy(parts.predict(small, x).flatten(0, 1), y.flatten()).item()
