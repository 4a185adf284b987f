"""What the probes measure on a script, as plain numbers. Travels as source alone, like an act.

`look(source, images, labels, seed)` runs a script and returns a dict of numbers for each probe.
"""

import contextlib
import copy
import io
import math

import torch
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)


def look(source, images, labels, seed, probes=("loss_curve", "look_at_batch", "one_batch",
                                               "gradient_report", "trace", "evaluation",
                                               "two_ranks", "serving",
                                               "preferences", "parallel")):
    """The numbers of these probes: {probe: {name: float}}; of loss_curve the curve, too.

    On one thread: the tensors are so small that a second one would only wait. What the script
    prints is not shown.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            return numbers_of(source, images, labels, seed, probes)
    finally:
        torch.set_num_threads(threads)


def numbers_of(source, images, labels, seed, probes):
    space, found = {}, {}
    exec(compile(source, "<script>", "exec"), space)
    torch.manual_seed(seed)
    run = watched_run(space, images, labels)
    state = {n: t.clone() for n, t in run.model.state_dict().items()}
    for name in probes:
        torch.manual_seed(seed + 1)
        found[name] = globals()[name](run)
        run.model.load_state_dict(state)
        run.model.train()
    return found


# ---- one run, watched

class Run:
    """What a watched run leaves behind."""

    def __init__(self, space, images, labels):
        self.space, self.parts = space, space["split"](images, labels)
        self.seen, self.taken, self.given = [], [], []
        self.steps, self.clipped, self.rates = [], [], []
        self.optimizer, self.losses, self.kept, self.model = None, [], {}, None
        self.begun = []  # the model's parameters before it was trained


def watched_run(space, images, labels):
    """Run the script under hooks: batches, gradients at each step, rates, the optimizer."""
    run = Run(space, images, labels)
    run.model = space["Reader"](10)
    run.begun = list(run.model.parameters())
    with watching(run):
        run.losses, run.kept = space["train"](run.model, run.parts[0], run.parts[1])
    run.model.train()
    return run


@contextlib.contextmanager
def watching(run):
    """Hooks on forward, on clipping and on the optimizer, undone afterwards."""
    fresh, real_clip = [True], torch.nn.utils.clip_grad_norm_
    brighten = run.space["brighten"]

    def noted(images):
        if run.model.training:
            run.taken.append(images)
        return brighten(images)

    def before_forward(_model, given):
        if run.model.training:
            run.seen.append(given[0].detach())
            if fresh[0]:
                run.given.append(norm(run.model.parameters()))
            fresh[0] = False

    def clip(parameters, *args, **kwargs):
        total = real_clip(parameters, *args, **kwargs)
        run.clipped.append(float(total))
        return total

    def before_step(optimizer, *_):
        run.optimizer = optimizer
        run.rates.append(optimizer.param_groups[0]["lr"])
        mine = list(run.model.parameters())
        run.steps.append({"norm": norm(mine), "none": sum(p.grad is None for p in mine),
                          "old": [p.detach().clone() for p in mine]})

    def after_step(_optimizer, *_):
        fresh[0] = True
        step, now = run.steps[-1], list(run.model.parameters())
        old = step.pop("old")
        step["same"] = share(torch.cat([(a == b).flatten() for a, b in zip(old, now)]))
        step["update"] = math.sqrt(sum(float((b.detach() - a).double().pow(2).sum())
                                       for a, b in zip(old, now)))

    hooks = [run.model.register_forward_pre_hook(before_forward),
             register_optimizer_step_pre_hook(before_step),
             register_optimizer_step_post_hook(after_step)]
    torch.nn.utils.clip_grad_norm_, run.space["brighten"] = clip, noted
    try:
        yield
    finally:
        torch.nn.utils.clip_grad_norm_, run.space["brighten"] = real_clip, brighten
        for hook in hooks:
            hook.remove()


def norm(tensors):
    """The norm of all gradients together."""
    return math.sqrt(sum(float(p.grad.double().pow(2).sum()) for p in tensors
                         if p.grad is not None))


def share(mask):
    return float(mask.float().mean())


def middle(values):
    return float(torch.tensor(list(values) or [math.nan], dtype=torch.float64).median())


# ---- the probes

def loss_curve(run):
    """First, middle and last loss; the accuracy at the end."""
    losses = run.losses
    tail = losses[-10:]
    return {"first loss": losses[0], "last loss": sum(tail) / len(tail),
            "accuracy": run.space["evaluate"](run.model, *run.parts[2]),
            "curve": [float(v) for v in losses]}


def look_at_batch(run):
    """What enters the model while it learns, and the pictures behind it."""
    (images, labels), brighten = run.parts[0], run.space["brighten"]
    inputs = torch.cat(run.seen)
    flat = images.flatten(1).float()
    near = (torch.cdist(flat, flat) + torch.eye(len(flat)) * 1e9).argmin(1)
    brighter = brighten(images).int() - images.int()
    again = brighten(images).int() - images.int()
    return {"mean of the inputs": float(inputs.mean()), "not a number": share(inputs.isnan()),
            "darker after brighten": share(brighter < 0),
            "same in two calls of brighten": share((brighter == again).flatten(1).all(1)),
            "same as the label of the nearest picture": share(labels[near] == labels),
            "pictures in the first batch of epochs 1 and 2": float(in_common(run))}


def in_common(run):
    """How many pictures stand in the first half batch of both the first and the second epoch."""
    per_epoch = len(run.taken) // 6
    first, second = ({tuple(p.flatten().tolist()) for p in run.taken[k]} for k in (0, per_epoch))
    return len(first & second)


def one_batch(run):
    """A fresh model, trained on one batch of 32 pictures alone."""
    batch = tuple(part[:32] for part in run.parts[0])
    fresh, given = run.space["Reader"](10), []
    fresh.eval().head.register_forward_pre_hook(lambda _, x: given.append(x[0].detach()))
    fresh(run.space["scaled"](batch[0]))
    losses, _ = run.space["train"](fresh, batch, batch, epochs=60, size=32)
    return {"first loss": losses[0], "loss after 60 steps": losses[-1],
            "spread of what the new head is given": float(given[0].std(0).mean()),
            "hidden values zero in one of two passes": dropped(run, fresh, batch[0])}


@torch.no_grad()
def dropped(run, model, images):
    """Share of what the head is given in train mode that is zero in one of two passes alone."""
    given, inputs = [], run.space["scaled"](images)
    hook = model.train().head.register_forward_pre_hook(lambda _, x: given.append(x[0] == 0))
    model(inputs), model(inputs)
    hook.remove()
    first, second = given
    alive = ~(first & second)
    return float((first != second).sum() / alive.sum().clamp(min=1))


def gradient_report(run):
    """Gradients at the steps of the optimizer."""
    steps = run.steps
    weight = math.sqrt(sum(float(p.detach().double().pow(2).sum())
                           for p in run.model.parameters()))
    return {"left over from the step before": middle(run.given[1:]),
            "norm that the clip was given": middle(run.clipped),
            "largest norm at a step": max(s["norm"] for s in steps),
            "tensors without a gradient": float(max(s["none"] for s in steps)),
            "hidden units at zero for every picture": off(run),
            "largest update over weights": max(s["update"] for s in steps) / weight,
            "weights that a step leaves as they are": middle(s["same"] for s in steps)}


@torch.no_grad()
def off(run):
    """Share of the units of the last hidden layer that are zero for every test picture."""
    given = []
    hook = run.model.head.register_forward_pre_hook(lambda _, x: given.append(x[0]))
    model = run.model.eval()
    model(run.space["scaled"](run.parts[2][0]))
    hook.remove()
    return share((given[0] == 0).all(0))


def trace(run):
    """What the optimizer holds and does, and what is kept."""
    mine, state = {id(p): p for p in run.model.parameters()}, run.model.state_dict()
    groups = run.optimizer.param_groups
    held = [p for group in groups for p in group["params"]]
    own, begun = {t.data_ptr() for t in state.values()}, set(map(id, run.begun))
    return {"numbers in the model": float(sum(p.numel() for p in mine.values())),
            "tensors of the model that the optimizer lacks":
                float(len(mine.keys() - {id(p) for p in held})),
            "tensors of the optimizer that the model lacks":
                float(sum(id(p) not in mine for p in held)),
            "decayed tensors of one axis": float(sum(
                p.ndim < 2 for g in groups if g["weight_decay"] for p in g["params"])),
            "decayed tensors of two axes": float(sum(
                p.ndim > 1 for g in groups if g["weight_decay"] for p in g["params"])),
            "tensors that train sets anew": float(len(mine.keys() - begun)),
            "highest rate": max(run.rates), "last rate": run.rates[-1],
            "kept tensors that are the model's own": float(sum(
                t.data_ptr() in own for t in run.kept.values())),
            "tensors that are not kept": float(len(state.keys() - run.kept.keys()))}


@torch.no_grad()
def evaluation(run):
    """What happens while the model is tested."""
    images, labels = run.parts[2]
    calls, modes = [], []

    def noted(module, given, out):
        calls.append((given[0], out))
        modes.append(sum(m.training for m in module.modules()))

    hook = run.model.register_forward_hook(noted)
    evaluate = run.space["evaluate"]
    twice = torch.zeros(2, dtype=torch.long)  # the first picture in company of itself
    for rows in (torch.arange(100), torch.arange(100), twice):
        evaluate(run.model, images[rows], labels[rows])
    hook.remove()
    (x, first), (y, second), (_, alone) = calls
    small = run.space["smaller"](run.model)
    seen = {tuple(p.flatten().tolist()) for part in run.parts[:2] for p in part[0]}
    return {"accuracy": evaluate(run.model, images, labels),
            "test pictures that train has seen": sum(
                tuple(p.flatten().tolist()) in seen for p in images) / len(images),
            "accuracy of the small copy": evaluate(small, images, labels),
            "different weights in a row of the small copy": float(max(
                len(row.unique()) for row in small.layers[0].weight)),
            "modules in train mode": float(modes[0]), "mean of the inputs": float(x.mean()),
            "difference of the inputs in two calls": float((x - y).abs().mean()),
            "difference of the logits in two calls": float((first - second).abs().mean()),
            "difference of the logits alone and in company":
                float((alone[:1] - second[:1]).abs().mean())}


def two_ranks(run):
    """A fresh model that two ranks train side by side."""
    norms = []
    hook = register_optimizer_step_pre_hook(lambda optimizer, *_: norms.append(norm(
        p for group in optimizer.param_groups for p in group["params"])))
    images, labels = run.parts[0]
    try:
        copies, read = run.space["side_by_side"](run.space["Reader"](10), images, labels)
    finally:
        hook.remove()
    first, second = (list(one.parameters()) for one in copies)
    return {"rows that both ranks read": float(len(set(read[0]) & set(read[1]))),
            "largest difference of the ranks' weights": max(
                float((a - b).detach().abs().max()) for a, b in zip(first, second)),
            "smallest norm at a rank's step": min(norms)}


@torch.no_grad()
def serving(run):
    """A fresh language model that serves: two requests share blocks, and drafts are checked."""
    model = run.space["Writer"]()
    one, two, three, four = ([k, 9 - k, k, k + 4] for k in range(4))
    memory = run.space["Memory"](model)
    blocks = len(memory.free)
    ann, bob = memory.enter([*one, *two, *three]), memory.enter([*one, *two, *four])
    shared = len({*ann} & {*bob})
    memory.leave(bob)
    lost = len({*memory.free} & {*ann})
    memory.leave(ann)
    stand, zeros, beyond = drafted(run.space["speculate"])
    return {"free blocks that a request still reads": float(lost),
            "blocks that nobody gives back": float(blocks - len(memory.free)),
            "blocks that two requests share": float(shared),
            "difference of the logits with shared blocks": behind_another(run.space, model),
            "difference of the shares of a digit, with a draft": abs(zeros - 0.5),
            "share of drafts that stand": stand,
            "places of the cache beyond the digits that stand": beyond}


def behind_another(space, model):
    """Logits from the blocks of a prompt that came earlier in another order, and without any."""
    one, two, three = ([k, 9 - k, k, k + 4] for k in range(3))
    memory, ids, last = space["Memory"](model), [*three, *two, *one], torch.tensor([5])
    memory.enter([*one, *two, *three])
    served, _ = model(last, memory.cache(memory.enter(ids)))
    alone, _ = model(torch.tensor([*ids, 5]), torch.zeros(2, 0, 32))
    return float((served[-1] - alone[-1]).abs().max())


def drafted(speculate, calls=600):
    """Drafts of a model that says 0 always, where the target says 0 and 1 alike.

    Returns the share of drafts that stand, that of digit 0 as the first that is written, and how
    many places the cache of a call with three rejected drafts has too many.
    """
    cache, zero = torch.zeros(2, 5, 32), torch.zeros(1, dtype=torch.long)
    q = torch.eye(10)[:1]

    def target(ids, cache, digits=(0, 1)):
        logits = torch.full((len(ids), 10), -math.inf)
        logits[:, list(digits)] = 0.0
        return logits, torch.cat([cache, torch.zeros(2, len(ids), 32)], 1)

    written = [speculate(target, zero, zero, q, cache)[0] for _ in range(calls)]
    _, grown = speculate(lambda ids, cache: target(ids, cache, (1,)), zero, zero.expand(3),
                         q.expand(3, 10), cache)
    return (share(torch.tensor([len(digits) == 2 for digits in written])),
            share(torch.stack([digits[0] for digits in written]) == 0),
            float(grown.shape[1] - cache.shape[1] - 1))


def preferences(run):
    """What pairs and rewards make of a fresh policy: eight prompts, ten answers to each."""
    begun, space = torch.randn(8, 10), run.space
    policy, prompts = begun.clone().requires_grad_(), torch.arange(8)
    best, worst = begun.argmax(1), begun.argmin(1)
    losses = space["learn_pairs"](  # three of four prefer what the policy gives seldom
        policy, prompts.repeat(4), torch.cat([*[worst] * 3, best]), torch.cat([*[best] * 3, worst]))
    added = (policy - begun).detach().log_softmax(1)
    down, spread = grouped(space["against_others"])
    return {"last loss of the pairs": losses[-1],
            "log odds that the pairs have added":
                float((added[prompts, worst] - added[prompts, best]).mean()),
            "right answers that are pushed down": down, "spread of a prompt's gains": spread,
            "gradient of the price, off that of the KL by": off_kl(space["price"], begun),
            "farthest ratio from 1 in the last step on a draw": ratio_of(space["climb"], begun)}


def grouped(against_others, rounds=6, prompts=12):
    """Of rewards 0 and 1 with 0 to 8 points for the prompt: right ones pushed down, the spread."""
    right = (torch.arange(rounds)[:, None] % torch.arange(2, 2 + prompts) == 0).float()
    right = right[:, torch.randperm(prompts)]
    gains = against_others((right + 8 * torch.rand(prompts)).flatten(), prompts)
    gains = gains.view(rounds, prompts)
    return share(gains[right == 1] < 0), middle(gains.std(0).tolist())


def off_kl(price, begun):
    """Distance of the mean gradient of the price over all answers from that of the KL."""
    policy = (begun + torch.randn(begun.shape)).requires_grad_()
    now, then = policy.log_softmax(1), begun.log_softmax(1)
    chance = now.exp()
    paid = chance.detach() * price(now.flatten(), then.flatten()).view_as(now)
    (mine,) = torch.autograd.grad(paid.sum(), policy, retain_graph=True)
    (true,) = torch.autograd.grad((chance * (now - then)).sum(), policy)
    return float((mine - true).norm() / true.norm())


def ratio_of(climb, begun):
    """How far a ratio is from 1 in the last step on a draw of six answers to each prompt."""
    prompts = torch.arange(len(begun)).repeat_interleave(6)
    answers = torch.multinomial(begun.softmax(1), 6, replacement=True).flatten()
    gains = torch.linspace(-1.2, 1.2, 6).repeat(len(begun))
    ratios = climb(begun.clone().requires_grad_(), begun, prompts, answers, gains)
    return float((ratios[-1] - 1).abs().max())


def parallel(run):
    """What becomes of a fresh model that is cut over ranks, and of a plan for eight GPUs."""
    space = run.space
    held, x = space["held"], torch.randn(12, 16)
    places = torch.randn(12, 16)
    seen = x + places
    whole = torch.nn.functional.scaled_dot_product_attention(seen, seen, seen, is_causal=True)
    experts = space["Experts"]()
    experts(torch.randn(64, 16)).pow(2).sum().backward()
    return {"gradient of a net in halves, off by": off_whole(space["backward_in_halves"]),
            "difference of attention in parts and whole": max(
                float((space["attend_in_parts"](x, places, ranks) - whole).abs().max())
                for ranks in (2, 4)),
            "gradient of the router over that of its experts":
                norm(experts.router.parameters()) / norm(experts.experts.parameters()),
            "planned activations, eight copies over one":
                held(0.0, 64.0, copies=8) / held(0.0, 64.0),
            "planned state with ZeRO-1, eight copies over one":
                held(64.0, 0.0, copies=8, zero=True) / held(64.0, 0.0, zero=True)}


def off_whole(backward):
    """Distance of a body's gradient with its layer in halves on two ranks from the uncut net's."""
    nn = torch.nn
    body, head = nn.Linear(8, 16), nn.Linear(16, 10)
    halves = [nn.Sequential(nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 16)) for _ in range(2)]
    x, labels = torch.randn(32, 8), torch.randint(10, (32,))
    logits = head(sum(half(body(x)) for half in halves))
    true = torch.autograd.grad(nn.functional.cross_entropy(logits, labels), body.weight)[0]
    bodies, heads = ([copy.deepcopy(one) for _ in halves] for one in (body, head))
    backward(bodies, halves, heads, x, labels)
    return max(float((one.weight.grad - true).norm() / true.norm()) for one in bodies)
