"""Mends that are right by another way than the plain script's, and those that only look it.

Pairs of texts, faulty and mended, by the id of the fault. What the probes show of each stands in
tests/records/exam.json.
"""

from dlsys_checks.exam.faults import CLIP, FAULTS, HEAD, healthy

DROP, STEP = "        self.drop =", "            optimizer.step()\n"
TOTAL = "            total = 0.0\n"

RIGHT = (
    ("03.4", [("nn.init.normal_(layer.weight, std=0.01)", "pass")]),
    ("07.8", [(DROP, f"        self.layers = nn.Sequential(*self.layers)\n{DROP}")]),
    ("09.1", [(CLIP, f"            for p in model.parameters():\n                p.grad /= 1024\n"
                     f"{CLIP}")]),
    ("02.1", [(TOTAL, f"{TOTAL}            model.zero_grad()\n")]),
    ("06.4", [("score, model.state_dict()", "score, copy.deepcopy(model.state_dict())")]),
    ("06.7", [("(400, 700)]", "(700, 950)]")]),
    ("13.2", [("key = tuple(ids[end - 4:end])", "key = str(ids[:end])")]),
    ("13.6", [("    rest = ", "    grown = grown[:, :good - len(draft) or None]\n    rest = ")]),
    ("14.2", [("view(prompts, -1)", "view(-1, prompts).T"), ("4)).flatten", "4)).T.flatten")]),
    ("14.3", [("return now - then", "return (now - then).detach() * now")]),
    ("14.4", [("drawn = now.detach()\n", "drawn = drawn if ratios else now.detach()\n")]),
    ("15.1", [("one in zip(hidden, entered)", "_ in zip(hidden, entered)"),
              ("(one.grad)", "(sum(one.grad for one in entered))")]),
    ("15.3", [("places[:size]", "places.split(size)[rank]")]),
    ("15.4", [("weights = weights / weights.sum(1, keepdim=True)\n", "pass\n")]))
HALF = (
    ("06.7", [("(400, 700)]", "(500, 800)]")]),
    ("09.12", [("(one.parameters(), 0.25)", "(one.parameters(), 9)")]),
    ("03.3", [(CLIP, ""), (STEP, STEP + CLIP)]),
    ("03.3", [(CLIP, "")]),
    ("06.4", [("score, model.state_dict()", "score, dict(model.state_dict())")]),
    ("05.3", [("F.dropout(x, 0.1)", "F.dropout(x, 0.1, True)")]),
    ("05.3", [("        x = F.dropout(x, 0.1)\n", "")]),
    ("04.1", [('if n not in exempt], "weight_decay": 0.05',
               'if n not in exempt], "weight_decay": 0.0')]),
    ("11.1", [("bits=2", "bits=7")]),
    ("07.10", [(HEAD, "")]),
    ("06.6", [("return images + more.to(torch.uint8)", "return images")]),
    ("12.3", [(", generator=torch.Generator().manual_seed(0)", ", generator="
               "torch.Generator().manual_seed(int(images.sum()))")]),
    ("12.1", [("keepdim=True)\n\n\n# part: model",
               "keepdim=True).clamp(min=1e-6)\n\n\n# part: model")]),
    ("13.1", [("self.readers[block] == 0", "self.readers[block] < 0")]),
    ("13.2", [("tuple(ids[end - 4:end])", "(end, *ids[end - 4:end])")]),
    ("13.2", [("if key not in self.known:", "if True:")]),
    ("13.5", [("(p[good], 1)", "((p[good] - q[good - 1]).abs(), 1)")]),
    ("13.6", [("    rest = ", "    grown = grown[:, :cache.shape[1] + good]\n    rest = ")]),
    ("14.1", [("policy.detach(), []", "torch.zeros_like(policy), []")]),
    ("14.2", [("view(prompts, -1)", "view(-1, prompts)")]),
    ("14.2", [("groups.mean(1, keepdim=True)", "rewards.mean()"),
              ("groups.std(1, keepdim=True)", "rewards.std()")]),
    ("14.3", [("return now - then", "return (then - now).exp() - 1 + now - then")]),
    ("14.4", [("drawn = now.detach()\n", "drawn = now\n")]),
    ("15.1", [("h.backward(one.grad)", "h.backward(sum(e.grad for e in entered) / len(entered))")]),
    ("15.3", [("places[:size]", "places[rank:][:size]")]),
    ("15.4", [("self.router(x).softmax(1).topk(1)", "self.router(x).topk(1)"),
              ("weights / weights.sum(1, keepdim=True)", "weights.softmax(1)")]),
    ("15.8", [("weights * state + kept / copies", "weights * state / copies + kept")]))


def mended(id: str, changes: list[tuple[str, str]]) -> str:
    """The script with this fault after a mend. Raises ValueError for a text not there once."""
    text = FAULTS[id].planted(healthy())
    for old, new in changes:
        if text.count(old) != 1:
            raise ValueError(f"{id}: {old!r} stands {text.count(old)} times")
        text = text.replace(old, new)
    return text
