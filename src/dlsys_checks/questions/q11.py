"""Stage 11: grids and their cost, masks, temperatures, order of columns, and sizes of files."""

import math
from itertools import combinations, permutations

from dlsys_checks.questions import ask, choice, number, whole

# ---- 11.1 Fewer and fewer bits

ask("11.1", {"bits": range(2, 9)}, lambda bits: whole(
    f"A symmetric grid of {bits} bits has its largest level at the largest weight, and as many "
    "below zero as above. How many levels does it have?", 2**bits - 1,
    "One code of the 2**bits is not used, so that both sides are alike.", 2**bits, 2**bits - 2))
ask("11.1", {"bits": (4, 8), "step": (0.1, 0.25, 0.5),
             "zero": lambda bits, **_: range(2, 2**bits - 3)},
    lambda bits, step, zero: whole(
        f"An affine grid of {bits} bits goes from {-zero * step:g} to "
        f"{(2**bits - 1 - zero) * step:g}. Which code stands for 0?", zero,
        "The code of 0 is minus the lower end, over the scale.", 0,
        2**bits // 2 + (zero == 2**bits // 2)))
ask("11.1", {"bits": (2, 3, 4), "group": (16, 32, 64, 128), "scale": (16, 32)},
    lambda bits, group, scale: number(
        f"Weights of {bits} bits in groups of {group}; each group stores a scale of {scale} bits "
        "and no code of zero. How many bits does a weight take?", (bits * group + scale) / group,
        "The scale is shared by the group.", bits, bits + scale, within=0.01))
ask("11.1", {"largest": (0.8, 1.2, 2.0, 3.0), "weight": (0.35, 0.4, 0.45)},
    lambda largest, weight: choice(
        f"The largest weight of a matrix is {largest:g}, the grid is symmetric with 2 bits. What "
        f"becomes of a weight of {weight * largest:.2f}?", "0",
        "The levels are the largest weight, zero and its opposite; below half it goes to zero.",
        f"{largest:g}", f"{weight * largest:.2f}", f"{largest / 2:g}"))

ask("11.1", {"bits": (2, 3, 4), "high": (2.1, 3.6)}, lambda bits, high: number(
    f"An affine grid of {bits} bits reaches from -0.9 to {high:g}. How far apart are two levels?",
    (high + 0.9) / (2**bits - 1), "There is one gap less than there are levels.",
    (high + 0.9) / 2**bits, high / (2 ** (bits - 1) - 1)))
ask("11.1", {"seen": (4, 5.5, 8), "arrives": (10, 13, 20)}, lambda seen, arrives: number(
    f"The calibration rows of a static 8-bit grid had a largest input of {seen:g}. In use an input "
    f"of {arrives} arrives. What does the layer compute with?", seen,
    "It is beyond the last level and is clipped to it.", arrives, arrives - seen))

# ---- 11.2 Retraining a pruned net

ask("11.2", {"total": (1000, 4000, 20000), "share": (0.5, 0.8, 0.9)}, lambda total, share: whole(
    f"Of {total} weights {share:.0%} are pruned. After each step of retraining they are set to "
    "zero by the mask. No other weight is zero. How many zeros are there in the end?",
    round(total * share), "The mask brings each of them back to zero.", 0,
    total - round(total * share) + (share == 0.5)))
ask("11.2", {"rate": (0.1, 0.01), "momentum": (0.5, 0.9), "memory": range(1, 6)},
    lambda rate, momentum, memory: number(
        f"A weight was pruned to 0, its gradient is masked to 0. SGD has a rate of {rate}, a "
        f"momentum of {momentum}, and remembers {memory} for this weight. Where is the weight "
        "after a step?", -rate * momentum * memory, "The momentum moves it without a gradient.", 0,
        -rate * memory, rate * momentum * memory))
ask("11.2", {"rows": (64, 256), "columns": (128, 512), "share": (0.5, 0.9)},
    lambda rows, columns, share: whole(
        f"{share:.0%} of a float32 matrix of {rows} x {columns} are set to zero; it stays an "
        "ordinary tensor. How many bytes does it take?", (size := 4 * rows * columns),
        "A zero takes four bytes like any other number.", round(size * (1 - share))))
ask("11.2", {"layer": ("a Linear", "a convolution", "an embedding")}, lambda layer: choice(
    f"The weights of {layer} are pruned and shall stay so in retraining, with an optimizer that "
    "trained before. Where does the mask belong?", "on the weights, after each step",
    "What the optimizer remembers moves a weight whose gradient is zero.",
    "on the gradients, before each step", "on the weights, once, before retraining",
    "on the weights, before each step and at no other time"))

# ---- 11.3 Temperatures for a small student

ask("11.3", {"gap": (1, 2, 3, 4), "temperature": (2, 4, 10)}, lambda gap, temperature: number(
    f"Two classes, logits {gap} and 0. What is the probability of the first at a temperature of "
    f"{temperature}?", (p := 1 / (1 + math.exp(-gap / temperature))),
    "Divide the logits, then take the softmax.", 1 / (1 + math.exp(-gap)), 1 - p))
ask("11.3", {"temperature": (2, 3, 5, 8, 10)}, lambda temperature: whole(
    f"A distillation loss at temperature {temperature} is written without the square. By what "
    "factor is its gradient too small?", temperature**2,
    "The usual loss is multiplied by the square of the temperature.", temperature, 1))
ask("11.3", {"classes": (10, 100, 1000), "rows": (8, 32, 64)}, lambda classes, rows: whole(
    f"`F.kl_div` of {rows} rows and {classes} classes, once with `batchmean` and once with the "
    "mean over all entries. By what factor is the second one smaller?", classes,
    "The mean divides by the classes, too.", rows, rows * classes))
ask("11.3", {"temperature": (2, 4, 8), "alpha": (0.25, 0.5, 0.75), "classes": (2, 4, 10)},
    lambda temperature, alpha, classes: number(
        f"Student and teacher have the same logits, all zero, for {classes} classes. The teacher's "
        f"part weighs {alpha}, at temperature {temperature}; the label's part the rest. What is "
        "the loss?", (1 - alpha) * (hard := math.log(classes)),
        "The divergence of equals is zero; the label's part is left.", hard,
        (1 - alpha) * hard + alpha * temperature**2 * hard))

ask("11.3", {"rows": (8, 16, 32), "positions": (64, 128, 512)}, lambda rows, positions: whole(
    f"A language model's logits have the shape ({rows}, {positions}, 1000). `F.kl_div` with "
    "`batchmean` gets them as they are. How many times the mean over tokens does it return?",
    positions, "It divides by the first dimension only.", 1, rows, rows * positions))

# ---- 11.4 Rounding one column after the other

ask("11.4", {"share": (0.2, 0.5, 0.8), "error": (0.1, 0.2, 0.4)}, lambda share, error: number(
    f"Two inputs of mean square 1, the mean of their product is {share}. The first weight is "
    f"rounded down by {error}. By how much does the second grow, so that the output changes least?",
    share * error, "The error, times the mean product over the second's mean square.", error, 0.0,
    -share * error))
ask("11.4", {"share": (0.3, 0.5, 0.6, 0.8)}, lambda share: number(
    f"Two inputs of mean square 1, the mean of their product is {share}. One weight is taken out "
    "and the other makes up for it. What share of the output's squared error is left, beside "
    "taking it out alone?", 1 - share**2, "1 minus the square of the correlation.", 1 - share,
    share))
ask("11.4", {"a, b, c": list(permutations((0.1, 0.5, 2.0, 5.0, 9.0), 3))}, lambda a, b, c: choice(
    f"Three inputs go together, with root mean squares {a:g}, {b:g} and {c:g}. Which column does "
    "act-order round first?", f"the one of {max(a, b, c):g}",
    "What costs most goes first, while others can still make up for it.", f"the one of {a:g}",
    f"the one of {b:g}", f"the one of {c:g}"))
ask("11.4", {"a, b": list(permutations((1, 2, 3, 4, 6), 2))}, lambda a, b: number(
    f"Two independent inputs of mean zero, root mean squares {a} and {b}. The first weight is "
    "rounded down by 0.3. By how much does GPTQ, without damping and with very many rows, move the "
    "second?", 0.0, "Inputs that do not go together cannot help.", 0.3, 0.3 * a / b, within=0.0))

ask("11.4", {"error": (0.1, 0.2, 0.4), "own, shared": [(4, 2), (5, 4), (8, 2)]},
    lambda error, own, shared: number(
        f"With H = x.T @ x, H[1, 1] is {own} and H[1, 0] is {shared}. Rounding moved weight 0 up "
        f"by {error}. By how much should weight 1 move?", -error * shared / own,
        "There the derivative of the squared error is zero.", 0, error * shared / own, -error))

# ---- 11.5 How large is it now?

ask("11.5", {"rows": (256, 512, 1024), "columns": (256, 512, 1024)}, lambda rows, columns: whole(
    f"A matrix of {rows} x {columns} is stored as codes of 8 bits, with a float32 scale for each "
    "row. How many bytes are that?", rows * columns + 4 * rows, "One byte a code, four a scale.",
    4 * rows * columns, rows * columns))
ask("11.5", {"rows": (1000, 5000), "shown": (10, 50), "width": (8, 64)},
    lambda rows, shown, width: whole(
        f"`table` is float32, {rows} x {width}. `torch.save` writes `table[:{shown}]`. How many "
        "bytes of numbers are in the file?", 4 * rows * width,
        "The storage behind the view is written, whole.", 4 * shown * width))
ask("11.5", {"rows": (100, 1000), "width": (16, 64)}, lambda rows, width: whole(
    f"A state dict holds one float32 tensor of {rows} x {width} under two names. How many bytes of "
    "numbers does `torch.save` write?", (size := 4 * rows * width), "A storage is written once.",
    2 * size))
ask("11.5", {"n": (1000, 4096, 20000)}, lambda n: choice(
    f"A wrapper of {n} weights says float32 and keeps codes of 8 bits inside. What does `numel()` "
    "times `element_size()` say?", f"{4 * n}", "The line asks the wrapper, not what it stores.",
    f"{n}", "0", f"{8 * n}"))

# ---- 11.6 Two scanners, one program

ask("11.6", {"example, other": [(3, -2), (-4, 5), (2, -6), (-1, 7)],
             "up, down": [(10, 100), (2, 20), (5, 50)]},
    lambda example, other, up, down: whole(
        f"`forward` returns `{up} * x` if `x.sum() > 0`, else `{down} * x`. It is traced with "
        f"`torch.jit.trace` on x = {example}. What does the trace return for x = {other}?",
        other * (kept := up if example > 0 else down),
        "The trace holds the way of its example, whatever comes later.", other * (up + down - kept),
        example * kept))
ask("11.6", {"conditions": range(2, 5)}, lambda conditions: whole(
    f"A forward pass has {conditions} branches in a row; each asks something of its own, so that "
    "any combination can occur. How many inputs at least does a test need that walks through all "
    "combinations?", 2**conditions, "Each branch doubles the number of ways.",
    2 * conditions if conditions != 2 else 3, conditions))
ask("11.6", {"question": ("x.mean() > 0.5", "x.max() > 1", "(x < 0).any()")},
    lambda question: choice(
        f"`forward` has `if {question}:`. Which of these raises an error, rather than keep one way "
        "of it?", "`torch.export.export`",
        "It runs the model with tensors that have no numbers, so the question has no answer.",
        "`torch.jit.trace`", "`torch.onnx.export` with `dynamo=False`", "none of them"))
ask("11.6", {"rows": (4, 7, 9), "columns": (3, 10)}, lambda rows, columns: whole(
    f"A model answers with shape ({rows}, {columns}), a program with shape (1, {columns}). Nothing "
    "else is compared but `(a - b).abs()`. How many numbers does that have?", rows * columns,
    "The one row is stretched over all; compare the shapes first.", columns, rows))
ask("11.6", {"largest": (4, 20, 50), "rtol": (0.01, 0.001)}, lambda largest, rtol: number(
    f"The largest size in a model's answer is {largest}; a program may be off by {rtol:g} of it. "
    "By how much may the entry 0 be off?", rtol * largest,
    "The limit follows the largest size, so that an entry of 0 has room, too.", 0.0, rtol))

# ---- 11.7 One digit, or several

ask("11.7", {"rows": (8, 16, 32)}, lambda rows: choice(
    f"A service will send 1 to {rows} rows at a time. With how many rows in the example do you "
    "export, the first size named as open?", "2",
    "Sizes of 0 and 1 in an example may become facts of the program.", "1", "0",
    "none: an open size needs no example"))
ask("11.7", {"tensors": range(1, 4), "numbers": range(1, 5), "texts": range(1, 4)},
    lambda tensors, numbers, texts: whole(
        f"`torch.export` gets an example of {tensors} tensors, {numbers} Python numbers and "
        f"{texts} texts; no number is named as open. How many of these values are constants of the "
        "program?", numbers + texts, "What is no tensor becomes a constant.", numbers,
        tensors + numbers + texts))
ask("11.7", {"a": range(2, 10), "b": range(2, 10), "c": range(2, 10),
             "moved": ((0,), (1,), (2,), (0, 2), (1, 2))},
    lambda a, b, c, moved: whole(
        f"Two examples have the shapes {(a, b, c)} and "
        f"{(a + (0 in moved), b + (1 in moved), c + (2 in moved))}. How many dimensions have to be "
        "left open for both?", len(moved), "Those whose sizes differ.", 3, 0))
ask("11.7", {"first, then": list(permutations((0.5, 1.0, 2.0, 4.0), 2))},
    lambda first, then: choice(
        f"A model is exported with the Python number {first:g} as its temperature. Its program is "
        f"called with {then:g}. What happens in torch 2.14?", "it raises an error",
        "The number is a constant of the program, and a guard compares it.",
        f"it answers with {first:g}", f"it answers with {then:g}",
        "it answers with the mean of both"))
ask("11.7", {"size": (1, 4, 8), "columns": (64, 784)}, lambda size, columns: choice(
    f"An ONNX file declares its input as [{size}, {columns}]. Which calls does it take?",
    f"those with {size} row{'s' * (size > 1)}",
    "A number in the declaration is fixed; an open size has a name there.",
    "those with any number of rows", f"those with up to {size + 1} rows",
    f"those with {columns} rows"))

# ---- 11.8 Two loud units in four bits

ask("11.8", {"tokens": (96, 480, 2048), "inputs": (64, 256, 1024)}, lambda tokens, inputs: whole(
    f"x holds {tokens} tokens with {inputs} inputs each, w the weights of a layer, and a device "
    "multiplies x @ w.T in MXFP4. How many scales belong to one token?", inputs // 32,
    "The sum runs over the inputs, and 32 neighbours along it share a scale.", tokens // 32, inputs,
    inputs // 16))
ask("11.8", {"power": range(2, 7), "more": (1.0, 1.25, 1.75)}, lambda power, more: number(
    f"The largest number of a block in MXFP4 is {more * 2**power:g}, so the scale is "
    f"{2 ** (power - 2)}. Up to which size does a number of the block become zero?",
    2 ** (power - 2) / 4, "The smallest level is half the scale; below half of it zero is nearest.",
    2 ** (power - 2) / 2, 2 ** (power - 2), more * 2**power / 2, within=0.02))

IN_MXFP4 = (
    ("the gradient of a layer's weights, gradients of the outputs times inputs", "the tokens"),
    ("attention's weights times the values", "the keys"),
    ("attention's queries times keys", "the channels of a head"),
    ("a layer's outputs, inputs times weights", "the inputs of the layer"))

ask("11.8", {"what, right": IN_MXFP4, "wrong": lambda right, **_: list(combinations(
    [axis for what, axis in IN_MXFP4 if axis != right], 2))},
    lambda what, right, wrong: choice(
        f"A device calculates {what}, both operands in MXFP4. Along which axis do 32 neighbours "
        "share a scale?", f"along the axis of {right}",
        "A scale leaves the sum only if it is the same for all pairs that are added.",
        *[f"along the axis of {other}" for other in wrong],
        "along the last axis in memory, whichever it is"))
ask("11.8", {"gain": (30, 40, 100), "what": ("MXFP4", "MXFP8", "NVFP4"),
             "where": ("a layer", "an MLP", "a projection")},
    lambda gain, what, where: choice(
        f"An emulation of {what} shares scales along the tokens, the device along the inputs of "
        f"{where}. Which test shows the difference most plainly?",
        f"one input, for all tokens, made {gain} times as large",
        "Its neighbours along the inputs share its scale and become zero; along the tokens it has "
        "no other neighbours than its own kind.", "more random numbers, all of one size",
        f"all numbers made {gain} times as large", "the same random numbers in float64"))

# ---- 11.9 Gradients in four bits, and a larger batch

ask("11.9", {"least": (6, 7, 9), "top": (3, 6, 7)}, lambda least, top: number(
    f"A block's scale is its largest size over {top}, stored in a float whose smallest number is "
    f"2**-{least}; less than half of it is rounded to zero. Below which largest size is a whole "
    "block lost?", top * 2.0 ** -least / 2, "The scale is zero below half of the smallest number; "
    "the block's largest is the scale times the largest code.", 2.0 ** -least, top * 2.0 ** -least,
    2.0 ** -least / 2))
ask("11.9", {"top": (0.05, 0.4, 3.0, 20.0, 1344.0)}, lambda top: number(
    f"The largest size in a tensor is {top:g}. Which scale of the tensor gives the largest block "
    "the scale 448, if the largest code is 6?", top / (6 * 448),
    "Divided by it the tensor's largest number is 6 times 448.", top / 448, top / 6, 6 * 448 / top))
ask("11.9", {"rows": (64, 256, 1024), "columns": (128, 512, 4096)}, lambda rows, columns: whole(
    f"A matrix of {rows} x {columns} is stored in NVFP4: two codes a byte, a float8 scale for 16 "
    "numbers, and one float32. How many bytes are that?", (n := rows * columns) // 2 + n // 16 + 4,
    "Half a byte a number, a sixteenth for the scales, and four.", n // 2, n + n // 16,
    n // 2 + n // 4 + 4))
ask("11.9", {"share": (0.35, 0.7, 0.9, 1.4)}, lambda share: whole(
    f"The largest entry of a digit's gradient is {share:g}, and the loss is a mean over the batch. "
    "In NVFP4 with block scales alone a block is lost if its largest number is below 0.0059. Which "
    "is the first of the batches 16, 32, 64, 128, 256, 512 in which all gradients become zero?",
    (first := next(n for n in (16, 32, 64, 128, 256, 512) if share / n < 6 * 2**-10)),
    "The mean divides each digit's gradient by the batch.", first // 2, 2 * first))
ask("11.9", {"a, b, c": list(permutations((0.2, 0.5, 0.9, 1.6, 2.4), 3))}, lambda a, b, c: number(
    f"q, k and v are stacked for one product in NVFP4. Their largest sizes are {a:g}, {b:g} and "
    f"{c:g}. Which largest size decides the float32 scale of all three?", max(a, b, c),
    "Stacked, they are one tensor; with a smaller one, blocks would be cut.", min(a, b, c),
    a + b + c, (a + b + c) / 3, within=0.02))
