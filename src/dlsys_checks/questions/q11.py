"""Stage 11: grids and their cost, masks, temperatures, order of columns, and sizes of files."""

import math
from itertools import combinations, permutations

from dlsys_checks.questions import ask, choice, number, whole

# ---- 11.1 Fewer and fewer bits

ask("11.1", {"bits": range(2, 9)}, lambda bits: whole(
    f"A symmetric grid of {bits} bits has its largest level at the largest weight, and as many "
    "levels below zero as above. How many levels does the grid have?", 2**bits - 1,
    "One of the 2**bits codes is not used, so that the grid is symmetric.", 2**bits, 2**bits - 2))
ask("11.1", {"bits": (4, 8), "step": (0.1, 0.25, 0.5),
             "zero": lambda bits, **_: range(2, 2**bits - 3)},
    lambda bits, step, zero: whole(
        f"An affine grid of {bits} bits goes from {-zero * step:g} to "
        f"{(2**bits - 1 - zero) * step:g}. What is the code of 0?", zero,
        "The code of 0 is minus the lower end, divided by the scale.", 0,
        2**bits // 2 + (zero == 2**bits // 2)))
ask("11.1", {"bits": (2, 3, 4), "group": (16, 32, 64, 128), "scale": (16, 32)},
    lambda bits, group, scale: number(
        f"Weights with {bits} bits each are stored in groups of {group}. Each group also stores a "
        f"scale of {scale} bits, but no zero. How many bits does a weight take in total?",
        (bits * group + scale) / group, "All weights of a group share the scale's bits.", bits,
        bits + scale, within=0.01))
ask("11.1", {"largest": (0.8, 1.2, 2.0, 3.0), "weight": (0.35, 0.4, 0.45)},
    lambda largest, weight: choice(
        f"The largest weight of a matrix is {largest:g}. You round the matrix with a symmetric "
        f"grid of 2 bits. What does a weight of {weight * largest:.2f} become?", "0",
        "The levels are the largest weight, zero, and minus the largest weight. A weight below "
        "half of the largest is rounded to zero.",
        f"{largest:g}", f"{weight * largest:.2f}", f"{largest / 2:g}"))

ask("11.1", {"bits": (2, 3, 4), "high": (2.1, 3.6)}, lambda bits, high: number(
    f"An affine grid of {bits} bits extends from -0.9 to {high:g}. How far apart are its levels?",
    (high + 0.9) / (2**bits - 1), "There is one fewer gap than there are levels.",
    (high + 0.9) / 2**bits, high / (2 ** (bits - 1) - 1)))
ask("11.1", {"seen": (4, 5.5, 8), "arrives": (10, 13, 20)}, lambda seen, arrives: number(
    f"The largest input in the calibration rows of a static 8-bit grid was {seen:g}. In production "
    f"an input of {arrives} arrives. Which value does the layer use for this input?", seen,
    "The input is beyond the last level and is clipped to that level.", arrives, arrives - seen))

# ---- 11.2 Retraining a pruned net

ask("11.2", {"total": (1000, 4000, 20000), "share": (0.5, 0.8, 0.9)}, lambda total, share: whole(
    f"{share:.0%} of {total} weights are pruned. After each retraining step, the mask sets them to "
    "zero again. No other weight is zero. How many zeros are there in the end?",
    round(total * share), "The mask sets each pruned weight back to zero.", 0,
    total - round(total * share) + (share == 0.5)))
ask("11.2", {"rate": (0.1, 0.01), "momentum": (0.5, 0.9), "memory": range(1, 6)},
    lambda rate, momentum, memory: number(
        "A weight was pruned to 0, and its gradient is masked to 0. SGD has a learning rate of "
        f"{rate} and a momentum of {momentum}, and its momentum buffer for this weight is "
        f"{memory}. What is the weight after one step?", -rate * momentum * memory,
        "The momentum moves the weight even without a gradient.", 0, -rate * memory,
        rate * momentum * memory))
ask("11.2", {"rows": (64, 256), "columns": (128, 512), "share": (0.5, 0.9)},
    lambda rows, columns, share: whole(
        f"You set {share:.0%} of a float32 matrix of {rows} x {columns} to zero. The matrix stays "
        "an ordinary dense tensor. How many bytes does it take?", (size := 4 * rows * columns),
        "A zero takes four bytes, like any other value.", round(size * (1 - share))))
ask("11.2", {"layer": ("a Linear", "a convolution", "an embedding")}, lambda layer: choice(
    f"The pruned weights of {layer} have to stay zero during retraining, with an optimizer that "
    "has been used before. Where do you apply the mask?", "to the weights, after each step",
    "The optimizer's averages of earlier gradients move a weight whose gradient is zero.",
    "to the gradients, before each step", "to the weights, once, before retraining",
    "to the weights, only before each step"))

# ---- 11.3 Temperatures for a small student

ask("11.3", {"gap": (1, 2, 3, 4), "temperature": (2, 4, 10)}, lambda gap, temperature: number(
    f"The logits of two classes are {gap} and 0. What is the probability of the first class at a "
    f"temperature of {temperature}?", (p := 1 / (1 + math.exp(-gap / temperature))),
    "Divide the logits by the temperature, then take the softmax.", 1 / (1 + math.exp(-gap)),
    1 - p))
ask("11.3", {"temperature": (2, 3, 5, 8, 10)}, lambda temperature: whole(
    f"You forget the square in a distillation loss at temperature {temperature}. By what factor is "
    "its gradient too small?", temperature**2,
    "The loss should be multiplied by the square of the temperature.", temperature, 1))
ask("11.3", {"classes": (10, 100, 1000), "rows": (8, 32, 64)}, lambda classes, rows: whole(
    f"You compute `F.kl_div` for {rows} rows and {classes} classes, once with `batchmean` and once "
    "with `mean`. By what factor is the second result smaller?", classes,
    "`mean` also divides by the number of classes.", rows, rows * classes))
ask("11.3", {"temperature": (2, 4, 8), "alpha": (0.25, 0.5, 0.75), "classes": (2, 4, 10)},
    lambda temperature, alpha, classes: number(
        f"At temperature {temperature}, the teacher's loss has a weight of {alpha}, and the "
        f"label's loss has the rest. There are {classes} classes, and all logits of student and "
        "teacher are zero. What is the total loss?", (1 - alpha) * (hard := math.log(classes)),
        "The divergence of two equal distributions is zero, so only the label's loss is "
        "left.", hard,
        (1 - alpha) * hard + alpha * temperature**2 * hard))

ask("11.3", {"rows": (8, 16, 32), "positions": (64, 128, 512)}, lambda rows, positions: whole(
    f"A language model's logits have the shape ({rows}, {positions}, 1000). You pass them to "
    "`F.kl_div` with `batchmean` without flattening. How many times as large as the mean over "
    "tokens is the result?", positions, "`batchmean` divides by the first dimension only.", 1, rows,
    rows * positions))

# ---- 11.4 Rounding one column after the other

ask("11.4", {"share": (0.2, 0.5, 0.8), "error": (0.1, 0.2, 0.4)}, lambda share, error: number(
    f"Two inputs have a mean square of 1, and the mean of their product is {share}. The first "
    f"weight is rounded down by {error}. By how much should the second weight grow so that the "
    "output changes least?", share * error,
    "By the error times the mean product, divided by the second input's mean square.", error, 0.0,
    -share * error))
ask("11.4", {"share": (0.3, 0.5, 0.6, 0.8)}, lambda share: number(
    f"Two inputs have a mean square of 1, and the mean of their product is {share}. You remove one "
    "weight, and the other compensates as well as it can. What fraction of the output's squared "
    "error without compensation is left?", 1 - share**2,
    "It is 1 minus the square of the correlation.", 1 - share, share))
ask("11.4", {"a, b, c": list(permutations((0.1, 0.5, 2.0, 5.0, 9.0), 3))}, lambda a, b, c: choice(
    f"Three correlated inputs have root mean squares of {a:g}, {b:g} and {c:g}. Which column does "
    "act-order round first?", f"the column of the input with {max(a, b, c):g}",
    "The most costly column comes first, while other columns can still compensate.",
    f"the column of the input with {a:g}", f"the column of the input with {b:g}",
    f"the column of the input with {c:g}"))
ask("11.4", {"a, b": list(permutations((1, 2, 3, 4, 6), 2))}, lambda a, b: number(
    f"Two independent inputs with mean zero have root mean squares of {a} and {b}. The first "
    "weight is rounded down by 0.3. By how much does GPTQ move the second weight, without damping "
    "and with very many rows?", 0.0, "An uncorrelated input cannot compensate.", 0.3,
    0.3 * a / b, within=0.0))

ask("11.4", {"error": (0.1, 0.2, 0.4), "own, shared": [(4, 2), (5, 4), (8, 2)]},
    lambda error, own, shared: number(
        f"With H = x.T @ x, H[1, 1] is {own} and H[1, 0] is {shared}. Rounding moved weight 0 up "
        f"by {error}. By how much should weight 1 move?", -error * shared / own,
        "At this move, the derivative of the squared error is zero.", 0, error * shared / own,
        -error))

# ---- 11.5 How large is it now?

ask("11.5", {"rows": (256, 512, 1024), "columns": (256, 512, 1024)}, lambda rows, columns: whole(
    f"A matrix of {rows} x {columns} is stored as 8-bit codes, with a float32 scale for each row. "
    "How many bytes do codes and scales take?", rows * columns + 4 * rows,
    "Each code takes one byte, and each scale takes four.", 4 * rows * columns, rows * columns))
ask("11.5", {"rows": (1000, 5000), "shown": (10, 50), "width": (8, 64)},
    lambda rows, shown, width: whole(
        f"`table` is a float32 tensor of {rows} x {width}. You save `table[:{shown}]` with "
        "`torch.save`. How many bytes of values are in the file?", 4 * rows * width,
        "torch.save writes the whole storage behind the view.", 4 * shown * width))
ask("11.5", {"rows": (100, 1000), "width": (16, 64)}, lambda rows, width: whole(
    f"A state dict holds one float32 tensor of {rows} x {width} under two names. How many bytes of "
    "values does `torch.save` write?", (size := 4 * rows * width),
    "torch.save writes each storage only once.", 2 * size))
ask("11.5", {"n": (1000, 4096, 20000)}, lambda n: choice(
    f"A wrapper with {n} weights reports float32 but stores 8-bit codes. What is its `numel()` "
    "times `element_size()`?", f"{4 * n}",
    "The product uses what the wrapper reports, not what it stores.",
    f"{n}", "0", f"{8 * n}"))

# ---- 11.6 Two scanners, one program

ask("11.6", {"example, other": [(3, -2), (-4, 5), (2, -6), (-1, 7)],
             "up, down": [(10, 100), (2, 20), (5, 50)]},
    lambda example, other, up, down: whole(
        f"`forward` returns `{up} * x` if `x.sum() > 0`, else `{down} * x`. It is traced with "
        f"`torch.jit.trace` on x = {example}. What does the trace return for x = {other}?",
        other * (kept := up if example > 0 else down),
        "The trace contains only the branch that its example took.", other * (up + down - kept),
        example * kept))
ask("11.6", {"conditions": range(2, 5)}, lambda conditions: whole(
    f"A forward pass has {conditions} `if` statements, one after the other, and their conditions "
    "can occur in any combination. How many inputs does a test of all combinations need at least?",
    2**conditions, "Each `if` doubles the number of paths.",
    2 * conditions if conditions != 2 else 3, conditions))
ask("11.6", {"question": ("x.mean() > 0.5", "x.max() > 1", "(x < 0).any()")},
    lambda question: choice(
        f"`forward` contains `if {question}:`. Which of these raises an error instead of keeping "
        "only one branch?", "`torch.export.export`",
        "Its tensors have no values, so the condition cannot be evaluated.",
        "`torch.jit.trace`", "`torch.onnx.export` with `dynamo=False`", "none of them"))
ask("11.6", {"rows": (4, 7, 9), "columns": (3, 10)}, lambda rows, columns: whole(
    f"A model returns the shape ({rows}, {columns}), and its program returns (1, {columns}). You "
    "compare them with `(a - b).abs()`. How many values does the result have?", rows * columns,
    "The single row is broadcast to all rows. Compare the shapes first.", columns, rows))
ask("11.6", {"largest": (4, 20, 50), "rtol": (0.01, 0.001)}, lambda largest, rtol: number(
    f"The largest absolute value in a model's answer is {largest}. A program may differ by "
    f"{rtol:g} times this value. By how much may it differ at an entry that is 0?", rtol * largest,
    "The limit depends on the largest value, so it is the same for an entry of 0.", 0.0, rtol))

# ---- 11.7 One digit, or several

ask("11.7", {"rows": (8, 16, 32)}, lambda rows: choice(
    f"A service will send 1 to {rows} rows at a time, and you declare the first size as dynamic. "
    "How many rows should the example for the export have?", "2",
    "An exporter may build sizes of 0 and 1 into the program.", "1", "0",
    "none, because a dynamic size needs no example"))
ask("11.7", {"tensors": range(1, 4), "numbers": range(1, 5), "texts": range(1, 4)},
    lambda tensors, numbers, texts: whole(
        f"The example for `torch.export` has {tensors} tensors, {numbers} Python numbers and "
        f"{texts} strings. No number is declared as dynamic. How many of these values become "
        "constants of the program?", numbers + texts,
        "Everything that is not a tensor becomes a constant.", numbers,
        tensors + numbers + texts))
ask("11.7", {"a": range(2, 10), "b": range(2, 10), "c": range(2, 10),
             "moved": ((0,), (1,), (2,), (0, 2), (1, 2))},
    lambda a, b, c, moved: whole(
        f"Two examples have the shapes {(a, b, c)} and "
        f"{(a + (0 in moved), b + (1 in moved), c + (2 in moved))}. How many dimensions have to be "
        "dynamic for both?", len(moved),
        "Only a dimension whose size differs has to be dynamic.", 3, 0))
ask("11.7", {"first, then": list(permutations((0.5, 1.0, 2.0, 4.0), 2))},
    lambda first, then: choice(
        f"You export a model with the Python number {first:g} as its temperature and call the "
        f"program with {then:g}. What does the program do in torch 2.14?", "it raises an error",
        "The number is a constant of the program, and a guard checks it.",
        f"it uses {first:g}", f"it uses {then:g}", "it uses the mean of both"))
ask("11.7", {"size": (1, 4, 8), "columns": (64, 784)}, lambda size, columns: choice(
    f"An ONNX file declares its input as [{size}, {columns}]. Which calls does it accept?",
    f"calls with {size} row{'s' * (size > 1)}",
    "A number in the declaration is fixed; a dynamic size has a name instead.",
    "calls with any number of rows", f"calls with up to {size + 1} rows",
    f"calls with {columns} rows"))

# ---- 11.8 Two loud units in four bits

ask("11.8", {"tokens": (96, 480, 2048), "inputs": (64, 256, 1024)}, lambda tokens, inputs: whole(
    f"x holds {tokens} tokens with {inputs} inputs each, and w the weights of a layer. A device "
    "computes x @ w.T in MXFP4. How many scales does one token have?", inputs // 32,
    "The sum runs over the inputs, and each block of 32 neighbouring inputs shares a scale.",
    tokens // 32,
    inputs,
    inputs // 16))
ask("11.8", {"power": range(2, 7), "more": (1.0, 1.25, 1.75)}, lambda power, more: number(
    f"The largest number of a block in MXFP4 is {more * 2**power:g}, so the scale is "
    f"{2 ** (power - 2)}. Up to which absolute value do numbers in the block become zero?",
    2 ** (power - 2) / 4,
    "The smallest level is half of the scale, and below half of this level zero is nearest.",
    2 ** (power - 2) / 2, 2 ** (power - 2), more * 2**power / 2, within=0.02))

IN_MXFP4 = (
    ("the gradient of a layer's weights, gradients of the outputs times inputs", "the tokens"),
    ("attention's weights times the values", "the keys"),
    ("attention's queries times keys", "the channels of a head"),
    ("a layer's outputs, inputs times weights", "the inputs of the layer"))

ask("11.8", {"what, right": IN_MXFP4, "wrong": lambda right, **_: list(combinations(
    [axis for what, axis in IN_MXFP4 if axis != right], 2))},
    lambda what, right, wrong: choice(
        f"A device computes {what}, with both operands in MXFP4. Along which axis do 32 neighbours "
        "share a scale?", f"along the axis of {right}",
        "A scale can be factored out of a sum only if it is the same for all pairs that are added.",
        *[f"along the axis of {other}" for other in wrong],
        "along the last axis in memory, whichever it is"))
ask("11.8", {"gain": (30, 40, 100), "what": ("MXFP4", "NVFP4"),
             "where": ("a layer", "an MLP", "a projection")},
    lambda gain, what, where: choice(
        f"An emulation of {what} shares scales along the tokens, but the device shares them along "
        f"the inputs of {where}. Which test shows the difference most clearly?",
        f"one input, for all tokens, made {gain} times as large",
        "Along the inputs, the large input's neighbours share its scale, and most become zero. "
        "Along the tokens, its neighbours are equally large.",
        "more random numbers, all of the same size",
        f"all numbers made {gain} times as large", "the same random numbers in float64"))

# ---- 11.9 Gradients in four bits, and a larger batch

ask("11.9", {"least": (6, 7, 9), "top": (3, 6, 7)}, lambda least, top: number(
    f"A block's scale is its largest absolute value divided by {top}. It is stored in a float "
    f"whose smallest positive number is 2**-{least}; anything below half of this number is rounded "
    "to zero. Below which largest absolute value is a whole block lost?", top * 2.0 ** -least / 2,
    "The scale is zero below half of the smallest number, and the block's largest value is the "
    "scale times the largest code.", 2.0 ** -least, top * 2.0 ** -least, 2.0 ** -least / 2))
ask("11.9", {"top": (0.05, 0.4, 3.0, 20.0, 1344.0)}, lambda top: number(
    f"The largest absolute value in a tensor is {top:g}, and the largest code is 6. With which "
    "tensor scale does the block with the largest value have the scale 448?", top / (6 * 448),
    "Divided by this scale, the tensor's largest value is 6 times 448.", top / 448, top / 6,
    6 * 448 / top))
ask("11.9", {"rows": (64, 256, 1024), "columns": (128, 512, 4096)}, lambda rows, columns: whole(
    f"A matrix of {rows} x {columns} is stored in NVFP4, with two codes per byte, a float8 scale "
    "per 16 numbers, and one float32. How many bytes does it take?",
    (n := rows * columns) // 2 + n // 16 + 4,
    "A number takes half a byte for its code and a sixteenth of a byte for the scale. The "
    "float32 adds four bytes.", n // 2,
    n + n // 16, n // 2 + n // 4 + 4))
ask("11.9", {"share": (0.35, 0.7, 0.9, 1.4)}, lambda share: whole(
    f"The largest entry in any digit's gradient is {share:g}, and the loss is a mean over the "
    "batch. In NVFP4 with only block scales, a block is lost if its largest number is below "
    "0.0059. Which of the batch sizes 16, 32, 64, 128, 256, 512 is the first at which all "
    "gradients become zero?",
    (first := next(n for n in (16, 32, 64, 128, 256, 512) if share / n < 6 * 2**-10)),
    "The mean divides each digit's gradient by the batch size.", first // 2, 2 * first))
ask("11.9", {"a, b, c": list(permutations((0.2, 0.5, 0.9, 1.6, 2.4), 3))}, lambda a, b, c: number(
    f"q, k and v are stacked for one product in NVFP4. Their largest absolute values are {a:g}, "
    f"{b:g} and {c:g}. Which of these values determines the float32 scale of all three?",
    max(a, b, c),
    "Stacked, they are one tensor. With a smaller value, blocks would be clipped.", min(a, b, c),
    a + b + c, (a + b + c) / 3, within=0.02))
