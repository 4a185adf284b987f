"""Stage 10: target names, merging, the room of a prefix, heads, loading and padding."""

import torch

from dlsys_checks.questions import asks, choice, number, whole

PROJECTIONS = ["q_proj", "k_proj", "v_proj", "o_proj"]


def lora_numbers(r, d_in, d_out):
    """Numbers of A and B for a matrix (d_out, d_in)."""
    return r * (d_in + d_out)


# ---- 10.1 names

@asks("10.1")
def hits_of_a_list(rng):
    layers, right = rng.randint(4, 40), rng.randint(1, 3)
    wrong = rng.randint(2, 5)
    return whole(
        f"A model has {layers} layers with `q_proj`, `k_proj`, `v_proj` and `o_proj` each. "
        f"`target_modules` lists {right} of these names and {wrong} that the model has not. How "
        "many matrices get LoRA?", layers * right,
        "The list is a filter: what hits nothing is passed over.", 0, layers * (right + wrong),
        layers * 4)


@asks("10.1")
def trainable_of_a_list(rng):
    r, d, layers = rng.choice([4, 8, 16]), rng.choice([64, 128, 256]), rng.randint(2, 12)
    hit = rng.randint(1, 4)
    return whole(
        f"LoRA of rank {r} hits {hit} square matrices of width {d} in each of {layers} layers. "
        "How many numbers train?", layers * hit * lora_numbers(r, d, d),
        "A holds r times d_in and B d_out times r.", layers * hit * r * d, layers * hit * d * d)


@asks("10.1")
def what_a_name_hits(rng):
    layer = rng.randint(0, 20)
    return choice(
        f"In a list, which of these names hits `layers.{layer}.mlp.up_proj`?", "up_proj",
        "A name has to equal the path or its end behind a dot.", "proj", f"layers.{layer}",
        "mlp.up")


@asks("10.1")
def when_it_raises(rng):
    names = rng.sample(PROJECTIONS, 2)
    return choice(
        f"A Llama gets the names `{names[0]}`, `{names[1]}` and `fc1`, which it has not. What does "
        "`get_peft_model` do?", "it adapts two names and says nothing",
        "An error comes only if no name at all hits.", "it raises an error about fc1",
        "it warns about fc1 and adapts two names", "it adapts all linear modules")


# ---- 10.2 merging

@asks("10.2")
def merged_entry(rng):
    w, b, a = rng.randint(1, 9), rng.randint(2, 6), rng.randint(2, 6)
    r, alpha = 2, rng.choice([4, 6, 8])
    return number(
        f"A weight of one number, {w}; A is [[{a}], [0]], B is [[{b}, 0]], alpha {alpha}. What is "
        "the merged weight?", w + alpha / r * b * a, "W + alpha / r B A, and r is the rows of A.",
        w + b * a, w + alpha * b * a)


@asks("10.2")
def products_of_a_call(rng):
    layers = rng.randint(2, 40)
    return whole(
        f"A model of {layers} layers runs seven matrix products in each, and one in its head. LoRA "
        "in all matrices of the layers is not merged. How many products does a call run?",
        layers * 21 + 1, "Each adapted matrix runs three: W, A and B.", layers * 7 + 1,
        layers * 14 + 1)


@asks("10.2")
def flops_on_top(rng):
    d, r = rng.choice([1024, 2048, 4096, 8192]), rng.choice([8, 16, 32, 64])
    return number(
        f"LoRA of rank {r} stands beside a square matrix of width {d}. By what share does it raise "
        "the multiplications of that matrix?", 2 * r / d,
        "A takes r times d, B as many, W takes d times d.", r / d, 1)


@asks("10.2")
def counted_twice(rng):
    w, update, x = rng.randint(2, 9), rng.randint(2, 9), rng.randint(2, 9)
    return number(
        f"A layer multiplies by {w}, its adapter adds {update}. Somebody adds {update} to the "
        f"weight and leaves the adapter on. What does the layer make of {x}?",
        (w + 2 * update) * x, "The update is in the weight and beside it.", (w + update) * x, w * x)


@asks("10.2")
def lost_in_bfloat16(rng):
    exponent = rng.randint(1, 6)
    w = 2.0 ** exponent
    change = w / rng.choice([1024, 2048, 4096])
    return number(
        f"A weight of {w:g} in bfloat16 gets an update of {change:g}, added in float32 and rounded "
        "once. What is stored?", (torch.tensor(w) + change).bfloat16().item(),
        "bfloat16 has 8 bits: beside 1 the next number is 1.0078.", w + change, within=1e-6)


# ---- 10.3 the room of a prefix

@asks("10.3")
def room_left(rng):
    positions, prefix = rng.choice([512, 1024, 2048]), rng.randint(10, 60)
    return whole(
        f"A GPT-2 with {positions} positions gets a prefix of {prefix} learned tokens. How long "
        "may a text be?", positions - prefix, "The prefix takes positions before the text.",
        positions, positions + prefix)


@asks("10.3")
def prompt_that_is_left(rng):
    positions, prefix = rng.choice([128, 256]), rng.randint(5, 25)
    answer, prompt = rng.randint(10, 40), rng.randint(300, 500)
    return whole(
        f"{positions} positions, a prefix of {prefix}, a prompt of {prompt} tokens and an answer "
        f"of {answer}. How many tokens of the prompt stay?", positions - prefix - answer,
        "Prefix and answer have their places first.", positions - answer, positions - prefix)


@asks("10.3")
def labels_after_a_cut(rng):
    room, prompt, answer = rng.randint(60, 90), rng.randint(40, 55), rng.randint(40, 60)
    return whole(
        f"A prompt of {prompt} tokens and an answer of {answer} are cut at the end to {room}. How "
        "many tokens with a label are left?", room - prompt,
        "The answer stands last, so it is what the cut takes.", answer, room)


@asks("10.3")
def too_long_for_a_llama(rng):
    over = rng.randint(1, 50)
    return choice(
        f"Prefix and text are {over} tokens longer than a Llama was trained for. What happens at "
        "the first call?", "it answers, on positions that training never saw",
        "Its angles can be calculated for any position; there is no table that ends.",
        "IndexError: index out of range", "the text is cut", "the prefix is cut")


# ---- 10.4 a head without a task

@asks("10.4")
def numbers_with_a_head(rng):
    d, labels, lora = rng.choice([32, 64, 128]), rng.randint(2, 9), rng.randint(1000, 9000)
    return whole(
        f"LoRA of a classifier has {lora} numbers; its head without bias maps {d} features to "
        f"{labels} labels. How many numbers train with `SEQ_CLS`?", lora + d * labels,
        "The task names the head, which then trains in full.", lora, lora + d)


@asks("10.4")
def without_a_task(rng):
    d, labels, lora = rng.choice([32, 64, 128]), rng.randint(2, 9), rng.randint(1000, 9000)
    return whole(
        f"The same without a task: LoRA has {lora} numbers, the head {d * labels}. How many "
        "train?", lora, "Without a task the head is frozen with the base.", lora + d * labels,
        d * labels)


@asks("10.4")
def chance_after_loading(rng):
    labels = rng.randint(3, 9)
    return choice(
        f"A classifier with {labels} labels and LoRA loses its head in the file. Which accuracy do "
        "you expect after loading?", "a low one, and another at each loading",
        "A fresh head is drawn each time.", "the one before saving", "exactly zero at each loading",
        "1 over the labels, to the digit")


@asks("10.4")
def second_adapter(rng):
    first, second = rng.randint(1000, 5000), rng.randint(100, 900)
    return whole(
        f"An adapter of {first} numbers trains on a base. `get_peft_model` is called on the same "
        f"base for another of {second}. How many numbers of the first still train?", 0,
        "The second call freezes what it finds.", first, first + second)


# ---- 10.5 loading

@asks("10.5")
def unexpected_keys(rng):
    layers, matrices = rng.randint(2, 30), rng.randint(1, 7)
    return whole(
        f"LoRA in {matrices} matrices of each of {layers} layers was saved by peft. Its file goes "
        "into `load_state_dict(strict=False)` of a fresh adapter. How many tensors find no place?",
        2 * layers * matrices, "A and B each; the model's names hold the adapter's name.", 0,
        layers * matrices)


@asks("10.5")
def output_of_a_fresh_adapter(rng):
    w, x = rng.randint(2, 9), rng.randint(2, 9)
    a = w + rng.randint(1, 9)
    return number(
        f"A weight of {w} gets a fresh adapter of rank 1 with A = {a} and alpha 1. What does the "
        f"layer make of {x}?", w * x, "B begins at zero.", (w + a) * x, a * x)


@asks("10.5")
def active_adapter(rng):
    x = rng.randint(2, 90)
    return choice(
        f"`get_peft_model`, then `load_adapter(folder, 'v{x}')`. Which adapter answers?",
        "default, the fresh one", "load_adapter adds one; set_adapter switches it on.", f"v{x}",
        "both together", "none, an error")


@asks("10.5")
def adapters_on_a_base(rng):
    base, each = rng.choice([7, 13, 14, 26]), rng.choice([0.1, 0.2, 0.5])
    count = rng.randint(5, 20)
    return number(
        f"A base takes {base} GB, an adapter {each} GB. How many GB do {count} customers take on "
        "one base, adapters not merged?", base + count * each,
        "One base, and the adapters take turns.", count * (base + each), count * base)


# ---- 10.6 padding

@asks("10.6")
def labels_that_are_eos(rng):
    rows = rng.randint(4, 64)
    return whole(
        f"{rows} texts end in EOS and are padded with EOS. All labels that equal the padding "
        "become -100. How many labels are EOS?", 0, "The ends of the texts have that id, too.",
        rows)


@asks("10.6")
def labels_by_length(rng):
    rows, longest = rng.randint(3, 6), rng.randint(12, 20)
    lengths = [rng.randint(3, longest - 1) for _ in range(rows)]
    return whole(
        f"Texts of {', '.join(map(str, lengths))} tokens, EOS among them, are padded to {longest}. "
        "Labels go by the length. How many are not -100?", sum(lengths),
        "All tokens of a text keep their label, EOS too.", sum(lengths) - rows, rows * longest)


@asks("10.6")
def place_of_the_end(rng):
    length = rng.randint(5, 40)
    return whole(
        f"A text has {length} tokens, EOS among them, and is padded on the right. Which is the "
        "first place, from 0, whose label becomes -100?", length,
        f"The EOS stands at place {length - 1}.", length - 1, length + 1)


@asks("10.6")
def answer_without_an_end(rng):
    words, most = rng.randint(3, 9), rng.randint(20, 60)
    return whole(
        f"A model was never shown an EOS. It is to write {words} words and may write {most} "
        "tokens. How many does it write?", most, "Only the limit stops it.", words, words + 1)
