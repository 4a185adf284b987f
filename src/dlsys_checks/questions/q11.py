"""Stage 11: grids and their cost, masks, temperatures, order of columns, and sizes of files."""

import torch
from torch.nn import functional as F

from dlsys_checks.questions import asks, choice, number, whole

# ---- 11.1 Fewer and fewer bits

@asks("11.1")
def levels_of_a_grid(rng):
    bits = rng.randint(2, 8)
    levels = len(torch.arange(-(2 ** (bits - 1) - 1), 2 ** (bits - 1)))
    return whole(
        f"A symmetric grid of {bits} bits has its largest level at the largest weight, and as many "
        "below zero as above. How many levels does it have?", levels,
        "One code of the 2**bits is not used, so that both sides are alike.", levels + 1,
        levels - 1)


@asks("11.1")
def code_of_zero(rng):
    bits, step = rng.choice([4, 8]), rng.choice([0.1, 0.25, 0.5])
    zero = rng.randint(2, 2 ** bits - 4)
    low, high = -zero * step, (2 ** bits - 1 - zero) * step
    found = round(-low / ((high - low) / (2 ** bits - 1)))
    return whole(
        f"An affine grid of {bits} bits goes from {low:g} to {high:g}. Which code stands for 0?",
        found, "The code of 0 is minus the lower end, over the scale.", 0, 2 ** bits // 2 + (
            found == 2 ** bits // 2))


@asks("11.1")
def bits_with_scales(rng):
    bits, group, scale = rng.choice([2, 3, 4]), rng.choice([16, 32, 64, 128]), rng.choice([16, 32])
    return number(
        f"Weights of {bits} bits in groups of {group}; each group stores a scale of {scale} bits "
        "and no code of zero. How many bits does a weight take?", (bits * group + scale) / group,
        "The scale is shared by the group.", bits, bits + scale, within=0.01)


@asks("11.1")
def zero_below_half(rng):
    largest = rng.choice([0.8, 1.2, 2.0, 3.0])
    weight = rng.choice([0.35, 0.4, 0.45])
    return choice(
        f"The largest weight of a matrix is {largest:g}, the grid is symmetric with 2 bits. What "
        f"becomes of a weight of {weight * largest:.2f}?", "0",
        "The levels are the largest weight, zero and its opposite; below half it goes to zero.",
        f"{largest:g}", f"{weight * largest:.2f}", f"{largest / 2:g}")


# ---- 11.2 Retraining a pruned net

@asks("11.2")
def zeros_kept(rng):
    total, share = rng.choice([1000, 4000, 20000]), rng.choice([0.5, 0.8, 0.9])
    return whole(
        f"Of {total} weights {share:.0%} are pruned. After each step of retraining they are set to "
        "zero by the mask. No other weight is zero. How many zeros are there in the end?",
        round(total * share), "The mask brings each of them back to zero.", 0,
        total - round(total * share) + (share == 0.5))


@asks("11.2")
def moved_by_momentum(rng):
    rate, momentum, memory = rng.choice([0.1, 0.01]), rng.choice([0.5, 0.9]), rng.randint(1, 5)
    w = torch.nn.Parameter(torch.zeros(1, dtype=torch.float64))
    opt = torch.optim.SGD([w], lr=rate, momentum=momentum)
    opt.state[w]["momentum_buffer"] = torch.full((1,), float(memory), dtype=torch.float64)
    w.grad = torch.zeros_like(w)
    opt.step()
    return number(
        f"A weight was pruned to 0, its gradient is masked to 0. SGD has a rate of {rate}, a "
        f"momentum of {momentum}, and remembers {memory} for this weight. Where is the weight "
        "after a step?", w.item(), "The momentum moves it without a gradient.", 0,
        -rate * memory, rate * momentum * memory)


@asks("11.2")
def bytes_of_zeros(rng):
    rows, columns, share = rng.choice([64, 256]), rng.choice([128, 512]), rng.choice([0.5, 0.9])
    size = torch.empty(rows, columns, device="meta").nbytes
    return whole(
        f"{share:.0%} of a float32 matrix of {rows} x {columns} are set to zero; it stays an "
        "ordinary tensor. How many bytes does it take?", size,
        "A zero takes four bytes like any other number.", round(size * (1 - share)))


@asks("11.2")
def place_of_the_mask(rng):
    layer = rng.choice(["a Linear", "a convolution", "an embedding"])
    return choice(
        f"The weights of {layer} are pruned and shall stay so in retraining, with an optimizer "
        "that trained before. Where does the mask belong?", "on the weights, after each step",
        "What the optimizer remembers moves a weight whose gradient is zero.",
        "on the gradients, before each step", "on the weights, once, before retraining",
        "on the weights, before each step and at no other time")


# ---- 11.3 Temperatures for a small student

@asks("11.3")
def softened(rng):
    gap, temperature = rng.choice([1, 2, 3, 4]), rng.choice([2, 4, 10])
    p = torch.softmax(torch.tensor([float(gap), 0.0], dtype=torch.float64) / temperature, 0)
    sharp = torch.softmax(torch.tensor([float(gap), 0.0]), 0)
    return number(
        f"Two classes, logits {gap} and 0. What is the probability of the first at a temperature "
        f"of {temperature}?", p[0].item(), "Divide the logits, then take the softmax.",
        sharp[0].item(), 1 - p[0].item())


@asks("11.3")
def square_forgotten(rng):
    temperature = rng.choice([2, 3, 5, 8, 10])
    return whole(
        f"A distillation loss at temperature {temperature} is written without the square. By what "
        "factor is its gradient too small?", temperature ** 2,
        "The usual loss is multiplied by the square of the temperature.", temperature, 1)


@asks("11.3")
def mean_or_batchmean(rng):
    classes, rows = rng.choice([10, 100, 1000]), rng.choice([8, 32, 64])
    q = torch.zeros(rows, classes, dtype=torch.float64)
    p = torch.softmax(torch.arange(classes, dtype=torch.float64) % 3, 0).expand(rows, classes)
    both = [F.kl_div(q.log_softmax(1), p, reduction=r).item() for r in ("batchmean", "sum")]
    return whole(
        f"`F.kl_div` of {rows} rows and {classes} classes, once with `batchmean` and once with "
        "the mean over all entries. By what factor is the second one smaller?",
        round(both[0] / (both[1] / (rows * classes))), "The mean divides by the classes, too.",
        rows, rows * classes)


@asks("11.3")
def loss_of_equals(rng):
    temperature, alpha = rng.choice([2, 4, 8]), rng.choice([0.25, 0.5, 0.75])
    classes = rng.choice([2, 4, 10])
    z = torch.zeros(1, classes, dtype=torch.float64)
    hard = F.cross_entropy(z, torch.tensor([0])).item()
    return number(
        f"Student and teacher have the same logits, all zero, for {classes} classes. The "
        f"teacher's part weighs {alpha}, at temperature {temperature}; the label's part the rest. "
        "What is the loss?", (1 - alpha) * hard,
        "The divergence of equals is zero; the label's part is left.", hard,
        (1 - alpha) * hard + alpha * temperature ** 2 * hard)


# ---- 11.4 Rounding one column after the other

@asks("11.4")
def made_up_for(rng):
    share, error = rng.choice([0.2, 0.5, 0.8]), rng.choice([0.1, 0.2, 0.4])
    H = torch.tensor([[1.0, share], [share, 1.0]], dtype=torch.float64)
    move = error * (H[1, 0] / H[1, 1]).item()
    return number(
        f"Two inputs of mean square 1, the mean of their product is {share}. The first weight is "
        f"rounded down by {error}. By how much does the second grow, so that the output changes "
        "least?", move, "The error, times the mean product over the second's mean square.",
        error, 0.0, -move)


@asks("11.4")
def left_over(rng):
    share = rng.choice([0.3, 0.5, 0.6, 0.8])
    H = torch.tensor([[1.0, share], [share, 1.0]], dtype=torch.float64)
    d = torch.tensor([1.0, -share], dtype=torch.float64)
    return number(
        f"Two inputs of mean square 1, the mean of their product is {share}. One weight is taken "
        "out and the other makes up for it. What share of the output's squared error is left, "
        "beside taking it out alone?", (d @ H @ d).item(),
        "1 minus the square of the correlation.", 1 - share if share != 1 else 0.5, share)


@asks("11.4")
def which_first(rng):
    sizes = rng.sample([0.1, 0.5, 2.0, 5.0, 9.0], 3)
    return choice(
        f"Three inputs go together, with root mean squares {sizes[0]:g}, {sizes[1]:g} and "
        f"{sizes[2]:g}. Which column does act-order round first?", f"the one of {max(sizes):g}",
        "What costs most goes first, while others can still make up for it.",
        *[f"the one of {s:g}" for s in sizes if s != max(sizes)])


@asks("11.4")
def independent_inputs(rng):
    sizes = rng.sample([1, 2, 3, 4, 6], 2)
    return number(
        f"Two independent inputs of mean zero, root mean squares {sizes[0]} and {sizes[1]}. The "
        "first weight is rounded down by 0.3. By how much does GPTQ, without damping and with very "
        "many rows, move the second?", 0.0, "Inputs that do not go together cannot help.",
        0.3, 0.3 * sizes[0] / sizes[1], within=0.0)


# ---- 11.5 How large is it now?

@asks("11.5")
def file_of_eight_bits(rng):
    rows, columns = rng.choice([256, 512, 1024]), rng.choice([256, 512, 1024])
    size = sum(torch.empty(shape, dtype=kind, device="meta").nbytes for shape, kind in (
        ((rows, columns), torch.int8), ((rows, 1), torch.float32)))
    return whole(
        f"A matrix of {rows} x {columns} is stored as codes of 8 bits, with a float32 scale for "
        "each row. How many bytes are that?", size, "One byte a code, four a scale.",
        4 * rows * columns, rows * columns)


@asks("11.5")
def view_in_a_file(rng):
    rows, shown, width = rng.choice([1000, 5000]), rng.choice([10, 50]), rng.choice([8, 64])
    part = torch.zeros(rows, width)[:shown]
    return whole(
        f"`table` is float32, {rows} x {width}. `torch.save` writes `table[:{shown}]`. How many "
        "bytes of numbers are in the file?", part.untyped_storage().nbytes(),
        "The storage behind the view is written, whole.", part.nbytes)


@asks("11.5")
def tied_in_a_file(rng):
    rows, width = rng.choice([100, 1000]), rng.choice([16, 64])
    size = torch.empty(rows, width, device="meta").nbytes
    return whole(
        f"A state dict holds one float32 tensor of {rows} x {width} under two names. How many "
        "bytes of numbers does `torch.save` write?", size, "A storage is written once.", 2 * size)


@asks("11.5")
def says_and_stores(rng):
    n = rng.choice([1000, 4096, 20000])
    return choice(
        f"A wrapper of {n} weights says float32 and keeps codes of 8 bits inside. What does "
        "`numel()` times `element_size()` say?", f"{4 * n}",
        "The line asks the wrapper, not what it stores.", f"{n}", "0", f"{8 * n}")


# ---- 11.6 Two scanners, one program

@asks("11.6")
def traced_branch(rng):
    example, other = rng.choice([(3, -2), (-4, 5), (2, -6), (-1, 7)])
    up, down = rng.choice([(10, 100), (2, 20), (5, 50)])
    kept = up if example > 0 else down
    return whole(
        f"`forward` returns `{up} * x` if `x.sum() > 0`, else `{down} * x`. It is traced with "
        f"`torch.jit.trace` on x = {example}. What does the trace return for x = {other}?",
        other * kept, "The trace holds the way of its example, whatever comes later.",
        other * (up + down - kept), example * kept)


@asks("11.6")
def both_ways(rng):
    conditions = rng.randint(2, 4)
    found = len(torch.cartesian_prod(*[torch.arange(2)] * conditions))
    return whole(
        f"A forward pass has {conditions} branches in a row; each asks something of its own, so "
        "that any combination can occur. How many inputs at least does a test need that walks "
        "through all combinations?", found, "Each branch doubles the number of ways.",
        2 * conditions if conditions != 2 else 3, conditions)


@asks("11.6")
def who_refuses(rng):
    question = rng.choice(["x.mean() > 0.5", "x.max() > 1", "(x < 0).any()"])
    return choice(
        f"`forward` has `if {question}:`. Which of these raises an error, rather than keep one way "
        "of it?", "`torch.export.export`",
        "It runs the model with tensors that have no numbers, so the question has no answer.",
        "`torch.jit.trace`", "`torch.onnx.export` with `dynamo=False`", "none of them")


@asks("11.6")
def blind_comparison(rng):
    rows, columns = rng.choice([4, 7, 9]), rng.choice([3, 10])
    gap = torch.zeros(rows, columns) - torch.zeros(1, columns)
    return whole(
        f"A model answers with shape ({rows}, {columns}), a program with shape (1, {columns}). "
        "Nothing else is compared but `(a - b).abs()`. How many numbers does that have?",
        gap.numel(), "The one row is stretched over all; compare the shapes first.",
        columns, rows)


@asks("11.6")
def gap_allowed(rng):
    largest, rtol = rng.choice([4, 20, 50]), rng.choice([0.01, 0.001])
    answers = torch.tensor([largest, -largest / 4, 0.0], dtype=torch.float64)
    return number(
        f"The largest size in a model's answer is {largest}; a program may be off by "
        f"{rtol:g} of it. By how much may the entry 0 be off?", (rtol * answers.abs().max()).item(),
        "The limit follows the largest size, so that an entry of 0 has room, too.", 0.0, rtol)


# ---- 11.7 One digit, or several

@asks("11.7")
def example_with_two(rng):
    rows = rng.choice([8, 16, 32])
    return choice(
        f"A service will send 1 to {rows} rows at a time. With how many rows in the example do you "
        "export, the first size named as open?", "2",
        "Sizes of 0 and 1 in an example may become facts of the program.", "1", "0",
        "none: an open size needs no example")


@asks("11.7")
def constants_of_an_example(rng):
    tensors, numbers, texts = rng.randint(1, 3), rng.randint(1, 4), rng.randint(1, 3)
    leaves = ["tensor"] * tensors + ["number"] * numbers + ["text"] * texts
    return whole(
        f"`torch.export` gets an example of {tensors} tensors, {numbers} Python numbers and "
        f"{texts} texts; no number is named as open. How many of these values are constants of the "
        "program?",
        sum(kind != "tensor" for kind in leaves), "What is no tensor becomes a constant.",
        numbers, len(leaves))


@asks("11.7")
def sizes_left_open(rng):
    a = [rng.randint(2, 9) for _ in range(3)]
    changed = rng.choice([(0,), (1,), (2,), (0, 2), (1, 2)])
    b = [size + (d in changed) for d, size in enumerate(a)]
    moved = [d for d in range(3) if torch.zeros(a).shape[d] != torch.zeros(b).shape[d]]
    return whole(
        f"Two examples have the shapes {tuple(a)} and {tuple(b)}. How many dimensions have to be "
        "left open for both?", len(moved), "Those whose sizes differ.", 3, 0)


@asks("11.7")
def other_temperature(rng):
    first, then = rng.sample([0.5, 1.0, 2.0, 4.0], 2)
    return choice(
        f"A model is exported with the Python number {first:g} as its temperature. Its program is "
        f"called with {then:g}. What happens in torch 2.14?", "it raises an error",
        "The number is a constant of the program, and a guard compares it.",
        f"it answers with {first:g}", f"it answers with {then:g}",
        "it answers with the mean of both")


@asks("11.7")
def file_declares(rng):
    size = rng.choice([1, 4, 8])
    columns = rng.choice([64, 784])
    return choice(
        f"An ONNX file declares its input as [{size}, {columns}]. Which calls does it take?",
        f"those with {size} row{'s' * (size > 1)}",
        "A number in the declaration is fixed; an open size has a name there.",
        "those with any number of rows", f"those with up to {size + 1} rows",
        f"those with {columns} rows")


# ---- 11.8 Two loud units in four bits

@asks("11.8")
def scales_of_a_row(rng):
    tokens, inputs = rng.choice([96, 480, 2048]), rng.choice([64, 256, 1024])
    return whole(
        f"x holds {tokens} tokens with {inputs} inputs each, w the weights of a layer, and a "
        "device multiplies x @ w.T in MXFP4. How many scales belong to one token?",
        torch.zeros(inputs).view(-1, 32).shape[0],
        "The sum runs over the inputs, and 32 neighbours along it share a scale.",
        tokens // 32, inputs, inputs // 16)


@asks("11.8")
def smallest_left(rng):
    power, more = rng.randint(2, 6), rng.choice([1.0, 1.25, 1.75])
    top = more * 2.0 ** power
    levels = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6], dtype=torch.float64)
    sizes = torch.linspace(0, top, 64001, dtype=torch.float64)
    units = sizes / 2.0 ** (power - 2)
    gone = sizes[(units[:, None] - levels).abs().argmin(1) == 0].max()
    return number(
        f"The largest number of a block in MXFP4 is {top:g}, so the scale is "
        f"{2 ** (power - 2):g}. Up to which size does a number of the block become zero?",
        gone.item(), "The smallest level is half the scale; below half of it zero is nearest.",
        2.0 ** (power - 2) / 2, 2.0 ** (power - 2), top / 2, within=0.02)


@asks("11.8")
def along_which_axis(rng):
    what, right = rng.choice([
        ("the gradient of a layer's weights, gradients of the outputs times inputs",
         "the tokens"), ("attention's weights times the values", "the keys"),
        ("attention's queries times keys", "the channels of a head"),
        ("a layer's outputs, inputs times weights", "the inputs of the layer")])
    others = ["the tokens", "the keys", "the channels of a head", "the inputs of the layer"]
    wrong = [other for other in others if other != right]
    return choice(
        f"A device calculates {what}, both operands in MXFP4. Along which axis do 32 neighbours "
        "share a scale?", "along the axis of " + right,
        "A scale leaves the sum only if it is the same for all pairs that are added.",
        *["along the axis of " + other for other in rng.sample(wrong, 2)],
        "along the last axis in memory, whichever it is")


@asks("11.8")
def a_test_that_tells(rng):
    gain, what = rng.choice([30, 40, 100]), rng.choice(["MXFP4", "MXFP8", "NVFP4"])
    where = rng.choice(["a layer", "an MLP", "a projection"])
    return choice(
        f"An emulation of {what} shares scales along the tokens, the device along the inputs of "
        f"{where}. Which test shows the difference most plainly?",
        f"one input, for all tokens, made {gain} times as large",
        "Its neighbours along the inputs share its scale and become zero; along the tokens it has "
        "no other neighbours than its own kind.", "more random numbers, all of one size",
        f"all numbers made {gain} times as large", "the same random numbers in float64")


# ---- 11.9 Gradients in four bits, and a larger batch

@asks("11.9")
def lost_below(rng):
    least, top = rng.choice([6, 7, 9]), rng.choice([3, 6, 7])
    return number(
        f"A block's scale is its largest size over {top}, stored in a float whose smallest number "
        f"is 2**-{least}; less than half of it is rounded to zero. Below which largest size is a "
        "whole block lost?", top * 2.0 ** -least / 2,
        "The scale is zero below half of the smallest number; the block's largest is the scale "
        "times the largest code.", 2.0 ** -least, top * 2.0 ** -least, 2.0 ** -least / 2)


@asks("11.9")
def scale_of_the_tensor(rng):
    top = rng.choice([0.05, 0.4, 3.0, 20.0, 1344.0])
    return number(
        f"The largest size in a tensor is {top:g}. Which scale of the tensor gives the largest "
        "block the scale 448, if the largest code is 6?", top / (6 * 448),
        "Divided by it the tensor's largest number is 6 times 448.", top / 448, top / 6,
        6 * 448 / top)


@asks("11.9")
def bytes_in_nvfp4(rng):
    rows, columns = rng.choice([64, 256, 1024]), rng.choice([128, 512, 4096])
    codes = torch.empty(rows, columns // 2, dtype=torch.uint8, device="meta").nbytes
    scales = torch.empty(rows, columns // 16, dtype=torch.float8_e4m3fn, device="meta").nbytes
    return whole(
        f"A matrix of {rows} x {columns} is stored in NVFP4: two codes a byte, a float8 scale for "
        "16 numbers, and one float32. How many bytes are that?", codes + scales + 4,
        "Half a byte a number, a sixteenth for the scales, and four.", codes, 2 * codes + scales,
        codes + 4 * scales + 4)


@asks("11.9")
def batch_that_is_too_large(rng):
    share = rng.choice([0.35, 0.7, 0.9, 1.4])
    batches = [16, 32, 64, 128, 256, 512]
    first = next(n for n in batches if share / n < 6 * 2.0 ** -10)
    return whole(
        f"The largest entry of a digit's gradient is {share:g}, and the loss is a mean over the "
        "batch. In NVFP4 with block scales alone a block is lost if its largest number is below "
        "0.0059. Which is the first of the batches 16, 32, 64, 128, 256, 512 in which all "
        "gradients become zero?", first,
        "The mean divides each digit's gradient by the batch.", first // 2, 2 * first)


@asks("11.9")
def one_scale_for_three(rng):
    tops = rng.sample([0.2, 0.5, 0.9, 1.6, 2.4], 3)
    return number(
        f"q, k and v are stacked for one product in NVFP4. Their largest sizes are {tops[0]:g}, "
        f"{tops[1]:g} and {tops[2]:g}. Which largest size decides the float32 scale of all three?",
        max(tops), "Stacked, they are one tensor; with a smaller one, blocks would be cut.",
        min(tops), sum(tops), sum(tops) / 3, within=0.02)
