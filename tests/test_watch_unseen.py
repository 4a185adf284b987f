"""`dlsys watch` stays out of sight of warnings, tracebacks and code that inspects functions.

Each program runs twice, alone and under the watch, and has to print the same.
"""

import builtins
import dis
import doctest
import gc
import inspect
import json
import os
import pickle
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import dlsys_watch
from dlsys_watch import attach, frames, tensor_calls
from dlsys_watch.patching import Patches
from dlsys_watch.tell import DROPOUTS, LOSSES

UNSEEN = Path(__file__).parent / "watch" / "unseen.py"
HEAD = """import sys, traceback, warnings
import torch
import torch.nn.functional as F
from torch import nn
torch.manual_seed(0)
net = nn.Linear(3, 1)
opt = torch.optim.SGD(net.parameters(), lr=0.1)
x, y = torch.randn(8, 3), torch.randn(8)
"""
TWO_D = "nn.Dropout2d(0.5)(torch.ones(2, 4))"   # torch warns from torch.nn.functional
BROADCAST = "F.mse_loss(net(x), y)"             # it warns two frames up, in the program
EARLY = "torch.optim.lr_scheduler.StepLR(opt, 3).step()"
PROGRAMS = {
    "of torch": f"{TWO_D}\n{BROADCAST}\n{EARLY}\nF.l1_loss(net(x), y)\nF.huber_loss(net(x), y)",
    "as errors": f"warnings.simplefilter('error')\nfor code in {[TWO_D, BROADCAST, EARLY]!r}:\n"
                 "    try:\n        exec(code)\n    except Warning:\n        traceback.print_exc()",
    "errors by module": "warnings.filterwarnings('error', module=r'torch\\.nn\\.modules\\..*')\n"
                        f"try:\n    {TWO_D}\nexcept UserWarning:\n    print('raised')",
    "ignored by module": "warnings.filterwarnings('ignore', module=r'torch\\.nn\\.modules\\..*')\n"
                         f"{TWO_D}\nprint('ignored')",
    "ignored by line": f"warnings.filterwarnings('ignore', lineno=10)\n{BROADCAST}\n"
                       "print('ignored')",
    "once": f"warnings.simplefilter('once')\nfor _ in range(3):\n    {BROADCAST}\n    {TWO_D}",
    "by default": f"for _ in range(3):\n    {BROADCAST}\n{BROADCAST}\n"
                  "print(sorted(map(str, __warningregistry__)))",
    "always": f"warnings.simplefilter('always')\nfor _ in range(3):\n    {BROADCAST}",
    "levels": "class Deep(nn.Module):\n    def forward(self, x, level):\n"
              "        warnings.warn(f'{level} up', stacklevel=level)\n        return x\n"
              "def call(level):\n    Deep()(x, level)\n"
              "for level in range(1, 6):\n    call(level)\n",
    "of C": "import torch.utils.data\ny.requires_grad_()\n(y * 2).grad\n"
            "torch.ones(2, 3, 4).T\ntorch.range(0, 3)",
    "in hooks": "net.register_forward_hook(lambda *_: warnings.warn('hook', stacklevel=2))\nnet(x)",
    "recorded": "with warnings.catch_warnings(record=True) as found:\n"
                f"    warnings.simplefilter('always')\n    {BROADCAST}\n    {TWO_D}\n"
                "print([(str(w.message), w.category, w.filename, w.lineno) for w in found])",
    "tracebacks": "for code in ('net(torch.ones(4, 4))', 'F.cross_entropy(x, y[:3].long())',\n"
                  "             'x.view(5)', 'net(x).sum().backward(torch.ones(3))',\n"
                  "             'F.scaled_dot_product_attention(x, x[0], x)',\n"
                  "             'net.load_state_dict({})', 'x + torch.ones(5, 5)',\n"
                  "             'next(iter(torch.utils.data.DataLoader([1, \"a\"], 2)))',\n"
                  "             'nn.utils.clip_grad_norm_(3, 1.0)'):\n"
                  "    try:\n        exec(code)\n    except Exception:\n"
                  "        print(traceback.format_exc())",
    "stacks": "class Model(nn.Module):\n    def forward(self, x):\n"
              "        stack = traceback.extract_stack()\n"
              "        print([f.name for f in stack][-3:], sys._getframe(1).f_code.co_name)\n"
              "        return x\nModel()(x)",
}


@pytest.fixture(scope="module")
def printed(tmp_path_factory) -> dict:
    """What each program prints, without and with the watch."""
    folder = tmp_path_factory.mktemp("programs")
    for name, program in PROGRAMS.items():
        (folder / f"{name}.py").write_text(HEAD + program + "\n")
    done = subprocess.run([sys.executable, UNSEEN, folder], capture_output=True, text=True,
                          timeout=300, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    return json.loads(done.stdout)


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_says_the_same(printed, name):
    alone, beside = printed[name]
    assert beside == alone
    assert alone[0] == 0
    assert alone[1] + alone[2]    # it does print something


def test_a_script_warns_as_under_python_itself(tmp_path):
    file = tmp_path / "train.py"
    file.write_text(HEAD + PROGRAMS["of torch"] + "\n")
    alone, beside = (subprocess.run([sys.executable, *before, str(file)], capture_output=True,
                                    text=True, timeout=120, check=True)
                     for before in ((), ("-m", "dlsys_watch", "--silence", "broadcast-loss")))
    assert (beside.stdout, beside.stderr) == (alone.stdout, alone.stderr)
    assert alone.stderr.count("Warning") > 3


def test_every_function_that_may_warn_warns_the_caller(recwarn):
    """For each wrapped loss and dropout, the caller is this file or the calling module."""
    def warned():
        del recwarn.list[:]
        warnings.simplefilter("always")
        for name in (*LOSSES, *DROPOUTS):
            try:
                getattr(F, name)(torch.ones(2, 4, requires_grad=True), torch.ones(4), reduce=True)
            except Exception:
                continue
        nn.Dropout2d()(torch.ones(2, 4))
        return [(str(w.message), w.category, w.filename, w.lineno) for w in recwarn.list]

    alone = warned()
    with dlsys_watch.watching(silence=["broadcast-loss"]):
        beside = warned()
    assert alone == beside
    assert len(alone) > 5


def test_what_a_rule_asks_of_torch_warns_nobody(monkeypatch, recwarn):
    from dlsys_watch.rules import all_rules

    def on_loss(self, loss):
        return (loss.input * 2).requires_grad_().exp().grad    # torch warns of such a gradient

    monkeypatch.setattr(all_rules()[0], "on_loss", on_loss, raising=False)
    filters = list(warnings.filters)
    with dlsys_watch.watching(debug=True) as found:
        F.mse_loss(torch.ones(3, requires_grad=True), torch.ones(3))
    assert [str(w.message) for w in recwarn.list] == []
    assert found == []
    assert warnings.filters == filters


def test_frames_are_hidden_on_this_python():
    """If this fails on a Python, only `warnings` skips the frames there; tracebacks do not."""
    assert frames.works()


def test_a_frame_that_is_seen_is_passed_over_by_warnings(monkeypatch, recwarn):
    monkeypatch.setattr(frames, "_works", [False])

    def wrapper(function):
        return function()

    frames.hidden(wrapper)
    wrapper(lambda: warnings.warn("two up", stacklevel=2))
    assert recwarn.list[0].filename == __file__


def test_wrappers_use_nothing_but_what_they_close_over():
    """They run with the globals of what they wrap, as torch.jit.script and doctest expect."""
    with dlsys_watch.watching():
        for owner, name, _, new in attached():
            loaded = {i.argval for i in dis.get_instructions(new) if i.opname == "LOAD_GLOBAL"}
            assert loaded <= set(dir(builtins)), (owner, name)


def attached():
    """Everything that the attached session has patched now."""
    return [done for patches in gc.get_objects() if isinstance(patches, Patches)
            for done in patches._done]


def test_what_inspect_pickle_and_doctest_say_of_functions():
    def told():
        functions = [F.mse_loss, F.dropout, torch.autograd.backward, nn.Module.load_state_dict,
                     torch.optim.Optimizer.zero_grad, nn.init.normal_, torch.save,
                     nn.utils.clip_grad_norm_]
        return ([str(inspect.signature(f)) for f in functions],
                [inspect.getsource(f) for f in functions], [f.__qualname__ for f in functions],
                [pickle.loads(pickle.dumps(f)) is f for f in functions],
                [len(doctest.DocTestFinder().find(module)) for module in (nn.init, torch.optim)])

    alone = told()
    with dlsys_watch.watching():
        assert told() == alone


def test_compiled_and_exported_models_are_the_same(monkeypatch):
    """The graph holds torch's own functions, and the numbers are equal."""
    hooks = vars(nn.modules.module)
    for name, kept in [*hooks.items()]:  # torch.compile warns of hooks that a test left
        if name.startswith("_global_") and isinstance(kept, dict):
            monkeypatch.setitem(hooks, name, type(kept)())

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 4)

        def forward(self, x):
            h = F.dropout(self.layer(x), 0.5, self.training)
            return F.scaled_dot_product_attention(h, h, h).reshape(-1).softmax(0)

    torch.manual_seed(0)
    model, x = Model().eval(), torch.randn(3, 4)

    def made():
        torch._dynamo.reset()
        exported = torch.export.export(model, (x,))
        compiled = torch.compile(model, backend="eager", fullgraph=True)
        return str(exported.graph), compiled(x), exported.module()(x)

    graph, *values = made()
    with dlsys_watch.watching() as found:
        model(x)
        graph_beside, *beside = made()
    assert graph_beside == graph
    assert all(map(torch.equal, beside, values))
    assert found == []


OWNERS = (F, torch, torch.Tensor, nn.Module, nn.init, torch.autograd, torch.optim.Optimizer,
          torch.optim.lr_scheduler.LRScheduler, nn.utils, torch.amp.GradScaler,
          torch.utils.data.DataLoader)


def test_after_the_steps_that_were_asked_for_nothing_stays():
    from torch.optim import optimizer as module

    before = [dict(vars(owner)) for owner in OWNERS]
    hooks = len(module._global_optimizer_pre_hooks), len(module._global_optimizer_post_hooks)
    model = nn.Linear(4, 3)
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    x, y = torch.randn(8, 4), torch.arange(8) % 3
    with dlsys_watch.watching(steps=3) as found:
        for step in range(5):
            opt.zero_grad()
            F.cross_entropy(model(x), y).backward()
            opt.step()
            now = [dict(vars(owner)) for owner in OWNERS]
            assert (now == before) is (step >= 3)
        F.cross_entropy(model(x).softmax(1), y)    # too late to be seen
        now = len(module._global_optimizer_pre_hooks), len(module._global_optimizer_post_hooks)
        assert now == hooks
    assert found == []
    assert attach.is_compiling is tensor_calls.is_compiling   # the modules themselves stay


def test_findings_before_the_last_step_stay():
    model = nn.Linear(4, 3)
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    x, y = torch.randn(8, 4), torch.arange(8) % 3
    with dlsys_watch.watching(steps=2) as found:
        for _ in range(4):
            opt.zero_grad()
            F.cross_entropy(model(x).softmax(1), y).backward()
            opt.step()
    assert [f.rule for f in found] == ["softmax-twice"]
