"""Stage 3: laws and named wrong answers for losses and gradient pathologies."""

from __future__ import annotations

import itertools
import math

import torch
from torch import nn
from torch.nn import functional as F

from dlsys_helpers.checking import (
    Broken,
    exercise,
    expect_close,
    expect_equal,
    expect_length,
    expect_like,
    expect_parts,
)

# 03.1 ce_from_logits --------------------------------------------------------------------------

ex = exercise("03.1", "ce_from_logits",
              by_hand=("cross_entropy", "CrossEntropyLoss", "nll_loss", "NLLLoss", "backward",
                       "autograd.grad"))


@ex.cases
def cases(g):
    def one(name, rows, classes, scale=2.0, offset=0.0):
        logits = torch.randn(rows, classes, generator=g) * scale + offset
        return name, {"logits": logits, "y": torch.randint(classes, (rows,), generator=g)}
    lost_name, lost = one("a right class 200 below the others", 4, 5)
    lost["logits"][torch.arange(4), lost["y"]] = -200.0
    apart_name, apart = one("one row near 200, one near -200", 2, 3)
    apart["logits"] += torch.tensor([[200.0], [-200.0]])
    return [one("five rows, four classes", 5, 4), one("one row, many classes", 1, 30),
            one("logits near 200", 6, 3, offset=200.0), (lost_name, lost), (apart_name, apart)]


def pair(out, what):
    """Refuse anything but a tuple of two."""
    if type(out) is not tuple or len(out) != 2:
        raise Broken("returned value", out, f"a tuple ({what})")
    return out


@ex.law
def law(out, logits, y):
    loss, grad = pair(out, "loss, grad")
    losses, rows = [], []
    for row, label in zip(logits.double().tolist(), y.tolist(), strict=True):
        odds = [math.exp(v - max(row)) for v in row]
        losses.append(math.log(sum(odds)) + max(row) - row[label])
        rows.append([(o / sum(odds) - (k == label)) / len(y) for k, o in enumerate(odds)])
    expect_close("loss", loss, torch.tensor(sum(losses) / len(losses)), rtol=1e-4, atol=1e-5,
                 look="The mean over rows of logsumexp(z) - z_y.")
    expect_close("gradient", grad, torch.tensor(rows), rtol=1e-4, atol=1e-6,
                 look="Of the mean: (softmax - one-hot) / N.")


def probabilities(logits):
    odds = (logits - logits.max(1, keepdim=True).values).exp()
    return odds / odds.sum(1, keepdim=True)


def slope(logits, y):
    return (probabilities(logits) - F.one_hot(y, logits.shape[1])) / len(y)


def right(table, y):
    """The entry of each row in the column of its label."""
    return table[torch.arange(len(y)), y]


@ex.wrong("the logarithm of a finished softmax", says="loss: got inf")
def log_of_softmax(logits, y):
    return -right(logits.softmax(1), y).log().mean(), slope(logits, y)


@ex.wrong("exp of raw logits, no maximum subtracted", says="loss: got inf")
def overflow(logits, y):
    return (logits.exp().sum(1).log() - right(logits, y)).mean(), slope(logits, y)


@ex.wrong("one maximum for the whole batch", says="loss: got -inf")
def global_maximum(logits, y):
    top = logits.max()
    lse = (logits - top).exp().sum(1).log() + top
    return (lse - right(logits, y)).mean(), slope(logits, y)


@ex.wrong("a softmax before the loss: softmax twice", says="loss:")
def softmax_twice(logits, y):
    p = logits.softmax(1)
    return -right(p.log_softmax(1), y).mean(), slope(p, y)


@ex.wrong("the mean over rows and classes", says="loss:")
def over_classes(logits, y):
    one_hot = F.one_hot(y, logits.shape[1])
    terms = torch.where(one_hot == 1, -logits.log_softmax(1), 0.0)
    return terms.mean(), slope(logits, y) / logits.shape[1]


@ex.wrong("the gradient of the sum beside the loss of the mean", says="gradient")
def gradient_of_sum(logits, y):
    return -right(logits.log_softmax(1), y).mean(), slope(logits, y) * len(y)


@ex.wrong("the probabilities as gradient, the one-hot label forgotten", says="gradient")
def no_one_hot(logits, y):
    return -right(logits.log_softmax(1), y).mean(), probabilities(logits) / len(y)


# 03.2 class_loss ------------------------------------------------------------------------------

ex = exercise("03.2", "class_loss")


@ex.cases
def cases(g):
    def one(name, rows, classes, column, scale=2.0, missing=0):
        labels = torch.randint(classes, (rows,), generator=g)
        labels[torch.randperm(rows, generator=g)[:missing]] = -1
        return name, {"scores": torch.randn(rows, classes, generator=g) * scale,
                      "labels": labels[:, None] if column else labels}
    return [one("labels of shape (N,)", 7, 4, False),
            one("labels as a column", 6, 5, True),
            one("a column with gaps", 9, 3, True, missing=4),
            one("large scores, some of them wrong", 8, 6, False, scale=12.0),
            one("rows without a label", 10, 4, False, missing=3)]


@ex.act
def act(fn, scores, labels):
    leaf = scores.clone().requires_grad_()
    loss = fn(leaf, labels)
    connected = isinstance(loss, torch.Tensor) and loss.requires_grad and loss.numel() == 1
    grad = torch.autograd.grad(loss.sum(), leaf)[0] if connected else None
    return {"loss": loss, "grad": grad}


@ex.law
def law(out, scores, labels):
    expect_parts(out, "loss", "grad")
    y, z = labels.flatten().tolist(), scores.double()
    keep = [k for k, label in enumerate(y) if label >= 0]
    logs = z - z.logsumexp(1, keepdim=True)
    wanted = -sum(logs[k, y[k]] for k in keep) / len(keep)
    expect_close("loss", out["loss"], wanted.float(), rtol=1e-4, atol=1e-5,
                 look="Cross-entropy, averaged over the rows that have a label.")
    connected = "A loss has to stay connected to the scores."
    if out["grad"] is None:
        raise Broken("gradient with respect to the scores", "none", "a tensor", connected)
    grad = torch.zeros_like(z)
    for k in keep:
        grad[k] = logs[k].exp() / len(keep)
        grad[k, y[k]] -= 1 / len(keep)
    expect_close("gradient with respect to the scores", out["grad"], grad.float(), rtol=1e-4,
                 atol=1e-6, look=connected)


def labelled(scores, labels):
    y = labels.reshape(-1)
    return scores[y >= 0], y[y >= 0]


@ex.wrong("squared error on the class number", says="loss:")
def number_regression(scores, labels):
    z, y = labelled(scores, labels)
    expected = z.softmax(1) @ torch.arange(z.shape[1], dtype=z.dtype)
    return (expected - y).square().mean()


@ex.wrong("a column of labels that meets every row: silent broadcasting", says="loss:")
def broadcast(scores, labels):
    keep = labels >= 0
    picked = scores.log_softmax(1)[torch.arange(len(scores)), labels.clamp(min=0)]
    return -(picked * keep).sum() / (keep.expand_as(picked)).sum()


@ex.wrong("squared error after a softmax", says="loss:")
def squared_after_softmax(scores, labels):
    z, y = labelled(scores, labels)
    return (z.softmax(1) - F.one_hot(y, z.shape[1])).square().sum(1).mean()


@ex.wrong("squared error between raw scores and one-hot labels", says="loss:")
def squared_on_scores(scores, labels):
    z, y = labelled(scores, labels)
    return (z - F.one_hot(y, z.shape[1])).square().mean()


@ex.wrong("rows without a label counted in the mean", says="rows that have a label")
def counts_gaps(scores, labels):
    y = labels.reshape(-1)
    return F.cross_entropy(scores, y, ignore_index=-1, reduction="sum") / len(y)


@ex.wrong("-1 taken for the last class", says="rows that have a label")
def last_class(scores, labels):
    return F.cross_entropy(scores, labels.reshape(-1) % scores.shape[1])


@ex.wrong("a softmax before the cross-entropy", says="loss:", trap="03.1")
def softmax_first(scores, labels):
    z, y = labelled(scores, labels)
    return F.cross_entropy(z.softmax(1), y)


@ex.wrong("a loss cut from its graph by item()", says="gradient")
def disconnected(scores, labels):
    z, y = labelled(scores, labels)
    return torch.tensor(F.cross_entropy(z, y).item())


# 03.3 clipped_step ----------------------------------------------------------------------------

ex = exercise("03.3", "clipped_step")


@ex.cases
def cases(g):
    def one(name, scale, max_norm, leftover=False):
        return name, {"x": torch.randn(6, 5, generator=g) * 3,
                      "y": torch.randn(6, generator=g) + 20,
                      "weight": torch.randn(1, 5, generator=g),
                      "scale": scale, "max_norm": max_norm, "leftover": leftover}
    return [one("a gradient far above the limit", 4.0, 0.5),
            one("a gradient below the limit", 2.0, 1e6),
            one("gradients left over from before", 8.0, 2.0, leftover=True),
            one("a loss scaled by 1024", 1024.0, 3.0)]


@ex.act
def act(fn, x, y, weight, scale, max_norm, leftover):
    model = nn.Linear(5, 1)
    with torch.no_grad():
        model.weight.copy_(weight)
        model.bias.fill_(0.5)
    if leftover:
        for p in model.parameters():
            p.grad = torch.full_like(p, 1e4)
    optimizer = torch.optim.SGD([{"params": [model.weight]}, {"params": [model.bias]}], lr=0.25)
    loss = F.mse_loss(model(x)[:, 0], y) * scale
    answer = fn(optimizer, loss, scale, max_norm)
    return {"answer": answer, "weight": model.weight, "bias": model.bias}


@ex.law
def law(out, x, y, weight, scale, max_norm, leftover):
    expect_parts(out, "answer", "weight", "bias")
    pre, post = pair(out["answer"], "pre, post")
    error = x.double() @ weight.double()[0] + 0.5 - y.double()
    grad = torch.cat([2 * error @ x.double() / len(y), 2 * error.mean().reshape(1)])
    norm = float(grad.norm())
    expect_close("norm before clipping", pre, norm, rtol=1e-3,
                 look="Of all parameters together, with the loss scale divided out.")
    expect_close("norm after clipping", post, min(norm, max_norm), rtol=1e-3,
                 look="Of all gradients together, measured again.")
    step = 0.25 * grad * min(1, max_norm / norm)
    for name, moved in (("weight", step[None, :5]), ("bias", step[5:])):
        start = weight.double() if name == "weight" else torch.tensor([0.5]).double()
        expect_close(f"{name} after the step", out[name], (start - moved).float(), rtol=1e-4,
                     atol=1e-4, look="The step uses the clipped gradient.")


def gradients(optimizer, loss, scale):
    """Fresh gradients with the scale divided out; returns the parameters of all groups."""
    params = [p for group in optimizer.param_groups for p in group["params"]]
    optimizer.zero_grad()
    loss.backward()
    for p in params:
        p.grad.div_(scale)
    return params


def total(params):
    return nn.utils.get_total_norm([p.grad for p in params]).item()


@ex.wrong("clipping after the step", says="after the step")
def too_late(optimizer, loss, scale, max_norm):
    params = gradients(optimizer, loss, scale)
    optimizer.step()
    pre = nn.utils.clip_grad_norm_(params, max_norm).item()
    return pre, total(params)


@ex.wrong("min(norm, 1) reported as the norm afterwards", says="norm after clipping")
def made_up(optimizer, loss, scale, max_norm):
    pre = nn.utils.clip_grad_norm_(gradients(optimizer, loss, scale), max_norm).item()
    optimizer.step()
    return pre, min(pre, 1.0)


@ex.wrong("the return value of clip_grad_norm_ taken for the norm afterwards",
          says="norm after clipping")
def return_value(optimizer, loss, scale, max_norm):
    pre = nn.utils.clip_grad_norm_(gradients(optimizer, loss, scale), max_norm).item()
    optimizer.step()
    return pre, pre


@ex.wrong("each tensor clipped by itself", says="norm after clipping")
def per_tensor(optimizer, loss, scale, max_norm):
    params = gradients(optimizer, loss, scale)
    pre = total(params)
    for p in params:
        nn.utils.clip_grad_norm_(p, max_norm)
    optimizer.step()
    return pre, total(params)


@ex.wrong("clipping before the scale is divided out", says="norm after clipping")
def before_unscale(optimizer, loss, scale, max_norm):
    params = gradients(optimizer, loss, 1.0)
    pre = nn.utils.clip_grad_norm_(params, max_norm).item() / scale
    for p in params:
        p.grad.div_(scale)
    optimizer.step()
    return pre, total(params)


@ex.wrong("the scale never divided out", says="norm before clipping")
def never_unscaled(optimizer, loss, scale, max_norm):
    params = gradients(optimizer, loss, 1.0)
    pre = nn.utils.clip_grad_norm_(params, max_norm).item()
    optimizer.step()
    return pre, total(params)


@ex.wrong("gradients added to those left over", says="norm before clipping", trap="02.1")
def no_zero_grad(optimizer, loss, scale, max_norm):
    params = [p for group in optimizer.param_groups for p in group["params"]]
    loss.backward()
    for p in params:
        p.grad.div_(scale)
    pre = nn.utils.clip_grad_norm_(params, max_norm).item()
    optimizer.step()
    return pre, total(params)


@ex.wrong("each entry cut at the limit, clip_grad_value_", says="norm after clipping")
def by_value(optimizer, loss, scale, max_norm):
    params = gradients(optimizer, loss, scale)
    pre = total(params)
    nn.utils.clip_grad_value_(params, max_norm)
    optimizer.step()
    return pre, total(params)


@ex.wrong("the first parameter group only", says="norm before clipping")
def first_group(optimizer, loss, scale, max_norm):
    gradients(optimizer, loss, scale)
    params = optimizer.param_groups[0]["params"]
    pre = nn.utils.clip_grad_norm_(params, max_norm).item()
    optimizer.step()
    return pre, total(params)


# 03.4 init_ -----------------------------------------------------------------------------------

ex = exercise("03.4", "init_")

NETS = 12  # one net scatters; the mean over twelve stays within a fifth of its expectation


@ex.cases
def cases(g):
    def one(name, sizes):
        return name, {"sizes": list(sizes), "x": torch.randn(64, sizes[0], generator=g)}
    return [one("each layer twice as wide", (32, 64, 128, 256)),
            one("each layer half as wide", (256, 128, 64, 32)),
            one("six layers of one width", (96,) * 7)]


@ex.act
def act(fn, sizes, x):
    nets = []
    for _ in range(12):
        layers = []
        for i, o in zip(sizes, sizes[1:]):
            layers += [nn.Linear(i, o), nn.ReLU()]
            nn.init.constant_(layers[-2].weight, 0.01)
            nn.init.constant_(layers[-2].bias, 0.5)
        net = nn.Sequential(*layers)
        fn(net)
        nets.append(net)
    return {"state": [[{"weight": m.weight, "bias": m.bias} for m in net[::2]] for net in nets]}


def second_moments(net, x):
    """Mean square after every ReLU, in float64."""
    h, found = x.double(), []
    for layer in net:
        h = (h @ layer["weight"].double().T + layer["bias"].double()).clamp(min=0)
        found.append(h.square().mean())
    return torch.stack(found)


def largest(tensor):
    """The largest absolute entry; of a tensor with a NaN, infinity."""
    return float(tensor.abs().nan_to_num(nan=math.inf).max())


def expect_nets(out, sizes):
    """Raise Broken unless there are NETS nets whose layers have the sizes they were made with."""
    expect_parts(out, "state")
    expect_length("nets", out["state"], NETS)
    for net in out["state"]:
        expect_length("layers of a net", net, len(sizes) - 1, "Keep the layers as they are.")
        for i, o, layer in zip(sizes, sizes[1:], net):
            expect_parts(layer, "weight", "bias")
            expect_like("weight of a layer", layer["weight"], torch.empty(o, i))
            expect_like("bias of a layer", layer["bias"], torch.empty(o))


@ex.law
def law(out, sizes, x):
    # The weights are the answer itself: random, so only what they do to x can be expected.
    expect_nets(out, sizes)
    worst = max(largest(layer["bias"]) for net in out["state"] for layer in net)
    expect_equal("largest bias", worst, 0.0, "Biases start at zero.")
    for net in out["state"]:
        for layer in net:
            if not layer["weight"].isfinite().all():
                raise Broken("largest weight", largest(layer["weight"]), "a finite number")
    firsts = [net[0]["weight"] for net in out["state"]]
    if any(torch.equal(a, b) for a, b in itertools.combinations(firsts, 2)):
        raise Broken("weights of two nets", "the same", "fresh random ones for each net")
    moments = torch.stack([second_moments(net, x) for net in out["state"]]).mean(0).tolist()
    for depth, moment in enumerate(moments, 1):
        if not 0.5 <= moment <= 2:
            raise Broken(f"second moment after ReLU {depth} of {len(moments)}, mean of {NETS} nets",
                         moment, "0.5 to 2", "A layer multiplies it by fan_in * Var(w) / 2.")


def set_each(net, std):
    """Normal weights with standard deviation std(fan_in, fan_out), biases zero."""
    for layer in net[::2]:
        fan_out, fan_in = layer.weight.shape
        nn.init.normal_(layer.weight, std=std(fan_in, fan_out))
        nn.init.zeros_(layer.bias)


@ex.wrong("standard deviation 0.01 for every layer", says="second moment")
def hundredth(net):
    set_each(net, lambda fan_in, fan_out: 0.01)


@ex.wrong("fan_out in place of fan_in", says="second moment")
def by_fan_out(net):
    set_each(net, lambda fan_in, fan_out: math.sqrt(2 / fan_out))


@ex.wrong("Xavier, which knows no ReLU", says="second moment")
def xavier(net):
    set_each(net, lambda fan_in, fan_out: math.sqrt(2 / (fan_in + fan_out)))


@ex.wrong("PyTorch's default weights", says="second moment")
def default(net):
    for layer in net[::2]:
        nn.init.kaiming_uniform_(layer.weight, a=math.sqrt(5))
        nn.init.zeros_(layer.bias)


@ex.wrong("the variance held at 1 in place of the second moment", says="second moment")
def by_variance(net):
    set_each(net, lambda fan_in, fan_out: math.sqrt(2 / (1 - 1 / math.pi) / fan_in))


@ex.wrong("the variance 2 / fan_in used as standard deviation", says="second moment")
def variance_as_std(net):
    set_each(net, lambda fan_in, fan_out: 2 / fan_in)


@ex.wrong("biases left as they were", says="largest bias")
def keeps_bias(net):
    for layer in net[::2]:
        nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
