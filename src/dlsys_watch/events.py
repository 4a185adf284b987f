"""What a rule can hear of. Each event calls the method `on_NAME` of every rule that has it.

    root(module, args, kwargs, grad)      a model is called, not from inside another module
    root_done(module, output, grad)       and it has answered
    module(module, args, kwargs, grad)    any module, inner ones while a model is looked at
    module_done(module)                   and such a module has answered
    loss(Loss)                            a loss function of torch.nn.functional
    dropout(name, told)                   F.dropout and its kin; told: `training` was given
    attention(Attention)                  F.scaled_dot_product_attention
    logsigmoid(values, grad)              F.logsigmoid
    checkpoint(function, options), checkpoint_done(function, options)
    softmax(values, answer, dim)          a sigmoid, too, without dim; this and all that follow
                                          to `compare` only while a model is looked at
    fill(tensor, mask, value)             masked_fill
    view(before, after)                   view and reshape
    arithmetic(sign, left, right, answer) + - * and / of two tensors
    detach(tensor)
    choose(tensor)                        argmax, max, topk: a decision is read
    compare(tensor, threshold)            > and >= with a number; round, as with 0.5
    backward(tensors, kept)               before a backward pass; kept: retain_graph
    backward_done(tensors)
    optimizer(optimizer), zero(owner)     an optimizer is made; zero_grad of optimizer or model
    step(optimizer, closure), step_done(optimizer)
    clip(kind, parameters, most)          clip_grad_norm_ and clip_grad_value_
    scale(scaler, scaled), unscale(scaler, optimizer)
    scaled_step(scaler, optimizer), scaled_done(scaler, optimizer)
    init(tensor)                          a function of torch.nn.init
    resumed(optimizer, state)             an optimizer has loaded a state
    scheduler(scheduler)                  a schedule is made
    emptying(module), emptied(module)     to_empty gives a model new, empty tensors
    read(held)                            torch.load has read a file
    state_into(module, before, state)     state_dict(a dictionary that held the keys `before`)
    state(module, state), loading(module, state), loaded(module, state, result), save(what)
    loader(loader), pass_(loader), batch(loader, batch, number)
    sampler(sampler)                      a DistributedSampler starts a pass
    schedule(scheduler)                   scheduler.step()
    wrapped(wrapper)                      a DistributedDataParallel is made
    reduce(tensor)                        torch.distributed.all_reduce
    pruned(module, name)                  torch.nn.utils.prune.remove
    end()                                 the run is over
"""

from __future__ import annotations

from typing import NamedTuple

import torch


class Loss(NamedTuple):
    """A call of a loss function. grad: it is trained on; else it only measures."""

    name: str
    input: torch.Tensor
    target: torch.Tensor
    options: dict
    grad: bool


class Attention(NamedTuple):
    """A call of scaled_dot_product_attention: queries (..., L, d), keys (..., S, d)."""

    query: torch.Tensor
    key: torch.Tensor
    mask: torch.Tensor | None
    dropout: float
    causal: bool


def plain(*values) -> bool:
    """Whether these are ordinary tensors with values that can be read."""
    return all(type(v) in (torch.Tensor, torch.nn.Parameter) and v.device.type != "meta"
               and v.layout is torch.strided for v in values)
