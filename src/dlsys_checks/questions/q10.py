"""Stage 10: target names, merging, the room of a prefix, heads, loading and padding."""

from itertools import permutations

from dlsys_checks.questions import ask, choice, number, question_for, whole

PROJECTIONS = ["q_proj", "k_proj", "v_proj", "o_proj"]

# ---- 10.1 names

ask("10.1", {"layers": range(4, 41), "right": range(1, 4), "wrong": range(2, 6)},
    lambda layers, right, wrong: whole(
        f"A model has {layers} layers with `q_proj`, `k_proj`, `v_proj` and `o_proj` each. "
        f"`target_modules` lists {right} of these names and {wrong} that the model does not have. "
        "How many matrices get LoRA?", layers * right,
        "The list is a filter: peft skips a name that matches "
        "nothing.", 0, layers * (right + wrong),
        layers * 4))
ask("10.1", {"r": (4, 8, 16), "d": (64, 128, 256), "layers": range(2, 13), "hit": range(1, 5)},
    lambda r, d, layers, hit: whole(
        f"LoRA of rank {r} is added to {hit} square matrices of width {d} in each of {layers} "
        "layers. How many parameters are trained?", layers * hit * r * (d + d),
        "A has r times d_in entries, and B has d_out times r entries.", layers * hit * r * d,
        layers * hit * d * d))
ask("10.1", {"layer": range(21)}, lambda layer: choice(
    f"Which of these names in a list of `target_modules` matches `layers.{layer}.mlp.up_proj`?",
    "up_proj", "A name has to equal the whole path, or the end of the path after a dot.", "proj",
    f"layers.{layer}", "mlp.up"))
ask("10.1", {"first, second": list(permutations(PROJECTIONS, 2))}, lambda first, second: choice(
    f"The `target_modules` for a Llama are `{first}`, `{second}` and `fc1`. A Llama has no `fc1`. "
    "What does `get_peft_model` do?", "it adapts the two names that match, without a warning",
    "peft raises an error only if no name matches.", "it raises an error about fc1",
    "it warns about fc1 and adapts the two other names", "it adapts all linear modules"))

# ---- 10.2 merging

ask("10.2", {"w": range(1, 10), "b": range(2, 7), "a": range(2, 7), "alpha": (4, 6, 8)},
    lambda w, b, a, alpha: number(
        f"W is [[{w}]], A is [[{a}], [0]], B is [[{b}, 0]], and alpha is {alpha}. What is the only "
        "entry of the merged weight?", w + alpha / 2 * b * a,
        "The merged weight is W + alpha / r * B @ A, and r is the number of rows of A, here 2.",
        w + b * a, w + alpha * b * a))
ask("10.2", {"layers": range(2, 41)}, lambda layers: whole(
    f"A model with {layers} layers runs seven matrix products in each layer and one in the head. "
    "Every matrix in the layers has an unmerged LoRA. How many products does a call run?",
    layers * 21 + 1, "Each adapted matrix runs three products: with W, A and B.", layers * 7 + 1,
    layers * 14 + 1))
ask("10.2", {"d": (1024, 2048, 4096, 8192), "r": (8, 16, 32, 64)}, lambda d, r: number(
    f"LoRA of rank {r} is added to a square matrix of width {d}. By what fraction does it increase "
    "the number of multiplications per row?", 2 * r / d,
    "A and B need r times d multiplications each, and W needs d times d.", r / d, 1))
ask("10.2", {"w": range(2, 10), "update": range(2, 10), "x": range(2, 10)},
    lambda w, update, x: number(
        f"A layer multiplies its input by {w}, and the adapter's update is {update}. You add "
        f"{update} to the weight but leave the adapter on. What does the layer return for {x}?",
        (w + 2 * update) * x, "The update counts twice: once in the weight, and once in the "
                              "adapter next to it.",
        (w + update) * x, w * x))
ask("10.2", {"w": [2.0 ** k for k in range(1, 7)],
             "change": lambda w: [w / k for k in (1024, 2048, 4096)]},
    lambda w, change: number(
        f"A bfloat16 weight is {w:g}. You add an update of {change:g} in float32 and round the sum "
        "to bfloat16. Which value is stored?", w,
        "bfloat16 has 8 significant bits, so the next number after 1 is 1.0078.",
        w + change, within=1e-6))

# ---- 10.3 the room of a prefix

ask("10.3", {"positions": (512, 1024, 2048), "prefix": range(10, 61)},
    lambda positions, prefix: whole(
        f"A GPT-2 with {positions} positions gets a prefix of {prefix} learned tokens. How many "
        "tokens may a text have?", positions - prefix,
        "The prefix takes the positions before the text.", positions, positions + prefix))
ask("10.3", {"positions": (128, 256), "prefix": range(5, 26), "answer": range(10, 41),
             "prompt": range(300, 501)},
    lambda positions, prefix, answer, prompt: whole(
        f"A model has {positions} positions. With a prefix of {prefix} tokens, how many of a "
        f"prompt's {prompt} tokens can you keep in front of an answer of {answer} tokens?",
        positions - prefix - answer, "The prefix and the answer get their positions first.",
        positions - answer, positions - prefix))
ask("10.3", {"room": range(60, 91), "prompt": range(40, 56), "answer": range(40, 61)},
    lambda room, prompt, answer: whole(
        f"A text has a prompt of {prompt} tokens and an answer of {answer} tokens. The text is cut "
        f"at the end to {room} tokens. Only the answer has labels. How many labels are "
        "left?", room - prompt,
        "The answer comes last, so the cut removes part of it.", answer, room))
ask("10.3", {"over": range(1, 51)}, lambda over: choice(
    f"A prefix and a text are together {over} tokens longer than the texts a Llama was trained on. "
    "What happens at the first call?", "it answers, at positions that never occurred in training",
    "A Llama's angles can be computed for any position, so there is no table that ends.",
    "IndexError: index out of range", "the text is cut", "the prefix is cut"))

# ---- 10.4 a head without a task

ask("10.4", {"d": (32, 64, 128), "labels": range(2, 10), "lora": range(1000, 9001)},
    lambda d, labels, lora: whole(
        f"LoRA in a classifier has {lora} parameters. The classifier's head, without bias, maps "
        f"{d} features to {labels} labels. How many parameters are trained with `SEQ_CLS`?",
        lora + d * labels, "The task tells peft about the head, which is then trained in full.",
        lora, lora + d))
ask("10.4", {"d": (32, 64, 128), "labels": range(2, 10), "lora": range(1000, 9001)},
    lambda d, labels, lora: whole(
        f"LoRA in a classifier has {lora} parameters and the head has {d * labels}. How many "
        "parameters are trained if the configuration has no task type?", lora,
        "Without a task type, the head is frozen together with the base.", lora + d * labels,
        d * labels))
ask("10.4", {"labels": range(3, 10)}, lambda labels: choice(
    f"A LoRA classifier with {labels} labels is saved without its head. Which accuracy do you "
    "expect after loading?", "a low one that is different at each loading",
    "Each loading draws a new random head.", "the one before saving",
    "exactly zero at each loading", "exactly 1 divided by the number of labels"))
ask("10.4", {"first": range(1000, 5001), "second": range(100, 901)}, lambda first, second: whole(
    f"A base has an adapter with {first} trainable parameters. You call `get_peft_model` on the "
    f"same base to add a prefix with {second} parameters. How many parameters of the first adapter "
    "are still trained?", 0, "The second call freezes everything that it finds.", first,
    first + second))

# ---- 10.5 loading

ask("10.5", {"layers": range(2, 31), "matrices": range(2, 8)}, lambda layers, matrices: whole(
    f"peft has saved LoRA for {matrices} matrices in each of {layers} layers. You pass the file to "
    "`load_state_dict(strict=False)` of a model with a new adapter. How many tensors in the file "
    "match no name?", 2 * layers * matrices,
    "No name matches, because the names in the model contain the adapter's name. Each matrix has "
    "an A and a B.", 0, layers * matrices))
ask("10.5", {"w": range(2, 10), "x": range(2, 10), "a": lambda w, **_: range(w + 1, w + 10)},
    lambda w, x, a: number(
        f"A layer with a weight of {w} gets a new adapter of rank 1, with A = {a} and alpha 1. "
        f"What does the layer return for {x}?", w * x, "B starts at zero, so the adapter adds "
        "nothing.",
        (w + a) * x, a * x))
ask("10.5", {"x": range(2, 91)}, lambda x: choice(
    f"You call `get_peft_model`, then `load_adapter(folder, 'v{x}')`. Which adapter is active?",
    "default, the new one", "load_adapter only adds an adapter; set_adapter activates it.",
    f"v{x}", "both together", "none, because the second call raises an error"))
ask("10.5", {"base": (7, 13, 14, 26), "each": (0.1, 0.2, 0.5), "count": range(5, 21)},
    lambda base, each, count: number(
        f"A base takes {base} GB and an adapter {each} GB. How many GB do {count} customers need "
        "if their adapters share one base and are not merged?", base + count * each,
        "There is one base, and one adapter per customer.", count * (base + each), count * base))

# ---- 10.6 padding

ask("10.6", {"rows": range(4, 65)}, lambda rows: whole(
    f"{rows} texts end in EOS and are padded with EOS. All labels that equal the padding become "
    "-100. How many labels are EOS?", 0, "The EOS that ends a text has the same id.", rows))


@question_for("10.6")
def labels_by_length(rng):
    rows, longest = rng.randint(3, 6), rng.randint(12, 20)
    lengths = [rng.randint(3, longest - 1) for _ in range(rows)]
    return whole(
        f"Texts of {', '.join(map(str, lengths))} tokens, including EOS, are padded to {longest}. "
        "Labels are masked by the length. How many labels are not -100?", sum(lengths),
        "All tokens of a text keep their labels, including EOS.", sum(lengths) - rows,
        rows * longest)


ask("10.6", {"length": range(5, 41)}, lambda length: whole(
    f"A text has {length} tokens, including EOS, and is padded on the right. What is the first "
    "position, from 0, with a label of -100?", length, f"The EOS is at position {length - 1}.",
    length - 1, length + 1))
ask("10.6", {"words": range(3, 10), "most": range(20, 61)}, lambda words, most: whole(
    f"A model trained from scratch never had an EOS as a label. You ask it for {words} words, "
    f"with a limit of {most} tokens. How many tokens does the model write?", most,
    "Only the limit stops the model.", words,
    words + 1))


# ---- The ideas: the low-rank update, and its scale

ask("10.1", {"outs": (512, 1024, 4096), "ins": (768, 2048, 8192), "rank": (4, 8, 16, 64)},
    lambda outs, ins, rank: whole(
        f"A matrix has the shape ({outs}, {ins}). How many parameters does a LoRA of rank {rank} "
        "train for it?", rank * (outs + ins),
        "B has the shape (d_out, r), and A has the shape (r, d_in). The matrix itself is frozen.",
        outs * ins, rank * outs * ins, 2 * rank * outs))
ask("10.1", {"alpha": (8, 16, 32, 64), "rank": (4, 8, 16), "times": (2, 4, 8)},
    lambda alpha, rank, times: number(
        f"A LoRA has alpha {alpha} and rank {rank}. You raise the rank to {rank * times} and keep "
        "alpha. By what factor does the scale of B @ A change?", 1 / times,
        "B @ A is multiplied by alpha / r.", times, 1))


# ---- 10.7 two BOS

ask("10.7", {"words": range(4, 60), "around": range(2, 8)}, lambda words, around: whole(
    f"A message has {words} tokens, and its chat template writes {around} tokens around it, BOS "
    "included. You encode this text with `tokenizer(text)`, which adds BOS to a text. How many ids "
    "do you get?", words + around + 1,
    "The template's BOS is part of the text, and the tokenizer adds another one.", words + around,
    words + 1))
ask("10.7", {"teas": range(3, 12)}, lambda teas: number(
    f"A token attends to {teas} teas and one BOS, all with the same score. You put a second BOS "
    "with this score in front. What fraction of the weight is on the teas now?", teas / (teas + 2),
    "The weights sum to 1, and each of the tokens gets the same part.", teas / (teas + 1), 0.5))
ask("10.7", {"id": (1, 2, 151646, 128000)}, lambda id: choice(
    f"A template has written BOS (id {id}) into a text. Which call returns ids with one BOS?",
    "tokenizer(text, add_special_tokens=False)",
    "The text is complete, so the tokenizer should add nothing.", "tokenizer(text)",
    "tokenizer(tokenizer.bos_token + text)", "tokenizer(text, padding=True)"))
ask("10.7", {"id": (1, 2, 151646, 128000), "texts": range(1000, 9001, 500)},
    lambda id, texts: choice(
        f"A model was fine-tuned on {texts} texts, and all of them begin with two BOS (id {id}). "
        "The server's prompts begin with two as well. You remove one on the server only. What "
        "happens?",
        "the answers can get worse, because training and serving now differ",
        "The model has learned with two. Remove the second in both places, and train again.",
        "the answers get better, because two BOS are always harmful",
        "nothing, because BOS has no meaning"))
