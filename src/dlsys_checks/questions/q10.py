"""Stage 10: target names, merging, the room of a prefix, heads, loading and padding."""

from itertools import permutations

from dlsys_checks.questions import ask, choice, number, question_for, whole

PROJECTIONS = ["q_proj", "k_proj", "v_proj", "o_proj"]

# ---- 10.1 names

ask("10.1", {"layers": range(4, 41), "right": range(1, 4), "wrong": range(2, 6)},
    lambda layers, right, wrong: whole(
        f"A model has {layers} layers with `q_proj`, `k_proj`, `v_proj` and `o_proj` each. "
        f"`target_modules` lists {right} of these names and {wrong} that the model has not. How "
        "many matrices get LoRA?", layers * right,
        "The list is a filter: what hits nothing is passed over.", 0, layers * (right + wrong),
        layers * 4))
ask("10.1", {"r": (4, 8, 16), "d": (64, 128, 256), "layers": range(2, 13), "hit": range(1, 5)},
    lambda r, d, layers, hit: whole(
        f"LoRA of rank {r} hits {hit} square matrices of width {d} in each of {layers} layers. How "
        "many numbers train?", layers * hit * r * (d + d),
        "A holds r times d_in and B d_out times r.", layers * hit * r * d, layers * hit * d * d))
ask("10.1", {"layer": range(21)}, lambda layer: choice(
    f"In a list, which of these names hits `layers.{layer}.mlp.up_proj`?", "up_proj",
    "A name has to equal the path or its end behind a dot.", "proj", f"layers.{layer}", "mlp.up"))
ask("10.1", {"first, second": list(permutations(PROJECTIONS, 2))}, lambda first, second: choice(
    f"A Llama gets the names `{first}`, `{second}` and `fc1`, which it has not. What does "
    "`get_peft_model` do?", "it adapts two names and says nothing",
    "An error comes only if no name at all hits.", "it raises an error about fc1",
    "it warns about fc1 and adapts two names", "it adapts all linear modules"))

# ---- 10.2 merging

ask("10.2", {"w": range(1, 10), "b": range(2, 7), "a": range(2, 7), "alpha": (4, 6, 8)},
    lambda w, b, a, alpha: number(
        f"A weight of one number, {w}; A is [[{a}], [0]], B is [[{b}, 0]], alpha {alpha}. What is "
        "the merged weight?", w + alpha / 2 * b * a, "W + alpha / r B A, and r is the rows of A.",
        w + b * a, w + alpha * b * a))
ask("10.2", {"layers": range(2, 41)}, lambda layers: whole(
    f"A model of {layers} layers runs seven matrix products in each, and one in its head. LoRA in "
    "all matrices of the layers is not merged. How many products does a call run?", layers * 21 + 1,
    "Each adapted matrix runs three: W, A and B.", layers * 7 + 1, layers * 14 + 1))
ask("10.2", {"d": (1024, 2048, 4096, 8192), "r": (8, 16, 32, 64)}, lambda d, r: number(
    f"LoRA of rank {r} stands beside a square matrix of width {d}. By what share does it raise the "
    "multiplications of that matrix?", 2 * r / d,
    "A takes r times d, B as many, W takes d times d.", r / d, 1))
ask("10.2", {"w": range(2, 10), "update": range(2, 10), "x": range(2, 10)},
    lambda w, update, x: number(
        f"A layer multiplies by {w}, its adapter adds {update}. Somebody adds {update} to the "
        f"weight and leaves the adapter on. What does the layer make of {x}?", (w + 2 * update) * x,
        "The update is in the weight and beside it.", (w + update) * x, w * x))
ask("10.2", {"w": [2.0 ** k for k in range(1, 7)],
             "change": lambda w: [w / k for k in (1024, 2048, 4096)]},
    lambda w, change: number(
        f"A weight of {w:g} in bfloat16 gets an update of {change:g}, added in float32 and rounded "
        "once. What is stored?", w, "bfloat16 has 8 bits: beside 1 the next number is 1.0078.",
        w + change, within=1e-6))

# ---- 10.3 the room of a prefix

ask("10.3", {"positions": (512, 1024, 2048), "prefix": range(10, 61)},
    lambda positions, prefix: whole(
        f"A GPT-2 with {positions} positions gets a prefix of {prefix} learned tokens. How long "
        "may a text be?", positions - prefix, "The prefix takes positions before the text.",
        positions, positions + prefix))
ask("10.3", {"positions": (128, 256), "prefix": range(5, 26), "answer": range(10, 41),
             "prompt": range(300, 501)},
    lambda positions, prefix, answer, prompt: whole(
        f"{positions} positions, a prefix of {prefix}, a prompt of {prompt} tokens and an answer "
        f"of {answer}. How many tokens of the prompt stay?", positions - prefix - answer,
        "Prefix and answer have their places first.", positions - answer, positions - prefix))
ask("10.3", {"room": range(60, 91), "prompt": range(40, 56), "answer": range(40, 61)},
    lambda room, prompt, answer: whole(
        f"A prompt of {prompt} tokens and an answer of {answer} are cut at the end to {room}. How "
        "many tokens with a label are left?", room - prompt,
        "The answer stands last, so it is what the cut takes.", answer, room))
ask("10.3", {"over": range(1, 51)}, lambda over: choice(
    f"Prefix and text are {over} tokens longer than a Llama was trained for. What happens at the "
    "first call?", "it answers, on positions that training never saw",
    "Its angles can be calculated for any position; there is no table that ends.",
    "IndexError: index out of range", "the text is cut", "the prefix is cut"))

# ---- 10.4 a head without a task

ask("10.4", {"d": (32, 64, 128), "labels": range(2, 10), "lora": range(1000, 9001)},
    lambda d, labels, lora: whole(
        f"LoRA of a classifier has {lora} numbers; its head without bias maps {d} features to "
        f"{labels} labels. How many numbers train with `SEQ_CLS`?", lora + d * labels,
        "The task names the head, which then trains in full.", lora, lora + d))
ask("10.4", {"d": (32, 64, 128), "labels": range(2, 10), "lora": range(1000, 9001)},
    lambda d, labels, lora: whole(
        f"The same without a task: LoRA has {lora} numbers, the head {d * labels}. How many train?",
        lora, "Without a task the head is frozen with the base.", lora + d * labels, d * labels))
ask("10.4", {"labels": range(3, 10)}, lambda labels: choice(
    f"A classifier with {labels} labels and LoRA loses its head in the file. Which accuracy do you "
    "expect after loading?", "a low one, and another at each loading",
    "A fresh head is drawn each time.", "the one before saving", "exactly zero at each loading",
    "1 over the labels, to the digit"))
ask("10.4", {"first": range(1000, 5001), "second": range(100, 901)}, lambda first, second: whole(
    f"An adapter of {first} numbers trains on a base. `get_peft_model` is called on the same base "
    f"for another of {second}. How many numbers of the first still train?", 0,
    "The second call freezes what it finds.", first, first + second))

# ---- 10.5 loading

ask("10.5", {"layers": range(2, 31), "matrices": range(1, 8)}, lambda layers, matrices: whole(
    f"LoRA in {matrices} matrices of each of {layers} layers was saved by peft. Its file goes into "
    "`load_state_dict(strict=False)` of a fresh adapter. How many tensors find no place?",
    2 * layers * matrices, "A and B each; the model's names hold the adapter's name.", 0,
    layers * matrices))
ask("10.5", {"w": range(2, 10), "x": range(2, 10), "a": lambda w, **_: range(w + 1, w + 10)},
    lambda w, x, a: number(
        f"A weight of {w} gets a fresh adapter of rank 1 with A = {a} and alpha 1. What does the "
        f"layer make of {x}?", w * x, "B begins at zero.", (w + a) * x, a * x))
ask("10.5", {"x": range(2, 91)}, lambda x: choice(
    f"`get_peft_model`, then `load_adapter(folder, 'v{x}')`. Which adapter answers?",
    "default, the fresh one", "load_adapter adds one; set_adapter switches it on.", f"v{x}",
    "both together", "none, an error"))
ask("10.5", {"base": (7, 13, 14, 26), "each": (0.1, 0.2, 0.5), "count": range(5, 21)},
    lambda base, each, count: number(
        f"A base takes {base} GB, an adapter {each} GB. How many GB do {count} customers take on "
        "one base, adapters not merged?", base + count * each,
        "One base, and the adapters take turns.", count * (base + each), count * base))

# ---- 10.6 padding

ask("10.6", {"rows": range(4, 65)}, lambda rows: whole(
    f"{rows} texts end in EOS and are padded with EOS. All labels that equal the padding become "
    "-100. How many labels are EOS?", 0, "The ends of the texts have that id, too.", rows))


@question_for("10.6")
def labels_by_length(rng):
    rows, longest = rng.randint(3, 6), rng.randint(12, 20)
    lengths = [rng.randint(3, longest - 1) for _ in range(rows)]
    return whole(
        f"Texts of {', '.join(map(str, lengths))} tokens, EOS among them, are padded to {longest}. "
        "Labels go by the length. How many are not -100?", sum(lengths),
        "All tokens of a text keep their label, EOS too.", sum(lengths) - rows, rows * longest)


ask("10.6", {"length": range(5, 41)}, lambda length: whole(
    f"A text has {length} tokens, EOS among them, and is padded on the right. Which is the first "
    "place, from 0, whose label becomes -100?", length, f"The EOS stands at place {length - 1}.",
    length - 1, length + 1))
ask("10.6", {"words": range(3, 10), "most": range(20, 61)}, lambda words, most: whole(
    f"A model was never shown an EOS. It is to write {words} words and may write {most} tokens. "
    "How many does it write?", most, "Only the limit stops it.", words, words + 1))


# ---- The ideas: the low-rank update, and its scale

ask("10.1", {"outs": (512, 1024, 4096), "ins": (768, 2048, 8192), "rank": (4, 8, 16, 64)},
    lambda outs, ins, rank: whole(
        f"A matrix has the shape ({outs}, {ins}). How many weights does a LoRA of rank {rank} "
        "train for it?", rank * (outs + ins),
        "B has (d_out, r) and A has (r, d_in) entries; the matrix itself stays as it is.",
        outs * ins, rank * outs * ins, 2 * rank * outs))
ask("10.1", {"alpha": (8, 16, 32, 64), "rank": (4, 8, 16), "times": (2, 4, 8)},
    lambda alpha, rank, times: number(
        f"A LoRA has alpha {alpha} and rank {rank}. You take the rank {rank * times} and leave "
        "alpha. By which factor does the number change that multiplies B A?", 1 / times,
        "B A is multiplied by alpha / r.", times, 1))
