"""Speculative decoding: what a draft and a rule keep, what they cost, and what comes out."""

import torch

from dlsys_helpers.explorers import Bars, Choice, Columns, Grip, Lines, Slider, explorer

TARGET = torch.tensor([0.34, 0.22, 0.15, 0.10, 0.08, 0.06, 0.04, 0.01], dtype=torch.float64)
NAMES = ["the", "a", "one", "no", "this", "my", "each", "yon"]
MIXES = [round(0.05 * n, 2) for n in range(21)]  # share of the uniform distribution in the draft


def one_hot(q):
    """A draft that always offers its likeliest token."""
    return torch.nn.functional.one_hot(q.argmax(), len(q)).double()


def missing(p, q):
    """What drafts from q propose too rarely, as a distribution; p if nothing is missing."""
    rest = (p - q).clamp(min=0)
    return rest / rest.sum() if rest.sum() > 1e-12 else p


def filled(kept, rest):
    """(what comes out, share kept): kept drafts, and for each refusal a draw from rest."""
    share = kept.sum()
    return kept + (1 - share) * rest, share


RULES = {
    "right": lambda p, q: filled(torch.minimum(p, q), missing(p, q)),
    "a refusal draws from the target": lambda p, q: filled(torch.minimum(p, q), p),
    "keep where p is at least q": lambda p, q: filled(q * (p >= q), missing(p, q)),
    "likeliest draft, q taken as it was": lambda p, q: filled(
        one_hot(q) * (p / q).clamp(max=1), missing(p, q)),
    "likeliest draft, q taken as certain": lambda p, q: filled(
        one_hot(q) * p, missing(p, one_hot(q))),
    "keep what equals a draw of the target, else draw again": lambda p, q: filled(p * q, p),
    "keep what equals a draw of the target, else that draw": lambda p, q: (p, (p * q).sum()),
}


def draft(mix):
    """The draft's distribution: the target's, mixed with the uniform one."""
    return (1 - mix) * TARGET + mix / len(TARGET)


def spoken(rule, mix, k):
    """(distribution of the tokens written, acceptance, tokens a call) with k drafts a call.

    Tokens are independent of each other here, so this is exact. A call writes a token for each
    draft up to the first refusal, and one from the target where none is refused.
    """
    comes, kept = RULES[rule](TARGET, draft(mix))
    tried = sum(kept ** i for i in range(k))
    whole = kept ** k
    return (tried * comes + whole * TARGET) / (tried + whole), float(kept), float(tried + whole)


def distance(rule, mix, k):
    """Total variation between what is written and the target."""
    return float((spoken(rule, mix, k)[0] - TARGET).abs().sum() / 2)


@explorer(
    title="Speculative decoding: fast, and still the same?",
    controls=[
        Choice("rule", "Rule", RULES, "a refusal draws from the target"),
        Slider("mix", "Uniform share in the draft", MIXES, 0.4, static=MIXES[::2]),
        Slider("k", "Drafts a call", (1, 2, 3, 4, 6, 8), 4),
    ],
    views=[
        Columns("place", {"target": "target", "written": "written", "offered": "draft"},
                title="Probability of each token, %", xlabel=f"token: {', '.join(NAMES)}",
                ylabel="%", ylim=(0, 60)),
        Lines("mixes", {"acceptance": "drafts kept", "tv": "written beside target, TV"},
              title="With another draft", xlabel="uniform share in the draft", ylabel="share",
              xlim=(0, 1), ylim=(0, 1), mark="now", grips=[Grip("mix", x=float)]),
        Bars("speed", ["tokens a call"], title="Calls of the large model are saved", limit=9),
    ],
)
def speculation(rule, mix, k):
    """What is written compared with the target, and acceptance and distance for every draft."""
    written, kept, tokens = spoken(rule, mix, k)
    tv = distance(rule, mix, k)
    found = [spoken(rule, m, k) for m in MIXES]
    verdict = "the target's own" if tv < 5e-4 else f"another one, TV {tv:.3f}"
    return {"place": range(len(NAMES)), "target": 100 * TARGET, "written": 100 * written,
            "offered": 100 * draft(mix), "mixes": MIXES, "now": [mix],
            "acceptance": [f[1] for f in found], "tv": [distance(rule, m, k) for m in MIXES],
            "speed": [round(tokens, 2)]}, (
        f"Rule: {rule}. A draft with {mix:.0%} of the uniform distribution, {k} a call: "
        f"{kept:.0%} of the drafts are kept, {tokens:.2f} tokens come a call. The distribution of "
        f"what is written is {verdict}.")
