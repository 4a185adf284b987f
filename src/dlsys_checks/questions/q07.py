"""Stage 7: what a convolution keeps and sees, and what fine-tuning moves."""

import math

import torch
from torch import nn
from torch.nn import functional as F

from dlsys_checks.questions import asks, choice, number, whole


def _side(size, kernel, stride=1, padding=0):
    """Places that torch's own pooling finds along one side."""
    return F.max_pool1d(torch.zeros(1, 1, size), kernel, stride, padding).shape[-1]


# ---- 07.1 A small net that fills the memory

@asks("07.1")
def places_of_a_window(rng):
    size, kernel = rng.randint(40, 240), rng.choice([3, 5, 7])
    stride, padding = rng.choice([2, 3, 4]), rng.randint(0, 1)
    places = _side(size, kernel, stride, padding)
    return whole(
        f"{size} columns, a window of {kernel}, stride {stride}, padding {padding}. How many "
        "columns has the output?", places, "The number of places is rounded down.",
        places + 1, size)


@asks("07.1")
def bytes_of_a_map(rng):
    channels, side, batch = rng.choice([16, 32, 64]), rng.choice([28, 56, 112]), rng.randint(2, 32)
    size = torch.empty(batch, channels, side, side, device="meta").nbytes
    return number(
        f"A float32 map of {channels} channels, {side} x {side}, for a batch of {batch}. How many "
        "MB (1e6 bytes)?", size / 1e6, "Four bytes for each image, channel, row and column.",
        size / 4e6, size / batch / 1e6)


@asks("07.1")
def stages_down(rng):
    stages, side = rng.randint(2, 5), rng.choice([128, 256, 512])
    return whole(
        f"An image of {side} x {side} passes {stages} convolutions of 3 x 3 with stride 2 and "
        "padding 1. How many columns has the last map?",
        _halved(side, stages), "Each of them halves rows and columns.", side, side // stages + 1)


def _halved(side, times):
    for _ in range(times):
        side = _side(side, 3, 2, 1)
    return side


@asks("07.1")
def memory_down_a_stage(rng):
    channels, side, factor = rng.choice([16, 32, 64]), rng.choice([32, 64]), rng.choice([2, 3, 4])
    before = torch.empty(channels, side, side, device="meta").nbytes
    after = torch.empty(factor * channels, side // 2, side // 2, device="meta").nbytes
    return number(
        f"A stage halves rows and columns of a map of {side} x {side} and makes {factor} times as "
        f"many channels of the {channels}. By what factor does the map's memory change?",
        after / before, "A quarter of the places, times the channels.", factor, factor / 2)


# ---- 07.2 A defect at the edge of the window

def _field(layers):
    """Receptive field by torch's own autograd, of the middle unit; layers (K, S, D)."""
    x = torch.zeros(1, 1, 4000, requires_grad=True)
    h = x
    for kernel, stride, dilation in layers:
        weight = torch.ones(1, 1, kernel)
        h = F.conv1d(h, weight, stride=stride, dilation=dilation)
    h[0, 0, h.shape[-1] // 2].backward()
    seen = x.grad[0, 0].nonzero()[:, 0]
    return int(seen[-1] - seen[0]) + 1


@asks("07.2")
def field_of_a_stack(rng):
    depth, kernel = rng.randint(3, 12), rng.choice([3, 5])
    field = _field([(kernel, 1, 1)] * depth)
    return whole(
        f"{depth} convolutions with windows of {kernel}, stride 1, no dilation. How many pixels "
        "wide is the receptive field?", field, "Each layer adds its window less one.",
        depth * kernel, kernel ** depth)


@asks("07.2")
def pooling_behind(rng):
    depth = rng.randint(2, 9)
    field = _field([*[(3, 1, 1)] * depth, (2, 2, 1)])
    return whole(
        f"{depth} convolutions of 3 x 3 with stride 1, then a pooling of 2 with stride 2. How wide "
        "is the receptive field now?", field,
        "The pooling's window adds one pixel; its stride tells on the layers behind it only.",
        2 * (2 * depth + 1), 2 * depth + 1)


@asks("07.2")
def strided_then_plain(rng):
    before, stride, after = rng.randint(1, 3), rng.choice([2, 3]), rng.randint(2, 5)
    layers = [(3, 1, 1)] * before + [(3, stride, 1)] + [(3, 1, 1)] * after
    field = _field(layers)
    plain = 2 * (before + 1 + after) + 1
    return whole(
        f"{before} plain 3 x 3 convolutions, one with stride {stride}, then {after} plain ones. "
        "How wide is the receptive field?", field,
        "Behind the stride each layer adds its window less one, times the stride.",
        plain, plain * stride)


@asks("07.2")
def unseen_pixel(rng):
    depth, spread = rng.randint(3, 6), rng.choice([2, 3, 4])
    field = _field([(3, 1, spread)] * depth)
    reach = field // 2
    return whole(
        f"{depth} convolutions of 3 x 3, dilation {spread}, stride 1. How many pixels to the right "
        "of its middle does a unit still see?", reach,
        "Half of the field: depth times dilation on either side.", depth, field)


# ---- 07.3 Ten examples of each new digit

@asks("07.3")
def values_in_the_head(rng):
    width, classes = rng.randint(20, 500), rng.randint(3, 90)
    count = sum(p.numel() for p in nn.Linear(width, classes).parameters())
    return whole(
        f"You train nothing but a new head, `nn.Linear({width}, {classes})`. How many values "
        "move?", count, "Weights and biases.", width * classes)


@asks("07.3")
def forgotten_stem(rng):
    channels, kernel = rng.choice([16, 32, 64]), rng.choice([3, 5, 7])
    stem = nn.Sequential(nn.Conv2d(3, channels, kernel, bias=False), nn.BatchNorm2d(channels))
    count = sum(p.numel() for p in stem.parameters())
    return whole(
        f"Groups are made for layer1 to layer4 and the head. The stem, `nn.Conv2d(3, {channels}, "
        f"{kernel}, bias=False)` and `nn.BatchNorm2d({channels})`, is forgotten. How many "
        "trainable values get no update?", count, "Kernel weights, and BatchNorm's gain and bias.",
        3 * channels * kernel ** 2, 0)


@asks("07.3")
def which_measure(rng):
    name = rng.choice(["birds", "leaves", "coins", "street signs"])
    return choice(
        f"A model of ten kinds is fine-tuned on {rng.randint(3, 40)} new kinds of {name}. Which "
        "number shows what it forgot?", "the accuracy on the old kinds",
        "The new loss does not mention the old task.", "the loss on the new kinds",
        "the accuracy on the new kinds", "the norm of the head's gradient")


@asks("07.3")
def rate_of_the_body(rng):
    head, part = rng.choice([1e-2, 5e-3, 2e-3]), rng.choice([10, 20, 50, 100])
    body = nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.Adam([{"params": [body], "lr": head / part}], lr=head)
    return number(
        f"`Adam([{{'params': body, 'lr': {head} / {part}}}, {{'params': head}}], lr={head})`. At "
        "which rate does the body move?", optimizer.param_groups[0]["lr"],
        "A group's own rate goes before the default.", head, head / part ** 2)


# ---- 07.4 Three ways to serve a reader

@asks("07.4")
def normalised_pixel(rng):
    pixel, mean, std = rng.randint(0, 255), rng.randint(30, 60) / 100, rng.randint(15, 35) / 100
    right = ((torch.tensor(pixel) / 255 - mean) / std).item()
    return number(f"A pixel of {pixel} (0 to 255), mean {mean}, std {std} of brightness 0 to 1. "
                  "Which number does the net get?", right,
                  "Scale to 0 to 1 first, then normalise.", (pixel - mean) / std, pixel / 255)


@asks("07.4")
def twice_normalised(rng):
    x, mean, std = rng.randint(60, 95) / 100, rng.randint(20, 40) / 100, rng.choice([0.2, 0.25])
    once = (x - mean) / std
    return number(f"Brightness {x} is normalised with mean {mean} and std {std}, then once more. "
                  "What comes out?", ((torch.tensor(once) - mean) / std).item(),
                  "The second pass takes away the same mean and divides by the same std.", once, x)


@asks("07.4")
def stored_against_seen(rng):
    shift, std = rng.randint(2, 30) / 10, rng.choice([0.5, 0.8, 1.25, 2.0])
    norm = nn.BatchNorm1d(1, affine=False).eval()
    norm.running_var.fill_(std ** 2)
    with torch.no_grad():
        out = norm(torch.tensor([[shift]])).item()
    return number(f"In eval mode a BatchNorm without gain and bias has stored mean 0 and standard "
                  f"deviation {std}. All its inputs come shifted by {shift}. By how much are its "
                  "outputs shifted?", out, "It divides by what is stored, and corrects nothing.",
                  0, shift * std ** 2 + 1)


@asks("07.4")
def black_pixel(rng):
    mean, std = rng.randint(30, 60) / 100, rng.randint(15, 35) / 100
    return number(f"What does a black pixel become under mean {mean}, std {std}?",
                  ((torch.zeros(()) - mean) / std).item(), "Black is 0 before, not after.", 0, mean)


# ---- 07.5 A colleague moves the channels

def _shape(rng):
    return [rng.randint(2, 8), rng.randint(3, 9), *(rng.randint(10, 40) for _ in range(2))]


@asks("07.5")
def stride_of_a_column(rng):
    n, c, h, w = _shape(rng)
    x = torch.empty(n, c, h, w, device="meta").to(memory_format=torch.channels_last)
    return whole(f"A tensor of shape ({n}, {c}, {h}, {w}) is channels last. How far apart in "
                 "memory are neighbours along W?", x.stride(3),
                 "A pixel's channels lie between them.", 1, h * w)


@asks("07.5")
def stride_of_a_row(rng):
    n, c, h, w = _shape(rng)
    x = torch.empty(n, c, h, w, device="meta").to(memory_format=torch.channels_last)
    return whole(f"A tensor of shape ({n}, {c}, {h}, {w}) is channels last. How far apart are "
                 "neighbours along H?", x.stride(2), "A row of pixels, each with its channels.",
                 w, c * h)


@asks("07.5")
def stride_of_a_channel(rng):
    n, c, h, w = _shape(rng)
    x = torch.empty(n, c, h, w, device="meta")
    return whole(f"A tensor of shape ({n}, {c}, {h}, {w}) is as torch makes it. How far apart are "
                 "neighbours along C?", x.stride(1), "A whole plane lies between them.", 1, c)


@asks("07.5")
def shape_after(rng):
    n, c, h, w = _shape(rng)
    shapes = [f"({', '.join(map(str, s))})" for s in
              ((n, c, h, w), (n, h, w, c), (n, c * h, w), (n, w, h, c))]
    return choice(
        f"Which shape has a tensor of shape {shapes[0]} after "
        "`.to(memory_format=torch.channels_last)`?", shapes[0], "Only the strides change.",
        *shapes[1:])


# ---- 07.6 A rate for each layer

@asks("07.6")
def rate_at_the_bottom(rng):
    layers, decay = rng.choice([4, 6, 8, 12]), rng.choice([0.7, 0.8, 0.9, 0.95])
    rate = 1.0
    for _ in range(layers + 1):
        rate *= decay
    return number(f"Head at rate 1, {layers} layers, an embedding below; each step down multiplies "
                  f"by {decay}. At which rate is the embedding?", rate,
                  "One step for each layer, and one more.", rate / decay, decay)


@asks("07.6")
def exploded_head(rng):
    tensors, children, decay = rng.randint(40, 120), rng.randint(2, 4), rng.choice([0.9, 0.95])
    rate = math.exp((children - tensors) * math.log(decay))
    return number(f"A helper gives tensor i the factor {decay} ** ({children} - i). Which factor "
                  f"has tensor {tensors}?", rate, "The exponent is negative, so the rate grows.",
                  1, decay ** tensors)


@asks("07.6")
def top_layer(rng):
    layers, decay = rng.randint(6, 24), rng.choice([0.6, 0.75, 0.85])
    base = rng.choice([1e-3, 2e-4])
    return number(f"Base rate {base}, decay {decay}, head on top of {layers} layers. At which rate "
                  f"is the highest layer, layers.{layers - 1}?", base * decay,
                  "One step below the head.", base, base * decay ** layers)


@asks("07.6")
def half_rate(rng):
    decay = rng.choice([0.7, 0.8, 0.9, 0.95])
    steps, rate = 0, 1.0
    while rate >= 0.5:
        steps, rate = steps + 1, rate * decay
    return whole(f"Each step down multiplies the rate by {decay}. After how many steps is it below "
                 "one half?", steps, "Count the factors.", 0, steps + 9)


# ---- 07.7 A frozen body on new data

@asks("07.7")
def buffers_that_move(rng):
    norms = rng.randint(2, 30)
    body = nn.Sequential(*(nn.BatchNorm1d(2) for _ in range(norms))).requires_grad_(False)
    before = {n: b.clone() for n, b in body.named_buffers()}
    with torch.no_grad():
        body(torch.tensor([[3.0, 1.0], [8.0, -4.0], [1.0, 2.0]]))
    moved = sum(not torch.equal(b, before[n]) for n, b in body.named_buffers())
    return whole(f"A body has {norms} BatchNorms and no trainable tensor. After one pass in train "
                 "mode, how many of its buffers differ from before?", moved,
                 "Mean, variance and the count of batches, for each of them.", 0, norms)


@asks("07.7")
def mean_after(rng):
    stored, seen, passes = rng.randint(0, 5), rng.randint(10, 40), rng.randint(2, 6)
    norm = nn.BatchNorm1d(1).requires_grad_(False)
    norm.running_mean.fill_(stored)
    with torch.no_grad():
        for _ in range(passes):
            norm(torch.tensor([[seen - 1.0], [seen + 1.0]]))
    return number(f"A frozen BatchNorm (momentum 0.1, train mode) has stored mean {stored}. It "
                  f"sees {passes} batches of mean {seen}. Which mean does it store then?",
                  norm.running_mean.item(), "Each batch moves it a tenth of the way.", stored, seen)


@asks("07.7")
def back_in_train_mode(rng):
    parts, epochs = rng.randint(3, 40), rng.randint(2, 9)
    body = nn.Sequential(*(nn.ReLU() for _ in range(parts)))
    body.eval()
    nn.Sequential(body, nn.ReLU()).train()
    return whole(f"`body.eval()` is called once; the body has {parts} parts. Then {epochs} epochs "
                 "begin with `model.train()`. How many of these parts end in train mode?",
                 sum(m.training for m in body), "train() reaches every part, each time.", 0, 1)


@asks("07.7")
def what_stops_it(rng):
    layers = rng.randint(2, 60)
    return choice(
        f"Which of these stops the {layers} BatchNorms of a body from moving their statistics?",
        "body.eval() after each model.train()",
        "Statistics are moved by a pass in train mode, not by a gradient.",
        "requires_grad_(False) on the body", "torch.no_grad() around the body",
        "a learning rate of zero for the body")


# ---- 07.8 Three blocks in a list

@asks("07.8")
def known_values(rng):
    blocks, width = rng.randint(2, 12), rng.randint(4, 60)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.head = nn.Linear(width, 3)
            self.blocks = [nn.Linear(width, width) for _ in range(blocks)]
    net = Net()
    known = sum(p.numel() for p in net.parameters())
    return whole(f"`self.head = nn.Linear({width}, 3)` and `self.blocks` a list of {blocks} "
                 f"`nn.Linear({width}, {width})`. How many values does `parameters()` hold?", known,
                 "A list registers nothing.", known + blocks * (width * width + width))


@asks("07.8")
def hidden_in_a_dict(rng):
    heads, inputs, outputs = rng.randint(2, 9), rng.randint(3, 40), rng.randint(2, 9)
    one = sum(p.numel() for p in nn.Linear(inputs, outputs).parameters())
    return whole(f"`self.heads` is a dict of {heads} `nn.Linear({inputs}, {outputs})`. How many "
                 "values does it hide from the optimizer?", heads * one,
                 "A dict registers as little as a list; ModuleDict would.", 0,
                 heads * inputs * outputs)


@asks("07.8")
def keys_in_the_file(rng):
    blocks = rng.randint(2, 20)
    net = nn.Sequential(nn.Linear(2, 2))
    net.blocks = [nn.Linear(2, 2) for _ in range(blocks)]
    return whole(f"A module has one registered nn.Linear and {blocks} more in a list. How many "
                 "tensors does its state_dict save?", len(net.state_dict()),
                 "Weight and bias of the registered one.", 2 + 2 * blocks)


@asks("07.8")
def still_in_train_mode(rng):
    listed, registered = rng.randint(2, 9), rng.randint(2, 9)
    net = nn.Sequential(*(nn.Dropout() for _ in range(registered)))
    net.blocks = [nn.Dropout() for _ in range(listed)]
    net.eval()
    return whole(f"A model has {registered} registered dropouts and {listed} in a plain list. "
                 "After `model.eval()`, how many of all these still drop?",
                 sum(m.training for m in net.blocks), "eval() cannot reach what is not registered.",
                 0, listed + registered)


# ---- 07.9 Channels last, channels first

@asks("07.9")
def where_a_number_goes(rng):
    h, w, c = rng.randint(3, 6), rng.randint(7, 10), rng.choice([3, 4])
    row, column, channel = rng.randrange(1, h), rng.randrange(1, w), rng.randrange(1, c)
    a = torch.arange(h * w * c).view(1, h, w, c)
    wrong = a.reshape(1, c, h, w)[0, channel, row, column].item()
    right = a.permute(0, 3, 1, 2)[0, channel, row, column].item()
    return whole(f"A picture of shape (1, {h}, {w}, {c}) counts its numbers from 0 in memory. "
                 f"After permute(0, 3, 1, 2), what stands at [0, {channel}, {row}, {column}]?",
                 right, "Row times width plus column, times channels, plus channel.",
                 *({wrong} - {right} or {right + 1}))


@asks("07.9")
def what_reshape_puts_there(rng):
    h, w, c = rng.randint(3, 6), rng.randint(7, 10), rng.choice([3, 4])
    channel, column = rng.randrange(1, c), rng.randrange(1, w)
    a = torch.arange(h * w * c).view(1, h, w, c)
    value = a.reshape(1, c, h, w)[0, channel, 0, column].item()
    right = a.permute(0, 3, 1, 2)[0, channel, 0, column].item()
    return whole(f"The same picture, shape (1, {h}, {w}, {c}), counted from 0: what does "
                 f"reshape(1, {c}, {h}, {w}) put at [0, {channel}, 0, {column}]?", value,
                 "Reshape keeps the order in memory.", *({right} - {value} or {value + 1}))


@asks("07.9")
def strides_of_the_view(rng):
    n, h, w, c = rng.randint(2, 5), rng.randint(5, 9), rng.randint(10, 20), rng.choice([3, 4])
    view = torch.empty(n, h, w, c, device="meta").permute(0, 3, 1, 2)
    return whole(f"A tensor of shape ({n}, {h}, {w}, {c}) is permuted to ({n}, {c}, {h}, {w}), "
                 "without a copy. How far apart in memory are neighbours along its last axis?",
                 view.stride(3), "Nothing moved: a pixel's channels still lie between.", 1, w)


@asks("07.9")
def right_permutation(rng):
    shapes = {"HWC": "(0, 3, 1, 2)", "CWH": "(0, 1, 3, 2)", "WHC": "(0, 3, 2, 1)"}
    order = rng.choice(list(shapes))
    size = dict(zip("CHW", (3, rng.randint(20, 60), rng.randint(70, 99)), strict=True))
    shape = ", ".join(str(size[axis]) for axis in order)
    place = [0, *(1 + order.index(axis) for axis in "CHW")]
    right = f"({', '.join(map(str, place))})"
    return choice(
        f"Pictures come as (N, {', '.join(order)}), here (8, {shape}). Which permutation gives (N, "
        "C, H, W)?", right, "Say for each new axis which old one it is.",
        *[s for s in (*shapes.values(), "(0, 2, 3, 1)") if s != right])


# ---- 07.10 A new head

@asks("07.10")
def tensors_missing(rng):
    layers, kept = rng.randint(4, 20), rng.randint(1, 3)
    model = nn.Sequential(*(nn.Linear(2, 2) for _ in range(layers)))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for n in range(kept):
        model[n] = nn.Linear(2, 2)
    held = {id(p) for g in optimizer.param_groups for p in g["params"]}
    missing = sum(id(p) not in held for p in model.parameters())
    return whole(f"A model of {layers} nn.Linear gets its optimizer; then {kept} of the layers are "
                 "replaced. How many tensors of the model does no group hold?", missing,
                 "Weight and bias of each new layer.", 0, kept)


@asks("07.10")
def decay_of_zeros(rng):
    lr, decay, steps = rng.choice([1e-3, 3e-3, 1e-2]), rng.choice([0.1, 0.5]), rng.randint(50, 200)
    frozen = nn.Parameter(torch.ones(1, dtype=torch.float64))
    optimizer = torch.optim.AdamW([frozen], lr, weight_decay=decay)
    for _ in range(steps):
        frozen.grad = torch.zeros_like(frozen)
        optimizer.step()
    return number(f"A weight of 1 gets gradients of zero (not None) for {steps} steps of "
                  f"AdamW({lr}, weight_decay={decay}). What is it then?", frozen.item(),
                  "Each step multiplies by 1 - lr * weight_decay.", 0, 1.1, within=0.0005)


@asks("07.10")
def none_is_skipped(rng):
    value, steps = rng.randint(2, 9), rng.randint(20, 300)
    frozen = nn.Parameter(torch.full((1,), float(value)), requires_grad=False)
    optimizer = torch.optim.SGD([frozen], 0.1, momentum=0.9, weight_decay=0.1)
    for _ in range(steps):
        optimizer.step()
    return number(f"A frozen weight of {value}, gradient None, is held by SGD (0.1, momentum 0.9, "
                  f"weight_decay 0.1) for {steps} steps. What is it then?", frozen.item(),
                  "A tensor without a gradient is skipped, decay and all.", 0, value * 0.9)


@asks("07.10")
def moved_in_one_step(rng):
    frozen, live = rng.randint(2, 9), rng.randint(1, 6)
    model = nn.Sequential(*(nn.Linear(2, 2) for _ in range(frozen + live)))
    for layer in list(model)[:frozen]:
        layer.requires_grad_(False)
    count = sum(p.requires_grad for p in model.parameters())
    return whole(f"{frozen} nn.Linear are frozen, {live} behind them are not, and the optimizer, "
                 "made last, holds them all. How many tensors can one step move?", count,
                 "Weight and bias of each trainable layer.", 2 * (frozen + live), live)


# ---- 07.11 Larger pictures

@asks("07.11")
def rows_of_a_view(rng):
    images, factor = rng.randint(20, 90), rng.choice([2, 3, 4])
    h = torch.empty(images, 16, 2 * factor, 2 * factor, device="meta")
    return whole(f"A head wants 64 numbers: 16 channels of 2 x 2. {images} pictures come with maps "
                 f"of {2 * factor} x {2 * factor}. How many rows does view(-1, 64) make?",
                 len(h.view(-1, 64)), "The first axis takes what does not fit.", images,
                 images * factor)


@asks("07.11")
def width_of_flatten(rng):
    channels, h, w = rng.choice([8, 16, 32]), rng.randint(3, 7), rng.randint(8, 12)
    x = torch.empty(rng.randint(2, 30), channels, h, w, device="meta")
    return whole(f"A batch of {len(x)} maps, {channels} channels of {h} x {w}. How many numbers "
                 "has a row after flatten(1)?", x.flatten(1).shape[1],
                 "All axes but the first are joined.", channels, h * w)


@asks("07.11")
def pooled_rows(rng):
    channels, side, images = rng.choice([16, 32, 64]), rng.randint(2, 5), rng.randint(3, 90)
    x = torch.empty(images, channels, side + 6, side + 9, device="meta")
    out = F.adaptive_avg_pool2d(x, side).flatten(1)
    return whole(f"{images} maps of {channels} channels, {side + 6} x {side + 9}, go through "
                 f"adaptive_avg_pool2d(x, {side}) and flatten(1). How wide is a row?", out.shape[1],
                 "Adaptive pooling fixes the places, whatever comes.",
                 channels * (side + 6) * (side + 9), channels)


@asks("07.11")
def zip_that_stops(rng):
    images, factor = rng.randint(30, 200), rng.choice([4, 9])
    compared = len(list(zip(range(images * factor), range(images), strict=False)))
    return whole(f"A net gives {images * factor} predictions for {images} labels. How many pairs "
                 "does zip(predictions, labels) compare?", compared,
                 "It stops at the shorter one, without a word.", images * factor)
