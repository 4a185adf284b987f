# %% [markdown] role="hook" traps=4
# # 3. Losses and gradient pathologies
#
# Training can only reduce a number. So before the first step, you have to say in one
# number what "wrong" means. That number is the *loss*, and the model will learn
# whatever makes the loss small, whether you meant it or not. Then the gradient of the
# loss has to reach every layer, and it can arrive far too small or far too large.
#
# This stage derives the usual losses from one idea and follows the gradient through the
# layers. In each of the four traps, a line of code looks right, raises no error and ruins
# the training run.

# %% role="setup" tags=["parameters"]
SEED = 0
THREADS = 1
DEVICE = "auto"

# %% role="setup"
import math

import torch
from torch import nn
from torch.nn import functional as F

from dlsys_helpers import (
    accuracy, begin, check, claim, cost, datasheet, digits, draw_blocks,
    draw_grids, fit, gpu_result, gpu_table, guess, measured, new_axes,
    peak_bytes, plot_bars, plot_columns, plot_lines, seconds, show,
)

begin(SEED, THREADS, DEVICE)

# %% [markdown] role="concept"
# ## From likelihood to a loss
#
# For one image, a model gives the class *eight* a probability of 0.7, and the image
# does show an eight. How wrong is a prediction of 0.7? *Maximum likelihood* gives an
# answer that does not depend on taste: of all models, prefer the model under which the
# observed data were most probable.
#
# Start with the smallest possible model, a coin whose only parameter is the probability
# `p` of heads. You toss it ten times and see seven heads. The probability of exactly this
# sequence of tosses, $p^7 (1 - p)^3$, is called the *likelihood* of `p`.

# %% role="concept"
p = torch.linspace(0.01, 0.99, 99)
likelihood = p ** 7 * (1 - p) ** 3
best = p[likelihood.argmax()].item()
print(f"most likely p: {best:.2f}, its likelihood: {likelihood.max():.4f}")

thousand = torch.tensor(0.7) ** 700 * torch.tensor(0.3) ** 300
print(f"the same for 1,000 tosses, 700 heads: {thousand:.4f}")

# %% [markdown] role="concept"
# The most likely `p` is 0.7, as it should be. But a product of many probabilities is
# tiny, and for 1,000 tosses float32 rounds it to zero. So take the logarithm, which
# turns the product into a sum and does not move the best `p`. Then change the sign,
# because training minimizes, and divide by the number of tosses, so that more data do
# not mean a larger loss. The result is the *mean negative log-likelihood*:

# %% role="concept"
nats = -(7 * p.log() + 3 * (1 - p).log()) / 10
lowest = p[nats.argmin()].item()

# %% role="concept"
claim("value of p with the lowest loss", lowest, expected=0.7, within=1e-6)
claim("likelihood of 1,000 tosses in float32", thousand, expected=0)

# %% role="concept"
plot_lines(p.tolist(), {"7 heads of 10": nats.tolist()},
           xlabel="p, the probability of heads", ylabel="loss, nats",
           title="The loss is lowest where the data are most likely",
           alt="A curve of the mean negative log-likelihood against p. It "
               "is lowest at 0.7 and rises steeply towards both ends.")

# %% [markdown] role="concept"
# (A *nat* is the unit of a natural logarithm.) Look at the ends of the curve. If you give
# a probability near zero to something that then happens, the loss can become arbitrarily
# large.
#
# ## Binary cross-entropy
#
# A classifier for two classes computes a probability `p` for every row. The label `y` is
# 1 or 0, and the probability of the label is `p` for a 1 and `1 - p` for a 0. One formula
# covers both cases, because one of its two terms is always zero:
#
# $$L = -\big[\,y \log p + (1 - y) \log (1 - p)\,\big]$$
#
# A network can output any number, positive or negative. This number is called a *logit*,
# $z$, and the *sigmoid*, $p = 1 / (1 + e^{-z})$, turns it into a probability. So the
# obvious code has two steps, the sigmoid and then the formula. If you substitute the
# sigmoid into the formula, the two steps become one. For $y = 0$, the loss is $-\log(1 -
# p) = \log(1 + e^z)$, and for $y = 1$, it is $\log(1 + e^z) - z$. One formula covers both
# labels: $\log(1 + e^z) - zy$. For a large $z$, $e^z$ overflows, and therefore the code
# takes the $z$ out of the logarithm: $\log(1 + e^z) = z + \log(1 + e^{-z})$. For a
# negative $z$, the code leaves the formula as it is. (`log1p` of a value is the logarithm
# of 1 plus that value, accurate even for tiny values.)

# %% role="concept"
def in_two_steps(z, y):
    """Sigmoid, then the formula; z and y (N,)."""
    p = z.sigmoid()
    return -(y * p.log() + (1 - y) * (1 - p).log())

def in_one_step(z, y):
    """The same, simplified on paper: max(z, 0) - zy + log(1 + e^-|z|)."""
    return z.clamp(min=0) - z * y + (-z.abs()).exp().log1p()

z, y = torch.tensor([-2.0, 0.5, 200.0]), torch.tensor([0.0, 1.0, 0.0])
two_steps, one_step = in_two_steps(z, y), in_one_step(z, y)
built_in = F.binary_cross_entropy_with_logits(z, y, reduction="none")
print("two steps:", two_steps.tolist(), "\none step: ", one_step.tolist())

# %% role="concept"
claim("does the loss of the third row overflow when computed in two steps",
      two_steps[2].isinf(), expected=True)
claim("largest gap between the loss in one step and PyTorch's loss",
      (one_step - built_in).abs().max(), below=1e-5)

# %% [markdown] role="concept"
# In the third row, the sigmoid rounds to exactly 1, and the logarithm of `1 - p` is minus
# infinity. The one-step version does not overflow. So the sigmoid belongs *inside* the
# loss, and that is why PyTorch's loss is called `binary_cross_entropy_with_logits`. The
# gradient of this loss with respect to the logit is simple: $p - y$, the probability
# minus the label.

# %% [markdown] role="concept"
# ## Cross-entropy, from logits
#
# With more than two classes, the model outputs one logit per class. The *softmax* turns
# the logits into probabilities, $p_k = e^{z_k} / \sum_j e^{z_j}$, which are positive and
# add up to 1. The likelihood of a row is the probability of its true class, $p_y$, so the
# loss is $-\log p_y$. As with two classes, you can simplify the loss on paper:
#
# $$L = \log \sum_k e^{z_k} - z_y, \qquad
#   \frac{\partial L}{\partial z_k} = p_k - [k = y]$$
#
# Here $\partial L / \partial z_k$ is the slope of $L$ with respect to the logit $z_k$,
# with all other logits held fixed. This slope is again the probability minus the label,
# here written as $[k = y]$, which is 1 for the right class and 0 for all other classes.
# Each entry of this gradient is between minus one and one, whatever the logits are. On
# paper, the first formula is exact, but in float32, $e^{89}$ is infinite. So subtract the
# largest logit $m$ from all logits, which does not change the result: $L = m + \log
# \sum_k e^{z_k - m} - z_y$.
#
# This stage mostly uses the same letters: `N` is the number of rows and `C` the
# number of classes, `z` are logits of shape `(N, C)`, and `y` are labels of shape `(N,)`.
# `z[torch.arange(N), y]` picks one logit from each row, the logit of the row's label, and
# `F.one_hot(y, 10)` writes each label as a row of nine zeros and a 1:

# %% role="concept"
x_train, y_train, x_test, y_test = digits()

def on_paper(z, y):
    """The formula as it stands; z (N, C), y (N,)."""
    return (z.exp().sum(1).log() - z[torch.arange(len(z)), y]).mean()

z = (torch.randn(6, 10) * 3).requires_grad_()
y = torch.randint(10, (6,))
slope = torch.autograd.grad(F.cross_entropy(z, y), z)[0]
by_hand = (z.softmax(1) - F.one_hot(y, 10)) / 6
far = z.detach() + 200

print(f"on paper {on_paper(z, y):.4f}, torch {F.cross_entropy(z, y):.4f}")
print(f"200 higher: {on_paper(far, y):.4f}, {F.cross_entropy(far, y):.4f}")

# %% [markdown] role="concept"
# For small logits, the formula returns the same loss as PyTorch, and the gradient derived
# by hand equals autograd's gradient. For logits that are 200 higher, the formula
# overflows. PyTorch subtracts the largest logit, so its loss stays the same.

# %% role="concept"
claim("largest gap between the gradient by hand and autograd's gradient",
      (slope - by_hand).abs().max(), expected=0, within=1e-6)
claim("does the formula overflow if the logits are 200 higher",
      on_paper(far, y).isinf(), expected=True)
claim("change in PyTorch's loss if the logits are 200 higher",
      F.cross_entropy(far, y) - on_paper(z, y), expected=0, within=1e-3)

# %% [markdown] role="concept"
# One value is worth remembering: the loss of a model that knows nothing and says so.

# %% role="concept"
guess_all = torch.zeros(6, 10)                  # ten equal logits
claim("loss of a uniform guess among 10 classes (ln 10)",
      F.cross_entropy(guess_all, y), expected=2.303, within=1e-3)

# %% [markdown] role="concept"
# If a fresh classifier starts with a loss far above $\ln C$, it is confident and wrong. If
# the classes are equally frequent and the training loss stays at $\ln C$, the model
# learns nothing.

# %% [markdown] trap="03.1" role="situation" core=true fault="softmax before cross_entropy" symptom="classification loss stops at 1.46 and does not go down; softmax before cross_entropy"
# ## A loss that wants probabilities
#
# "Cross-entropy compares probabilities," says a textbook, so you pass it probabilities.
# The code runs, but after training with plain SGD, far too many digits are misclassified.
# To find out why, you take one row on which the model is confident and wrong. In this
# row, the logit is 10 for one wrong class and 0 for the other nine classes. You compute
# the gradient with respect to these logits twice: once for `cross_entropy` of the logits,
# and once for `cross_entropy` of the probabilities.

# %% trap="03.1" role="break"
def mlp(outputs=10):
    return nn.Sequential(nn.Linear(64, 64), nn.ReLU(),
                         nn.Linear(64, outputs))

def of_probabilities(z, y):
    return F.cross_entropy(z.softmax(1), y)       # probabilities

classifier = mlp()
losses = fit(classifier, x_train, y_train, steps=300, lr=0.1,
             loss=of_probabilities, optimizer=torch.optim.SGD)
score_twice = accuracy(classifier, x_test, y_test)

# %% trap="03.1" role="break"
def pull_of(loss):
    """Norm of the gradient on the logits of one confident mistake."""
    z = torch.zeros(1, 10).index_fill(1, torch.tensor([1]), 10.0)
    z.requires_grad_()
    slope, = torch.autograd.grad(loss(z, torch.tensor([0])), z)
    return slope.norm().item()

once, twice = pull_of(F.cross_entropy), pull_of(of_probabilities)

# %% trap="03.1" role="guess" quoted="right"
guess("03.1",
      "How large is the gradient for `cross_entropy` of the logits, as a "
      "multiple of the gradient for `cross_entropy` of the probabilities?",
      choices=["1, up to rounding",
               "about 10",
               "about 100",
               "about 10,000"])

# %% trap="03.1" role="look"
first = torch.zeros(4, dtype=torch.long)          # class 0 is right
sure = 40 * F.one_hot(first, 10).float()
wrong = 10 * F.one_hot(first + 1, 10).float()
print(f"accuracy {score_twice:.2f}, loss {losses[-1]:.2f}; "
      f"gradient {once:.2f} on logits, {twice:.1e} on probabilities")
for name, z in {"sure and right": sure, "sure, wrong": wrong}.items():
    print(f"{name}: {of_probabilities(z, first):.4f}, "
          f"with one softmax {F.cross_entropy(z, first):.4f}")

# %% trap="03.1" role="look"
measured("03.1", 3)

# %% trap="03.1" role="look"
claim("gradient norm with the loss on logits divided by the norm with the "
      "loss on probabilities", once / twice, above=5000)

# %% [markdown] trap="03.1" role="look"
# On this row, the model is confident and wrong, and yet the second softmax leaves almost
# no gradient. Even a perfect answer does not bring the loss with two softmaxes to zero:

# %% trap="03.1" role="look"
claim("loss of a perfect answer with two softmaxes",
      of_probabilities(sure, first),
      expected=1.4612, within=1e-4)

# %% trap="03.1" role="look"
margins = [m / 2 for m in range(-20, 21)]
rows = torch.tensor([[m] + [0.0] * 9 for m in margins])
right_class = torch.zeros(len(margins), dtype=torch.long)
plot_lines(margins, {
    "one softmax": F.cross_entropy(rows, right_class, reduction="none"),
    "two": F.cross_entropy(rows.softmax(1), right_class,
                           reduction="none")},
    xlabel="logit of the right class, others 0", ylabel="loss, nats",
    title="A second softmax flattens both ends",
    alt="Two curves: the loss against the logit of the right class. With "
        "one softmax, the loss falls from more than ten to zero. With two, "
        "it stays between 2.5 and 1.46.")

# %% [markdown] trap="03.1" role="look"
# In the explorer, move the logit to the far left and read off the slope.

# %% role="explore" explorer="loss_curves"
from dlsys_helpers.explorers.loss_curves import loss_curves

loss_curves

# %% [markdown] trap="03.1" role="why"
# `F.cross_entropy` applies its own softmax, so here the logits pass through two
# softmaxes. The first softmax returns probabilities between 0 and 1. Taken as logits,
# such values differ by at most 1, so the second softmax is never
# confident. With 10 classes, the loss cannot fall below $\ln(e + 9) - 1$. The
# confident row above loses nearly all of its gradient. At the start of training, no row
# is confident, and the gradient is about a tenth of what it should be. With SGD at a
# learning rate of 0.1, such small gradients ruin the run. Adam divides by the gradient's
# size and so hides the fault. The textbook is right about the formula, but
# `F.cross_entropy` computes the probabilities itself, so pass it the logits.

# %% trap="03.1" role="repair"
def trained(loss, optimizer, lr):
    """Test accuracy and mean of the last 20 losses."""
    torch.manual_seed(SEED)
    model = mlp()
    last = fit(model, x_train, y_train, steps=300, lr=lr, loss=loss,
               optimizer=optimizer)[-20:]
    return accuracy(model, x_test, y_test), sum(last) / 20

sgd = trained(F.cross_entropy, torch.optim.SGD, 0.1)
adam = trained(F.cross_entropy, torch.optim.Adam, 0.01)
adam_twice = trained(of_probabilities, torch.optim.Adam, 0.01)
bold_twice = trained(of_probabilities, torch.optim.SGD, 1.0)
print(f"SGD {sgd[0]:.2f}, twice at 1.0 {bold_twice[0]:.2f}   "
      f"Adam {adam[0]:.2f}, twice {adam_twice[0]:.2f}")

# %% trap="03.1" role="repair"
claim("accuracy with one softmax and SGD at a learning rate of 0.1", sgd[0],
      above=0.88)

# %% [markdown] trap="03.1" role="more" topics="the two ends in numbers · Adam and a larger learning rate · the first gradient"
# These claims put bounds on the losses at both ends of the curve, and on the accuracies
# with the fault:

# %% trap="03.1" role="more"
claim("accuracy with two softmaxes and 300 steps of SGD at a learning rate "
      "of 0.1",
      score_twice, below=0.65)
claim("loss of a confident mistake with two softmaxes",
      of_probabilities(wrong, first), expected=2.46, within=0.01)
claim("loss of a perfect answer with one softmax",
      F.cross_entropy(sure, first), below=1e-6)
claim("loss of a confident mistake with one softmax",
      F.cross_entropy(wrong, first), expected=10, within=0.01)
claim("accuracy with two softmaxes and Adam at a learning rate of 0.01",
      adam_twice[0], above=0.75)
claim("accuracy with two softmaxes and SGD at a learning rate of 1.0",
      bold_twice[0],
      above=0.65)

# %% [markdown] trap="03.1" role="more"
# The model trained with Adam gets most digits right in spite of the fault. But its loss
# stops at the floor of the second softmax, whereas on logits the loss falls almost to
# zero.

# %% trap="03.1" role="more"
claim("with two softmaxes and Adam at a learning rate of 0.01: loss (the "
      "bound is the floor)", adam_twice[1], above=math.log(math.e + 9) - 1)
claim("with one softmax and Adam at a learning rate of 0.01: loss", adam[1],
      below=0.2)

# %% trap="03.1" role="more"
model, slope = mlp(), {}
for loss in (F.cross_entropy, of_probabilities):
    found_slope = torch.autograd.grad(loss(model(x_train), y_train),
                                      model[0].weight)[0]
    slope[loss.__name__] = found_slope.norm()
print({name: f"{size:.3f}" for name, size in slope.items()})

# %% trap="03.1" role="more"
claim("norm of the first gradient with one softmax divided by the norm "
      "with two softmaxes",
      slope["cross_entropy"] / slope["of_probabilities"],
      above=8, below=13)

# %% [markdown] trap="03.1" role="folklore"
# **Told:** A softmax before the loss is a matter of style, and the model trains either
# way. **Measured:** With Adam at a learning rate of 0.01 and with SGD at a rate of 1.0,
# the model does train. With SGD at a rate of 0.1, the accuracy with the fault is below
# 0.65 after 300 steps, while training on logits reaches more than 0.88. In all three
# runs, the loss is wrong: 2.46 instead of 10 for a confident mistake, and 1.4612
# instead of 0 for a perfect answer.

# %% trap="03.1" role="exercise" points=4 difficulty=3 minutes=15
def ce_from_logits(logits: torch.Tensor, y: torch.Tensor
                   ) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute mean cross-entropy and its gradient by hand.

    Args:
        logits: (N, C) float32.
        y: (N,) int64.

    Returns:
        The loss, which is a tensor without dimensions, and its gradient
        with respect to the logits, of shape (N, C).

    Use neither PyTorch's loss functions nor autograd. The logits are
    between -200 and 200. One row can be near 200 while a different row is
    near -200.

    Example: for logits zeros(1, 4) and y [0], the loss is 1.386 and the
    gradient is [[-.75, .25, .25, .25]].
    """
    # BEGIN SOLUTION
    n = torch.arange(len(y))
    shifted = logits - logits.amax(1, keepdim=True)
    log_p = shifted - shifted.exp().sum(1, keepdim=True).log()
    grad = log_p.exp()
    grad[n, y] -= 1
    return -log_p[n, y].mean(), grad / len(y)
    # END SOLUTION

# %% [markdown] trap="03.1" role="hint"
# 1. On paper, take the logarithm of the softmax. Which exponential disappears, and which sum of exponentials remains?
# 2. Subtract each row's own maximum before `exp`. The formula for the loss also holds for the shifted logits.
# 3. The gradient of one row is its softmax, minus 1 in the column of its label. The mean over rows adds a factor of 1/N.

# %% [markdown] trap="03.1" role="keep"
# **Keep:** `F.cross_entropy` expects logits and applies the softmax itself. Compute
# probabilities only where you need them as the model's answer, and not for the loss.
# **In your own code:** Overfit one small batch. If the loss stays above zero, it may have
# a floor, and $\ln(e + C - 1) - 1$ is the floor of a second softmax. **Source:**
# PyTorch documentation,
# [`torch.nn.CrossEntropyLoss`](https://docs.pytorch.org/docs/stable/generated/torch.nn.CrossEntropyLoss.html).
# To derive the floor, use a logit of 1 for the right class and logits of 0 for all
# other classes.

# %% [markdown] role="concept"
# ## A loss is a statement about noise
#
# Not every target is a class. Predicting a number, such as a price, is called
# *regression*, and the true numbers are the *regression targets*. In regression, you can
# also ask under which model the data are most probable, but you have to say how the
# measurements scatter around the truth. Four usual losses are the negative
# log-likelihood, each under one assumption about the noise:
#
# | you assume | the loss is | up to |
# |---|---|---|
# | a normal distribution around the output | squared error | factor and constant |
# | a Laplace distribution (heavier tails) | absolute error | factor, constant |
# | one of C classes | cross-entropy | nothing |
# | yes or no | binary cross-entropy | nothing |
#
# A *Laplace distribution* has a sharp peak, and it makes large errors much more
# probable than a normal distribution does. The last column says what the loss leaves
# out. A constant or a factor does not move the minimum. `torch.distributions` can
# compute the likelihoods, so you can check the table.

# %% role="concept"
from torch import distributions as dist

out, target = torch.randn(100), torch.randn(100)
z, y = torch.randn(100, 5), torch.randint(5, (100,))
yes = (target > 0).float()

def nll(noise, seen):
    """Mean negative log-likelihood of what was seen."""
    return -noise.log_prob(seen).mean()

# %% role="concept"
pairs = {
    "normal": (nll(dist.Normal(out, 1.0), target),
               F.mse_loss(out, target) / 2 + math.log(2 * math.pi) / 2),
    "Laplace": (nll(dist.Laplace(out, 1.0), target),
                F.l1_loss(out, target) + math.log(2)),
    "classes": (nll(dist.Categorical(logits=z), y), F.cross_entropy(z, y)),
    "yes or no": (nll(dist.Bernoulli(logits=out), yes),
                  F.binary_cross_entropy_with_logits(out, yes))}
print({name: f"{nats:.3f}" for name, (nats, _) in pairs.items()})

# %% role="concept"
claim("largest of the four gaps between negative log-likelihood and loss",
      max((likelihood - loss).abs() for likelihood, loss in pairs.values()),
      expected=0, within=1e-5)

# %% [markdown] role="concept"
# The assumption about the noise determines which answer the loss asks for. Suppose that
# a model has no inputs and can only output one constant. Then squared error asks for
# the mean of the data, and absolute error asks for the median. A single outlier of 100
# among four readings drags the mean far away, but hardly matters for the median. (For
# the readings 1, 2, 3 and 100, every value from 2 to 3 is a median, and all these
# medians have the same absolute error. The search below returns the first median, 2.)
#
# *Huber's loss* is a compromise, quadratic near zero and linear further out. It is
# $\frac12 e^2$ for errors up to $\delta$ and $\delta(|e| - \frac12\delta)$ beyond that,
# so that the two pieces agree in value and slope at $|e| = \delta$. Why not use $e^2$ for
# small errors and $|e|$ for large errors? These two curves meet at $|e| = 1$, but there,
# the slope of $e^2$ is 2 and the slope of $|e|$ is 1, so the joined curve has a kink.

# %% role="concept"
readings = torch.tensor([1.0, 2.0, 3.0, 100.0])
guesses = torch.linspace(0, 100, 10_001)          # steps of 0.01

def best_constant(loss):
    """The one answer with the lowest mean loss over the readings."""
    each = loss(guesses[:, None].expand(-1, 4), readings.expand(10_001, 4),
                reduction="none").mean(1)
    return guesses[each.argmin()].item()

answers = {f.__name__: best_constant(f)
           for f in (F.mse_loss, F.l1_loss, F.huber_loss)}
print({name: round(value, 2) for name, value in answers.items()})

# %% role="concept"
claim("best constant for squared error (the mean)", answers["mse_loss"],
      expected=26.5, within=0.02)
claim("best constant for absolute error (a median, from 2 to 3)",
      answers["l1_loss"], above=1.9, below=3.1)

# %% role="concept"
plot_columns({"squared error": answers["mse_loss"],
              "Huber": answers["huber_loss"],
              "absolute error": answers["l1_loss"]},
             xlabel="loss", ylabel="best constant for 1, 2, 3 and 100",
             form=".1f", title="One outlier moves the mean, not the median",
             alt="Three columns: the best constant is 26.5 for squared "
                 "error, about 2.5 for Huber's loss and 2 for absolute "
                 "error.")

# %% role="concept"
zero, e = torch.zeros(2), torch.tensor([0.5, 4.0])
inside, outside = F.huber_loss(e, zero, reduction="none").tolist()
print(f"Huber at 0.5: {inside}, at 4: {outside}")

# %% role="concept"
claim("Huber's loss for an error of 0.5 (half the square)", inside,
      expected=0.125)
claim("Huber's loss for an error of 4 (4 - 1/2)", outside, expected=3.5)

# %% [markdown] role="concept"
# According to the table above, squared error on *class labels* assumes that the labels
# scatter around the output like measurements with normal noise. Would you notice that
# assumption in a colleague's code?

# %% [markdown] trap="03.2" role="situation" core=true fault="class numbers as regression targets; (N, 1) minus (N,)" symptom="MSELoss on class labels: poor accuracy, predictions between classes; loss ignores shape mismatch (N,1) and (N,)"
# ## A network that answers with a number
#
# The label is a number from 0 to 9, so the network might as well output a number. You
# train a network with a single output on squared error, and the loss falls nicely. To
# classify a digit, you round the output. In a second script, you write the same loss a
# little differently, and this time the loss soon stops falling.

# %% trap="03.2" role="break"
def as_number(out, y):
    return (out[:, 0] - y).square().mean()

def with_a_column(out, y):
    return (out - y).square().mean()

def reading(loss):
    """The single output on the test digits after training with `loss`."""
    model = mlp(outputs=1)
    fit(model, x_train, y_train, steps=400, lr=1e-2, loss=loss)
    with torch.no_grad():
        return model(x_test)[:, 0]

number, column = reading(as_number), reading(with_a_column)

# %% trap="03.2" role="guess"
guess("03.2",
      "What does the network from the second script output for the test "
      "digits?",
      choices=["about what the first network outputs",
               "nearly the same number for every digit",
               "numbers that vary, but have little to do with the digits"])

# %% trap="03.2" role="look"
right = (number.round() == y_test).float().mean()
distance = (number.round() - y_test).abs().clamp(max=5)
off_by_one = (distance <= 1).float().mean()
print(f"right {right:.2f}, at most one off {off_by_one:.2f}")
print(f"the column answers {column.mean():.1f}, give or take "
      f"{column.std():.1f}; the mean label is {y_train.float().mean():.1f}")

# %% trap="03.2" role="look"
measured("03.2", 1)

# %% trap="03.2" role="look"
plot_columns({k if k < 5 else "5 or more": (distance == k).float().mean()
              for k in range(6)},
             xlabel="distance between answer and label",
             ylabel="fraction of the digits", form=".2f",
             title="Nearly right is wrong: a 4 is not a 3 or a 5",
             alt="Columns: the fraction of the test digits by distance. A "
                 "third of the answers are right, and 43 % are off by one.")

# %% [markdown] trap="03.2" role="look"
# Many of the wrong answers are off by one. The network from the second script gives
# nearly the same answer for every digit, and that answer is close to the mean label:

# %% trap="03.2" role="look"
claim("standard deviation of the answers: second network's divided by the "
      "first network's", column.std() / number.std(), below=0.3)

# %% [markdown] trap="03.2" role="why"
# There are two faults. First, numbers put the classes in an order in which 4 is between
# 3 and 5. Squared error then asks for the mean of the possible answers, so if an image
# could be a 3 or an 8, the network answers with a number between 3 and 8. The second
# fault is worse. If you subtract labels of shape `(N,)` from outputs of shape `(N, 1)`,
# you get an N by N table, because *broadcasting* pairs every output with every label.
# So the loss pulls every output towards the mean label. `F.mse_loss` would have warned
# you about the shapes, but a plain subtraction gives no warning. Give each class its
# own output.

# %% trap="03.2" role="why"
pairs = torch.ones_like(torch.zeros(8, 1) - torch.arange(8.0))
draw_grids({"(8, 1) minus (8,)": 0.5 * pairs + 0.5 * torch.eye(8)},
           marks={"(8, 1) minus (8,)": ~torch.eye(8, dtype=torch.bool)},
           rows="output", columns="label",
           legend="an output paired with another row's label",
           title="A column minus a row is a table",
           alt="A grid of eight by eight cells. Only the cells on the "
               "diagonal pair an output with its own label. All other "
               "cells are marked.")

# %% trap="03.2" role="repair"
def one_hot_mse(z, y):
    return F.mse_loss(z, F.one_hot(y, 10).float())

score = {}
for loss in (one_hot_mse, F.cross_entropy):
    model = mlp()
    fit(model, x_train, y_train, steps=400, lr=1e-2, loss=loss)
    score[loss.__name__] = accuracy(model, x_test, y_test)
print({name: round(value, 2) for name, value in score.items()})

# %% trap="03.2" role="repair"
claim("accuracy with one output per class and cross-entropy",
      score["cross_entropy"], above=0.93)

# %% [markdown] trap="03.2" role="more" topics="the table in numbers · squared error on one-hot labels · squared error after a softmax"
# Squared error itself is not the problem. With one-hot labels, which are 1 for the right
# class and 0 for all other classes, a network trained with squared error classifies these
# digits well:

# %% trap="03.2" role="more"
claim("accuracy with the class number as the target", right, below=0.5)
claim("fraction of the digits on which the answer is off by one",
      off_by_one - right, above=0.2)
claim("number of entries when you subtract a tensor of shape (8,) from one "
      "of shape (8, 1)",
      (torch.zeros(8, 1) - torch.arange(8.0)).numel(), expected=64)
claim("mean answer of the second network minus the mean label",
      column.mean() - y_train.float().mean(), expected=0, within=1)
claim("accuracy with squared error on one-hot labels", score["one_hot_mse"],
      above=0.93)

# %% [markdown] trap="03.2" role="more"
# *After a softmax*, squared error can fail, because its gradient on a confident
# mistake is almost zero.

# %% trap="03.2" role="more"
# pull_of is the gradient on the confident mistake of trap 03.1.
after_softmax = pull_of(lambda z, y: one_hot_mse(z.softmax(1), y))
on_outputs = pull_of(one_hot_mse)
print(f"squared error after a softmax {after_softmax:.4f}, on the outputs "
      f"{on_outputs:.2f}, cross-entropy {once:.2f}")

# %% trap="03.2" role="more"
claim("gradient norm on a confident mistake, with squared error after a "
      "softmax", after_softmax, below=0.001)
claim("gradient norm on a confident mistake, with squared error on the "
      "outputs", on_outputs, expected=2.01, within=0.01)
claim("gradient norm on a confident mistake, with cross-entropy", once,
      expected=1.41, within=0.01)

# %% [markdown] trap="03.2" role="folklore"
# **Told:** Squared error is wrong for classes, because its gradient vanishes on
# confident mistakes. **Measured:** After a softmax, the gradient does vanish. On a
# confident mistake, the gradient norm of squared error is then below 0.001, while the
# gradient norm of cross-entropy is 1.41. On plain outputs with one-hot targets, squared
# error has a gradient norm of 2.01 and reaches an accuracy above 0.93. With the class
# *number* as the target, the accuracy is below 0.5.

# %% trap="03.2" role="exercise" points=3 difficulty=2 minutes=10
def class_loss(scores: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Compute mean cross-entropy over the rows that have a label.

    Args:
        scores: logits, (N, C) float32.
        labels: int64 of shape (N,). The labels can also be a column (N, 1)
            that was cut from a table. A label of -1 means that the row
            has no label and does not count.

    Returns:
        A tensor without dimensions. The result is connected to the graph.

    Example: for scores zeros(2, 4) and labels [[1], [-1]], the loss is
    1.386.
    """
    # BEGIN SOLUTION
    return F.cross_entropy(scores, labels.reshape(-1), ignore_index=-1)
    # END SOLUTION

# %% [markdown] trap="03.2" role="hint"
# 1. Bring the labels into one shape before you do any arithmetic with them.
# 2. Leave rows without a label out of the sum of the losses, and also out of the number of rows.
# 3. `F.cross_entropy` expects labels of shape `(N,)`. Read in its documentation what `ignore_index` does.

# %% [markdown] trap="03.2" role="keep"
# **Keep:** Class numbers are names, not quantities, so give each class its own output and
# use cross-entropy. **In your own code:** Assert that the prediction and the target have
# the same shape before you subtract one from the other. **Source:** Hui & Belkin
# 2021, ["Evaluation of Neural Architectures Trained with Square Loss vs Cross-Entropy
# in Classification Tasks"](https://arxiv.org/abs/2006.07322), for squared error on
# one-hot labels.

# %% [markdown] role="concept"
# ## When classes have an order
#
# Ratings from one to five stars do have an order. Cross-entropy ignores the order, so
# predicting 1 star instead of 5 costs no more than predicting 4. Squared error on the
# number assumes that all steps between stars are equal, which you do not know. *Ordinal
# regression* uses the order and assumes nothing about the steps. For five classes, it can
# ask four yes-or-no questions, "more than one star?" to "more than four?", and
# train each with binary cross-entropy. If each question had its own weights, the
# answers could contradict each other: "more than three stars", but not "more than two".
# In the variant CORAL, all four questions use the same weighted sum, and each question
# adds only its own bias. If the biases fall from the first question to the last, a yes
# to one question implies a yes to all earlier questions.

# %% role="concept"
stars = torch.tensor([1, 3, 5])
more_than = (stars[:, None] > torch.arange(1, 5)).float()    # (3, 4)
print(more_than)

# %% role="concept"
claim("number of questions whose answer is yes for five stars",
      more_than[2].sum(), expected=4)

# %% [markdown] role="concept"
# ## When one class is rare
#
# If only 3 of 32 rows are positive, a model that always says "no" is right for 29 rows.
# If you need the model to find more of the 3 positives, you can change the loss.
# `pos_weight` multiplies the loss of the positives. In the sum, a weight of `w` equals
# showing every positive `w` times. So to balance 3 positives and 29 negatives, you need a
# weight of 29 / 3 = 9.67.
#
# *Focal loss* instead multiplies each row's loss by $(1 - p_y)^\gamma$, where $p_y$ is
# the probability of the right answer. Rows that the model gets clearly right then
# hardly count. Focal loss usually comes with a factor $\alpha$ for positives and $1 -
# \alpha$ for negatives. Be careful with the much-copied $\alpha = 0.25$, because it
# makes the positives count *less*. The value was tuned together with $\gamma = 2$ for
# an object detector, a network that finds objects in photos. There, $\gamma$ had
# already reduced the loss of the many easy negatives.

# %% role="concept"
logits = torch.randn(32)
labels = torch.cat([torch.ones(3), torch.zeros(29)])
bce = F.binary_cross_entropy_with_logits
weighted = bce(logits, labels, pos_weight=torch.tensor(9.0),
               reduction="sum")
repeated = bce(torch.cat([logits[:3].repeat(9), logits[3:]]),
               torch.cat([torch.ones(27), torch.zeros(29)]),
               reduction="sum")

# %% role="concept"
claim("loss with a weight of 9 minus loss with each positive shown 9 times",
      weighted - repeated, expected=0, within=1e-3)
claim("weight that balances 3 positives and 29 negatives",
      (labels == 0).sum() / (labels == 1).sum(), expected=9.67,
      within=0.01)

# %% role="concept"
def focal(z, t, alpha, gamma=2.0):
    """Mean binary focal loss; alpha weights positives, 1 - alpha others."""
    ce = bce(z, t, reduction="none")
    p_right = (-ce).exp()
    side = alpha * t + (1 - alpha) * (1 - t)
    return (side * (1 - p_right) ** gamma * ce).mean()

even = torch.zeros(1)                           # p = 1/2 for either side
ratio = focal(even, even + 1, 0.25) / focal(even, even, 0.25)

# %% role="concept"
claim("loss of a positive divided by the loss of a negative, with an alpha "
      "of 0.25", ratio, expected=1 / 3, within=1e-5)

# %% [markdown] role="concept"
# Class weights and focal loss have a price, because they do not ask for the true
# probabilities. If you only need a decision, move the threshold of the plain model
# instead. The section *Further* measures class weights and focal loss on a rare digit.

# %% [markdown] role="concept"
# ## Distances as losses
#
# Sometimes you do not want classes but a space in which similar things are close
# together. A face recognition system has to handle people on whom it was never trained.
# So the system turns each photo into a vector, the photo's *embedding*, and compares
# two photos by the distance between their embeddings. Many search engines for sentences
# and many recommenders for products work in a similar way. Three losses can teach a
# network to place similar things close together:
#
# - *Contrastive*: $d^2$ for a matching pair at distance $d$, and $\max(0, m - d)^2$ for
#   any other pair. The *margin* $m$ is the distance that counts as far enough.
# - *Triplet*: $\max(0, d(a, p) - d(a, n) + m)$ for an anchor, a positive and a negative.
#   The negative has to be farther from the anchor than the positive, by at least the
#   margin.
# - *InfoNCE*: a table of similarities, in which the entry in row `i` and column `j` says
#   how similar photo `i` is to caption `j`. The caption that belongs to photo `i` is in
#   column `i`. So each row is a classification whose right class is `i`, and the loss is
#   cross-entropy. CLIP, a model that matches images with captions, uses InfoNCE in both
#   directions, from images to captions and back.
#
# The contrastive and the triplet loss are exactly zero for every negative that is already
# far enough away. So a triplet loss of 0 for random vectors is not a success, because a
# triplet with a loss of zero teaches nothing:

# %% role="concept"
anchor = torch.randn(8, 128, requires_grad=True)
near = anchor.detach() + 0.1 * torch.randn(8, 128)
easy = F.triplet_margin_loss(anchor, near, torch.randn(8, 128), margin=1.0)
slope = torch.autograd.grad(easy, anchor)[0].abs().max()

# %% role="concept"
claim("triplet loss with random negatives", easy, expected=0)
claim("largest gradient of the triplet loss with random negatives", slope,
      expected=0)

# %% [markdown] role="concept"
# ## Vanishing and exploding gradients
#
# Choosing a loss is only half of the work. The gradient of the loss has to reach the
# first layer, and by the chain rule every layer on the way multiplies the gradient by a
# factor, the slope of the activation times the weights. If the product of the factors
# shrinks from layer to layer, the gradient *vanishes*, and the first layers hardly
# learn. If the product grows, the gradient *explodes*, and SGD then throws the weights
# far away. Follow a gradient back through twenty ReLU layers whose weights are half as
# large as they should be, just right, or twice as large:

# %% role="concept"
def reaches(scale, depth=20, width=64):
    """Gradient norm after 0 to depth layers on the way back to the input.

    scale 1 is He's rule: weights of variance 2 / width, for ReLU.
    """
    h = torch.randn(32, width, requires_grad=True)
    inputs = [h]
    for _ in range(depth):
        weight = scale * torch.randn(width, width) * (2 / width) ** 0.5
        inputs.append((inputs[-1] @ weight.T).relu())
    at_end = torch.randn(32, width)
    norms = [g.norm().item() for g in torch.autograd.grad(
        inputs[-1], inputs, at_end)]
    return norms[::-1]

# %% role="concept"
back = {f"weights times {scale:g}": reaches(scale) for scale in (0.5, 1, 2)}
last = {name: norms[-1] / norms[0] for name, norms in back.items()}
print({name: f"{change:.0e}" for name, change in last.items()})

# %% role="concept"
claim("with halved weights: gradient norm at the input divided by norm at "
      "the output", last["weights times 0.5"], below=1e-4)
claim("with He's weights: gradient norm at the input divided by norm at "
      "the output", last["weights times 1"], above=0.02, below=10)
claim("with doubled weights: gradient norm at the input divided by norm at "
      "the output", last["weights times 2"], above=1e4)

# %% role="concept"
plot_lines(range(21), back, logy=True,
           xlabel="layers on the way back", ylabel="gradient norm",
           title="With one factor per layer, a gradient shrinks or grows",
           alt="Three lines on a log scale. With weights half as large, "
               "the gradient falls by a constant factor per layer. With "
               "He's weights, the gradient stays level. With weights twice "
               "as large, it rises.")

# %% [markdown] role="concept"
# Only the product of the factors counts, not how many of the factors are below one:

# %% role="concept"
h = signal = torch.ones(4, requires_grad=True)
for factor in [0.8] * 16 + [10.0] * 4:
    h = factor * h
h.sum().backward()

# %% role="concept"
claim("growth of the gradient after 16 factors of 0.8 and 4 factors of "
      "10", signal.grad.max(), above=100)

# %% [markdown] role="concept"
# The activation's slope is part of each factor. A sigmoid's slope is at most a quarter,
# and with PyTorch's default weights, even less of the gradient gets through:

# %% role="concept"
def sigmoid_gradients(depth=8, width=32):
    """Gradient norm of each hidden weight, input to output, fresh net."""
    layers = [layer for _ in range(depth)
              for layer in (nn.Linear(width, width), nn.Sigmoid())]
    net = nn.Sequential(*layers, nn.Linear(width, 1))
    net(torch.randn(256, width)).mean().backward()
    return [layer.weight.grad.norm().item() for layer in net[:-1:2]]

norms = sigmoid_gradients()
factor = (norms[-1] / norms[0]) ** (1 / 7)
print("norms, input to output:", *(f"{n:.0e}" for n in norms))

# %% role="concept"
claim("factor by which each sigmoid layer with default weights shrinks the "
      "gradient", factor, above=5, below=20)

# %% [markdown] role="concept"
# On the way forward, the signal shrinks or grows in the same way. Weights twice
# as large as they should be double the signal in every ReLU layer:

# %% role="concept"
net = [torch.randn(64, 64) * (2 / 64) ** 0.5 for _ in range(10)]

def through(scale, h):
    for weight in net:
        h = (h @ (scale * weight).T).relu()
    return h

x = torch.randn(32, 64)
grown = through(2, x).norm() / through(1, x).norm()

# %% role="concept"
claim("norm of ten layers' output with doubled weights, divided by the "
      "norm with He's weights", grown, expected=1024, within=0.01)

# %% [markdown] role="concept"
# A *skip connection* computes $x + F(x)$, so its slope is $1 + F'(x)$. The 1 gives the
# gradient a path without factors, and that helps. People often say that a skip connection
# keeps the gradient at one or more. But there is no guarantee, because with $F(x) = -x$,
# no gradient is left:

# %% role="concept"
x = torch.ones(4, requires_grad=True)
(x + -1.0 * x).sum().backward()
print(x.grad)

# %% role="concept"
claim("largest absolute slope of x + (-x) with respect to x",
      x.grad.abs().max(), expected=0)

# %% [markdown] role="concept"
# The table compares vanishing and exploding gradients: how they look, how to test for
# them, and what helps.
#
# | | vanishing | exploding |
# |---|---|---|
# | the loss | stays near its first value | jumps by orders of magnitude, then `inf` or `nan` |
# | weights (SGD) | the first layers hardly move | some move far in one step |
# | test | print the gradient norm of every layer | log the norm of all gradients at every step |
# | the test shows | norms that fall, or are all tiny | norms that grow, or rare spikes |
# | usual causes | flat ends of sigmoid and tanh; weights too small; depth without skips | weights too large; one matrix applied again and again, as in an RNN; too high a learning rate; a strange batch |
# | cures | ReLU or GELU; weights that fit the activation; skip connections; normalization | weights that fit the activation; normalization; a lower learning rate or a warm-up; clipping |
#
# *Weights that fit*: for ReLU, He's rule draws the weights with a variance of `2 /
# fan_in`, where `fan_in` is the number of inputs. Near zero, tanh needs a variance of
# `1 / fan_in` on the way forward and a variance of `1 / fan_out` on the way
# back. Xavier's rule, `2 / (fan_in + fan_out)`, is a compromise between the two
# directions, and if a layer has as many outputs as inputs, all three variances agree.
# *Clipping* measures the norm of all gradients together. If the norm is above a limit,
# clipping multiplies every gradient by limit / norm. The gradient then keeps its
# direction, and its norm is bounded.

# %% role="concept"
wide = nn.init.xavier_normal_(torch.empty(100, 300))
weak = nn.Parameter(torch.zeros(2))
weak.grad = torch.tensor([6.0, 8.0])                 # norm 10
nn.utils.clip_grad_norm_([weak], max_norm=1.0)
print(f"Xavier: variance {wide.var():.4f}; clipped to {weak.grad}")

# %% role="concept"
claim("variance of Xavier's weights for 300 inputs and 100 outputs",
      wide.var(), expected=2 / (300 + 100), within=3e-4)
claim("new value of a gradient entry of 6 after the norm is clipped from "
      "10 to 1", weak.grad[0], expected=0.6, within=1e-4)

# %% [markdown] trap="03.3" role="situation" core=true fault="gradients are clipped after the step" symptom="gradient clipping has no effect, loss explodes to 1e11 although clip_grad_norm_ is called"
# ## A batch a hundred times too large
#
# You clip the gradients to a norm of 1, and the norm in your log is 1.0 at every step, as
# it should be. The model is a linear layer with 32 inputs, trained with SGD at a learning
# rate of 0.1. Then a batch arrives whose inputs are 100 times too large, and the log
# still says 1.0. "So that step was no larger than any other," says an incident report.

# %% trap="03.3" role="break"
x_big, y_big = 100 * torch.randn(4, 32), torch.randn(4, 1)
model = nn.Linear(32, 1)
fresh = {name: p.clone() for name, p in model.state_dict().items()}
clip = nn.utils.clip_grad_norm_

def prepare():
    """Reset the weights, compute a gradient, and return an optimizer."""
    model.load_state_dict(fresh)
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    opt.zero_grad()
    F.mse_loss(model(x_big), y_big).backward()
    return opt

def weights():
    return nn.utils.parameters_to_vector(model.parameters()).detach()

# %% trap="03.3" role="break"
opt = prepare()
start = weights()
opt.step()
clip(model.parameters(), max_norm=1.0)
moved_to = weights()
loss_after = F.mse_loss(model(x_big), y_big).item()

# %% trap="03.3" role="guess" quoted="wrong"
guess("03.3",
      "Before the step, the loss on that batch was below `1e5`. How large "
      "is this loss after the step?",
      choices=["infinite or NaN",
               "finite, but above `1e9`",
               "between `1e5` and `1e9`",
               "below `1e5`, as before the step"])

# %% trap="03.3" role="look"
norm_now = nn.utils.get_total_norm([p.grad for p in model.parameters()])
print(f"norm in .grad: {norm_now:.3f}   next loss: {loss_after:.0e}   "
      f"moved: {(moved_to - start).norm():.0f}")
prepare().step()                                  # no clipping at all
unclipped = weights()

# %% trap="03.3" role="look"
measured("03.3", 1)

# %% trap="03.3" role="look"
claim("distance that the weights move if you clip after the step",
      (moved_to - start).norm(), above=100)

# %% [markdown] trap="03.3" role="why"
# A step uses the gradient that is in `.grad` at that moment. Your code clips after the
# step, when nothing reads the gradient any more, so clipping changes values that
# `zero_grad` is about to throw away. The log shows the clipped gradient, but the
# optimizer stepped with the full gradient, and the weights moved a distance of more than
# 100. The large inputs multiply this move, and the loss squares the result. Clip between
# `backward` and `step`. Then a step of plain SGD moves the weights by at most the
# learning rate times the limit. (`optimizer.param_groups` is a list of dictionaries, and
# `group["params"]` lists the parameters of a group.)

# %% trap="03.3" role="why"
draw_blocks({"what you ran": ["zero_grad", "backward", "step", "clip"],
             "what limits": ["zero_grad", "backward", "clip", "step"]},
            marks={"what you ran": ["clip"]},
            captions={"what you ran": "nothing reads it",
                      "what limits": "the step reads it"},
            title="Clip what the step will read",
            alt="Two columns of four boxes. In the first column, clip "
                "comes after step and is marked. In the second, clip "
                "comes before step.")

# %% trap="03.3" role="repair"
opt = prepare()
clip(model.parameters(), max_norm=1.0)
opt.step()
early, loss_early = weights(), F.mse_loss(model(x_big), y_big).item()
print(f"move {(early - start).norm():.3f}   next loss {loss_early:.0e}")
prepare()
grads = [p.grad for p in model.parameters()]
real = nn.utils.get_total_norm(grads).item()
returned = clip(model.parameters(), max_norm=1.0).item()

# %% trap="03.3" role="repair"
claim("distance that the weights move if you clip before the step "
      "(learning rate times limit)",
      (early - start).norm(), expected=0.1, within=1e-4)

# %% trap="03.3" role="repair"
plot_bars({"no clipping": (unclipped - start).norm().item(),
           "after the step": (moved_to - start).norm().item(),
           "before the step": (early - start).norm().item()},
          xlabel="distance that the weights move", log=True,
          title="Clipped after the step is not clipped",
          alt="Three bars on a log scale: how far the weights move. "
              "Without clipping, and with clipping after the step, the "
              "weights move equally far, thousands of times as far as "
              "with clipping before the step.")

# %% [markdown] trap="03.3" role="more" topics="what the log showed · momentum · a gradient that is already infinite"
# `clip_grad_norm_` returns the norm *before* clipping. If you log this value, you see the
# norm of the arriving gradient, not of the gradient that the step used. With momentum,
# the clipped gradients of several steps add up.

# %% trap="03.3" role="more"
claim("gradient norm in the log if you clip after the step",
      norm_now, expected=1, within=1e-3)
claim("loss on the batch after a step, if you clip after the step",
      loss_after, above=1e9)
claim("if you clip after the step, are the weights bit for bit the same as "
      "without clipping", torch.equal(moved_to, unclipped), expected=True)
claim("return value of clip_grad_norm_ divided by the norm before clipping",
      returned / real, expected=1, within=1e-5)

# %% [markdown] trap="03.3" role="more"
# Clipping by the norm does not repair a gradient that is already infinite. The clipping
# factor is 1 divided by infinity, which is zero. Infinity times zero is NaN, and all
# other entries become zero. By contrast, `clip_grad_value_` limits every entry
# separately. An infinite entry then has the size of the limit, which says nothing about
# its true size.

# %% trap="03.3" role="more"
weight = nn.Parameter(torch.ones(3))
weight.grad = torch.tensor([1.0, math.inf, 2.0])
clip([weight], max_norm=1.0)
by_entry = nn.Parameter(torch.ones(3))
by_entry.grad = torch.tensor([1.0, math.inf, 2.0])
nn.utils.clip_grad_value_([by_entry], 1.0)
print(weight.grad, by_entry.grad)

# %% trap="03.3" role="more"
claim("is the infinite entry NaN after clipping by the norm",
      weight.grad[1].isnan(), expected=True)
claim("largest absolute value of the other entries after clipping by the "
      "norm", weight.grad[[0, 2]].abs().max(), expected=0)
claim("value of the infinite entry after clipping by value",
      by_entry.grad[1], expected=1)

# %% [markdown] trap="03.3" role="folklore"
# **Told:** When the loss turns NaN, clip the gradients. **Measured:** Clipping before the
# step keeps a single huge but finite gradient from throwing the weights away. If an entry
# is already infinite, clipping by the norm turns that entry into NaN and the other
# entries into 0. Pass `error_if_nonfinite=True`, or skip that step.

# %% trap="03.3" role="exercise" points=4 difficulty=3 minutes=15
def clipped_step(optimizer: torch.optim.Optimizer, loss: torch.Tensor,
                 scale: float, max_norm: float) -> tuple[float, float]:
    """Take one step on a scaled loss, with clipping.

    Args:
        optimizer, max_norm: the optimizer, and the limit for the norm.
        loss, scale: loss is the true loss times scale, as in mixed
            precision. The backward pass has not run yet.

    Returns:
        The gradient's norms before and after clipping, as two floats.

    Gradients of an earlier step can be left in .grad. The step and both
    norms are for the true loss, without the scale. Each norm is a single
    number for all groups together. Only parameters that the loss reaches
    count, and the step changes no other parameters.

    Example: for a gradient of norm 6 and max_norm 2, return (6.0, 2.0).
    """
    # BEGIN SOLUTION
    groups = optimizer.param_groups
    params = [p for group in groups for p in group["params"]]
    optimizer.zero_grad()
    (loss / scale).backward()
    before = nn.utils.clip_grad_norm_(params, max_norm).item()
    grads = [p.grad for p in params if p.grad is not None]
    after = nn.utils.get_total_norm(grads).item()
    optimizer.step()
    return before, after
    # END SOLUTION

# %% [markdown] trap="03.3" role="hint"
# 1. You have to clear the gradients, call `backward`, undo the scale, clip, and step. In which order? To undo the scale, divide the loss by `scale` before `backward`, or divide every gradient by `scale` after `backward`.
# 2. The limit applies to the true gradient. If you clip a gradient that is still 1024 times too large and then undo the scale, almost nothing of the gradient is left.
# 3. The parameters are in `group["params"]` for each `group` in `optimizer.param_groups`. `clip_grad_norm_` returns the norm before clipping. For the norm after clipping, measure again with `nn.utils.get_total_norm`.

# %% [markdown] trap="03.3" role="keep"
# **Keep:** Clip after `backward` and before `step`. If the loss was scaled, undo the
# scaling before you clip. **In your own code:** Log the return value of
# `clip_grad_norm_`, which is the norm before clipping. While this norm exceeds the limit,
# every step of plain SGD has the same size, the learning rate times the limit, so the
# limit acts as a second learning rate. **Source:** Pascanu, Mikolov & Bengio 2013, ["On
# the difficulty of training recurrent neural networks"](https://arxiv.org/abs/1211.5063),
# algorithm 1.

# %% [markdown] trap="03.4" role="situation" core=true fault="weights too small for the depth: the signal dies" symptom="deep network does not train at all, all gradients tiny; weights initialised with randn * 0.01"
# ## Weights of one hundredth
#
# A layer of your own needs weights, so you write `torch.randn(out, in) * 0.01`. You stack
# ten such layers of 256 units with ReLU, without any sigmoid, and set the biases to zero.
# After 100 steps, the network has learned next to nothing. "The gradient vanishes on its
# way back, so compare the first layer's gradient with the last layer's," says an answer
# in a forum. You compare the two gradients in an untrained network.

# %% trap="03.4" role="break"
def small(weight):
    nn.init.normal_(weight, std=0.01)

def deep(init, depth=10, width=256):
    """A ReLU net for digits, weights by init, biases zero."""
    sizes = [64] + [width] * depth + [10]
    layers = []
    for fan_in, fan_out in zip(sizes, sizes[1:]):
        layers += [nn.Linear(fan_in, fan_out), nn.ReLU()]
        init(layers[-2].weight)
        nn.init.zeros_(layers[-2].bias)
    return nn.Sequential(*layers[:-1])

net = deep(small)
fit(net, x_train, y_train, steps=100, lr=3e-3)
score_small = accuracy(net, x_test, y_test)

# %% trap="03.4" role="guess" quoted="wrong"
guess("03.4",
      "In an untrained network, how large is the first layer's gradient "
      "norm, as a multiple of the last layer's?", unit="times")

# %% trap="03.4" role="look"
def weight_gradients(net):
    """Gradient norm of every weight on 256 digits, input to output."""
    weights = [m.weight for m in net if isinstance(m, nn.Linear)]
    loss = F.cross_entropy(net(x_train[:256]), y_train[:256])
    return [g.norm().item() for g in torch.autograd.grad(loss, weights)]

norms = weight_gradients(deep(small))
print(f"first {norms[0]:.0e}, last {norms[-1]:.0e}")

# %% trap="03.4" role="look"
measured("03.4", norms[0] / norms[-1], right=(0.9, 2.7))

# %% trap="03.4" role="look"
claim("small weights: first layer's gradient norm divided by the last "
      "layer's",
      norms[0] / norms[-1],
      above=0.01, below=100)

# %% [markdown] trap="03.4" role="look"
# In trap 01.3, the gradient shrank on its way back, and this ratio showed it. In this
# network, the ratio hides the fault. Both layers' gradients are tiny, because the signal
# also dies on its way *forward*:

# %% trap="03.4" role="look"
def second_moments(init, sizes=(256,) * 11):
    """Mean square after each ReLU, starting from N(0, 1) inputs."""
    h, found = torch.randn(512, sizes[0]), []
    for fan_in, fan_out in zip(sizes, sizes[1:]):
        weight = torch.empty(fan_out, fan_in)
        init(weight)
        h = (h @ weight.T).relu()
        found.append(h.square().mean().item())
    return found

moments = {"std 0.01": second_moments(small)}
factor = (moments["std 0.01"][-1] / moments["std 0.01"][0]) ** (1 / 9)
print(f"accuracy {score_small:.2f}, factor per layer {factor:.4f}")

# %% trap="03.4" role="look"
claim("mean square after ten layers, with weights of standard deviation "
      "0.01", moments["std 0.01"][-1], below=1e-18)

# %% [markdown] trap="03.4" role="why"
# A layer multiplies the mean square of its inputs by `fan_in` times the variance of its
# weights, and ReLU halves the result. Here this factor is $256 \cdot 0.01^2 / 2 =
# 0.0128$, so after ten layers, next to nothing is left of the signal. The gradient of a
# layer's weights is a product of the layer's input, which the earlier layers have shrunk,
# and the gradient that comes back, which the later layers have shrunk. Together, the
# earlier and the later layers are all layers except one, so all gradients are about
# equally tiny, and you have to look at their absolute size. *He initialization* draws the
# weights with a variance of $2 / n$, where $n$ is the layer's `fan_in`, and so makes the
# factor per layer equal to one.

# %% trap="03.4" role="repair"
def he(weight):
    nn.init.kaiming_normal_(weight, nonlinearity="relu")

def he_out(weight):
    nn.init.kaiming_normal_(weight, mode="fan_out", nonlinearity="relu")

def default(weight):
    nn.init.kaiming_uniform_(weight, a=math.sqrt(5))

# %% trap="03.4" role="repair" compare=false
net = deep(he)
fit(net, x_train, y_train, steps=100, lr=3e-3)
moments |= {"PyTorch default": second_moments(default),
            "He": second_moments(he)}
score_he = accuracy(net, x_test, y_test)
print(f"accuracy {score_he:.2f}, mean square {moments['He'][-1]:.2f}")

# %% trap="03.4" role="repair"
claim("accuracy of ten layers with He's weights", score_he, above=0.8)

# %% trap="03.4" role="repair"
plot_lines(range(1, 11), moments, xlabel="layer", logy=True,
           ylabel="mean square after ReLU",
           title="Without biases, He keeps the signal; the default does "
                 "not",
           alt="Three lines: the mean square by layer on a log axis. With "
               "a standard deviation of 0.01, it falls to 1e-19 in ten "
               "layers, and with PyTorch's default, to 1e-8. With He, it "
               "stays near one.")

# %% [markdown] trap="03.4" role="repair"
# Depth, activation, initial weights and skip connections act together. In the explorer,
# choose ReLU and the small weights, and watch all the layers. Then change one setting at a
# time.

# %% role="explore" explorer="gradient_depth"
from dlsys_helpers.explorers.gradient_depth import gradient_depth

gradient_depth

# %% [markdown] trap="03.4" role="more" topics="default biases · the default and fan_out · narrow nets · variance and mean square"
# The first claims put bounds on values in the curves. The later claims are about a
# net with PyTorch's default biases, in which the ratio does show the fault.

# %% trap="03.4" role="more"
claim("accuracy of ten layers with small weights", score_small, below=0.35)
claim("factor by which each layer multiplies the mean square (256 * "
      "0.01^2 / 2)", factor, expected=0.0128, within=0.0015)
claim("largest gradient norm of any layer, with small weights and biases "
      "of zero", max(norms), below=1e-8)
claim("mean square after ten layers, with He's weights", moments["He"][-1],
      above=0.3, below=3.5)

# %% trap="03.4" role="more"
def small_with_biases(width=256):
    """The same weights, each bias as nn.Linear draws it."""
    net = deep(small, width=width)
    for layer in net[::2]:
        limit = layer.in_features ** -0.5
        nn.init.uniform_(layer.bias, -limit, limit)
    return net

norms = weight_gradients(small_with_biases())
print(f"with biases: first {norms[0]:.0e}, last {norms[-1]:.0e}")

# %% trap="03.4" role="more"
claim("last layer's gradient norm, with default biases", norms[-1],
      above=1e-3)
claim("first layer's gradient norm divided by the last layer's, with "
      "default biases", norms[0] / norms[-1], below=1e-6)

# %% [markdown] trap="03.4" role="more"
# Two other common rules do not always preserve the signal's size. PyTorch's default
# weights keep only a sixth of the mean square per layer, until the default biases
# outweigh the signal. For the gradient on its way back through linear layers, `fan_out`
# is the right choice. But if each layer is twice as wide as the layer before, `fan_out`
# halves the mean square per layer on the way forward.

# %% trap="03.4" role="more"
h = torch.randn(512, 256)
with torch.no_grad():
    for _ in range(10):
        h = nn.Linear(256, 256)(h).relu()         # with its own biases
as_it_comes = h.square().mean()
widening = second_moments(he_out, (32, 64, 128, 256, 512, 1024))
print(f"nn.Linear {as_it_comes:.0e}, fan_out {widening[-1]:.3f}")

# %% trap="03.4" role="more"
claim("mean square after one layer with default weights and no biases",
      moments["PyTorch default"][0], expected=1 / 6, within=0.02)
claim("mean square after ten nn.Linear layers with default weights and "
      "biases", as_it_comes, above=1e-4, below=3e-3)
claim("mean square after five doublings of the width, with fan_out (in "
      "theory: 1/32)", widening[-1], above=0.01, below=0.08)

# %% [markdown] trap="03.4" role="more"
# He's rule keeps the mean square on average over many draws of the weights. A single net
# is one draw and strays from that average. With ten layers of 256 units, a net strays a
# little, and with 50 layers of 16 units, it strays a lot. Also, the rule keeps the mean
# square, not the variance. The variance is smaller, because after a ReLU the mean is no
# longer zero.

# %% trap="03.4" role="more"
narrow = torch.tensor([second_moments(he, [16] + 50 * [16])[-1]
                       for _ in range(20)]).median()
print(f"He, 50 layers of 16: median of 20 nets {narrow:.0e}")

# %% trap="03.4" role="more"
claim("median over 20 nets of the mean square after 50 layers of 16 units "
      "with He's weights", narrow, below=0.1)

# %% trap="03.4" role="more"
layer = nn.Linear(512, 512)
std = layer.weight.std().item()
h = (torch.randn(2000, 512) @ torch.empty(512, 512).normal_(
    std=(2 / 512) ** 0.5)).relu()
print(f"std of nn.Linear(512, 512) {std:.4f}, He {(2 / 512) ** 0.5:.4f}")
print(f"He, after ReLU: mean square {h.square().mean():.2f}, "
      f"variance {h.var():.2f}")

# %% trap="03.4" role="more"
claim("variance of He's weights divided by the variance of a fresh "
      "nn.Linear's weights", (2 / 512) / std ** 2, expected=6, within=0.1)
claim("mean square after a ReLU, with He's weights", h.square().mean(),
      expected=1, within=0.05)
claim("variance after a ReLU, with He's weights (1 - 1 / pi)", h.var(),
      expected=0.682, within=0.04)

# %% [markdown] trap="03.4" role="folklore"
# **Told:** He's rule is PyTorch's default, it keeps the *variance* near 1, and you should
# use `fan_out`. **Measured:** The default's variance is a sixth of He's. In wide layers,
# He's rule keeps the *mean square* near 1, and the variance after ReLU is 0.682 times the
# mean square. If each layer doubles the width, `fan_out` halves the mean square per layer
# on the way forward.

# %% trap="03.4" role="exercise" points=4 difficulty=3 minutes=15
def init_(net: nn.Sequential) -> None:
    """Initialize net in place. The signal has to keep its size.

    Args:
        net: alternating nn.Linear and nn.ReLU layers, of any width, even
            1. The last layer can be a Linear. A Linear need not have a
            bias.

    For inputs from N(0, 1), the mean square after *every* ReLU is between
    0.5 and 2 on average over many nets. This also holds if layers get
    wider or narrower. All weights are random, drawn independently around
    zero with PyTorch's generator. The biases are zero.

    Example: a weight of shape (64, 32) gets a standard deviation of 0.25.
    """
    # BEGIN SOLUTION
    for layer in net:
        if isinstance(layer, nn.Linear):
            nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)
    # END SOLUTION

# %% [markdown] trap="03.4" role="hint"
# 1. One unit adds up `fan_in` products. What variance must a weight have so that the sum has twice the mean square of an input?
# 2. A weight has the shape `(fan_out, fan_in)`. Only one of these two numbers matters in the forward pass. Which one?
# 3. The standard deviation is the square root of `2 / fan_in`. `nn.init.kaiming_normal_` can draw such weights. Also set the biases to zero.

# %% [markdown] trap="03.4" role="keep"
# **Keep:** Draw the weights before a ReLU with a variance of `2 / fan_in` (He's rule).
# Then the factor per layer, `fan_in` x `Var(w)` / 2, is one. **In your own code:** Before
# you train, print the mean square after each activation. Print the gradient norms of the
# first and the last layer, not only their ratio. **Source:** He et al. 2015, ["Delving
# Deep into Rectifiers"](https://arxiv.org/abs/1502.01852), section 2.2.

# %% [markdown] role="concept"
# ## Further
#
# Nothing below is needed for the traps. This section measures what class weights, focal
# loss and a moved threshold do for a rare class. It also shows which losses ask for the
# true probabilities, how to correct an overconfident model, and how triplets are chosen.

# %% [markdown] role="concept"
# ### When one class is rare, measured
#
# Train a model to find the digit 8 when only 30 of 1,208 training rows show an 8. The
# model raises an alarm when its probability is above one half. *Recall* is the fraction
# of the eights that the model finds, and *precision* is the fraction of the alarms that
# are right.

# %% role="concept"
eights = (y_train == 8).nonzero()[:30, 0]
rows = torch.cat([eights, (y_train != 8).nonzero()[:, 0]])
x_rare, rare = x_train[rows], (y_train[rows] == 8).float()[:, None]
weight = (rare == 0).sum() / (rare == 1).sum()
losses = {"plain": bce,
          "pos_weight": lambda z, t: bce(z, t, pos_weight=weight),
          "focal 0.25": lambda z, t: focal(z, t, 0.25),
          "focal 0.75": lambda z, t: focal(z, t, 0.75)}

# %% role="concept"
claim("number of training rows, 30 of which show an eight",
      len(rows), expected=1208)

# %% role="concept"
score, trained_logits, base = {}, {}, rare.mean().item()
for name, loss in losses.items():
    torch.manual_seed(SEED)
    model = nn.Linear(64, 1)
    fit(model, x_rare, rare, steps=400, lr=1e-2, loss=loss, batch=256)
    with torch.no_grad():
        score[name] = model(x_test)[:, 0]
        trained_logits[name] = model(x_rare)

# %% role="concept"
from sklearn.metrics import average_precision_score

def found(z, cut=0.0):
    """Recall and precision of the alarm z > cut on the test digits."""
    alarm, truth = z > cut, y_test == 8
    hits = (alarm & truth).sum().item()
    return hits / truth.sum().item(), hits / max(1, alarm.sum().item())

recall = {name: found(z)[0] for name, z in score.items()}
moved = found(score["plain"], cut=math.log(base / (1 - base)))
said = {name: z.sigmoid().mean().item() / base
        for name, z in trained_logits.items()}
ranked = {name: average_precision_score(y_test == 8, z)
          for name, z in score.items()}
print({name: f"{share:.2f}" for name, share in recall.items()})

# %% role="concept"
claim("recall with the plain loss and a threshold of one half",
      recall["plain"], below=0.2)
claim("recall with pos_weight and a threshold of one half",
      recall["pos_weight"], above=0.7)

# %% [markdown] role="concept"
# Only the loss has changed, but at a threshold of one half, the model with `pos_weight`
# finds most of the eights instead of next to none. With focal loss, the model finds some
# of the eights with an alpha of 0.75, but few with the much-copied 0.25.

# %% role="concept"
claim("recall with focal loss and an alpha of 0.25", recall["focal 0.25"],
      below=0.3)
claim("recall with focal loss and an alpha of 0.75", recall["focal 0.75"],
      above=0.4)

# %% [markdown] role="concept"
# If you keep the plain loss and move the threshold, the model also finds most of the
# eights:

# %% role="concept"
print(f"cut at the base rate: recall {moved[0]:.2f}, "
      f"precision {moved[1]:.2f}")
print("average precision", {k: f"{v:.2f}" for k, v in ranked.items()})

# %% role="concept"
claim("recall of the plain model with a threshold at the base rate",
      moved[0], above=0.8)
claim("precision of the plain model with a threshold at the base rate",
      moved[1], below=0.5)
claim("average precision with pos_weight minus average precision with the "
      "plain loss", ranked["pos_weight"] - ranked["plain"], above=0.03)

# %% role="concept"
back = (trained_logits["pos_weight"] - weight.log()).sigmoid()
fixed = back.mean().item() / base
print(f"mean probability / base rate: plain {said['plain']:.2f}, "
      f"weighted {said['pos_weight']:.1f}, ln w subtracted {fixed:.2f}")

# %% role="concept"
claim("mean probability divided by the base rate, with the plain loss",
      said["plain"], expected=1, within=0.25)
claim("mean probability divided by the base rate, with pos_weight",
      said["pos_weight"], above=3)
claim("mean probability divided by the base rate, after subtracting ln w "
      "from the logits", fixed, above=0.2, below=0.85)

# %% [markdown] role="concept"
# In this run, the weighted model also ranked the digits better than the plain model
# (*average precision* measures the ranking over all thresholds). The price is that the
# weighted model's probabilities are, on average, several times as large as the *base
# rate*, the fraction of positives in the data. On paper, you can undo the effect of the
# weight. With a weight of `w`, the loss asks for odds that are `w` times as large. So
# for a model that gives these odds, you subtract $\ln w$ from the logit. After these
# 400 steps, the correction overshoots, and the corrected probabilities are on average
# well below the base rate. Even at the minimum of its loss, a model that is too simple
# to give these odds remains wrong. So compare the mean of the corrected probabilities
# with the base rate before you trust them. If you need a decision, you can move the
# threshold of the plain model without retraining. If you need a probability, do not
# weight the loss (unless the weights correct for sampling that changed the base rate).

# %% [markdown] role="concept"
# ### Calibration: what probability does a loss ask for?
#
# A loss is *proper* if the true probability is the answer with the lowest expected loss.
# Suppose that 20 % of the rows are positive, and nothing tells the rows apart. Which
# constant probability has the lowest loss?

# %% role="concept"
share = 0.2
p = torch.linspace(0.001, 0.999, 999, dtype=torch.float64)
if_one, if_zero = -p.log(), -(1 - p).log()

def asks_for(one, zero):
    """The constant probability with the lowest expected loss."""
    return p[(share * one + (1 - share) * zero).argmin()].item()

asked = {"cross-entropy": asks_for(if_one, if_zero),
         "squared error": asks_for((1 - p) ** 2, p ** 2),
         "pos_weight 4": asks_for(4 * if_one, if_zero),
         "focal, gamma 2": asks_for((1 - p) ** 2 * if_one,
                                    p ** 2 * if_zero),
         "absolute error": asks_for(1 - p, p)}

# %% role="concept"
claim("probability that cross-entropy asks for if the true probability is "
      "0.2", asked["cross-entropy"], expected=share, within=1e-3)
claim("probability that squared error asks for if the true probability is "
      "0.2", asked["squared error"], expected=share, within=1e-3)

# %% [markdown] role="concept"
# The other three losses ask for something else. A weight of four makes odds of 1 to 4
# look even. Focal loss asks for almost twice the true probability, and absolute error
# asks for a probability of zero.

# %% role="concept"
claim("probability that a weight of 4 asks for if the true probability is "
      "0.2", asked["pos_weight 4"], expected=0.5, within=1e-3)
claim("probability that focal loss asks for if the true probability is 0.2",
      asked["focal, gamma 2"], above=0.35)
claim("probability that absolute error asks for if the true probability is "
      "0.2", asked["absolute error"], below=0.01)

# %% role="concept"
plot_bars(asked, xlabel="probability asked for where 0.2 is true",
          title="Two of five losses ask for the truth",
          alt="Five bars. Cross-entropy and squared error ask for 0.2, a "
              "pos_weight of four for 0.5, focal loss for 0.37, and "
              "absolute error for nearly zero.")

# %% [markdown] role="concept"
# A proper loss asks for the truth *on the training rows*. If you train on few rows for
# a long time, the model can become confident where it is wrong. The next cells train a
# model on 500 digits that are buried in so much noise that no model can be sure. The
# *calibration gap* is the difference between the model's confidence and its accuracy,
# averaged over ten equal groups of rows, sorted by confidence. (It is a form of
# expected calibration error, ECE.)

# %% role="concept"
def noisy(x):
    return x + 0.7 * torch.randn(x.shape)

x_few, y_few = noisy(x_train[:500]), y_train[:500]
x_held, y_held = noisy(x_train[800:]), y_train[800:]
x_new = noisy(x_test)

def groups(logits):
    """Mean confidence and accuracy of ten groups, (10,) each."""
    sure, guess = logits.softmax(1).max(1)
    order = sure.argsort()[:490]
    right = (guess == y_test).float()[order]
    return sure[order].view(10, 49).mean(1), right.view(10, 49).mean(1)

def calibration_gap(logits):
    sure, right = groups(logits)
    return (sure - right).abs().mean().item()

# %% role="concept"
logits, held = {}, {}
for steps in (60, 1000):
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    fit(model, x_few, y_few, steps=steps, lr=3e-3)
    with torch.no_grad():
        logits[steps], held[steps] = model(x_new), model(x_held)

# %% [markdown] role="concept"
# To repair the overconfidence, divide the logits by a single positive number, the
# *temperature*, and choose the temperature on rows that were not used in training. This
# method is called *temperature scaling*. The largest logit stays the largest, so no
# answer changes.

# %% role="concept"
temperatures = torch.logspace(-1, 1.3, 100)
costs = [F.cross_entropy(held[1000] / t, y_held) for t in temperatures]
best = temperatures[torch.stack(costs).argmin()].item()
logits["scaled"] = logits[1000] / best
gaps = {name: calibration_gap(z) for name, z in logits.items()}
costs = {name: F.cross_entropy(z, y_test) for name, z in logits.items()}
same = torch.equal(logits["scaled"].argmax(1), logits[1000].argmax(1))
print("gaps", {name: f"{gap:.2f}" for name, gap in gaps.items()})

# %% role="concept"
claim("calibration gap after 60 steps", gaps[60], below=0.15)
claim("calibration gap after 1000 steps", gaps[1000], above=0.25)
claim("test loss after 1000 steps divided by the test loss after 60 steps",
      costs[1000] / costs[60], above=1.5)

# %% [markdown] role="concept"
# After the long run, the model is confident and often wrong. A single temperature closes
# most of the gap:

# %% role="concept"
claim("calibration gap after 1000 steps, with a temperature chosen on "
      "held-out rows", gaps["scaled"], below=0.15)
claim("do all answers stay the same when the logits are divided by the "
      "temperature", same,
      expected=True)

# %% role="concept"
ax = new_axes("After 1000 steps: sure, but right half the time",
              "confidence of the group", "accuracy of the group")
ax.plot([0, 1], [0, 1], color="#7a8292", linewidth=1)
styles = ("o-", "s--", "^:")
for (name, z), style in zip(logits.items(), styles):
    label = f"{name} steps" if name != "scaled" else "1000, scaled"
    sure, right = groups(z)
    ax.plot(sure, right, style, label=label)
ax.legend(labelcolor="#7a8292")
show(ax.figure, alt="Three curves of accuracy against confidence. The "
     "curves for 60 steps and for the scaled logits are near the "
     "diagonal, and the curve for 1000 steps is far below it.")

# %% [markdown] role="concept"
# ### Distances as losses, measured
#
# InfoNCE is cross-entropy with the diagonal as the labels. Unlike the contrastive and
# triplet losses, InfoNCE never becomes exactly zero, except by rounding:

# %% role="concept"
a, b = (F.normalize(torch.randn(8, 16), dim=1) for _ in range(2))
similarity = a @ b.T / 0.1                     # (8, 8), temperature 0.1
odds = similarity.exp()
info_nce = -(odds.diag() / odds.sum(1)).log().mean()
perfect = F.cross_entropy(torch.eye(8) / 0.1, torch.arange(8))
print(f"InfoNCE {info_nce:.3f}, of perfect pairs {perfect:.5f}")

# %% role="concept"
claim("InfoNCE minus cross-entropy with the diagonal as the labels",
      info_nce - F.cross_entropy(similarity, torch.arange(8)), expected=0,
      within=1e-4)
claim("InfoNCE of 8 perfect pairs at a temperature of 0.1", perfect,
      expected=0.00032, within=1e-5)

# %% [markdown] role="concept"
# If the negative of a triplet is already far away, the triplet has a loss of zero and
# teaches nothing. A triplet with a loss above zero is called *busy*. Train an embedding
# of the digits twice, once with a random negative for each anchor, and once with the
# *hardest* negative in the batch, which is the closest row of another class.

# %% role="concept"
def triplets(net, hardest):
    """Near minus far distance plus margin, for each of 128 anchors."""
    rows = torch.randint(1300, (128,))
    e, y = F.normalize(net(x_train[rows]), dim=1), y_train[rows]
    d, same = torch.cdist(e, e), (y[:, None] == y).float()
    near = (same - torch.eye(128)).clamp(min=1e-9).multinomial(1)
    far = ((d + 9 * same).argmin(1, keepdim=True) if hardest
           else (1 - same).multinomial(1))
    return d.gather(1, near) - d.gather(1, far) + 0.2

# %% role="concept"
def train_embedding(hardest):
    """Train on triplets; return the net and the last fraction busy."""
    net = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 16))
    opt, busy = torch.optim.Adam(net.parameters(), lr=1e-3), []
    for _ in range(150):
        each = triplets(net, hardest)
        opt.zero_grad()
        each.clamp(min=0).mean().backward()
        opt.step()
        busy.append((each > 0).float().mean().item())
    return net, sum(busy[-30:]) / 30

# %% role="concept"
def nearest_right(net):
    """Fraction of test digits whose nearest training digit agrees."""
    with torch.no_grad():
        e_train, e_test = (F.normalize(net(x), dim=1)
                           for x in (x_train, x_test))
    guess = y_train[torch.cdist(e_test, e_train).argmin(1)]
    return (guess == y_test).float().mean().item()

random_net, random_busy = train_embedding(hardest=False)
mined_net, mined_busy = train_embedding(hardest=True)
print(f"busy triplets: random {random_busy:.2f}, hardest {mined_busy:.2f}")

# %% role="concept"
claim("fraction of triplets that are busy at the end, with random "
      "negatives", random_busy, below=0.12)
claim("number of busy triplets with the hardest negatives divided by the "
      "number with random ones", mined_busy / random_busy, above=2)

# %% [markdown] role="concept"
# In these 150 steps, the hardest negatives keep more triplets busy than random
# negatives do. (After a run ten times as long, hardly any triplet is busy with either
# choice.) On these digits, the hardest negatives hardly improve the accuracy, because
# both embeddings classify almost all of the digits correctly:

# %% role="concept"
by_random, by_mined = map(nearest_right, (random_net, mined_net))
print(f"nearest digit right: {by_random:.3f} and {by_mined:.3f}")

# %% role="concept"
claim("nearest-neighbour accuracy of the worse of the two embeddings",
      min(by_random, by_mined), above=0.94)

# %% [markdown] role="quiz"
# ## Check yourself
#
# Think first, then click one of the choices. Each one says why it is right or wrong.

# %% [markdown] role="quiz"
# **1. Your classifier has 1,000 classes, and its loss settles at 5.91. What do you check first?**
#
# - [x] Whether there is a softmax before the loss :: ln(e + 999) - 1 = 5.91 is the floor of a second softmax.
# - [ ] Whether the learning rate is too small :: Then the loss would stay near ln 1000 = 6.91, the loss of guessing, or keep falling slowly.
# - [ ] Whether labels are wrong :: Wrong labels also raise the loss, but not to exactly this number.

# %% [markdown] role="quiz"
# **2. You trained with `pos_weight=20`, long enough to reach the minimum, and need probabilities. What do you do?**
#
# - [ ] Take the sigmoid, as always :: The loss asked for odds 20 times too high, so the probabilities are too high.
# - [ ] Divide each probability by 20 :: The weight multiplied the odds, not the probabilities. For small probabilities, dividing is nearly right, but for large probabilities, it is badly wrong.
# - [x] Subtract ln 20 from each logit, then take the sigmoid :: The weight multiplies the odds by 20, so it adds ln 20 to the logit. Then compare the mean with the base rate, because a model that is too simple to fit the odds remains wrong even at the minimum.

# %% [markdown] role="quiz"
# **3. You use focal loss with alpha = 0.25 on a task with 1 % positives. How much does one positive count, compared with an equally hard negative?**
#
# - [ ] Four times as much :: The factor 0.25 multiplies the loss of the positives and does not divide it.
# - [ ] The same :: Only alpha = 0.5 gives both the same weight.
# - [x] A third as much :: Positives count 0.25 and negatives 0.75. The value was chosen together with gamma, which had already reduced the loss of the many easy negatives.

# %% [markdown] role="quiz"
# **4. You log the return value of `clip_grad_norm_`, and the log says 37 with `max_norm=1`. What does that mean?**
#
# - [x] The gradient had a norm of 37 and now has a norm of 1 :: Whether the step uses the clipped gradient depends on the order of the two calls.
# - [ ] Clipping does not work :: The function returns the norm before clipping, so 37 is not a sign of failure.
# - [ ] The weights will move by 37 times the learning rate :: Not if you clip before the step. Then plain SGD moves them by the learning rate times 1.

# %% [markdown] role="quiz"
# **5. In a 20-layer net, the gradients of the first and the last layer have the same norm. Is the initialization fine?**
#
# - [ ] Yes, because the ratio is the test for that :: With weights of 0.01 and biases of zero, the ratio is near one, and yet all gradients are near zero.
# - [x] You cannot tell before you know the gradients' absolute size :: A signal that dies on the way forward can make all gradients tiny.
# - [ ] No, because the first layer's gradient should be larger :: Equal norms are what you want, if their size is also healthy.

# %% [markdown] role="gpu"
# ## On a GPU: the logits are the memory
#
# A language model ends in a linear layer with one output per token of its vocabulary,
# followed by cross-entropy. With 10 classes, the logits take hardly any memory. With the
# 128,256 entries of Llama 3's vocabulary, the logits can be the step's largest
# tensor.
#
# **Before you run anything:** Take the hidden states of 8,192 tokens, 4,096 values each,
# in 16 bits. How large are the logits, as a multiple of the hidden states? And how many
# tensors of the logits' size does a hand-written cross-entropy create in its forward and
# backward passes?
#
# You need no GPU to count shapes and bytes. *Meta* tensors have a shape but no data. Run
# a function on meta tensors, and `cost` reports how many operations PyTorch carries out,
# how many bytes they write, and how many bytes exist at once at the peak.
#
# `by_hand` subtracts the maximum and computes one operation after another.
# `F.cross_entropy` consists of two operations: a fused log-softmax, and an indexing
# step that picks the right class. You do not need the logits of all rows at once,
# either. `chunked` cuts the tokens into chunks. With `checkpoint`, each chunk computes
# its logits a second time in the backward pass, so that only one chunk's logits exist
# at a time. Kernels that fuse the matrix product with the loss go further in the same
# direction.

# %% role="gpu"
from torch.utils.checkpoint import checkpoint

from dlsys_helpers.gpu import half_dtype, no_compiler

def by_hand(z, y):
    """Mean cross-entropy, one torch operation at a time."""
    odds = (z - z.amax(1, keepdim=True)).exp()
    p = odds / odds.sum(1, keepdim=True)
    return -p.gather(1, y[:, None]).log().mean()

def head_loss(h, weight, y):
    """Summed cross-entropy of h (N, F) through a head (C, F)."""
    return F.cross_entropy((h @ weight.T).float(), y, reduction="sum")

def chunked(h, weight, y, chunks):
    """Mean of head_loss, one chunk of rows at a time."""
    parts = [checkpoint(head_loss, a, weight, b, use_reentrant=False)
             for a, b in zip(h.chunk(chunks), y.chunk(chunks))]
    return sum(parts) / len(y)

# %% role="gpu"
def make_logits(where, classes):
    """A call for a loss: forward, then backward to 2,048 rows of logits."""
    z = torch.randn(2048, classes, device=where, requires_grad=True)
    y = torch.randint(classes, (2048,), device=where)
    return lambda loss: torch.autograd.grad(loss(z, y), z)

def make_head(where, tokens, width=4096, vocabulary=128_256):
    """A call for a number of chunks: loss and gradients, in 16 bits."""
    options = {"device": where, "dtype": half_dtype(where)}
    h = torch.randn(tokens, width, **options).requires_grad_()
    weight = 0.02 * torch.randn(vocabulary, width, **options)
    weight.requires_grad_()
    y = torch.randint(vocabulary, (tokens,), device=where)
    return lambda chunks: torch.autograd.grad(chunked(h, weight, y, chunks),
                                              (h, weight))

# %% role="gpu"
step, head = make_logits("meta", 128_256), make_head("meta", 8192)
loss = {f.__name__: cost(lambda: step(f))
        for f in (by_hand, F.cross_entropy)}
chunk = {n: cost(lambda: head(n)).peak / 1e9 for n in (1, 4, 16)}
for name, c in loss.items():
    print(f"{name:13} writes {c.written / 1e9:4.1f} GB, "
          f"holds up to {c.peak / 1e9:.1f} GB")
plot_bars({"hidden states": 8192 * 4096 * 2 / 1e9,
           "head": 128_256 * 4096 * 2 / 1e9,
           "logits, 16 bits": 8192 * 128_256 * 2 / 1e9,
           **{f"peak, chunks: {n}": gb for n, gb in chunk.items()}},
          xlabel="GB",
          title="In one chunk, the peak is six times the logits",
          alt="Six bars in GB. The hidden states take 0.067, the head 1.05 "
              "and the logits 2.1. The peak of loss and gradients is 12.6 "
              "in one chunk, 4.25 in four and 3.22 in sixteen.")

# %% role="gpu"
logits = 2048 * 128_256 * 4
claim("number of tensors of the logits' size that F.cross_entropy writes",
      loss["cross_entropy"].written / logits, expected=3, within=0.01)
claim("peak memory of the loss by hand divided by peak memory of "
      "F.cross_entropy", loss["by_hand"].peak / loss["cross_entropy"].peak,
      expected=2, within=0.01)
claim("peak memory with 1 chunk divided by peak memory with 16 chunks",
      chunk[1] / chunk[16], above=3)

# %% role="gpu"
h, weight = torch.randn(64, 32), torch.randn(1000, 32, requires_grad=True)
z, y = h @ weight.T, torch.randint(1000, (64,))
whole, parts = (torch.autograd.grad(chunked(h, weight, y, n), weight)[0]
                for n in (1, 8))
claim("loss by hand minus loss of F.cross_entropy",
      by_hand(z, y) - F.cross_entropy(z, y), expected=0, within=1e-4)
claim("largest gap between the gradients with 1 chunk and with 8 chunks",
      (parts - whole).abs().max(), expected=0, within=1e-5)

# %% role="gpu"
@gpu_result("03/cross_entropy", uses=[by_hand, make_logits],
            columns=["form", "classes", "us", "us_low", "us_high",
                     "peak_mb"])
def forms():
    """Forward and backward of 2,048 rows in 32 bits, each form."""
    losses = {"by hand": by_hand, "fused": F.cross_entropy}
    if no_compiler():
        print(f"compiled: left out, {no_compiler()}")
    else:
        losses["compiled"] = torch.compile(by_hand, dynamic=False)
    for classes in (1000, 32_000, 128_256):
        step = make_logits("cuda", classes)
        for form, loss in losses.items():
            t = seconds(lambda: step(loss), 10, "cuda", calls=5)
            yield {"form": form, "classes": classes, "us": t.median * 1e6,
                   "us_low": t.low * 1e6, "us_high": t.high * 1e6,
                   "peak_mb": peak_bytes(lambda: step(loss)) / 1e6}

# %% role="gpu"
@gpu_result("03/head_memory", uses=[make_head, chunked, head_loss],
            columns=["tokens", "chunks", "us", "us_low", "us_high",
                     "peak_mb"])
def chunks():
    """The head in 1, 4 and 16 chunks; fewer tokens on a small device."""
    free, tokens = torch.cuda.mem_get_info()[0], 8192
    while tokens > 512 and 0.9 * free < cost(
            lambda: make_head("meta", tokens)(1)).peak:
        tokens //= 2
    call = make_head("cuda", tokens)
    for n in (1, 4, 16):
        t = seconds(lambda: call(n), 5, "cuda", calls=2)
        yield {"tokens": tokens, "chunks": n, "us": t.median * 1e6,
               "us_low": t.low * 1e6, "us_high": t.high * 1e6,
               "peak_mb": peak_bytes(lambda: call(n)) / 1e6}

paper = "Gemma 2, fused kernel: 24 GB to 1 MB (Wijmans et al. 2025)"

# %% role="gpu"
def ratio(column, *pair):
    """Ratio between two forms or, given numbers, two chunk counts."""
    a, b = (forms.value(column, form=k, classes=128_256) if type(k) is str
            else chunks.value(column, chunks=k) for k in pair)
    return a / b

hand, whole = loss["by_hand"], loss["cross_entropy"]
answers = gpu_table(
    datasheet(forms.device_name),
    forms.asks("time of fused / time by hand", whole.written / hand.written,
               lambda: ratio("us", "fused", "by hand"), below=1),
    forms.asks("time of compiled / time by hand", "below 1: fewer bytes",
               lambda: ratio("us", "compiled", "by hand"), below=0.8),
    forms.asks("peak MB by hand / peak MB of fused", hand.peak / whole.peak,
               lambda: ratio("peak_mb", "by hand", "fused"), above=1.2),
    chunks.asks("peak MB in 1 chunk / peak MB in 16", chunk[1] / chunk[16],
                lambda: ratio("peak_mb", 1, 16), paper, above=3),
    chunks.asks("time in 16 chunks / time in 1 chunk", "1: the same FLOPs",
                lambda: ratio("us", 16, 1), below=2))
answers

# %% [markdown] role="gpu"
# **On the H100 used for the recorded run**, the number of bytes determines the time if
# there are many classes. With 128,256 classes, the fused loss takes a fifth of the
# hand-written loss's time, as the byte counts predict, and the memory for the logits
# shrinks as predicted. With 1,000 classes, the kernel launches determine the time. With
# so few classes, the compiled loss takes three times as long as the fused loss, and the
# hand-written loss takes between 0.5 and 2.3 ms (quartiles of its times).
#
# Chunks are not free. Sixteen chunks take more than a quarter longer than one chunk, for
# the same FLOPs (in this code, a single chunk also computes its logits twice). The bytes
# suggest a reason. Each chunk produces a gradient for the whole head, 1.05 GB, and adding
# 15 of these gradients to the first one moves 47 GB. These additions take at least 14 of
# the 20 ms by which sixteen chunks are slower than one. Compared with one chunk, four
# chunks need a third of the memory and 5 % more time.
#
# **Keep:** With a large vocabulary, count the copies of the logits before you count
# anything else. Use the fused loss instead of a logarithm of a softmax, and cut the
# tokens into chunks when memory runs out. **Source:** Hsu et al. 2024, ["Liger Kernel:
# Efficient Triton Kernels for LLM Training"](https://arxiv.org/abs/2410.10989); Wijmans
# et al. 2025, ["Cut Your Losses in Large-Vocabulary Language
# Models"](https://arxiv.org/abs/2411.09009), abstract; the vocabulary size comes from
# Llama 3's published configuration.

# %% [markdown] role="summary"
# ## What you take with you
#
# - Squared error, absolute error and cross-entropy are negative log-likelihoods. When you
#   choose a loss, you choose what to assume about the noise, and so what you ask the
#   model for: the mean, the median, or a probability.
# - The sigmoid and the softmax belong inside the loss, so pass logits to the loss. If a
#   loss with 10 classes stops at 1.46, look for a second softmax.
# - Class weights, focal loss and moved thresholds trade precision against recall. If you
#   need probabilities, use a proper loss without weights, and check the probabilities on
#   held-out rows.
# - Class numbers are names, so give each class its own output. Check shapes before you
#   subtract, because broadcasting raises no error.
# - A gradient is a product over the layers, so it can vanish or explode. Print the
#   gradient norms layer by layer, both as absolute values and as ratios.
# - Clip after `backward` and before `step`. `clip_grad_norm_` returns the norm before
#   clipping.
# - A ReLU layer without biases multiplies its input's mean square by fan_in x Var(w) / 2.
#   He's rule makes the factor per layer equal to one.
#
# **Next:** Stage 4 takes the gradient as given and shows what an optimizer does with it.
