"""Distillation of one digit: the teacher's softened answer, and how it pulls on the student."""

from functools import lru_cache

import torch
from torch import nn
from torch.nn import functional as F

from dlsys_helpers.data import digits
from dlsys_helpers.explorers import Choice, Columns, Grip, Lines, Slider, explorer
from dlsys_helpers.explorers.quantization import reader

ROWS = ("clear", "doubtful", "read wrong by the teacher")
STUDENTS = ("knows nothing", "has begun to learn")
FACTORS = {"T squared": lambda T: T * T, "nothing": lambda T: 1.0}  # noqa: ARG005
TEMPERATURES = (0.5, 1, 2, 4, 8, 20, 50, 100)


@lru_cache(maxsize=1)
def teacher():
    """The teacher's logits (497, 10) of the test digits, float64."""
    first, head = reader()
    return head(F.relu(first(digits().x_test.double())))


@lru_cache(maxsize=1)
def rows():
    """Number of the test digit of each kind: by the label's logit minus the largest other."""
    y = digits().y_test
    others = teacher().scatter(1, y[:, None], -torch.inf).amax(1)
    margin = teacher().gather(1, y[:, None])[:, 0] - others
    right = torch.where(margin > 0, margin, torch.inf)
    return {"clear": int(margin.argmax()), "doubtful": int(right.argmin()),
            "read wrong by the teacher": int(margin.argmin())}


@lru_cache(maxsize=1)
def beginner():
    """Logits (497, 10) of a linear student after 20 steps on 100 labels, float64."""
    x, y, x_test, _ = digits()
    student = nn.utils.skip_init(nn.Linear, 64, 10, dtype=torch.float64)
    nn.init.zeros_(student.weight)
    nn.init.zeros_(student.bias)
    opt = torch.optim.SGD(student.parameters(), lr=0.1)
    for _ in range(20):
        opt.zero_grad()
        F.cross_entropy(student(x[:100].double()), y[:100]).backward()
        opt.step()
    with torch.no_grad():
        return student(x_test.double())


def pull(z, target, T):
    """Minus the gradient of the divergence from target's logits, both at T, on z: (10,)."""
    z = z.clone().requires_grad_()
    loss = F.kl_div(F.log_softmax(z / T, 0), F.log_softmax(target / T, 0), reduction="sum",
                    log_target=True)
    return -torch.autograd.grad(loss, z)[0]


def turned(a, b):
    """Cosine of the angle between a and b, each minus its mean."""
    return float(F.cosine_similarity(a - a.mean(), b - b.mean(), 0))


@explorer(
    title="What a teacher says at a temperature",
    controls=[
        Choice("row", "Digit", ROWS, "doubtful"),
        Choice("student", "The student", STUDENTS, "knows nothing"),
        Choice("factor", "Loss multiplied by", FACTORS, "T squared"),
        Slider("T", "Temperature T", TEMPERATURES, 1),
    ],
    views=[
        Columns("digit", {"says": "teacher"}, title="The teacher's probability of each digit",
                xlabel="digit", ylabel="probability, %", ylim=(0, 100)),
        Lines("T_all", {"squared": "times T squared", "plain": "times nothing",
                        "label_size": "by the label"},
              title="Size of the pull at each temperature", xlabel="temperature (log)",
              ylabel="size (log)", xlim=(TEMPERATURES[0], TEMPERATURES[-1]), ylim=(1e-4, 10),
              xlog=True, ylog=True, mark="T_now",
              grips=[Grip("T", x=float)]),
        Columns("digit", {"by_teacher": "by the teacher", "by_label": "by the label"},
                title="Pull on the student's logits", xlabel="digit", ylabel="minus the gradient"),
    ],
)
def temperature(row, student, factor, T):
    """The teacher's probabilities, and its pull on the student compared with the label's."""
    k = rows()[row]
    target, label = teacher()[k], F.one_hot(digits().y_test[k], 10)
    z = beginner()[k] if student == STUDENTS[1] else torch.zeros(10, dtype=torch.float64)
    sizes = [float(pull(z, target, t).norm()) for t in TEMPERATURES]
    by_teacher, by_label = FACTORS[factor](T) * pull(z, target, T), label - z.softmax(0)
    says = 100 * (target / T).softmax(0)
    ratio = float(by_teacher.norm() / by_label.norm())
    return {"says": says.round(decimals=1), "digit": range(10), "by_teacher": by_teacher,
            "by_label": by_label, "T_all": TEMPERATURES, "T_now": [T], "plain": sizes,
            "squared": [t * t * size for t, size in zip(TEMPERATURES, sizes, strict=True)],
            "label_size": [float(by_label.norm())] * len(TEMPERATURES)}, (
        f"The digit is {int(label.argmax())}. At T = {T:g} the teacher gives it "
        f"{float(says[label.argmax()]):.1f} %; its first choice is {int(says.argmax())}, all "
        f"others share {float(100 - says.max()):.1f} %. Its pull, times {factor}, has {ratio:.3g} "
        f"of the size of the label's. With the gap between teacher's and student's logits it has "
        f"a cosine of {turned(by_teacher, target - z):.3f}.")
