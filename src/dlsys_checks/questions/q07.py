"""Stage 7: what a convolution keeps and sees, and what fine-tuning moves."""

import math

from dlsys_checks.questions import ask, choice, number, question_for, whole

# ---- 07.1 A small net that fills the memory

ask("07.1", {"size": range(40, 241), "kernel": (3, 5, 7), "stride": (2, 3, 4), "padding": range(2)},
    lambda size, kernel, stride, padding: whole(
        f"A window of {kernel} with stride {stride} and padding {padding} moves over {size} "
        "columns. How many columns does the output have?",
        (places := (size + 2 * padding - kernel) // stride + 1),
        "The number of positions is rounded down.", places + 1, size))
ask("07.1", {"channels": (16, 32, 64), "side": (28, 56, 112), "batch": range(2, 33)},
    lambda channels, side, batch: number(
        f"A float32 map has {channels} channels of {side} x {side}. How many MB (1e6 bytes) does "
        f"the map take for a batch of {batch}?", (size := 4 * batch * channels * side**2) / 1e6,
        "The map takes four bytes for each image, channel, row and column.",
        size / 4e6, size / batch / 1e6))
ask("07.1", {"stages": range(2, 6), "side": (128, 256, 512)}, lambda stages, side: whole(
    f"An image of {side} x {side} passes {stages} convolutions of 3 x 3 with stride 2 and padding "
    "1. How many columns does the last map have?", side // 2**stages,
    "Each convolution halves rows and columns.", side, side // stages + 1))
ask("07.1", {"channels": (16, 32, 64), "side": (32, 64), "factor": (2, 3, 4)},
    lambda channels, side, factor: number(
        f"A stage halves rows and columns of a map of {side} x {side} and multiplies its "
        f"{channels} channels by {factor}. By what factor does the memory of the map change?",
        factor / 4, "The positions fall to a quarter, and the channels grow by the factor.",
        factor, factor / 2))

# ---- 07.2 A defect at the edge of the window

ask("07.2", {"depth": range(3, 13), "kernel": (3, 5)}, lambda depth, kernel: whole(
    f"A net has {depth} convolutions with windows of {kernel}, stride 1 and no dilation. How many "
    "pixels wide is its receptive field?",
    depth * (kernel - 1) + 1, "Each layer adds its window's width minus one.",
    depth * kernel, kernel ** depth))
ask("07.2", {"depth": range(2, 10)}, lambda depth: whole(
    f"A pooling of 2 with stride 2 follows {depth} convolutions of 3 x 3 with stride 1. How wide "
    "is the receptive field after the pooling?", 2 * depth + 2,
    "The pooling window adds one pixel. The pooling's stride affects only later layers.",
    2 * (2 * depth + 1), 2 * depth + 1))
ask("07.2", {"before": range(1, 4), "stride": (2, 3), "after": range(2, 6)},
    lambda before, stride, after: whole(
        f"A net has {before} plain 3 x 3 convolutions, one with stride {stride}, then {after} more "
        "plain convolutions. How wide is its receptive "
        "field?", 2 * (before + 1 + stride * after) + 1,
        "After the stride, each layer adds its window's width minus one, times the stride.",
        (plain := 2 * (before + 1 + after) + 1), plain * stride))
ask("07.2", {"depth": range(3, 7), "spread": (2, 3, 4)}, lambda depth, spread: whole(
    f"A net has {depth} convolutions of 3 x 3 with dilation {spread} and stride 1. How many pixels "
    "to the right of its middle does a unit still read?", depth * spread,
    "To either side, the field reaches depth times dilation "
    "pixels.", depth, 2 * depth * spread + 1))

# ---- 07.3 Ten examples of each new digit

ask("07.3", {"width": range(20, 501), "classes": range(3, 91)}, lambda width, classes: whole(
    f"You train only a new head, `nn.Linear({width}, {classes})`. How many values can change?",
    width * classes + classes, "The weights and the biases can change.", width * classes))
ask("07.3", {"channels": (16, 32, 64), "kernel": (3, 5, 7)}, lambda channels, kernel: whole(
    f"Groups are made for layer1 to layer4 and the head. The stem, `nn.Conv2d(3, {channels}, "
    f"{kernel}, bias=False)` and `nn.BatchNorm2d({channels})`, is forgotten. How many trainable "
    "values get no update?", 3 * channels * kernel**2 + 2 * channels,
    "These are the kernel weights and BatchNorm's gain and bias.",
    3 * channels * kernel**2, 0))
ask("07.3", {"name": ("birds", "leaves", "coins", "street signs"), "count": range(3, 41)},
    lambda name, count: choice(
        f"A classifier of ten kinds is fine-tuned on {count} new kinds of {name}. Which number "
        "shows what the classifier forgot?",
        "the accuracy on the old kinds",
        "The new loss does not measure the old task.", "the loss on the new kinds",
        "the accuracy on the new kinds", "the norm of the head's gradient"))
ask("07.3", {"head": (1e-2, 5e-3, 2e-3), "part": (10, 20, 50, 100)}, lambda head, part: number(
    f"`Adam([{{'params': body, 'lr': {head} / {part}}}, {{'params': head}}], lr={head})`. At what "
    "rate does the body train?", head / part, "A group's own rate overrides the default.", head,
    head / part ** 2))

# ---- 07.4 Three ways to serve a reader

ask("07.4", {"pixel": range(256), "mean": [k / 100 for k in range(30, 61)],
             "std": [k / 100 for k in range(15, 36)]},
    lambda pixel, mean, std: number(
        f"A pixel has the value {pixel} (0 to 255), and the recipe has mean {mean} and std {std} "
        "for brightness 0 to 1. What value reaches the net?", round((pixel / 255 - mean) / std, 9),
        "Scale to 0 to 1 first, then normalize.", (pixel - mean) / std, pixel / 255))
ask("07.4", {"x": [k / 100 for k in range(60, 96)], "mean": [k / 100 for k in range(20, 41)],
             "std": (0.2, 0.25)},
    lambda x, mean, std: number(
        f"A brightness of {x} is normalized with mean {mean} and std {std}, and then normalized a "
        "second time. What is the result?", ((once := (x - mean) / std) - mean) / std,
        "The second pass subtracts the same mean and divides by the same std again.", once, x))
ask("07.4", {"shift": [k / 10 for k in range(2, 31)], "std": (0.5, 0.8, 1.25, 2.0)},
    lambda shift, std: number(
        "In eval mode a BatchNorm without gain and bias has stored mean 0 and standard deviation "
        f"{std}. All its inputs are shifted by {shift}. By how much are its outputs shifted?",
        shift / std, "BatchNorm divides by the stored standard deviation but does not correct the "
                     "shift.", 0,
        shift * std ** 2 + 1))
ask("07.4", {"mean": [k / 100 for k in range(30, 61)], "std": [k / 100 for k in range(15, 36)]},
    lambda mean, std: number(
        f"What does a black pixel become after normalization with mean {mean} and std {std}?",
        -mean / std,
        "Black is 0 before normalization, not after it.", 0, mean))

# ---- 07.5 A colleague moves the channels

ask("07.5", {"n": range(2, 9), "c": range(3, 10), "h": range(10, 41), "w": range(10, 41)},
    lambda n, c, h, w: whole(
        f"A tensor of shape ({n}, {c}, {h}, {w}) is channels last. How many values apart in memory "
        "are neighbours along W?", c, "The channels of a pixel are between them.", 1, h * w))
ask("07.5", {"n": range(2, 9), "c": range(3, 10), "h": range(10, 41), "w": range(10, 41)},
    lambda n, c, h, w: whole(
        f"A tensor of shape ({n}, {c}, {h}, {w}) is channels last. How many values apart in "
        "memory are neighbours along H?",
        w * c, "A row of pixels, each with its channels, is between them.", w, c * h))
ask("07.5", {"n": range(2, 9), "c": range(3, 10), "h": range(10, 41), "w": range(10, 41)},
    lambda n, c, h, w: whole(
        f"A tensor of shape ({n}, {c}, {h}, {w}) has torch's default layout. How many values "
        "apart in memory are neighbours along C?", h * w, "A whole plane is between them.", 1, c))
ask("07.5", {"n": range(2, 9), "c": range(3, 10), "h": range(10, 41), "w": range(10, 41)},
    lambda n, c, h, w: choice(
        f"What is the shape of a tensor of shape ({n}, {c}, {h}, {w}) after "
        "`.to(memory_format=torch.channels_last)`?", f"({n}, {c}, {h}, {w})",
        "The shape stays unchanged.", f"({n}, {h}, {w}, {c})", f"({n}, {c * h}, {w})",
        f"({n}, {w}, {h}, {c})"))

# ---- 07.6 A rate for each layer

ask("07.6", {"layers": (4, 6, 8, 12), "decay": (0.7, 0.8, 0.9, 0.95)}, lambda layers, decay: number(
    f"The head has rate 1, below it are {layers} layers and an embedding, and each step down "
    f"multiplies the rate by {decay}. What is the rate of the embedding?", decay ** (layers + 1),
    "There is one step for each layer, and one more for the embedding.", decay**layers, decay))
ask("07.6", {"tensors": range(40, 121), "children": range(2, 5), "decay": (0.9, 0.95)},
    lambda tensors, children, decay: number(
        f"A helper gives tensor i the factor {decay} ** ({children} - i). What factor does tensor "
        f"{tensors} get?", decay ** (children - tensors),
        "The exponent is negative, so the rate grows.", 1, decay**tensors))
ask("07.6", {"layers": range(6, 25), "decay": (0.6, 0.75, 0.85), "base": (1e-3, 2e-4)},
    lambda layers, decay, base: number(
        f"The base rate is {base}, the decay {decay}, and a head is on top of {layers} layers. "
        f"What is the rate of the highest layer, layers.{layers - 1}?",
        base * decay, "The highest layer is one step below the head.", base,
        base * decay**layers))
ask("07.6", {"decay": (0.7, 0.8, 0.9, 0.95)}, lambda decay: whole(
    f"Each step down multiplies the rate by {decay}. After how many steps is the rate below one "
    "half of its first value?",
    (steps := math.floor(math.log(0.5, decay)) + 1), "Divide the logarithm of one half by the "
                                                     "logarithm of the factor, and round up.",
                                                         0, steps + 9))

# ---- 07.7 A frozen body on new data

ask("07.7", {"norms": range(2, 31)}, lambda norms: whole(
    f"A body has {norms} BatchNorms and no trainable tensor. After one pass in train mode, how "
    "many of its buffers differ from before?", 3 * norms,
    "Mean, variance and batch count change in each norm.", 0, norms))
ask("07.7", {"stored": range(6), "seen": range(10, 41), "passes": range(2, 7)},
    lambda stored, seen, passes: number(
        f"A frozen BatchNorm (momentum 0.1, train mode) has stored mean {stored}. It gets {passes} "
        f"batches of mean {seen}. What mean does it store afterwards?",
        seen + (stored - seen) * 0.9**passes, "Each batch moves the mean a tenth of the way.",
        stored,
        seen))
ask("07.7", {"parts": range(3, 41), "epochs": range(2, 10)}, lambda parts, epochs: whole(
    f"`body.eval()` is called once; the body has {parts} parts. Then {epochs} epochs begin with "
    "`model.train()`. How many of these parts end in train mode?", parts,
    "Each call of train() reaches every part.", 0, 1))
ask("07.7", {"layers": range(2, 61)}, lambda layers: choice(
    f"Which of these stops the {layers} BatchNorms of a body from moving their statistics?",
    "body.eval() after each model.train()",
    "Every pass in train mode moves the statistics, without any gradient.",
    "requires_grad_(False) on the body", "torch.no_grad() around the body",
    "a learning rate of zero for the body"))

# ---- 07.8 Three blocks in a list

ask("07.8", {"blocks": range(2, 13), "width": range(4, 61)}, lambda blocks, width: whole(
    f"`self.head` is `nn.Linear({width}, 3)`, and `self.blocks` is a list of {blocks} "
    f"`nn.Linear({width}, "
    f"{width})`. How many values does `parameters()` hold?", (known := 3 * width + 3),
    "A list registers nothing.", known + blocks * (width * width + width)))
ask("07.8", {"heads": range(2, 10), "inputs": range(3, 41), "outputs": range(2, 10)},
    lambda heads, inputs, outputs: whole(
        f"`self.heads` is a dict of {heads} `nn.Linear({inputs}, {outputs})`. How many values does "
        "the dict hide from the optimizer?", heads * (inputs + 1) * outputs,
        "A dict registers as little as a list. A ModuleDict would register them.",
        0, heads * inputs * outputs))
ask("07.8", {"blocks": range(2, 21)}, lambda blocks: whole(
    f"A module has one registered nn.Linear and {blocks} more in a plain list. How many tensors "
    "does its state_dict save?",
    2, "Only the weight and the bias of the registered layer are saved.",
    2 + 2 * blocks))
ask("07.8", {"listed": range(2, 10), "registered": range(2, 10)}, lambda listed, registered: whole(
    f"A model has {registered} registered dropouts and {listed} in a plain list. After "
    "`model.eval()`, how many dropouts still drop values?", listed,
    "eval() cannot reach what is not registered.", 0, listed + registered))

# ---- 07.9 Channels last, channels first

ask("07.9", {"h": range(3, 7), "w": range(7, 11), "c": (3, 4), "row": lambda h, **_: range(1, h),
             "column": lambda w, **_: range(1, w), "channel": lambda c, **_: range(1, c)},
    lambda h, w, c, row, column, channel: whole(
        f"The values of a picture of shape (1, {h}, {w}, {c}) count up from 0 in memory. After "
        f"permute(0, 3, 1, 2), what value is at [0, {channel}, {row}, {column}]?",
        (right := (row * w + column) * c + channel),
        "The value is row times width plus column, times channels, plus channel.",
        *({((channel * h + row) * w + column)} - {right} or {right + 1})))
ask("07.9", {"h": range(3, 7), "w": range(7, 11), "c": (3, 4),
             "channel": lambda c, **_: range(1, c), "column": lambda w, **_: range(1, w)},
    lambda h, w, c, channel, column: whole(
        f"The values of a picture of shape (1, {h}, {w}, {c}) count up from 0 in memory. What "
        f"value does reshape(1, {c}, {h}, {w}) put at [0, {channel}, 0, {column}]?",
        (value := channel * h * w + column),
        "Reshape keeps the order in memory.", *({(column * c + channel)} - {value} or {value + 1})))
ask("07.9", {"n": range(2, 6), "h": range(5, 10), "w": range(10, 21), "c": (3, 4)},
    lambda n, h, w, c: whole(
        f"A tensor of shape ({n}, {h}, {w}, {c}) is permuted to ({n}, {c}, {h}, {w}), without a "
        "copy. How far apart in memory are neighbours along the last axis?", c,
        "Nothing has moved in memory, so the channels of a pixel are still between them.", 1, w))


@question_for("07.9")
def right_permutation(rng):
    shapes = {"HWC": "(0, 3, 1, 2)", "CWH": "(0, 1, 3, 2)", "WHC": "(0, 3, 2, 1)"}
    order = rng.choice(list(shapes))
    size = dict(zip("CHW", (3, rng.randint(20, 60), rng.randint(70, 99)), strict=True))
    shape = ", ".join(str(size[axis]) for axis in order)
    place = [0, *(1 + order.index(axis) for axis in "CHW")]
    right = f"({', '.join(map(str, place))})"
    return choice(
        f"Pictures come as (N, {', '.join(order)}), here (8, {shape}). Which permutation gives (N, "
        "C, H, W)?", right, "For each new axis, write down the position of the old axis.",
        *[s for s in (*shapes.values(), "(0, 2, 3, 1)") if s != right])


# ---- 07.10 A new head

ask("07.10", {"layers": range(4, 21), "kept": range(1, 4)}, lambda layers, kept: whole(
    f"The optimizer is made for a model of {layers} nn.Linear, and then {kept} of the layers are "
    "replaced. How many tensors of the model are in no group?", 2 * kept,
    "These are the weight and the bias of each new layer.", 0, kept))
ask("07.10", {"lr": (1e-3, 3e-3, 1e-2), "decay": (0.1, 0.5), "steps": range(50, 201)},
    lambda lr, decay, steps: number(
        f"A weight of 1 gets gradients of zero (not None) for {steps} steps of AdamW({lr}, "
        f"weight_decay={decay}). What is the weight's value afterwards?", (1 - lr * decay) ** steps,
        "Each step multiplies by 1 - lr * weight_decay.", 0, 1.1, within=0.0005))
ask("07.10", {"value": range(2, 10), "steps": range(20, 301)}, lambda value, steps: number(
    f"A frozen weight of {value}, gradient None, is held by SGD (0.1, momentum 0.9, weight_decay "
    f"0.1) for {steps} steps. What is the weight's value afterwards?", value,
    "A tensor without a gradient is skipped, without any decay.", 0, value * 0.9))
ask("07.10", {"frozen": range(2, 10), "live": range(1, 7)}, lambda frozen, live: whole(
    f"{frozen} nn.Linear are frozen, the {live} after them are not, and an optimizer made "
    "afterwards holds all of them. How many tensors can one step change?", 2 * live,
    "One step can change the weight and the bias of each trainable "
    "layer.", 2 * (frozen + live), live))

# ---- 07.11 Larger images

ask("07.11", {"images": range(20, 91), "factor": (2, 3, 4)}, lambda images, factor: whole(
    f"A head takes 64 values, 16 channels of 2 x 2. A batch of {images} images has maps of "
    f"{2 * factor} x {2 * factor}. How many rows does view(-1, 64) make?", images * factor**2,
    "The values that do not fit into 64 columns become more rows.", images, images * factor))
ask("07.11", {"channels": (8, 16, 32), "h": range(3, 8), "w": range(8, 13), "images": range(2, 31)},
    lambda channels, h, w, images: whole(
        f"A batch has {images} maps with {channels} channels of {h} x {w}. How many values does a "
        "row have after flatten(1)?",
        channels * h * w, "All axes except the first are joined.", channels,
        h * w))
ask("07.11", {"channels": (16, 32, 64), "side": range(2, 6), "images": range(3, 91)},
    lambda channels, side, images: whole(
        f"{images} maps of {channels} channels, {side + 6} x {side + 9}, go through "
        f"adaptive_avg_pool2d(x, {side}) and flatten(1). How wide is a row?", channels * side**2,
        "Adaptive pooling fixes the number of positions, whatever the input.",
        channels * (side + 6) * (side + 9),
        channels))
ask("07.11", {"images": range(30, 201), "factor": (4, 9)}, lambda images, factor: whole(
    f"A net returns {images * factor} predictions for {images} labels. How many pairs does "
    "zip(predictions, labels) compare?",
    images, "zip stops at the end of the shorter list, without an error.",
    images * factor))


# ---- The ideas: shared weights, and what moves when the picture moves

ask("07.1", {"ins": (1, 3, 16, 32), "outs": (8, 24, 48, 64), "window": (3, 5, 7),
             "size": (28, 32, 64, 224)}, lambda ins, outs, window, size: whole(
    f"A convolution maps {ins} channels to {outs}, with windows of {window} x {window} and no "
    f"bias. The pictures have {size} x {size} pixels. How many weights does the convolution have?",
    ins * outs * window ** 2,
    "The same weights serve at every position, so the size of the picture does not matter.",
    ins * outs * window ** 2 * size ** 2, outs * window ** 2 * size ** 2, ins * outs))
ask("07.2", {"rows": (4, 8, 12, 16, 20, 24),
             "pools, told": [(1, "one pooling"), (2, "two poolings")]},
    lambda rows, pools, told: whole(
        f"A picture moves {rows} rows down, away from its borders. It goes through convolutions of "
        f"stride 1 and {told} of 2 x 2 with stride 2. How many rows down does the last map move?",
        rows // 2 ** pools,
        "A convolution of stride 1 moves its map as far as the picture, and each pooling halves "
        "this distance.",
        rows, 0))
