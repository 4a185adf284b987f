"""Exercise 14.1, `dpo_loss`."""

from __future__ import annotations

import copy

import torch
from torch import nn
from torch.nn import functional as F

from dlsys_checks.kit import floats, integers
from dlsys_checks.registry import exercise
from dlsys_helpers.expect import expect_close, expect_equal, expect_length, expect_parts
from dlsys_helpers.judging import not_an_answer

ex = exercise("14.1", "dpo_loss", seen=("weights", "calls", "beta", "training", "apart", "switched",
                                       "frozen"), says="loss:")

ex.promise_table("""
begins  | Return the DPO loss for a policy whose training begins now. | loss:; gradient of the
logits  | policy(ids): logits (B, T, V) for ids (B, T) int64; the logits at a position predict the
          next token. | loss:; gradient of the
each    | Returns a function loss(chosen, rejected), which is called at each step. | is not
          callable; loss:; gradient of the
mask    | chosen and rejected are pairs (ids, answer); answer is (B, T) bool, true at the answer's
          tokens and never at the first position. In each row, both answer the same prompt. | loss:;
          gradient of the
sizes   | T can differ between chosen and rejected, and B between calls. | case different lengths;
          different lengths, without pads; two calls; three calls; two calls of one size; the same
          texts, another mask
mean    | The loss is the mean over rows of -log(sigmoid(beta * margin)). | loss:; gradient of the;
          scalar outputs
dtype   | The loss is a float32 scalar. | dtype of the loss
margin  | margin: the rise in the chosen answer's log-probability since dpo_loss was called, minus
          the rejected answer's rise. | loss:; gradient of the
mode    | The policy runs in its current mode, and the reference in evaluation mode. | case training
          mode; training mode, first step; training mode, a part kept out of it; only a part in
          training mode; put into training mode for the steps; put into evaluation mode for the
          steps
finite  | The loss is finite for margins of hundreds of nats. | case margins of hundreds; margins of
          hundreds in the wrong direction
flow    | Gradients flow to the current policy. | gradient of the; led to
left    | Neither call sets a seed or changes the policy's weights, gradients, requires_grad flags
          or modes. | of the policy; random numbers
example | Example: the first step of a policy in evaluation mode gives 0.6931. | case the example
""")


@ex.cases
def cases(g):
    whole, between = integers(g), floats(g)

    def pair(rows, size, tokens, prompt, lengths, front=0):
        """ids and mask: a prompt of this length, then answers of these lengths, pads around."""
        ids = torch.randint(tokens, (rows, size), generator=g)
        at = torch.arange(size)
        ends = torch.tensor(lengths)[:, None] + front + prompt
        return ids, (at >= front + prompt) & (at < ends)

    def one(name, steps=1, *, rows=3, tokens=7, size=2.0, move=0.7, beta=None, training=False,
            apart=False, switched=False, frozen=False, other=0, front=0, full=False, two=False,
            tiny=False, more=1):
        start = [size * torch.randn(*shape, generator=g)
                 for shape in ((tokens, tokens), (tokens, tokens), (tokens,))]
        weights, calls = [start], []
        prompt, longest = whole(1, 4), whole(4, 7)
        for step in range(steps):
            weights.append([w + move * torch.randn(w.shape, generator=g) for w in start])
            n = rows + more * step
            if more:
                prompt, longest = whole(1, 4), whole(4, 7)
            both = []
            for extra in (0, other):
                top = 1 if tiny else longest
                lengths = [top + extra if full else whole(1, top + extra + 1) for _ in range(n)]
                both.append(pair(n, front + prompt + longest + extra, tokens, prompt, lengths,
                                 front))
            ids = both[1][0]
            ids[:, :front + prompt] = both[0][0][:, :front + prompt]
            if two:
                for _, mask in both:
                    mask[:, -1] = True
                    mask[:, front + prompt] = True
                    mask[:, front + prompt + 1] = False
            calls.append(both)
        return name, {"weights": weights, "calls": calls, "training": training, "apart": apart,
                      "switched": switched, "frozen": frozen,
                      "beta": between(0.05, 0.4) if beta is None else beta}

    far = one("margins of hundreds", size=1.0, move=60.0, beta=1.0, rows=4, full=True)
    back = one("margins of hundreds in the wrong direction", size=1.0, move=90.0, beta=2.0,
               rows=5, full=True)
    texts = one("the same texts, another mask", 2, full=True, more=0)
    texts[1]["calls"][1] = [(ids.clone(), answer & (answer.cumsum(1) < answer.sum(1)[:, None]))
                            for ids, answer in texts[1]["calls"][0]]
    example = one("the example", move=0.0, beta=0.1)
    first = one("training mode, first step", move=0.0, training=True, beta=0.5)
    return [one("a step"), one("one row", rows=1), one("many rows", rows=9),
            one("trained far away", move=3.0), one("two calls of one size", 2, more=0, full=True),
            texts, one("two calls", 2), one("three calls", 3),
            one("pads at the end", rows=5), one("pads at the start", front=3, rows=4),
            one("different lengths", other=3), one("different lengths, without pads", other=2,
                full=True),
            one("an answer in two parts", two=True), one("one token", tiny=True),
            one("two tokens to choose from", tokens=2), one("a small beta", beta=0.01, move=2.0),
            one("a large beta", beta=2.0, move=0.4), one("training mode", training=True, beta=0.5),
            first, one("training mode, a part kept out of it", training=True, apart=True, beta=0.5),
            one("only a part in training mode", apart=True, beta=0.5),
            one("put into training mode for the steps", training=True, switched=True, beta=0.5),
            one("put into evaluation mode for the steps", switched=True, beta=0.5),
            one("a frozen weight", frozen=True), far, back, example]


@ex.act
def act(fn, weights, calls, beta, training, apart, switched, frozen):
    class Scale(nn.Module):
        """Stands for dropout, but the same each time: another size in training mode."""

        def __init__(self, size):
            super().__init__()
            self.size = size

        def forward(self, x):
            return self.size * x if self.training else x

    class Letters(nn.Module):
        """Logits from the last token, the first one and a buffer; other ones in training mode."""

        def __init__(self):
            super().__init__()
            self.last = nn.Parameter(weights[0][0].clone())
            self.first = nn.Parameter(weights[0][1].clone(), requires_grad=not frozen)
            self.register_buffer("shift", weights[0][2].clone())
            self.inner, self.outer = Scale(0.5), Scale(0.8)

        def forward(self, ids):
            found["seeded"] += int(not torch.equal(torch.get_rng_state(), drawn))
            logits = self.inner(self.last[ids] + self.first[ids[:, :1]])
            return self.outer(logits + self.shift)

    def put(policy, training):
        policy.train(training)
        policy.outer.train(training != apart)
        return [part.training for part in policy.modules()]

    def spoiled(*tables):
        return sum(int((held.detach() != table).sum()) for held, table in
                   zip((policy.last, policy.first, policy.shift), tables))

    def cleared():
        return sum(int(p.grad is None or bool((p.grad != 0.25).any()))
                   for p in policy.parameters())

    policy = Letters()
    for p in policy.parameters():
        p.grad = torch.full_like(p, 0.25)
    modes = put(policy, training != switched)
    torch.rand(3)                               # so that a seed set anew shows
    drawn = torch.get_rng_state()
    found = {"values": [], "last": [], "first": [], "moved": 0, "mode": 0, "trained": 0,
             "cleared": 0, "seeded": 0}
    loss = fn(policy, beta)
    found["moved"], found["cleared"] = spoiled(*weights[0]), cleared()
    found["mode"] += sum(part.training != was for part, was in zip(policy.modules(), modes))
    if switched:                                # as who trains and measures by turns does
        modes = put(policy, training)
    for (last, first, shift), ((ids, answer), (others, rejected)) in zip(weights[1:], calls):
        with torch.no_grad():
            policy.last.copy_(last)
            policy.first.copy_(first)
            policy.shift.copy_(shift)
        for p in policy.parameters():
            p.grad = torch.full_like(p, 0.25)
        value = loss((ids.clone(), answer.clone()), (others.clone(), rejected.clone()))
        found["cleared"] += cleared()
        for p in policy.parameters():
            p.grad = None
        value.backward()
        grads = [torch.zeros_like(p) if p.grad is None else p.grad.clone()
                 for p in (policy.last, policy.first)]
        found["values"].append(value.detach())
        found["last"].append(grads[0])
        found["first"].append(grads[1])
        found["moved"] += spoiled(last, first, shift)
        found["mode"] += sum(part.training != was for part, was in zip(policy.modules(), modes))
        found["trained"] += int(not policy.last.requires_grad) + int(
            policy.first.requires_grad == frozen)
        found["seeded"] += int(not torch.equal(torch.get_rng_state(), drawn))
    return found


@ex.law
def law(out, weights, calls, beta, training, apart, switched, frozen):
    expect_parts(out, "values", "last", "first", "moved", "mode", "trained", "cleared", "seeded")
    expect_equal("weights of the policy that changed", out["moved"], 0,
                 "A loss changes no weights.")
    expect_equal("modules of the policy that were in a different mode", out["mode"], 0,
                 "Call eval() on the copy, not on the policy; train() sets all parts alike.")
    expect_equal("weights of the policy whose requires_grad changed", out["trained"], 0,
                 "Only the reference takes no gradient.")
    expect_equal("gradients of the policy that the loss changed", out["cleared"], 0,
                 "The training loop clears and fills them.")
    expect_equal("random numbers that a call changed", out["seeded"], 0,
                 "A seed set here gives each step the same dropout.")
    for name in ("values", "last", "first"):
        expect_length(name, out[name], len(calls))
    for step, (now, pairs) in enumerate(zip(weights[1:], calls)):
        value, slopes = by_hand(weights[0], now, pairs, beta,
                                (0.5 if training else 1.0) * (0.8 if training != apart else 1.0),
                                0.8 if training != apart else 1.0)
        look = f"This is call {step + 1}, with beta {beta:.3g}."
        expect_close("loss", out["values"][step], value.float(), rtol=2e-4, atol=2e-5,
                     look=look)
        for name, slope in zip(("last", "first"), slopes):
            wanted = torch.zeros_like(slope) if frozen and name == "first" else slope
            expect_close(f"gradient of the weights {name!r}", out[name][step], wanted.float(),
                         rtol=1e-3, atol=1e-5 * max(1.0, beta), look=look)


def by_hand(start, now, pairs, beta, scale, outer):
    """The loss and its gradients in float64, token by token; no autograd."""
    now, start = ([w.double() for w in tables] for tables in (now, start))
    slopes, total = [torch.zeros_like(w) for w in now[:2]], torch.zeros((), dtype=torch.float64)
    rows = len(pairs[0][0])
    for row in range(rows):
        margin, steps = 0.0, []
        for sign, (ids, answer) in zip((1.0, -1.0), pairs):
            for at in answer[row].nonzero().flatten().tolist():
                token, before, head = (int(ids[row, k]) for k in (at, at - 1, 0))
                new = (scale * (now[0][before] + now[1][head]) + outer * now[2]).log_softmax(-1)
                old = (start[0][before] + start[1][head] + start[2]).log_softmax(-1)
                margin = margin + sign * (new[token] - old[token])
                slope = -new.exp()
                slope[token] += 1.0
                steps.append((before, head, sign * scale * slope))
        total = total + F.softplus(-beta * margin) / rows
        pull = -beta * torch.sigmoid(-beta * margin) / rows
        for before, head, slope in steps:
            slopes[0][before] += pull * slope
            slopes[1][head] += pull * slope
    return total, slopes


# ---- wrong, by name

@not_an_answer
def summed(model, ids, answer, first=1, mean=False):
    """Log-probability (B,) of an answer: the sum over its tokens, or their mean."""
    each = model(ids)[:, :-1].log_softmax(-1).gather(-1, ids[:, 1:, None])[..., 0]
    mask = answer[:, first:each.shape[1] + first].to(each.dtype)
    return (each * mask).sum(-1) / (mask.sum(-1).clamp(min=1) if mean else 1)


@not_an_answer
def parts(policy, beta, *, of):
    """A loss whose margin is made `of` beta and the four log-probabilities."""
    before = copy.deepcopy(policy).eval()

    def loss(chosen, rejected):
        scores = [summed(model, *pair) for model in (policy, before) for pair in (chosen, rejected)]
        return -F.logsigmoid(of(beta, *scores[:2], *(s.detach() for s in scores[2:]))).mean()

    return loss


@not_an_answer
def made(policy, beta, *, keep=lambda policy: copy.deepcopy(policy).eval(), logp=summed,
        gather=lambda losses: losses.mean()):
    reference = keep(policy)
    def loss(chosen, rejected):
        with torch.no_grad():
            old = logp(reference, *chosen) - logp(reference, *rejected)
        new = logp(policy, *chosen) - logp(policy, *rejected)
        return gather(-F.logsigmoid(beta * (new - old)))
    return loss


wrong = ex.edits(made)
LOGSIGMOID = "-F.logsigmoid(beta * (new - old))"
# https://github.com/YiyangZhou/POVID/issues/11
ex.wrong("using the policy as its own reference", made, breaks="begins",
         keep=lambda policy: policy)
ex.wrong("making a shallow copy, which shares the weights",
         made, breaks=("begins", "margin", "left"),
         keep=lambda policy: copy.copy(policy).eval())
ex.wrong("comparing with the current weights, copied at each call or held in a state_dict",
         lambda policy, beta: lambda chosen, rejected: made(policy, beta)(chosen, rejected),
         breaks=("begins", "margin"))
wrong("sharing the policy's buffers with the reference", "margin",
      "reference =",
      "def keep(policy): reference = copy.deepcopy(policy).eval(); reference._buffers = "
      "policy._buffers; return reference\n    reference =")


@not_an_answer
def remembered(policy, beta, *, key):
    """The reference's log-probabilities, kept under a key and used again."""
    before, kept = copy.deepcopy(policy).eval(), {}

    def old(*pair, place):
        name = place, key(*pair)
        if name not in kept:
            kept[name] = summed(before, *pair).detach()
        return kept[name]

    def loss(chosen, rejected):
        gained = [summed(policy, *pair) - old(*pair, place=place)
                  for place, pair in enumerate((chosen, rejected))]
        return -F.logsigmoid(beta * (gained[0] - gained[1])).mean()

    return loss


ex.wrong("reusing the reference's log-probabilities for every batch of the same shape",
         remembered, breaks=("each", "margin"), key=lambda ids, answer: ids.shape)
ex.wrong("reusing the reference's log-probabilities for the same ids, whatever the mask",
         remembered,
         breaks=("mask", "sizes"), key=lambda ids, answer: str(ids.tolist()))
ex.wrong("reusing the reference's log-probabilities of the first call", remembered, says="",
         breaks=("each", "margin", "sizes"), key=lambda ids, answer: "first")
ex.wrong("using no reference at all", lambda policy, beta: lambda chosen, rejected: -F.logsigmoid(
    beta * (summed(policy, *chosen) - summed(policy, *rejected))).mean(),
    breaks=("margin", "example"))


@ex.wrong("copying the policy at the first call of loss instead of in dpo_loss",
          breaks=("begins", "margin"))
def late(policy, beta):
    kept = []

    def loss(chosen, rejected):
        if not kept:
            kept.append(made(policy, beta))
        return kept[0](chosen, rejected)

    return loss


@ex.wrong("renewing the reference after each step", breaks=("each", "margin"))
def renewed(policy, beta):
    kept = [made(policy, beta)]

    def loss(chosen, rejected):
        value = kept[0](chosen, rejected)
        kept[0] = made(policy, beta)
        return value

    return loss


# https://github.com/jingyaogong/minimind/issues/298
ex.wrong("averaging the log-probabilities of an answer's tokens", made, breaks=("margin", "mean"),
         logp=lambda model, ids, answer: summed(model, ids, answer, mean=True))
ex.wrong("dividing an answer's log-probability by the number of all positions",
         made, breaks=("margin", "mean"),
         logp=lambda model, ids, answer: summed(model, ids, answer) / ids.shape[1])
ex.wrong("summing over all tokens, not only over the answer's tokens", made, breaks="mask",
         logp=lambda model, ids, answer: summed(model, ids, torch.ones_like(answer)))
ex.wrong("not shifting the mask with the logits", made, breaks=("mask", "logits"),
         logp=lambda model, ids, answer: summed(model, ids, answer, first=0))
ex.wrong("not shifting the logits", made, breaks="logits",
         logp=lambda model, ids, answer: (model(ids).log_softmax(-1).gather(-1, ids[..., None])[
             ..., 0] * answer).sum(-1))
ex.wrong("leaving out the first token of the answer", made, breaks=("mask", "margin"),
         logp=lambda model, ids, answer: summed(
             model, ids, answer & (answer.cumsum(1) > 1)))
ex.wrong("using logits instead of log-probabilities", made, breaks="margin",
         logp=lambda model, ids, answer: (model(ids)[:, :-1].gather(-1, ids[:, 1:, None])[..., 0]
                                          * answer[:, 1:]).sum(-1))
wrong("flipping the sign of the margin", ("margin", "mean"), "beta *", "-1.0 * beta *")
wrong("flipping the sign of the loss",
      ("mean", "example"), LOGSIGMOID, "F.logsigmoid(beta * (new - old))")
wrong("leaving out beta", "mean", "beta * (new - old)", "new - old")
wrong("dividing by beta", "mean", "reference =", "beta = 1 / beta; reference =")
ex.wrong("multiplying only the policy's part of the margin by beta",
         parts, breaks=("mean", "example"),
         of=lambda beta, good, bad, good_before, bad_before: beta * (good - bad) - (
             good_before - bad_before))
wrong("multiplying the loss by beta", ("mean", "example"),
      "gather(-F.logsigmoid(beta * (new - old)))", "beta * (-F.logsigmoid(new - old)).mean()")
ex.wrong("summing over rows", made, breaks=("mean", "example"), gather=lambda losses: losses.sum())
ex.wrong("returning one loss per row",
         made, breaks="mean", says="led to", gather=lambda losses: losses)
wrong("taking the sigmoid of the mean margin",
      "mean", "beta * (new - old)", "(beta * (new - old)).mean()")
wrong("taking the logarithm of a sigmoid, which can underflow to 0", "finite",
      LOGSIGMOID, "-torch.log(torch.sigmoid(beta * (new - old)))")
wrong("adding a small number inside the logarithm", "finite",
      LOGSIGMOID, "-torch.log(torch.sigmoid(beta * (new - old)) + 1e-8)")
wrong("clamping beta * margin to the range from -20 to 20",
      "finite", "beta * (new - old)", "(beta * (new - old)).clamp(-20, 20)")
wrong("using the hinge loss instead of the logistic loss", ("mean", "example"),
      LOGSIGMOID, "F.relu(1 - beta * (new - old))")
ex.wrong("running the reference in the policy's mode", made, breaks="mode", keep=copy.deepcopy)
ex.wrong("putting the policy into eval mode", made, breaks="left",
         keep=lambda policy: copy.deepcopy(policy.eval()))
wrong("restoring the policy's mode with train(), which also sets every part's mode", "left",
      "reference = keep(policy)",
      "was = policy.training; reference = copy.deepcopy(policy.eval()); policy.train(was)")
wrong("restoring, at each step, the modes that the policy had in dpo_loss", ("left", "mode"),
      "return loss",
      "modes, loss = [(part, part.training) for part in policy.modules()], loss\n    def "
      "with_modes(chosen, rejected):\n        for part, was in modes: part.training = was\n      "
      "  return loss(chosen, rejected)\n    return with_modes")
wrong("clearing the policy's gradients", "left",
      "return loss",
      "def clean(chosen, rejected): policy.zero_grad(); return loss(chosen, rejected)\n    "
      "return clean")
wrong("setting a seed inside the loss", "left",
      "return loss",
      "def with_a_seed(chosen, rejected): torch.manual_seed(0); return loss(chosen, rejected)\n  "
      "  return with_a_seed")
wrong("setting a seed inside the loss and restoring the generator afterwards", "left",
      "return loss",
      "def with_a_seed(chosen, rejected):\n        with torch.random.fork_rng(devices=[]): "
      "torch.manual_seed(0); return loss(chosen, rejected)\n    return with_a_seed")
ex.wrong("computing in float64 and not converting back",
         made, breaks="dtype", says="dtype of the loss",
         logp=lambda model, ids, answer: summed(lambda ids: model(ids).double(), ids, answer))
wrong("running both policy and reference in train mode", ("left", "mode", "example"),
      "reference = keep", "policy = policy.train(); reference = copy.deepcopy")
ex.wrong("freezing the policy's own weights as well", made, breaks=("left", "flow"), says="",
         keep=lambda policy: copy.deepcopy(policy.requires_grad_(False)).eval())
ex.wrong("swapping chosen and rejected in the reference's part of the margin",
         parts, breaks=("margin", "example"),
         of=lambda beta, good, bad, good_before, bad_before: beta * (
             good - bad - bad_before + good_before))
ex.wrong("detaching the loss from the policy", made, breaks="flow", says="gradient of the",
         gather=lambda losses: losses.mean().detach().requires_grad_())
ex.wrong("passing no gradient through the rejected answer",
         parts, breaks="flow", says="gradient of the",
         of=lambda beta, good, bad, good_before, bad_before: beta * (
             good - bad.detach() - good_before + bad_before))
ex.wrong("returning a loss instead of a function",
         lambda policy, beta: torch.tensor(0.6931), says="led to",
         breaks="each")


@ex.wrong("reusing the mask of the first call", breaks="sizes", says="")
def first_mask(policy, beta):
    loss, kept = made(policy, beta), []

    def with_mask(chosen, rejected):
        kept.append((chosen[1], rejected[1]))
        rows = len(kept[0][0])
        return loss((chosen[0][:rows, :kept[0][0].shape[1]], kept[0][0][:, :chosen[0].shape[1]]),
                    (rejected[0][:rows, :kept[0][1].shape[1]],
                     kept[0][1][:, :rejected[0].shape[1]]))

    return with_mask


wrong("truncating both answers to the length of the shorter one", "sizes",
      "return loss",
      "def shorter(chosen, rejected): n = min(chosen[0].shape[1], rejected[0].shape[1]); return "
      "loss(*((ids[:, :n], answer[:, :n]) for ids, answer in (chosen, rejected)))\n    return "
      "shorter")
wrong("using the chosen answer's mask for both answers", ("mask", "sizes"),
      "return loss",
      "def masked(chosen, rejected): n, m = chosen[0].shape[1], rejected[0].shape[1]; mask = "
      "F.pad(chosen[1], (0, max(0, m - n)))[:, :m]; return loss(chosen, (rejected[0], mask))\n   "
      " return masked", says="")
