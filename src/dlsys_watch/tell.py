"""Events made of the arguments of a call, as the function itself would read them."""

from __future__ import annotations

import torch

from dlsys_watch import events

LOSSES = {  # name -> names of the arguments after input and target
    "cross_entropy": ("weight", "size_average", "ignore_index", "reduce", "reduction",
                      "label_smoothing"),
    "nll_loss": ("weight", "size_average", "ignore_index", "reduce", "reduction"),
    "binary_cross_entropy": ("weight", "size_average", "reduce", "reduction"),
    "binary_cross_entropy_with_logits": ("weight", "size_average", "reduce", "reduction",
                                         "pos_weight"),
    "kl_div": ("size_average", "reduce", "reduction", "log_target"),
    "mse_loss": ("size_average", "reduce", "reduction", "weight"),
    "l1_loss": ("size_average", "reduce", "reduction", "weight"),
    "smooth_l1_loss": ("size_average", "reduce", "reduction", "beta"),
    "huber_loss": ("reduction", "delta", "weight"),
}
DROPOUTS = ("dropout", "dropout1d", "dropout2d", "dropout3d")


def loss(name: str, watch, input, target, *args, **kwargs) -> None:
    if events.plain(input, target):
        options = {**dict(zip(LOSSES[name], args, strict=False)), **kwargs}
        grad = torch.is_grad_enabled() and input.requires_grad
        watch.emit("loss", events.Loss(name, input, target, options, grad))


def dropout(name: str, watch, input, p=0.5, *args, **kwargs) -> None:
    watch.emit("dropout", name, p, bool(args) or "training" in kwargs)


def attention(watch, query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False,
              **_) -> None:
    if events.plain(query, key) and min(query.dim(), key.dim()) > 1:
        watch.emit("attention", events.Attention(query, key, attn_mask, dropout_p, is_causal))


def logsigmoid(watch, input) -> None:
    if events.plain(input):
        watch.emit("logsigmoid", input, torch.is_grad_enabled() and input.requires_grad)


def roots(tensors) -> tuple:
    return (tensors,) if isinstance(tensors, torch.Tensor) else tuple(tensors)


def backward(watch, tensors, grad_tensors=None, retain_graph=None, *args, **kwargs) -> None:
    watch.emit("backward", roots(tensors), bool(retain_graph))


def backward_done(watch, tensors, *args, **kwargs) -> None:
    watch.emit("backward_done", roots(tensors))


def clip(kind: str, watch, parameters, *args, max_norm=None, clip_value=None, **_) -> None:
    most = args[0] if args else max_norm if clip_value is None else clip_value
    watch.emit("clip", kind, list(roots(parameters)), most)
