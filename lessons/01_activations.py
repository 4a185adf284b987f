# %% [markdown] role="hook" traps=5
# # 1. Perceptron, MLP and activations
#
# You train a small network to recognize handwritten digits, and on your laptop, it gets
# 97 out of 100 right. You deploy the network, add an alarm for the digit 8, and try a
# deeper version. Each step looks like a formality, but each step fails without an error
# message.
#
# The mistakes in this stage come down to three things: what a layer computes, how its
# weights are initialized, and what its output means. This stage starts with a single
# neuron, builds a network from many of them, and then breaks the network with five
# mistakes that look like correct code. All you need to know is Python (functions and
# classes) and school mathematics, up to the derivative of a function.

# %% role="setup" tags=["parameters"]
SEED = 0
THREADS = 1
DEVICE = "auto"

# %% role="setup"
import torch
from torch import nn
from torch.nn import functional as F

from dlsys_helpers import (
    accuracy, begin, check, claim, datasheet, digits, draw_grids,
    draw_tree, fit, flops, gpu_result, gpu_table, guess, measured,
    new_axes, operations, plot_bars, plot_lines, seconds, show,
    xor_quadrants,
)

begin(SEED, THREADS, DEVICE)

# %% [markdown] role="concept"
# ## One neuron draws a line
#
# You have small images of handwritten zeros and ones, and you want a rule that tells them
# apart. You could write such a rule by hand: a one has ink in the middle, and a zero does
# not. But the next pair of digits needs a different rule, which you would have to invent
# as well. A *perceptron* finds such a rule from examples. The perceptron is a tiny
# model that learns, and this course's networks are built from such neurons.
#
# Describe each image by two numbers: the average brightness of the eight middle pixels,
# and the average brightness of all other pixels. Then each image is a point in the plane.
#
# PyTorch keeps numbers in a *tensor*, an array with a shape such as `(1300, 64)`: 1,300
# rows of 64 numbers. `digits()` returns images and their *labels*, the digits that the
# images show. There are 1,300 images to learn from and 497 to test on. A condition in
# brackets picks rows, so `x_train[y_train < 2]` holds the images labelled 0 or 1.
# `.view(-1, 8, 8)` turns each row of 64 numbers back into 8 rows of 8 pixels.
#
# `middle` is a *mask*, a grid of True and False. (A tensor's `dtype` is the type of its
# values, and `torch.bool` is the type of True and False.) The mask is True for the
# eight pixels in rows 2 to 5 and columns 3 and 4. (Python counts from 0, and `2:6`
# leaves out the 6.) So `images[:, middle]` takes these eight pixels from every image,
# and `~middle`, the opposite mask, takes the other 56. `.mean(1)` computes one mean for
# each image, and `torch.stack` puts the two means next to each other:

# %% role="concept"
x_train, y_train, x_test, y_test = digits()      # (1300, 64), (497, 64)
images = x_train[y_train < 2].view(-1, 8, 8)     # the zeros and the ones
is_one = y_train[y_train < 2].float()            # 1.0 for a one
middle = torch.zeros(8, 8, dtype=torch.bool)
middle[2:6, 3:5] = True
points = torch.stack([images[:, middle].mean(1),
                      images[:, ~middle].mean(1)], 1)
print(f"{len(points)} images, {points.shape[1]} numbers each")

# %% [markdown] role="concept"
# A neuron has one *weight* for each input, and a *bias*. The neuron multiplies each input
# by its weight, then adds up the products and the bias:
#
# $$z = w_1 x_1 + w_2 x_2 + b$$
#
# A perceptron says "one" if $z$ is positive. Its answer changes where $z$ is exactly
# zero, and the points with $z = 0$ form a line. So choosing the weights and the bias
# means choosing a line. Changing one weight turns the line, and changing the bias shifts
# it.
#
# The code below writes the sum as `x @ w + b`. If an image has the values 2 and 3, and
# the weights are 5 and $-1$, then `x @ w` is $2 \cdot 5 + 3 \cdot (-1) = 7$. If `x` holds
# one image per row, `x @ w + b` computes one $z$ per image. To find the fraction of right
# answers, the code compares each answer with the label, turns True into 1 and False into
# 0, and takes the mean:

# %% role="concept"
def says_one(x, w, b):
    return x @ w + b > 0          # @ multiplies and adds up

w, b = torch.zeros(2), torch.tensor(0.0)
blank = (says_one(points, w, b) == (is_one > 0)).float().mean()
print(f"fraction right, with nothing learned yet: {blank:.2f}")

# %% [markdown] role="concept"
# The learning rule looks at one image at a time. If the perceptron is right, the rule
# changes nothing. If the perceptron missed a one, the rule adds the image's two numbers
# to the weights and 1 to the bias, so that $z$ increases for this image. If the
# perceptron mistook a zero for a one, the rule subtracts the same amounts.

# %% role="concept"
i = int(is_one.argmax())                         # the first one
error = is_one[i] - says_one(points[i], w, b).float()   # -1, 0 or 1
z_before = points[i] @ w + b
w += error * points[i]
b += error
z_after = points[i] @ w + b
print(f"error {error:.0f}: z goes from {z_before.item():.1f} "
      f"to {z_after.item():.1f}")

# %% [markdown] role="concept"
# That is the whole rule ([Rosenblatt 1958](https://doi.org/10.1037/h0042519)). Now go
# through all the images thirty times, each time in a new random order:

# %% role="concept"
mistakes, lines = [], []
for _ in range(30):                              # thirty passes
    wrong = 0
    for i in torch.randperm(len(points)):
        error = is_one[i] - says_one(points[i], w, b).float()
        w += error * points[i]
        b += error
        wrong += int(error != 0)
    mistakes.append(wrong)
    lines.append((w.clone(), b.clone()))
print("mistakes in each pass:", *mistakes)

# %% role="concept"
ax = new_axes("The line turns until most points are on the correct side",
              "brightness of the middle", "brightness of the rest")
for name, side, mark in (("zeros", is_one == 0, "o"),
                         ("ones", is_one == 1, "^")):
    ax.plot(*points[side].T, mark, markersize=4, mfc="none", label=name)
reach = torch.tensor([0.0, 1.0])
for number, style in ((1, ":"), (30, "-")):
    (w1, w2), b0 = lines[number - 1]
    ax.plot(reach, -(b0 + w1 * reach) / w2, style, color="#7a8292",
            label=f"the line after pass {number}")
ax.set(xlim=(-0.02, 1.02), ylim=(0.15, 0.5))
ax.legend(loc="center left", bbox_to_anchor=(1, 0.5))
show(ax.figure, alt="Two clouds of points, zeros on the left and ones on "
     "the right, with a few points of each in the other cloud. After the "
     "last pass, the line runs between the clouds.")

# %% [markdown] role="concept"
# The perceptron learns quickly:

# %% role="concept"
final = (says_one(points, w, b) == (is_one > 0)).float().mean()
claim("fraction of the images that the final line gets right", final,
      above=0.85)

# %% [markdown] role="concept"
# But even in the last of the thirty passes, the perceptron makes mistakes. Is the rule
# too slow, is the random order to blame, or is there no line to find? Try the learning
# rule in the explorer below. Move the first slider, and watch each correction turn the
# line, until every point is on the correct side. The second plot shows the number of
# mistakes in each pass. Then drag the large point, which should be a "yes", into the
# other cloud. Is there still a pass without a mistake?

# %% role="explore" explorer="perceptron"
from dlsys_helpers.explorers.perceptron import perceptron

perceptron

# %% [markdown] role="concept"
# The rule stops changing the line only after a whole pass without a mistake, and such a
# pass is possible only if some line separates the points. If a separating line exists,
# the perceptron's rule finds one, as Novikoff proved in 1962. No line separates these
# images, because a few zeros and ones are too similar in both brightness values. The
# folded code asks a solver for a separating line. (`F.pad` appends a 1 to each point, so
# that the bias is one more weight.)

# %% role="concept" tags=["plumbing"]
from scipy.optimize import linprog               # looks for such a line
sides = (2 * is_one - 1)[:, None] * F.pad(points, (0, 1), value=1.0)
found = linprog([0] * 3, -sides, [-1] * len(sides), bounds=(None, None))
claim("is there a line that has every image on the correct side",
      found.success, expected=False)

# %% [markdown] role="concept"
# ## What one line cannot do
#
# Four points are enough to defeat the perceptron. Ask a perceptron to say "yes" if
# exactly one of two inputs is 1. This function is called the *exclusive or*, XOR. Run the
# learning rule for a hundred passes:

# %% role="concept"
corners = torch.tensor([[0., 0.], [0., 1.], [1., 0.], [1., 1.]])
xor = torch.tensor([0., 1., 1., 0.])
w, b = torch.zeros(2), torch.tensor(0.0)
for _ in range(100):
    wrong = 0
    for i in torch.randperm(4):
        error = xor[i] - says_one(corners[i], w, b).float()
        w += error * corners[i]
        b += error
        wrong += int(error != 0)
print(f"mistakes in pass 100, with four points: {wrong}")

# %% role="concept"
claim("number of mistakes on XOR in the last of 100 passes", wrong, above=0)

# %% [markdown] role="concept"
# No single line can solve XOR. Halfway between two points, $z$ is the mean of the
# values that it has at the two points. The centre of the square is halfway between the
# two corners that should be "yes", so a neuron that says "yes" to both has a positive
# $z$ at the centre. But the centre is also halfway between the two corners that should
# be "no", so $z$ must not be positive there.
#
# Two lines together can solve XOR. One neuron asks whether at least one input is 1, a
# second neuron asks whether both inputs are 1, and a third neuron says "yes" if the first
# neuron says "yes" and the second neuron does not.
#
# Two neurons have two rows of weights, which form a matrix `W`. To compute all sums at
# once, multiply the inputs by `W.T`, the *transpose* of `W`, in which the rows of `W` are
# columns. To get the entry in row $i$ and column $j$ of the product, multiply row $i$ of
# the inputs by the weights of neuron $j$, value by value, and add up the results. Here is
# an example with two images of three values each, and two neurons:
#
# ```
# x             W.T           x @ W.T
# 1  2  3       1  0          4  7
# 0  1  0       0  2          0  2
#               1  1
# ```
#
# The 7 is the second neuron's sum for the first image: $1 \cdot 0 + 2 \cdot 2 + 3 \cdot
# 1$. In the code below, `W1` is `W`, and the four corners are the inputs:

# %% role="concept"
W1 = torch.tensor([[1., 1.], [1., 1.]])     # two neurons, two weights each
b1 = torch.tensor([-0.5, -1.5])             # at least one? both?
hidden = (corners @ W1.T + b1 > 0).float()  # (4, 2)
out = hidden @ torch.tensor([1., -2.]) - 0.5 > 0
print(hidden.int().tolist(), "->", out.int().tolist())

# %% role="concept"
claim("number of corners that the three neurons get right",
      (out == (xor > 0)).sum(), expected=4)

# %% role="concept"
(least, both), answer = hidden[2].int().tolist(), int(out[2])
draw_tree({"x1": "1", "x2": "0", "at least one": f"{least}",
           "both": f"{both}", "exactly one": f"{answer}"},
          [("x1", "at least one"), ("x2", "at least one"), ("x1", "both"),
           ("x2", "both"), ("at least one", "exactly one"),
           ("both", "exactly one")],
          title="Two neurons look at the inputs, a third at the first two",
          alt="A network drawn from top to bottom. The inputs x1 = 1 and "
              "x2 = 0 each have an arrow to both hidden neurons, which are "
              "at least one = 1 and both = 0. Each hidden neuron has an "
              "arrow to the output, exactly one = 1.")

# %% [markdown] role="concept"
# ## From one neuron to a network
#
# Neurons that look at the same inputs form a *layer*. A layer's weights, one row per
# neuron, form a matrix, so one matrix product, `x @ W.T`, computes the whole layer. The
# first layer's output is the second layer's input. A layer between the input and the
# output is called *hidden*, and several layers in a row form a *multilayer perceptron*
# (MLP). After each hidden layer comes a function $\sigma$, the *activation*. In the XOR
# network above, the activation was the comparison with zero. This is what three layers
# compute, from the input $x$ to the output:
#
# $$h_1 = \sigma(W_1 x + b_1) \qquad h_2 = \sigma(W_2 h_1 + b_2) \qquad
# \text{out} = W_3 h_2 + b_3$$
#
# Computing this from left to right is the *forward pass*. Here is the forward pass for
# the 64 pixels of a digit and ten outputs, one per digit, with the activation *ReLU*,
# $\max(0, z)$. `nn` is PyTorch's collection of layers, and `F` is PyTorch's collection of
# functions:

# %% role="concept"
one, two, three = nn.Linear(64, 32), nn.Linear(32, 16), nn.Linear(16, 10)
x = x_test[:5]                                    # five images, (5, 64)
h1 = (x @ one.weight.T + one.bias).clamp(min=0)   # (5, 32)
h2 = (h1 @ two.weight.T + two.bias).clamp(min=0)  # (5, 16)
by_hand = h2 @ three.weight.T + three.bias        # (5, 10)
print(*(tuple(a.shape) for a in (x, h1, h2, by_hand)), sep=" -> ")

# %% [markdown] role="concept"
# `nn.Linear(64, 32)` holds weights of shape `(32, 64)` and biases of shape `(32,)`. The
# weights and biases start as small random values, so that no two neurons start out the
# same. `nn.Sequential` calls its layers one after the other, so it does the same forward
# pass in one line. In a class of your own, `__init__` creates the layers, and `forward`
# says in which order they run. PyTorch finds every layer that you assign to `self`, and
# also the layer's *parameters*, the weights and biases that training changes:

# %% role="concept"
class MLP(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.two, self.three = one, two, three

    def forward(self, x):
        h = self.one(x).relu()
        h = self.two(h).relu()
        return self.three(h)

chain = nn.Sequential(one, nn.ReLU(), two, nn.ReLU(), three)
count = sum(p.numel() for p in MLP().parameters())
print(f"{count:,} parameters: weights and biases")

# %% role="concept"
gap = max((net(x) - by_hand).abs().max() for net in (chain, MLP()))
claim("largest gap between the three forward passes", gap, below=1e-5)
claim("number of weights and biases in the network", count,
      expected=(64 * 32 + 32) + (32 * 16 + 16) + (16 * 10 + 10))

# %% [markdown] role="concept"
# To look inside a network, call its layers one by one and print each layer's output:
#
# ```python
# for layer in chain:
#     x = layer(x)
#     print(layer, tuple(x.shape), f"{x.mean():.2f} {x.std():.2f}")
# ```
#
# A wrong shape, a mean far from the neighbouring layers' means, or a standard deviation
# near zero tells you which layer to look at. (For a network that is more than a list of
# layers, use *hooks*, as trap 12.1 does.)
#
# Why do we need activations at all? Without an activation between them, two linear layers
# collapse into a single layer: $W_2(W_1x + b_1) + b_2 = (W_2W_1)x + (W_2b_1 + b_2)$. The
# merged layer has one matrix and one bias, so it draws only straight lines.

# %% role="concept"
A, B = nn.Linear(2, 32), nn.Linear(32, 1)
merged = corners @ (B.weight @ A.weight).T + (B.weight @ A.bias + B.bias)
claim("largest gap between the outputs of the two layers and of the "
      "merged layer", (B(A(corners)) - merged).abs().max(), below=1e-5)

# %% [markdown] role="concept"
# ## Training in three steps
#
# We chose the weights for XOR by hand. Nobody can choose thousands of weights by hand,
# and the perceptron's rule needs the right answer for each neuron, which nobody knows
# for a hidden neuron. So for every weight in every layer, we need to know whether making
# it a little larger would help.
#
# **Step 1: how wrong are we?** A *loss* is one number that falls as the outputs get
# better. For a choice among ten digits, we use the cross-entropy loss. `F.cross_entropy`
# turns the ten outputs into probabilities with a *softmax*, which raises $e$ to the power
# of each output and divides each result by the sum of all ten. The function then takes
# the negative logarithm of the right digit's probability and returns the mean over the
# images. A *uniform guess* gives each of the ten digits the same probability, 1/10. Its
# loss is $-\ln(1/10) = \ln 10$, or about 2.3, and the unit of this loss is called the
# *nat*. Stage 3 explains where this loss comes from and checks its formulas numerically.

# %% role="concept"
net = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
x, y = x_train[:64], y_train[:64]                # a batch of 64 images
loss = F.cross_entropy(net(x), y)
print(f"loss of the untrained network: {loss.item():.2f}")

# %% role="concept"
claim("gap between the untrained network's loss and ln 10, the loss of "
      "guessing", (loss - torch.tensor(10.0).log()).abs(), below=0.3)

# %% [markdown] role="concept"
# **Step 2: which way is less wrong?** Nudge one weight up a little, and see how much the
# loss changes. The change in the loss divided by the nudge is the *slope*. The slopes for
# all weights together are the *gradient*. `loss.backward()` computes all slopes in one
# pass and stores each slope in its weight's `.grad`. (Training needs these slopes, so an
# activation should bend rather than jump. A comparison with zero makes the output jump,
# and has a slope of zero nearly everywhere.)
#
# To find the slopes, PyTorch records the operations on a weight, and `backward` goes
# back through this record. The cell below checks one slope from `backward` by nudging the
# bias of one output, `net[2].bias[3]`, where `net[2]` is the third layer in the list. The
# nudge is not part of the model and must not be recorded, so it happens inside
# `torch.no_grad()`, which switches the recording off:

# %% role="concept"
loss.backward()
bias, nudge = net[2].bias, 0.01
with torch.no_grad():                            # do not record this
    bias[3] += nudge
    slope = (F.cross_entropy(net(x), y) - loss) / nudge
    bias[3] -= nudge
print(f"slope from a nudge {slope:.4f}, from backward {bias.grad[3]:.4f}")

# %% role="concept"
claim("gap between the slope from a nudge and the slope from backward",
      (slope - bias.grad[3]).abs(), below=0.01)

# %% [markdown] role="concept"
# **Step 3: take a small step that way.** From each weight, subtract its slope times a
# small *learning rate*. Training a network means repeating these three steps over and
# over, each time with a *batch*, a few images drawn at random. The object that changes
# the weights is called an *optimizer*, and the plainest optimizer is `torch.optim.SGD`.
# Its `step()` does the subtraction, and its `zero_grad()` clears the old slopes, because
# `backward` adds the new slopes to whatever `.grad` already holds:

# %% role="concept"
def train(model, x, y, steps, lr):
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    losses = []
    for _ in range(steps):
        rows = torch.randint(len(x), (64,))          # a random batch
        loss = F.cross_entropy(model(x[rows]), y[rows])   # 1. how wrong?
        optimizer.zero_grad()
        loss.backward()                              # 2. which way?
        optimizer.step()                             # 3. a small step
        losses.append(loss.item())
    return losses

losses = train(net, x_train, y_train, steps=500, lr=0.3)
right = accuracy(net, x_test, y_test)
print(f"loss {losses[0]:.2f} -> {losses[-1]:.2f}, "
      f"{right:.2f} of the test digits right")

# %% role="concept"
smooth = torch.tensor(losses).view(-1, 10).mean(1).tolist()
plot_lines(range(10, 501, 10), {"loss": smooth}, xlabel="step",
           ylabel="cross-entropy, nats",
           title="Five hundred small steps bring the loss down",
           alt="The mean loss of every ten steps. It falls steeply from "
               "over 2 within the first hundred steps, and then slowly "
               "towards zero.")

# %% [markdown] role="concept"
# From here on, `fit` runs this loop, so that the lessons need not repeat it. You pass it
# the number of `steps`, the learning rate `lr` and, if you need a loss other than the
# cross-entropy, the `loss`. By default, `fit` uses the optimizer *Adam*, which gives each
# weight its own step size (stage 4). With SGD and the same random numbers, `fit` and the
# loop above agree to the last digit:

# %% role="concept"
def fresh():
    torch.manual_seed(SEED)
    return nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))

ours = train(fresh(), x_train, y_train, steps=20, lr=0.3)
theirs = fit(fresh(), x_train, y_train, steps=20, lr=0.3,
             optimizer=torch.optim.SGD)

# %% role="concept"
claim("accuracy on the test digits", right, above=0.85)
claim("largest gap between the losses from our loop and the losses from "
      "fit",
      max(abs(p - q) for p, q in zip(ours, theirs)), expected=0)

# %% [markdown] role="concept"
# For a yes-or-no question, one output is enough. The *sigmoid*, $1 / (1 + e^{-z})$, turns
# any number $z$ into a probability between 0 and 1, and the matching loss is
# `F.binary_cross_entropy_with_logits`.
#
# Classification questions come in three kinds. A *binary* question is a single yes or no:
# is this an 8? A *multiclass* question asks for one choice out of several: which of the
# ten digits is this? A *multilabel* question asks for several yes-or-no answers at once,
# and any number of them can be yes: which of these ten objects are in the photo?
#
# Two details of the code come up again and again. A network with one output returns a
# column of shape `(N, 1)`, so the targets must also form a column: `[:, None]` turns
# `(N,)` into `(N, 1)`, and `[:, 0]` turns it back. When you only want a network's
# outputs, you need no slopes, so you put the call inside `torch.no_grad()`. The first
# trap is about the output of a model that answers a binary question. (A trap's number is
# only its name. The lesson presents each trap as soon as you know what the trap needs, so
# 01.2 comes first and 01.1 fourth.)

# %% [markdown] trap="01.2" role="situation" core=true fault="a logit is cut at 0.5 as if it were a probability" symptom="classifier misses most positives although accuracy is high"
# ## An alarm at one half
#
# You train a single neuron to recognize the digit 8, and raise an alarm when its output
# exceeds one half. On the test set, the neuron is right for more than 90 % of the images,
# so you ship it.

# %% trap="01.2" role="break"
is_eight, truth = (y_train == 8).float(), y_test == 8
detector = nn.Linear(64, 1)
fit(detector, x_train, is_eight[:, None], steps=400, lr=1e-2,  # (N, 1)
    loss=F.binary_cross_entropy_with_logits)
with torch.no_grad():
    score = detector(x_test)[:, 0]       # (497,)
alarm = score > 0.5                      # one half

# %% trap="01.2" role="guess"
guess("01.2",
      "What percentage of the eights in the test set raise the alarm?",
      choices=["more than 90 %",
               "between 60 % and 90 %",
               "less than 60 %"])

# %% trap="01.2" role="look"
def recall(alarm):
    """Fraction of the true eights that raise the alarm, 0 to 1."""
    return alarm[truth].float().mean().item()

right = (alarm == truth).float().mean()
print(f"scores run from {score.min():.1f} to {score.max():.1f}")
print(f"accuracy {right:.2f}   eights found {recall(alarm):.2f}")

# %% trap="01.2" role="look"
measured("01.2", 2)

# %% trap="01.2" role="look"
claim("fraction of the eights that the alarm finds", recall(alarm),
      below=0.6)

# %% [markdown] trap="01.2" role="look"
# Nine out of ten images are not eights. For most of these images, the alarm is rightly
# silent, and every such image counts towards the accuracy:

# %% trap="01.2" role="look"
claim("accuracy of the alarm", right, above=0.9)

# %% [markdown] trap="01.2" role="why"
# The output is a *logit*, the logarithm of the odds, which can be any real number. A
# probability of one half corresponds to a logit of 0. With your threshold of 0.5, an
# image needs a probability of 0.622 to raise the alarm, and many eights get a lower
# probability.

# %% trap="01.2" role="why"
ax = new_axes("Many eights score between 0 and your threshold",
              "score, a logit", "images")
edges = torch.arange(-10, 5, 0.5).tolist()
for name, rows, style in (("other digits", score[~truth], "-"),
                          ("eights", score[truth], "--")):
    ax.hist(rows.tolist(), edges, histtype="step", linestyle=style,
            linewidth=2, label=name)
for cut, name in ((0.0, "one half"), (0.5, "yours")):
    ax.axvline(cut, linestyle=":", color="#7a8292")
    ax.annotate(name, (cut, 0.95), ha="right" if cut == 0 else "left",
                xytext=(-4 if cut == 0 else 4, 0),
                xycoords=("data", "axes fraction"),
                textcoords="offset points")
ax.legend(loc="upper left")
show(ax.figure, alt="Histograms of the scores. Most other digits are far "
     "below zero. The eights spread around zero, and many of them are "
     "between the two thresholds.")

# %% trap="01.2" role="repair"
needed = torch.tensor(0.5).sigmoid().item()
repaired = score.sigmoid() > 0.5
print(f"a logit of 0.5 is a probability of {needed:.3f}")
print(f"eights found: {recall(alarm):.2f} -> {recall(repaired):.2f}")

# %% trap="01.2" role="repair"
claim("additional eights that the repaired alarm finds, as a fraction of "
      "all eights", recall(repaired) - recall(alarm), above=0.08)

# %% [markdown] trap="01.2" role="more" topics="a threshold at logit 0 · the eights that are still missed · a sigmoid inside the model"
# You can pass the score through a sigmoid and compare the probability with 0.5, or
# compare the score itself with 0. Here, both comparisons raise the alarm for the same
# images. (In `float16`, the sigmoid of a small positive score can round to exactly 0.5.
# Only the second comparison then raises the alarm.)

# %% trap="01.2" role="more"
claim("lowest score of the detector (a probability is never negative)",
      score.min(), below=0)
claim("probability that corresponds to a logit of 0.5", needed,
      expected=0.622, within=0.001)
claim("number of images for which only one of the two comparisons raises "
      "the alarm", (repaired != (score > 0)).sum(), expected=0)

# %% [markdown] trap="01.2" role="more"
# What about the eights that are still missed? A single neuron draws only one line, which
# does not separate the eights well from the other digits. A network with a hidden layer
# finds more of the eights. Do not trust the accuracy here, because an alarm that never
# rings is right nearly nine times out of ten.

# %% trap="01.2" role="more"
better = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 1))
fit(better, x_train, is_eight[:, None], steps=400, lr=1e-2,
    loss=F.binary_cross_entropy_with_logits)
with torch.no_grad():
    more = recall(better(x_test)[:, 0] > 0)
print(f"eights found with a hidden layer: {more:.2f}")

# %% trap="01.2" role="more"
claim("fraction of the eights that a network with a hidden layer finds",
      more, above=0.6)
claim("accuracy of an alarm that never rings", (~truth).float().mean(),
      above=0.88)

# %% [markdown] trap="01.2" role="more"
# A model that itself ends in a sigmoid needs a loss that expects probabilities:

# %% trap="01.2" role="more"
def recall_of(loss):
    """Fraction of the eights that a detector ending in a sigmoid finds."""
    model = nn.Sequential(nn.Linear(64, 1), nn.Sigmoid())
    fit(model, x_train, is_eight[:, None], steps=400, lr=1e-2, loss=loss)
    with torch.no_grad():
        return recall(model(x_test)[:, 0] > 0.5)

probabilities = recall_of(F.binary_cross_entropy)
logits = recall_of(F.binary_cross_entropy_with_logits)
print(f"a sigmoid in the model: eights found {probabilities:.2f} with the "
      f"loss for probabilities, {logits:.2f} with the loss for logits")

# %% trap="01.2" role="more"
claim("with a final sigmoid and the loss for probabilities: fraction of "
      "the eights found", probabilities, above=0.3)
claim("with a final sigmoid and the loss for logits: fraction of the "
      "eights found", logits, below=0.1)

# %% [markdown] trap="01.2" role="folklore"
# **Told:** Put a sigmoid at the end of the model, so that it outputs probabilities.
# **Measured:** A final sigmoid is right for `binary_cross_entropy`, which expects
# probabilities. Trained with `binary_cross_entropy_with_logits`, a model that ends in a
# sigmoid finds almost no eights. With a loss that expects logits, leave the sigmoid out
# of the model, and apply it only where you need a probability.

# %% trap="01.2" role="exercise" points=3 difficulty=2 minutes=10
def to_probs(logits: torch.Tensor, kind: str) -> torch.Tensor:
    """Turn logits into probabilities.

    Args:
        logits: (N, C) float32, with values from -200 to 200.
        kind: with "binary", C is 1, and each row is a single yes or no.
            With "multiclass", each row is one choice among C classes.
            With "multilabel", each entry is a separate yes or no.

    Returns:
        A tensor with the shape and dtype of the logits.

    Example: to_probs(torch.zeros(1, 4), "multiclass") is
    [[0.25, 0.25, 0.25, 0.25]].
    """
    # BEGIN SOLUTION
    if kind == "multiclass":
        return logits.softmax(dim=1)
    return logits.sigmoid()
    # END SOLUTION

# %% [markdown] trap="01.2" role="hint"
# 1. For each kind, ask which probabilities have to add up to one: the probabilities in a row, the probabilities in a column, or none.
# 2. The softmax of a single value is always 1, so it cannot answer a yes-or-no question. Two of the three kinds need the same function.
# 3. PyTorch's own `softmax` and `sigmoid` are stable for large logits. For `softmax`, set `dim` to the axis along which the probabilities add up to one.

# %% [markdown] trap="01.2" role="keep"
# **Keep:** A classifier that ends in a linear layer returns logits, and a probability of
# one half corresponds to a logit of 0. When one class is rare, accuracy can hide a wrong
# threshold, so look at recall, the fraction of the rare class that you find. **In
# your own code:** Print the minimum and the maximum of the values that you compare with a
# threshold. **Source:** Bishop 2006, *Pattern Recognition and Machine Learning*, section
# 4.2.

# %% [markdown] role="concept"
# ## What the activation buys
#
# Take points in a square, and label each point by whether its two coordinates have
# different signs. This task is XOR with many points, so no line separates the two labels.
# Train a three-layer network on these points: once without an activation, once with tanh,
# and once with ReLU.

# %% role="concept"
x_xor, y_xor = xor_quadrants(1000, seed=SEED)
x_new, y_new = xor_quadrants(1000, seed=SEED + 100)

def three_layers(activation):
    return nn.Sequential(nn.Linear(2, 32), activation(),
                         nn.Linear(32, 32), activation(),
                         nn.Linear(32, 2))

scores = {}
for activation in (nn.Identity, nn.Tanh, nn.ReLU):
    model = three_layers(activation)
    fit(model, x_xor, y_xor, steps=300, lr=1e-2)
    scores[activation.__name__] = accuracy(model, x_new, y_new)
print({name: f"{score:.2f}" for name, score in scores.items()})

# %% role="concept"
claim("without an activation: accuracy on new points", scores["Identity"],
      below=0.75)
claim("with tanh: accuracy on new points", scores["Tanh"], above=0.9)
claim("with ReLU: accuracy on new points", scores["ReLU"], above=0.9)

# %% role="concept"
plot_bars(scores, xlabel="fraction of new points right",
          title="Without an activation, three layers hardly beat guessing",
          alt="Three bars of accuracy: below three quarters without an "
              "activation, above nine tenths with tanh and with ReLU.")

# %% [markdown] role="concept"
# The explorer below shows the boundary that a network draws after some training steps.
# Switch the activation off, then on, and watch the boundary bend.

# %% role="explore" explorer="decision_surface"
from dlsys_helpers.explorers.decision_surface import decision_surface

decision_surface

# %% [markdown] role="concept"
# ## Choosing an activation
#
# In principle, nearly any function that bends will do (a polynomial may not). In
# practice, two things matter: the function's values, and its slope, which multiplies the
# gradient of every earlier layer. `requires_grad=True` asks PyTorch to record the
# operations on a tensor, as it does for weights, and `torch.autograd.grad` returns the
# slopes instead of storing them in `.grad`. By default, this function starts from a
# single number, so the cell sums the values. Each
# value depends only on its own $z$, so the slope
# of the sum with respect to one $z$ is the slope of that value alone:

# %% role="concept"
z = torch.linspace(-4, 4, 81, requires_grad=True)
curves, slopes = {}, {}
for f in (F.relu, F.gelu, torch.tanh, torch.sigmoid):
    value = f(z)
    slopes[f.__name__] = torch.autograd.grad(value.sum(), z)[0].tolist()
    curves[f.__name__] = value.tolist()
print({name: f"steepest {max(s):.2f}" for name, s in slopes.items()})

# %% role="concept"
plot_lines(z.tolist(), slopes, xlabel="input z", ylabel="slope",
           title="Sigmoid and tanh are flat on both sides, ReLU on one",
           alt="Four slopes over inputs from -4 to 4. ReLU's slope jumps "
               "from 0 to 1 at zero, and GELU's changes smoothly. Tanh's "
               "slope is a hump of height 1 at zero, and the sigmoid's is "
               "a low hump of height 0.25.")

# %% [markdown] role="concept"
# This table lists the usual activations. You may skip the last column for now, because
# it names networks that later stages explain. CNNs, such as EfficientNet, process
# images (stage 7). The language models BERT, GPT-2 and LLaMA, and also vision
# transformers, are built from *transformer* blocks (stage 8). A *recurrent* network
# reads a sequence step by step, and its *state* is what it remembers. A *gate* is a
# number, often between 0 and 1, that decides how much of another number gets through.
#
# | function | formula | slope | where you meet it |
# |---|---|---|---|
# | ReLU | $\max(0, z)$ | 0 or 1 | MLPs, CNNs |
# | leaky ReLU | $z$ if $z > 0$, else $0.01 z$ | 0.01 or 1 | where ReLU units die |
# | ELU | $z$ if $z > 0$, else $e^z - 1$ | 1 or $e^z$ | smooth, negative down to $-1$ |
# | GELU | $z\,\Phi(z)$ | smooth | BERT, GPT-2, vision transformers |
# | SiLU | $z\,s(z)$ | smooth | EfficientNet, LLaMA's gated layers |
# | sigmoid $s$ | $1 / (1 + e^{-z})$ | $s (1 - s)$, at most 1/4 | gates, yes-or-no outputs |
# | tanh | $(e^z - e^{-z}) / (e^z + e^{-z})$ | $1 - \tanh^2$, at most 1 | recurrent states |
#
# *In hidden layers*, begin with ReLU. ReLU needs only a comparison, many of its
# outputs are exactly zero, and where a unit is on, the slope of 1 does not shrink the
# gradient. In a transformer, use GELU or SiLU, as most published models do. ReLU
# multiplies $z$ by either 0 or 1. GELU multiplies $z$ by a factor that rises smoothly
# from 0 to 1: $\Phi(z)$, the probability that a standard normal variable is below $z$. So
# GELU's slope is not zero for slightly negative inputs, and a gradient still gets
# through. If you need a value between two limits, prefer tanh to the sigmoid. A sigmoid's
# outputs are all positive, so they shift the mean of each next-layer sum.
#
# *At the output* of a classifier, use no activation. Return the weighted sums, and choose
# a loss that expects them, such as `cross_entropy`.
#
# ReLU's slope is undefined exactly at 0, where the function bends. `F.relu` uses a slope
# of 0 there. The choice rarely matters, because a weighted sum is hardly ever exactly 0.

# %% role="concept"
at = torch.tensor([0.0, -0.5], requires_grad=True)
slope_relu, = torch.autograd.grad(F.relu(at).sum(), at)
slope_gelu, = torch.autograd.grad(F.gelu(at).sum(), at)
print(f"slope at 0 and -0.5: ReLU {slope_relu.tolist()}, "
      f"GELU {[round(s, 2) for s in slope_gelu.tolist()]}")

# %% role="concept"
claim("ReLU's slope at 0", slope_relu[0], expected=0)
claim("GELU's slope at -0.5", slope_gelu[1], above=0.1)
claim("the sigmoid's steepest slope", max(slopes["sigmoid"]),
      expected=0.25, within=1e-6)
claim("tanh's steepest slope", max(slopes["tanh"]), expected=1,
      within=1e-6)
claim("fraction of zeros among ReLU's outputs for centred inputs",
      (torch.randn(10_000).relu() == 0).float().mean(), expected=0.5,
      within=0.05)

# %% [markdown] role="concept"
# Where the slope is zero, no gradient passes. So which units of a layer can still learn?
# The next trap answers this question by counting values. One special value spoils any
# count: NaN, "not a number", which is the result of 0 / 0 in PyTorch. NaN is not equal to
# any value, so `h == 0` is False where `h` is NaN. `h.isnan()` is True where a value is
# NaN, and `.any()` asks whether at least one entry is True.

# %% [markdown] trap="01.4" role="situation" core=true fault="zeros are counted as dead ReLU units" symptom="dead ReLU: units output zero for every input and never recover"
# ## Units that are off for every input
#
# A teammate wanted a ReLU layer whose outputs are mostly zero, and set its biases to
# $-5$. You want to catch such accidents. A blog post tells you how: count each unit's
# zeros, and raise an alarm if a unit returns zero for more than 20 % of the rows. First
# you try this detector on a *healthy* layer of 64 units, right after its initialization.

# %% trap="01.4" role="break"
x_normal = torch.randn(2000, 10)
healthy, sunk = nn.Linear(10, 64), nn.Linear(10, 64)
nn.init.constant_(sunk.bias, -5.0)

def flagged(h):
    """Units whose output is zero for more than 20 % of the rows."""
    return int(((h == 0).float().mean(0) > 0.20).sum())

alarms = {"healthy": flagged(healthy(x_normal).relu()),
          "sunk": flagged(sunk(x_normal).relu())}

# %% trap="01.4" role="guess"
guess("01.4",
      "In the healthy layer, take the unit that returns zero most often. "
      "For what percentage of the rows does it return zero?", unit="%")

# %% trap="01.4" role="look"
def off_for_all(h):
    """Units whose output is zero for every row."""
    return int((h == 0).all(0).sum())

dead = {"healthy": off_for_all(healthy(x_normal).relu()),
        "sunk": off_for_all(sunk(x_normal).relu())}
print(f"flagged: {alarms}   off for every row: {dead}")

# %% trap="01.4" role="look"
measured("01.4", 100 * (healthy(x_normal) <= 0).float().mean(0).max(),
         right=(64, 96))

# %% trap="01.4" role="look"
claim("number of healthy units that the detector flags, out of 64",
      alarms["healthy"],
      above=60)

# %% [markdown] trap="01.4" role="look"
# In the healthy layer, no unit is dead, although some units are off for most rows. In the
# layer with biases of $-5$ (`sunk`), every unit is dead:

# %% trap="01.4" role="look"
claim("number of units with a bias of -5 that are off for every row, out "
      "of 64", dead["sunk"],
      expected=64)

# %% [markdown] trap="01.4" role="why"
# Weights are negative as often as positive, so on centred inputs a fresh ReLU unit is, on
# average, off for half of the rows. That is healthy. A *dead* unit is off for every row.
# Its slope is zero everywhere, so its weights get no gradient. A dead unit can recover
# if its inputs change, or momentum or weight decay moves its weights, because a zero
# gradient stops neither.

# %% trap="01.4" role="why"
zero_shares = {name: sorted((layer(x_normal) <= 0).float().mean(0).tolist())
               for name, layer in (("healthy", healthy), ("sunk", sunk))}
plot_lines(range(1, 65), {**zero_shares, "alarm": [0.2] * 64},
           xlabel="units, sorted", ylabel="fraction of rows with output 0",
           title="Off for half of the rows is healthy, off for all is dead",
           alt="Fraction of rows with output zero for 64 sorted units. The "
               "healthy units are spread around one half, and nearly all "
               "healthy units are above the alarm at one fifth. The sunk "
               "units are all at one.")

# %% trap="01.4" role="repair"
target = x_normal.sum(1).sign().clamp(min=0).long()
net = nn.Sequential(sunk, nn.ReLU(), nn.Linear(64, 2))
leaky = nn.Sequential(nn.Linear(10, 64), nn.LeakyReLU(0.1),
                      nn.Linear(64, 2))
nn.init.constant_(leaky[0].bias, -5.0)
moves = {}
for name, model in (("dead", net), ("leaky", leaky)):
    before = model[0].weight.detach().clone()
    fit(model, x_normal, target, steps=200, lr=1e-2)
    moves[name] = (model[0].weight - before).abs().max()
score_leaky, score_dead = (accuracy(m, x_normal, target)
                           for m in (leaky, net))
print(f"accuracy: dead {score_dead:.2f}, leaky {score_leaky:.2f}")

# %% [markdown] trap="01.4" role="repair"
# Training for 200 steps does not move the dead units' weights. Start with a bias that
# leaves some sums positive, or use an activation such as leaky ReLU, whose slope at
# negative inputs is not zero.

# %% trap="01.4" role="repair"
claim("largest change in any dead unit's weight during 200 steps of Adam",
      moves["dead"], expected=0)

# %% [markdown] trap="01.4" role="repair"
# With leaky ReLU, the weights move and the network learns the task:

# %% trap="01.4" role="repair"
claim("with leaky ReLU: accuracy on the linear task",
      score_leaky, above=0.9)

# %% [markdown] trap="01.4" role="repair"
# A function is *saturated* where its slope is nearly zero. There, little of the
# gradient gets through. A unit is *dead* if its slope is exactly zero on every input.
# In the explorer, lower the bias from 0 to $-3$, first with ReLU and then with GELU.
# For which activation does the bar for dead units grow?

# %% role="explore" explorer="activations"
from dlsys_helpers.explorers.activations import activations

activations

# %% [markdown] trap="01.4" role="more" topics="leaky layers are nearly linear · GELU, tanh and NaN · what a large learning rate does · the alarm on digits"
# The sunk layer is the first layer of its network, so training does not change its
# inputs. If there is no weight decay and the optimizer's momentum has died away, the
# dead units of a first layer stay as they are.

# %% trap="01.4" role="more"
share = (healthy(x_normal) < 0).float().mean()
claim("number of healthy units that are off for every row, out of 64",
      dead["healthy"], expected=0)
claim("fraction of zeros among all outputs of the healthy layer", share,
      expected=0.5, within=0.06)
claim("with leaky ReLU: largest change in a weight of the layer",
      moves["leaky"], above=0.01)
claim("with the dead layer: accuracy on the linear task", score_dead,
      below=0.6)

# %% [markdown] trap="01.4" role="more"
# Far below zero, a leaky unit computes a linear function. As long as the sums of all
# units stay there, the layer learns only linear tasks. The slope is not zero, so a long
# run or a high learning rate can bring the units back. A line classifies at most about
# three quarters of the XOR points correctly, and many lines classify fewer than half of
# them correctly. On these points, compare a leaky layer whose biases are all $-5$ with
# a fresh ReLU layer:

# %% trap="01.4" role="more"
bends = {}
for name, activation in (("leaky, sunk", nn.LeakyReLU(0.1)),
                         ("ReLU, fresh", nn.ReLU())):
    model = nn.Sequential(nn.Linear(2, 64), activation, nn.Linear(64, 2))
    if name == "leaky, sunk":
        nn.init.constant_(model[0].bias, -5.0)
    fit(model, x_xor, y_xor, steps=200, lr=1e-2)
    bends[name] = accuracy(model, x_xor, y_xor)
print(*(f"{name}: {score:.2f}" for name, score in bends.items()), sep="\n")

# %% trap="01.4" role="more"
claim("accuracy on XOR with a leaky layer whose biases all started at -5",
      bends["leaky, sunk"], below=0.8)
claim("accuracy on XOR with a fresh ReLU layer", bends["ReLU, fresh"],
      above=0.9)

# %% [markdown] trap="01.4" role="more"
# If you only count zeros, you miss two more kinds of trouble. Far above zero, tanh
# returns 1 and, in float32 (the usual tensor type), has a slope of zero. And a layer
# whose outputs are all NaN has no zeros to count.

# %% trap="01.4" role="more"
depth = torch.tensor([-3.0, -5.0, -15.0], requires_grad=True)
F.gelu(depth).sum().backward()
print(f"GELU's slope at -3, -5, -15: {depth.grad.tolist()}")
far = torch.tensor([15.0], requires_grad=True)
far.tanh().sum().backward()
broken_layer = torch.full((5, 3), float("nan")).relu()

# %% trap="01.4" role="more"
claim("GELU's slope at -15, in float32", depth.grad[-1], expected=0)
claim("tanh's slope at 15", far.grad, expected=0)
claim("tanh's output at 15", far.detach().tanh(), expected=1)
claim("number of units that count as off in a layer whose outputs are all "
      "NaN", off_for_all(broken_layer), expected=0)

# %% [markdown] trap="01.4" role="more"
# Can training kill units? Train 64 ReLU units on the digits with SGD at a learning rate
# of 2, nearly seven times the rate of this stage's first network. Then lower the rate to
# 0.1 and keep training. Train a second network at a learning rate of 100 and with a
# different loss, the *squared error* `F.mse_loss`: the mean of the squared differences
# between outputs and targets. To compare ten outputs with a label, use `F.one_hot`, which
# writes the label as nine zeros and a 1.

# %% trap="01.4" role="more"
def digit_net():
    return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))

def zeros(net):
    """How many units are flagged, and how many are off for all rows."""
    h = net[1](net[0](x_train))
    return flagged(h), off_for_all(h)

hot, sgd = digit_net(), torch.optim.SGD
start = zeros(hot)
fit(hot, x_train, y_train, steps=200, lr=2.0, optimizer=sgd)
burnt = (hot[0](x_train) <= 0).all(0)
fit(hot, x_train, y_train, steps=300, lr=0.1, optimizer=sgd)
back = burnt & (hot[0](x_train) > 0).any(0)
print(f"fraction off for every row: {start[1] / 64:.1f} fresh, "
      f"{burnt.sum() / 64:.1f} after rate 2")

# %% trap="01.4" role="more"
claim("number of fresh units that are off for every digit, out of 64",
      start[1],
      below=16)
claim("number of units that are off for every digit after 200 steps at a "
      "learning rate of 2", burnt.sum(), above=40)
claim("number of dead units that recover in 300 steps at a learning rate "
      "of 0.1",
      back.sum(),
      expected=0)

# %% trap="01.4" role="more"
one_hot = F.one_hot(y_train, 10).float()
losses = fit(digit_net(), x_train, one_hot, steps=200, lr=100.0,
             optimizer=sgd, loss=F.mse_loss)

good = digit_net()
fit(good, x_train, y_train, steps=300, lr=1e-2)
print(f"fraction flagged on digits: {start[0] / 64:.1f} fresh, "
      f"{zeros(good)[0] / 64:.1f} trained")

# %% trap="01.4" role="more"
claim("with squared error and a learning rate of 100, is the last loss "
      "finite", torch.tensor(losses[-1]).isfinite(), expected=False)

# %% [markdown] trap="01.4" role="more"
# The squared error's gradient grows with the error. At a learning rate of 100, every
# step makes the error larger, until the loss is no longer finite. A network trained at
# a normal learning rate gets nearly all of the digits right, but it still sets off the
# alarm:

# %% trap="01.4" role="more"
claim("number of fresh units that the 20 % alarm flags on the digits, out "
      "of 64", start[0], above=20)
claim("number of trained units that the 20 % alarm flags on the digits, "
      "out of 64", zeros(good)[0], above=10)
claim("fraction of the digits that the trained network gets right",
      accuracy(good, x_test, y_test), above=0.93)

# %% [markdown] trap="01.4" role="folklore"
# **Told:** A unit that returns zero for more than 20 % of the rows is in trouble.
# **Measured:** This alarm flags over 60 of 64 healthy units on normal inputs and over
# 20 of 64 fresh units on the digits. The alarm also flags over 10 of the 64 units in a
# trained network that gets over 93 % of the digits right. **Told:** GELU units cannot
# die. **Measured:** In float32, GELU's slope at $-15$ is exactly zero. **Told:** A
# large learning rate kills units. **Measured:** It does. On the digits, SGD at a
# learning rate of 2 kills over 40 of 64 units, and none of them recovers in 300 steps
# at a rate of 0.1.

# %% trap="01.4" role="exercise" points=3 difficulty=2 minutes=10
def dead_units(h: torch.Tensor) -> int:
    """Count the units (columns) of h that are 0 for every row.

    Args:
        h: a layer's outputs, (N, U) float32. The layer can end in any
            activation.

    Returns:
        The count as an int.

    Raises:
        ValueError: if h contains a NaN. Such a layer is broken, not alive.

    Example: for [[0., 1.], [0., 0.]] the count is 1.
    """
    # BEGIN SOLUTION
    if h.isnan().any():
        raise ValueError("h holds NaN; look for its origin first")
    return int((h == 0).all(dim=0).sum())
    # END SOLUTION

# %% [markdown] trap="01.4" role="hint"
# 1. A unit is dead only if it is 0 for *all* rows. Which reduction tests whether all values in a column are True?
# 2. First compare with zero, then reduce over the rows (`dim=0`), and then count the units.
# 3. `NaN == 0` is False, so a column of NaN would count as alive. Test for NaN with `isnan` before you count.

# %% [markdown] trap="01.4" role="keep"
# **Keep:** A ReLU unit is dead if it returns zero for *every* input. Returning zero for
# half of the inputs is healthy. **In your own code:** Run a large batch, check a layer's
# outputs `h` for NaN, and then count the dead units with `(h == 0).all(0).sum()`.
# **Source:** [Lu et al. 2019, "Dying ReLU and
# Initialization"](https://arxiv.org/abs/1903.06733).

# %% [markdown] role="concept"
# ## What depth buys
#
# One hidden layer can approximate any continuous curve if it is wide enough. So why do we
# stack layers? Depth helps because a layer can reuse what the layer before it has
# computed. Take two ReLU units that fold the interval from 0 to 1 in half, like a strip
# of paper. Pass the folded strip through the same two units again, and it is folded in
# four.

# %% role="concept"
def fold(x):
    """Two ReLU units: up to 1 in the middle, and back down."""
    return 2 * x.relu() - 4 * (x - 0.5).relu()

grid = torch.linspace(0, 1, 1025)
folded = {"1 layer": fold(grid), "2 layers": fold(fold(grid)),
          "4 layers": fold(fold(fold(fold(grid))))}

def pieces(y):
    """Straight pieces of a curve on the grid."""
    bent = y.diff().diff().abs() > 1e-4
    return 1 + int(bent[0]) + int((bent[1:] & ~bent[:-1]).sum())

print({name: f"{pieces(y)} pieces" for name, y in folded.items()})

# %% role="concept"
plot_lines(grid[::8].tolist(),
           {name: y[::8].tolist() for name, y in folded.items()},
           xlabel="input", ylabel="output",
           title="Each layer of two units doubles the number of pieces",
           alt="Three zigzag curves between 0 and 1. One layer makes one "
               "peak, two layers make two peaks, and four layers make "
               "eight.")

# %% [markdown] role="concept"
# Four layers of two units, eight units in all, make 16 straight pieces. In a single
# hidden layer, every ReLU unit bends the curve at one point, so eight units make at most
# nine pieces. In a single layer, the number of pieces grows in proportion to the number
# of units. Every further layer of two such units doubles the number of pieces ([Telgarsky
# 2016](https://arxiv.org/abs/1602.04485)). But we chose these weights by hand. Depth
# makes functions with many pieces cheap, but it does not guarantee that training finds
# them, and the gradient has to get through every layer that you add.

# %% role="concept"
random = [pieces((grid[:, None] - torch.rand(8)).relu() @ torch.randn(8))
          for _ in range(100)]
claim("number of straight pieces made by four layers of two units each",
      pieces(folded["4 layers"]), expected=16)
claim("largest number of pieces made by any of 100 random layers of eight "
      "units",
      max(random), below=10)

# %% [markdown] role="concept"
# ## What the universal approximation theorem says
#
# If its activation is not a polynomial, a network with one hidden layer and enough units
# can come as close as you like to any continuous function on a closed, bounded region
# ([Leshno and others 1993](https://doi.org/10.1016/S0893-6080(05)80131-5)). The theorem
# is a statement about *existence*. It does not say
#
# - how many units you need,
# - whether training finds the weights, or
# - what the network answers for inputs that it has never seen.
#
# Whether training finds the weights is easy to measure. Two hidden units are enough for
# XOR. You have seen weights that solve XOR with step units, which output 0 or 1, and
# suitable weights also exist for ReLU units. Now train fifty networks that start from
# different random weights, and count how many find a solution. (The folded code trains
# all fifty at once. Each tensor in this code has an extra first axis, with one entry
# per network. For such a stack of matrices, `@` multiplies the matrices of each network
# separately. `expand` repeats the four labels for every network, and `reduction="sum"`
# adds up the losses instead of averaging them.)

# %% role="concept" tags=["plumbing"]
def found_xor(width, starts=50, steps=600):
    """Fraction of random starts that get all four corners right."""
    W1, W2 = torch.randn(starts, width, 2), torch.randn(starts, 1, width)
    parameters = [W1, torch.zeros(starts, width, 1),
                  W2 / width ** 0.5, torch.zeros(starts, 1, 1)]
    W1, b1, W2, b2 = [p.requires_grad_() for p in parameters]
    optimizer = torch.optim.Adam([W1, b1, W2, b2], lr=0.05)
    for _ in range(steps):
        out = (W2 @ (W1 @ corners.T + b1).relu() + b2)[:, 0]
        loss = F.binary_cross_entropy_with_logits(
            out, xor.expand(starts, 4), reduction="sum")
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return ((out > 0) == (xor > 0)).all(1).float().mean().item()

found = {f"{width} units": found_xor(width) for width in (2, 4, 8, 16)}

# %% role="concept"
plot_bars(found, xlabel="fraction of 50 random starts that solve XOR",
          title="Two units can solve XOR, but training often fails",
          alt="Four bars: the fraction of starts that succeed with 2, 4, 8 "
              "and 16 units. The fraction grows with the width, from a "
              "minority with two units to nearly 1 with sixteen.")

# %% role="concept"
claim("fraction of 50 networks with two hidden units that learn XOR",
      found["2 units"], below=0.6)
claim("fraction of 50 networks with sixteen hidden units that learn XOR",
      found["16 units"], above=0.9)

# %% [markdown] role="concept"
# A wider network has more ways to reach a solution. The fact that a network *can*
# represent an answer does not mean that training finds it.

# %% [markdown] role="concept"
# ## A gradient on its way back
#
# In step 2 of training, the slope with respect to a first-layer weight has to come from
# the loss, which is at the other end of the network. The gradient travels back layer by
# layer. Follow it by hand through three layers, each with one unit, one weight and a
# sigmoid. If a layer's input increases a little, the layer's sum changes by the weight
# times the increase, and the layer's output changes by the sigmoid's slope times the
# change in the sum. So each layer multiplies the gradient by its weight and by its
# sigmoid's slope:

# %% role="concept"
weights, a, product = [1.5, -2.0, 0.5], torch.tensor(1.0), 1.0
a.requires_grad_()
h = a
for weight in weights:
    h = (weight * h).sigmoid()
    product *= weight * (h * (1 - h)).item()    # weight times slope
back, = torch.autograd.grad(h, a)
print(f"by hand {product:.5f}, by autograd {back:.5f}")

# %% role="concept"
claim("gap between the gradient by hand and the gradient from autograd",
      (back - product).abs(), below=1e-6)

# %% [markdown] role="concept"
# This product is all that the chain rule says. (Stage 2 applies the chain rule to whole
# layers and checks the results numerically.) In a real layer, the weights are a matrix
# with one column for each input, and the number of inputs is called the *fan-in*
# (`fan_in` in code). To compare layers, you take the *norm* of each gradient: the
# square root of the sum of its squared entries. The optimizer in the next trap is
# `SGD`, whose `step()` does exactly what step 3 above describes.

# %% [markdown] trap="01.3" role="situation" core=true fault="the init does not fit the activation: gradients vanish" symptom="deep network with sigmoid or ReLU does not learn, loss stays at chance, vanishing gradients"
# ## Eight slopes of a quarter
#
# With one hidden layer, your network gets the digits right. You stack eight layers of 32
# units, each with a sigmoid, and the loss stays at the level of guessing. "A sigmoid's
# slope is at most 0.25, and the eight slopes multiply," says a comment in a review. "So
# the first layer's gradient is $0.25^8$ times the last layer's. Use ReLU, because its
# slope is 1." You build both stacks with PyTorch's default weights, and train the ReLU
# stack. You leave the sigmoid stack untrained, and divide its first layer's gradient norm
# by its last layer's.

# %% trap="01.3" role="break"
def stack(activation, init=None, depth=8, width=32):
    """An MLP for digits; init(weight), if given, sets each weight."""
    layers, fan_in = [], 64
    for _ in range(depth):
        layers += [nn.Linear(fan_in, width), activation()]
        fan_in = width
    model = nn.Sequential(*layers, nn.Linear(width, 10))
    for m in model if init else []:
        if isinstance(m, nn.Linear):
            init(m.weight)
            nn.init.zeros_(m.bias)
    return model

# %% trap="01.3" role="break"
def gradient_norms(model):
    """Norm of each layer's weight gradient on 256 digits, in order."""
    weights = [m.weight for m in model if isinstance(m, nn.Linear)]
    loss = F.cross_entropy(model(x_train[:256]), y_train[:256])
    return [g.norm().item() for g in torch.autograd.grad(loss, weights)]

relus = stack(nn.ReLU)                   # what the review advises
losses = fit(relus, x_train, y_train, steps=300, lr=3e-2,
             optimizer=torch.optim.SGD)
sigmoids = stack(nn.Sigmoid)             # untrained, for the guess
first, *_, last = gradient_norms(sigmoids)

# %% trap="01.3" role="guess" quoted="wrong"
guess("01.3",
      "In the untrained sigmoid stack, you divide the first layer's "
      "gradient norm by the last layer's. How does this ratio compare with "
      "the review's prediction?",
      choices=["about the same, within a factor of three",
               "less than a tenth as large",
               "more than ten times as large"])

# %% trap="01.3" role="look"
share = accuracy(relus, x_test, y_test)
print(f"sigmoids: first / last gradient norm {first / last:.1e}, "
      f"0.25^8 is {0.25 ** 8:.1e}")
print(f"test digits right with eight layers of ReLU: {share:.2f}")

# %% trap="01.3" role="look"
measured("01.3", 1)

# %% trap="01.3" role="look"
claim("untrained sigmoids: first layer's gradient norm divided by the "
      "last layer's", first / last, below=0.25 ** 8)

# %% [markdown] trap="01.3" role="look"
# The slopes are only half of the story. The ReLU stack has learned nothing either,
# although ReLU's slope is 1 wherever a unit is on:

# %% trap="01.3" role="look"
claim("accuracy with eight ReLU layers, default init and SGD at a learning "
      "rate of 0.03", share, below=0.3)

# %% [markdown] trap="01.3" role="why"
# Every layer multiplies the gradient by its slope **and** by its weights. A unit adds
# up $n$ independent products of an input and a weight. Their variances also add up, so
# to keep a signal at the same size, the weights need a variance of about $1 / n$
# (*Xavier* init, for tanh). Before a ReLU, they need $2 / n$ (*He* init), because ReLU
# sets half of the values to zero. The default weights of `nn.Linear` have a variance of
# only $1 / (3n)$, a sixth of what ReLU needs. So each layer shrinks the gradient, and
# hardly any of the gradient reaches the first layer.

# %% trap="01.3" role="why"
he, xavier = nn.init.kaiming_normal_, nn.init.xavier_normal_
stacks = {"sigmoid, default": sigmoids,
          "ReLU, default": stack(nn.ReLU),
          "ReLU + He": stack(nn.ReLU, lambda w: he(w, nonlinearity="relu")),
          "tanh + Xavier": stack(nn.Tanh, xavier)}
norms = {name: gradient_norms(model) for name, model in stacks.items()}
ratios = {name: n[0] / n[-1] for name, n in norms.items()}

# %% trap="01.3" role="why"
plot_lines(range(1, 10), norms, xlabel="layer, input to output", logy=True,
           ylabel="norm of the weight gradient",
           title="Activation and init belong together",
           alt="Four lines: the gradient norm of each layer. Towards the "
               "input, the line for sigmoids falls by six orders of "
               "magnitude and the line for default ReLU by two. The lines "
               "for ReLU with He and tanh with Xavier stay level.")

# %% trap="01.3" role="why"
claim("ReLU with default init: first layer's gradient norm divided by the "
      "last layer's", ratios["ReLU, default"], below=0.1)

# %% trap="01.3" role="repair"
fit(stacks["ReLU + He"], x_train, y_train, steps=300, lr=3e-2,
    optimizer=torch.optim.SGD)
share_he = accuracy(stacks["ReLU + He"], x_test, y_test)
print(f"test digits right with eight layers of ReLU and He: {share_he:.2f}")

# %% trap="01.3" role="repair"
claim("accuracy with eight ReLU layers, He init and SGD at a learning rate "
      "of 0.03",
      share_he, above=0.5)

# %% [markdown] trap="01.3" role="more" topics="what a slope of a quarter does not bound · sigmoids at ten times the learning rate · tanh with Xavier"
# With He and with Xavier init, the first layer's gradient norm is of the same order of
# magnitude as the last layer's. (For a square layer, Xavier's rule, $2 / (\text{fan-in} +
# \text{fan-out})$, is the same as $1 / n$. The *fan-out* is the number of outputs.) If
# the sigmoids get large weights (`gain=4` makes Xavier's weights four times as large),
# the first layer's gradient norm divided by the last layer's is far above $0.25^8$:

# %% trap="01.3" role="more"
loud = gradient_norms(stack(
    nn.Sigmoid, lambda w: nn.init.xavier_normal_(w, gain=4)))

# %% trap="01.3" role="more"
claim("ReLU with He init: first layer's gradient norm divided by the last "
      "layer's", ratios["ReLU + He"], above=0.2)
claim("tanh with Xavier init: first layer's gradient norm divided by the "
      "last layer's", ratios["tanh + Xavier"], above=0.2)
claim("sigmoids with large weights: first layer's gradient norm divided "
      "by the last layer's", loud[0] / loud[-1], above=0.25 ** 8)

# %% [markdown] trap="01.3" role="more"
# Do the tanh stack and the sigmoid stack learn? With Adam at a learning rate of 0.003,
# the tanh stack with Xavier init learns the digits. The sigmoid stack with default
# weights learns them neither at this rate nor at ten times this rate:

# %% trap="01.3" role="more"
def share_read(model, lr):
    fit(model, x_train, y_train, steps=300, lr=lr)
    return accuracy(model, x_test, y_test)

score_tanh = share_read(stacks["tanh + Xavier"], 3e-3)
score_sigmoid = share_read(stack(nn.Sigmoid), 3e-3)
score_faster = share_read(stack(nn.Sigmoid), 3e-2)

# %% trap="01.3" role="more"
claim("accuracy with eight tanh layers, Xavier init and Adam", score_tanh,
      above=0.9)
claim("accuracy with eight sigmoid layers, default init and Adam "
      "(guessing: 0.1)", score_sigmoid, below=0.3)
claim("accuracy with eight sigmoid layers, default init and Adam at ten "
      "times the learning rate", score_faster, below=0.3)

# %% [markdown] trap="01.3" role="folklore"
# **Told:** Each sigmoid passes on at most a quarter of the gradient, so replace it with
# ReLU and the problem is gone. **Measured:** With default weights, a layer of sigmoids
# passes on less than a quarter of the gradient. With large weights, it passes on more
# than a quarter. Eight default ReLU layers of 32 units lose over 90 % of the gradient
# and learn nothing in 300 steps of SGD at a learning rate of 0.03. With He init, the
# same layers learn.

# %% trap="01.3" role="exercise" points=4 difficulty=3 minutes=15
def grad_ratio(model: nn.Sequential, x: torch.Tensor,
               y: torch.Tensor) -> float:
    """Divide the first Linear's gradient norm by the last Linear's.

    Args:
        model: its Linears are all direct children. The model can also
            have other layers.
        x: float32; model(x) has the shape (N, C).
        y: (N,) int64, the classes. The loss is the mean cross-entropy.

    Returns:
        The ratio of the two gradient norms, as a float. The norms cover
        the weights but not the biases. Both norms can be tiny, so add no
        constant to either.

    Gradients that the model already holds must not count. The weights
    must not change.

    Example: a model with a single Linear gives 1.0.
    """
    # BEGIN SOLUTION
    weights = [m.weight for m in model if isinstance(m, nn.Linear)]
    loss = F.cross_entropy(model(x), y)
    grads = torch.autograd.grad(loss, [weights[0], weights[-1]])
    return (grads[0].norm() / grads[1].norm()).item()
    # END SOLUTION

# %% [markdown] trap="01.3" role="hint"
# 1. You need the gradients of one loss with respect to two weight matrices. You can compute the gradients without changing any weight.
# 2. `loss.backward()` adds to whatever `.grad` holds. Either clear `.grad` first, or do not use `.grad` at all.
# 3. `torch.autograd.grad(loss, [first, last])` returns the two gradients and leaves every `.grad` as it is.

# %% [markdown] trap="01.3" role="keep"
# **Keep:** The first layer's gradient is a product that contains the slopes and the
# weights of all later layers. So choose the init that fits the activation: He for ReLU,
# Xavier for tanh. **In your own code:** Before the first long run, print the first
# layer's gradient norm divided by the last layer's. Also print the two norms, because if
# both are tiny, the ratio can look healthy (trap 03.4). **Source:** [Glorot & Bengio
# 2010](https://proceedings.mlr.press/v9/glorot10a.html); [He et al. 2015, "Delving Deep
# into Rectifiers"](https://arxiv.org/abs/1502.01852), section 2.2.

# %% [markdown] role="concept"
# ## Layers that behave differently in training
#
# Two common kinds of layer do one thing during training and a different thing in
# production.
#
# *Dropout* is meant to stop units from relying on one another. During training, it sets
# each value to zero with probability `p` and divides the other values by `1 - p`, so that
# the expected value stays the same. In every call, dropout draws a new *mask*, which says
# which values to drop.
#
# *BatchNorm* keeps values at a size at which training works well. During training, it
# subtracts the batch's mean from each unit's values and divides the result by the batch's
# standard deviation. BatchNorm also stores a running mean and a running variance, because
# in production there may be no batch.

# %% role="concept"
drop, norm = nn.Dropout(0.5), nn.BatchNorm1d(2)
ones = torch.ones(8)
print("dropout, two calls:", drop(ones).tolist(), drop(ones).tolist())
batch = torch.tensor([[1.0, 10.0], [3.0, 30.0]])
print("BatchNorm:", [[round(v, 1) for v in row]
                     for row in norm(batch).tolist()])
print("stored mean:", norm.running_mean.tolist())

# %% role="concept"
claim("stored mean of the second unit (a tenth of the way from 0 to 20)",
      norm.running_mean[1], expected=2, within=1e-6)

# %% [markdown] role="concept"
# Every module has a flag, `training`, that selects its behaviour: training or production.
# `model.modules()` yields the model itself and every module inside it (except modules in
# plain Python containers), and each module has its own flag. A fresh module is in *train
# mode*, and `fit` leaves it there. One more thing happens by default: PyTorch records
# what `backward` will need, and this record is called the *graph*. `torch.no_grad()`
# switches the recording off.

# %% [markdown] trap="01.1" role="situation" core=true fault="no_grad without eval: dropout and BatchNorm stay on" symptom="predictions change between two calls on the same input"
# ## The same images, sent twice
#
# Your digit classifier has a BatchNorm layer and a dropout layer. You deploy it under
# `torch.no_grad()`, because nothing will be trained in production. You send the test
# images and, to be sure, send them a second time. Then you compare the two sets of
# predicted labels. You also compare the deployed classifier with the trained one.

# %% trap="01.1" role="break"
net = nn.Sequential(nn.Linear(64, 64), nn.BatchNorm1d(64), nn.ReLU(),
                    nn.Dropout(0.5), nn.Linear(64, 10))
fit(net, x_train, y_train, steps=300, lr=1e-2)
stored = net[1].running_mean.clone()

with torch.no_grad():                    # inference
    first = net(x_test).argmax(1)     # (497,): the largest of ten
    second = net(x_test).argmax(1)

# %% trap="01.1" role="guess"
guess("01.1",
      "Suppose you remove the dropout layer. What do the two passes then "
      "return, and do they change the classifier?",
      choices=["the same outputs, and the classifier stays as it was",
               "the same outputs, but the classifier changes",
               "different outputs, but the classifier stays as it was",
               "different outputs, and the classifier changes"])

# %% trap="01.1" role="look"
flips = (first != second).float().mean()
drift = (net[1].running_mean - stored).abs().max()
without = nn.Sequential(*net[:3], net[4])        # no dropout layer
with torch.no_grad():
    gap = (without(x_test) - without(x_test)).abs().max()
print(f"labels that differ between two calls: {flips:.1%}")
print(f"without dropout, largest gap between outputs: {gap:.3f}")
print(f"largest change in a stored mean: {drift:.3f}")

# %% trap="01.1" role="look"
measured("01.1", 1)

# %% trap="01.1" role="look"
claim("fraction of predicted labels that differ between the two passes",
      flips, above=0.02)

# %% [markdown] trap="01.1" role="look"
# Without the dropout layer, both passes return the same outputs:

# %% trap="01.1" role="look"
claim("largest gap between the outputs of two passes without the dropout "
      "layer", gap, expected=0)

# %% [markdown] trap="01.1" role="look"
# But with or without the dropout layer, the two passes change the classifier, because
# they update the means that BatchNorm stores:

# %% trap="01.1" role="look"
claim("largest change in a stored mean during two passes in train mode",
      drift, above=0.005)

# %% [markdown] trap="01.1" role="why"
# `no_grad` switches off the recording of the graph, but not dropout. A model's mode is a
# separate switch. `model.eval()` would have set *eval mode*, but your code never called
# it. In train mode, dropout draws a new mask in every call. BatchNorm normalizes with the
# batch's own statistics, so equal batches get equal outputs, but every batch that you
# serve updates the stored statistics. If you set the seed again before each call, you
# hide the changing masks but not the changing statistics. Before you continue training
# after an evaluation, call `model.train()`. Otherwise dropout stays off, and the stored
# statistics no longer follow the data.

# %% trap="01.1" role="why" tags=["plumbing"]
import copy

from torch.random import fork_rng

def happens(train, no_grad):
    """What a call does: builds a graph, draws masks, moves statistics."""
    model = copy.deepcopy(net).train(train)
    stored = model[1].running_mean.clone()
    with fork_rng(), torch.set_grad_enabled(not no_grad):
        one, two = model(x_test), model(x_test)
    return [one.requires_grad, not one.equal(two),
            not model[1].running_mean.equal(stored)]

switches = {"neither": (True, False), "no_grad": (True, True),
            "eval": (False, False), "both": (False, True)}
effects = torch.tensor([happens(*switch) for switch in switches.values()])

# %% trap="01.1" role="why"
draw_grids({"what a call does": effects.T},
           marks={"what a call does": effects.T & torch.tensor(
               [[False] * 4, [False, True, False, False],
                [False, True, False, False]])},
           row_names=["builds a graph", "draws a mask", "moves statistics"],
           column_names=[*switches], legend="what you serve",
           title="Two switches, and each does half of the job",
           alt="A grid of three effects and four settings. With no_grad "
               "alone, masks are drawn and statistics move. With eval "
               "alone, a graph is built. With both, none of the three "
               "happens.")

# %% trap="01.1" role="repair"
net.eval()
stored = net[1].running_mean.clone()
with torch.no_grad():
    first, second = net(x_test), net(x_test)
flips = (first.argmax(1) != second.argmax(1)).float().mean()
print(f"labels that differ between two calls: {flips:.1%}")
gap = (first - second).abs().max()
drift = (net[1].running_mean - stored).abs().max()
print(f"largest change in a stored mean: {drift:.3f}")
score = accuracy(net, x_test, y_test)

# %% trap="01.1" role="repair"
claim("largest gap between the outputs of two calls in eval mode", gap,
      expected=0)

# %% [markdown] trap="01.1" role="more" topics="a plain net in train mode · BatchNorm on the same batch"
# In eval mode, the stored statistics do not change, and the classifier gets nearly all
# of the test digits right:

# %% trap="01.1" role="more"
claim("largest change in a stored mean during two passes in eval mode",
      drift, expected=0)
claim("accuracy on the test digits in eval mode", score, expected=0.97,
      within=0.02)

# %% [markdown] trap="01.1" role="more"
# Even in train mode, some networks return the same result in every call:

# %% trap="01.1" role="more"
plain = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
normed = nn.Sequential(nn.Linear(64, 64), nn.BatchNorm1d(64), nn.ReLU(),
                       nn.Linear(64, 10))
with torch.no_grad():                    # both are in train mode
    gaps = {name: (net(x_test) - net(x_test)).abs().max()
            for name, net in (("plain", plain), ("BatchNorm", normed))}
    moved = (normed(x_test)[:10] - normed(x_test[:10])).abs().max()
print({name: f"{gap:.1f}" for name, gap in gaps.items()},
      f"in a smaller batch: {moved:.1f}")

# %% trap="01.1" role="more"
claim("largest gap between the outputs of two calls of a plain MLP in "
      "train mode", gaps["plain"], expected=0)
claim("with BatchNorm: largest gap between the outputs of two calls on the "
      "same batch", gaps["BatchNorm"], expected=0)
claim("with BatchNorm: largest change in ten images' outputs when the "
      "batch is smaller", moved, above=0.05)

# %% [markdown] trap="01.1" role="folklore"
# **Told:** A model in train mode returns something different in every call. **Measured:**
# A network with dropout returns something different each time. A plain MLP returns the
# same output in every call. A network with BatchNorm also returns the same output for the
# same batch, but its output for one image depends on the other images in that batch.

# %% trap="01.1" role="exercise" points=3 difficulty=2 minutes=10
def predict(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """Run a model in eval mode. The call builds no graph.

    Args:
        model: any module. Each of its submodules can be in train or eval
            mode.
        x: (N, ...) float32.

    Returns:
        What model(x) returns in eval mode, with requires_grad False.

    Afterwards, every module is in the same mode as before. A frozen
    BatchNorm inside a model in train mode stays frozen. The call changes
    nothing else.

    Example: a model with dropout, in train mode, gives the same result in
    two calls, and `model.training` is still True afterwards.
    """
    # BEGIN SOLUTION
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    with torch.no_grad():
        out = model(x)
    for module, mode in modes:
        module.training = mode
    return out
    # END SOLUTION

# %% [markdown] trap="01.1" role="hint"
# 1. You need two independent switches: one for the mode of the layers, and one for the graph.
# 2. `model.eval()` changes the mode of every module. What must you store before the call, so that you can restore every mode exactly?
# 3. `model.modules()` yields every module, including the root. Each module has its own `training` flag, so store and restore each flag.

# %% [markdown] trap="01.1" role="keep"
# **Keep:** Inference has two switches. `model.eval()` changes what the layers do, and
# `torch.no_grad()` saves memory. **In your own code:** Assert `not model.training` before
# you serve, and check that a forward pass leaves `model.state_dict()` unchanged. **Source:** PyTorch notes, [Autograd
# mechanics](https://docs.pytorch.org/docs/stable/notes/autograd.html), section on
# evaluation mode.

# %% [markdown] trap="01.5" role="situation" fault="a Python loop over tensor elements" symptom="forward pass is slow: Python loop over tensor elements"
# ## One value after the other
#
# Your inputs range from thousandths to millions. Before the first layer, you want to
# replace each input $x$ with the logarithm of $|x| + 1$, times the sign of $x$. PyTorch
# has no function for that. You write a loop over the elements, and the result is correct.
# Then you count the operations that PyTorch carries out.

# %% trap="01.5" role="break"
def signed_log_loop(x):
    """sign(x) * log(|x| + 1), one element at a time; x (N,)."""
    out = []
    for value in x:
        size = (value.abs() + 1).log()
        out.append(value.sign() * size)
    return torch.stack(out)

vector = torch.randn(1000)
slow = signed_log_loop(vector)

# %% trap="01.5" role="guess"
guess("01.5",
      "How many operations does PyTorch carry out when the loop runs on a "
      "vector of 1,000 values?", unit="operations")

# %% trap="01.5" role="look" tags=["plumbing"]
from torch.utils._python_dispatch import TorchDispatchMode

class Counter(TorchDispatchMode):
    """Counts the operations that torch carries out inside its block."""
    count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += 1
        return func(*args, **(kwargs or {}))

# %% trap="01.5" role="look"
with Counter() as loop:
    signed_log_loop(vector)
print(f"operations for 1,000 elements: {loop.count:,}")

# %% trap="01.5" role="look"
measured("01.5", loop.count, right=(3000, 9000))

# %% trap="01.5" role="look"
claim("number of operations per element in the loop",
      loop.count / 1000, above=4)

# %% [markdown] trap="01.5" role="why"
# Every operation costs a fixed amount of time before it touches a single value. Python
# calls PyTorch, and PyTorch chooses the code for this type and device and allocates
# memory for the result. For a single element, this overhead is nearly all of the cost. If
# you apply the same operations to the whole tensor, the number of operations no longer
# depends on the tensor's length.

# %% trap="01.5" role="repair"
def signed_log(x):
    """sign(x) * log(|x| + 1), all elements at once; x of any shape."""
    return x.sign() * (x.abs() + 1).log()

long_vector = torch.randn(100_000)
with Counter() as whole:
    fast = signed_log(vector)
with Counter() as longer:
    signed_log(long_vector)
print(f"operations: {loop.count:,} -> {whole.count}")

# %% trap="01.5" role="repair"
claim("number of operations when the whole vector is processed at once",
      whole.count, below=10)

# %% trap="01.5" role="repair" tags=["plumbing"]
lengths = [1, 10, 100, 1000]
counts = {"loop": [], "whole tensor": []}
for name, function in (("loop", signed_log_loop),
                       ("whole tensor", signed_log)):
    for length in lengths:
        with Counter() as counter:
            function(vector[:length])
        counts[name].append(counter.count)

# %% trap="01.5" role="repair"
plot_lines(lengths, counts, logx=True, logy=True, xlabel="elements",
           ylabel="operations",
           title="A loop pays for each element, a whole tensor pays once",
           alt="Two lines: operations by number of elements. The loop's "
               "line rises to over four thousand, and the line for the "
               "whole tensor stays below ten.")

# %% [markdown] trap="01.5" role="more" topics="the same result · a tensor a hundred times as long"
# The results agree up to rounding, and a longer tensor needs no additional operations:

# %% trap="01.5" role="more"
claim("largest gap between the result of the loop and the result without a "
      "loop", (fast - slow).abs().max(), expected=0, within=1e-6)
claim("number of operations for 100,000 elements minus the number for "
      "1,000, without a loop", longer.count - whole.count, expected=0)

# %% trap="01.5" role="exercise" points=2 difficulty=2 minutes=10
def soft_threshold(x: torch.Tensor, cut: float) -> torch.Tensor:
    """Compute sign(x) * max(|x| - cut, 0) for every element of x.

    Args:
        x: float32 of any shape. The call does not change x.
        cut: a number above 0.

    Returns:
        A tensor with the shape and dtype of x. The result stays connected
        to x, so that gradients flow back to x.

    The number of torch operations must not grow with x.

    Example: soft_threshold(torch.tensor([-2., .3]), 0.5) is [-1.5, 0.].
    """
    # BEGIN SOLUTION
    return x.sign() * (x.abs() - cut).clamp(min=0)
    # END SOLUTION

# %% [markdown] trap="01.5" role="hint"
# 1. You need no access to single elements, because `abs`, `sign`, `clamp` and `*` all work on whole tensors.
# 2. A detour through a list or NumPy returns the right values but loses the gradient.
# 3. Write the result as a sign times a size. Clamp only the size, so that it is at least zero.

# %% [markdown] trap="01.5" role="keep"
# **Keep:** On small tensors, the number of operations determines the run time, because
# each operation has a fixed cost. Apply operations to whole tensors. **In your own
# code:** If a model is slow, look for a `for` loop over a tensor inside `forward`.
# **Source:** [He 2022, "Making Deep Learning Go Brrrr From First
# Principles"](https://horace.io/brrr_intro.html), section on overhead.

# %% [markdown] role="concept"
# ## Further
#
# No trap needs this section. It shows which activations published models use and checks a
# common claim about width.

# %% [markdown] role="concept"
# ### Ask the models themselves
#
# "All modern transformers use GELU" is folklore. LLaMA does not use GELU, and PyTorch's
# own transformer layer defaults to ReLU. On the `meta` device, a model has shapes but its
# weights take no memory, so building a model just to look inside costs little. Of
# torchvision's classifiers, only the RegNets cannot be built on `meta`, because their
# constructor reads a tensor's value. (Some models approximate GELU with a tanh,
# `approximate="tanh"`.)

# %% role="concept"
from torchvision import models

def activations_of(build):
    """Names of the activation modules a torchvision model is made of."""
    with torch.device("meta"):
        names = {type(m).__name__ for m in build().modules()}
    return sorted(names & {"ReLU", "GELU", "SiLU", "Sigmoid", "Tanh"})

used = {build.__name__: activations_of(build) for build in (
    models.resnet18, models.vit_b_16, models.convnext_tiny,
    models.efficientnet_b0)}
print(*(f"{name}: {', '.join(kinds)}" for name, kinds in used.items()),
      sep="\n")

# %% role="concept"
claim("number of kinds of activation other than GELU in the vision "
      "transformer", len(set(used["vit_b_16"]) ^ {"GELU"}), expected=0)
default = nn.TransformerEncoderLayer(8, 2).activation
claim("output of the activation in PyTorch's encoder layer for an input of "
      "-1 (GELU: -0.159)", default(torch.tensor(-1.0)), expected=0)
claim("largest gap between GELU and its approximation by tanh",
      (F.gelu(z) - F.gelu(z, approximate="tanh")).abs().max(), below=1e-3)

# %% [markdown] role="concept"
# ### Three layers of 256, or one of 100,000
#
# People sometimes praise depth with a comparison: three layers of 256 units against one
# layer of 100,000 units "with the same number of parameters". Count both:

# %% role="concept"
def parameters(*sizes):
    """Weights and biases of an MLP with these layer sizes."""
    return sum(i * o + o for i, o in zip(sizes, sizes[1:]))

deep, wide = parameters(10, 256, 256, 256, 1), parameters(10, 100_000, 1)
print(f"three layers of 256: {deep:,}   one layer of 100,000: {wide:,}")

# %% role="concept"
claim("number of parameters in the wide network divided by the number in "
      "the deep network", wide / deep, expected=9, within=0.2)

# %% [markdown] role="quiz"
# ## Check yourself
#
# Think first, then click one of the choices. Each one says why it is right or wrong.

# %% [markdown] role="quiz"
# **1. What can a network of five `nn.Linear` layers without activations represent?**
#
# - [ ] More than one layer can, because five layers have more parameters :: The network has more parameters but represents no more functions, because the product of five matrices is one matrix.
# - [x] At most what one linear layer with the same inputs and outputs can :: With a narrow layer in the middle, the network represents even less, because everything has to pass through that layer's few values.
# - [ ] Any continuous function, by the universal approximation theorem :: The theorem needs an activation that is not a polynomial. Without an activation, the network stays linear.

# %% [markdown] role="quiz"
# **2. What does `torch.no_grad()` do to the forward pass of an MLP with dropout?**
#
# - [x] It saves memory and changes no value :: The values are the same as without `no_grad`. Only the graph is missing.
# - [ ] It makes the output repeatable :: `no_grad` only stops the graph from being stored. Dropout still draws a mask.
# - [ ] It switches BatchNorm to its stored statistics :: `eval()` switches BatchNorm, and `no_grad` does not.

# %% [markdown] role="quiz"
# **3. A final `nn.Linear`, trained with `binary_cross_entropy_with_logits`, returns 0.4.
# With a threshold at a probability of one half, is this output a yes or a no?**
#
# - [ ] No, because 0.4 is below 0.5 :: This answer mistakes a logit for a probability, as in trap 01.2.
# - [x] Yes, because a logit of 0.4 is a probability of about 0.6 :: The sigmoid of any positive number is above one half.
# - [ ] It depends on how rare a yes was in training :: A rare yes changes the weights. But the output is still a logit, and a probability of one half corresponds to a logit of 0.

# %% [markdown] role="quiz"
# **4. The inputs are centred, and the ReLU units of a fresh first layer return zero for about half of the rows. What do you do?**
#
# - [ ] Lower the learning rate :: Nothing is wrong, and a fresh layer has not been trained yet.
# - [ ] Switch to GELU :: GELU would hide the zeros, but nothing is broken.
# - [x] Leave the layer alone :: The weights are negative as often as positive, so half of the sums are below zero.

# %% [markdown] role="quiz"
# **5. Eight layers of 32 sigmoids do not learn the digits. Which change was enough in trap 01.3?**
#
# - [ ] A larger learning rate :: In trap 01.3, even ten times the learning rate leaves the network guessing.
# - [ ] ReLU with the default weights, trained with SGD :: The gradient still vanishes, and after 300 steps at a learning rate of 0.03, the network still guesses.
# - [x] tanh with Xavier init :: The first layer's gradient norm stays about as large as the last layer's, and the network learns the digits (in *More*, with Adam, `fit`'s default optimizer).

# %% [markdown] role="gpu"
# ## On a GPU: compute, memory or launches?
#
# A forward pass can be slow for three reasons: the arithmetic takes a long time
# (compute), the data take a long time to arrive (memory), or the GPU waits until the CPU
# launches the next operation (launches). The causes have different cures, and the wrong
# cure can do nothing. You can skip this section until you use a GPU.
#
# **Before you run anything:** At 10 FLOPs per value, GELU on an 8192 x 8192 tensor needs
# about 1/1600 of the arithmetic of the Linear layer before it. Would you guess that GELU
# takes 1/1600 of the Linear layer's time?
#
# Even without a GPU, you can count the FLOPs (operations on floating-point values), the
# minimum number of bytes that have to move, and the launches. For this count, use
# *meta* tensors. They have a shape and a type but no data, so counting stays cheap,
# however large the layer is. FLOPs divided by bytes is called the *arithmetic
# intensity*.

# %% role="gpu"
from dlsys_helpers.gpu import half_dtype

def prepare(step, rows, n, where):
    """A call on random 16-bit data, its FLOPs and the bytes it must move.

    x is (rows, n), the weight (n, n). Each tensor is read or written once.
    """
    x = torch.randn(rows, n, device=where, dtype=half_dtype(where))
    w = torch.randn(n, n, device=where, dtype=x.dtype)
    call = {"linear": lambda: F.linear(x, w), "gelu": lambda: F.gelu(x),
            "relu": lambda: F.relu(x), "copy": lambda: x.clone()}[step]
    if step == "linear":
        return call, flops(call), 2 * x.nbytes + w.nbytes
    # GELU's erf alone costs several FLOPs: 10 in all is an estimate.
    each = {"gelu": 10, "relu": 1, "copy": 0}[step]
    return call, each * x.numel(), 2 * x.nbytes

# %% role="gpu"
def cases():
    """(step, rows, n): squares up and down, then small batches."""
    squares = [(step, n, n) for step in ("linear", "gelu")
               for n in (64, 256, 1024, 4096, 8192)]
    batches = [("linear", 1, 8192), ("linear", 64, 8192)]
    return [*squares, *batches, ("relu", 8192, 8192), ("copy", 8192, 8192)]

counted = {}
print("step     rows     n     GFLOP        MB  FLOP/byte")
for step, rows, n in cases():
    _, work, moved = prepare(step, rows, n, "meta")
    counted[step, rows, n] = work / moved
    print(f"{step:6} {rows:6} {n:5} {work / 1e9:9.3f} {moved / 1e6:9.3f}"
          f" {work / moved:10.2f}")
net = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 64))
asked = operations(lambda: net(torch.randn(8, 64)))

# %% role="gpu"
claim("arithmetic intensity of a Linear for n = 8192 rows and features, in "
      "FLOP/byte (n / 3)",
      counted["linear", 8192, 8192], expected=8192 / 3, within=1e-6)
claim("arithmetic intensity of a Linear for one row, in FLOP/byte",
      counted["linear", 1, 8192], expected=1, within=0.001)
claim("number of operations in a chain of Linear, GELU and Linear (one for "
      "each layer)",
      asked["aten::addmm"][0] + asked["aten::gelu"][0], expected=3)

# %% [markdown] role="gpu"
# A device has two speed limits, its arithmetic rate and its memory rate. In a *roofline*
# plot, these limits are two roofs that meet at the *ridge*. Below the ridge, memory sets
# the pace; above it, compute does. 16-bit matrix products run on tensor cores. GELU
# cannot use them, so its roof and its ridge are lower. In the plot below, the roofs come
# from a datasheet. A hollow mark shows the highest rate that the counts allow, and a
# filled mark shows a measured rate, if one was recorded. If a filled mark is far below
# its hollow mark, the step waits for something that you did not count, most often a
# launch.
#
# For a batch of one row, a Linear layer reads its whole weight matrix to do only two
# FLOPs per weight. A second row adds only the bytes of that row, so below the ridge a
# larger batch takes little extra time.
#
# For GELU, counting FLOPs is not enough. In the time that an H200 needs to read and write
# one 16-bit value (4 bytes), its fp32 units can execute 67 / 2 / (4.8 / 4) instructions,
# or about 28. GELU compiles to 30 to 40 instructions, and ReLU to a few.

# %% role="gpu"
@gpu_result("01/forward_limits", uses=[cases, prepare],
            columns=["step", "rows", "n", "intensity", "us", "us_low",
                     "us_high", "tflops", "gbs"])
def limits():
    """Time every case; low and high are the quartiles."""
    for step, rows, n in cases():
        call, work, moved = prepare(step, rows, n, "cuda")
        t = seconds(call, repeats=10, device="cuda", calls=20)
        yield {"step": step, "rows": rows, "n": n,
               "intensity": work / moved, "us": t.median * 1e6,
               "us_low": t.low * 1e6, "us_high": t.high * 1e6,
               "tflops": work / t.median / 1e12,
               "gbs": moved / t.median / 1e9}

sheet = datasheet(limits.device_name)

# %% role="gpu"
ax = new_axes(f"Few FLOPs per byte keep a step low ({sheet.name})",
              "arithmetic intensity, FLOP/byte", "TFLOP/s",
              logx=True, logy=True)
for step, cores, mark, colour in (("linear", True, "o", "#3b7dd8"),
                                  ("gelu", False, "s", "#d9710d")):
    at = sorted(counted[case] for case in cases() if case[0] == step)
    for x, style in (([0.5, sheet.fp32_ridge, sheet.ridge, 5000], "-"),
                     (at, mark)):
        ax.plot(x, [sheet.ceiling(i, cores) for i in x], style, mfc="none",
                color=colour)
    rows = [row for row in limits.rows if row["step"] == step
            and limits.device_name == sheet.name]
    ax.plot([r["intensity"] for r in rows], [r["tflops"] for r in rows],
            mark, color=colour)
    ax.annotate(f"{step}, {'tensor cores' if cores else 'fp32 units'}",
                (5000, sheet.ceiling(5000, cores)), ha="right",
                xytext=(0, 4), color=colour, textcoords="offset points")
show(ax.figure, alt="A slope for memory and two flat roofs on log axes. "
     "GELU's marks are on the slope. Linear's marks climb the slope and "
     "reach the upper roof.")

# %% role="gpu"
def least(step, rows, n):
    """The least microseconds that the datasheet allows."""
    _, work, moved = prepare(step, rows, n, "meta")
    return sheet.least_us(work, moved, tensor_cores=step == "linear")

def us(step, rows, n):
    return limits.value("us", step=step, rows=rows, n=n)

def ratio(time, one, other, n=8192):
    """Time of one step on (n, n), as a multiple of the other step's."""
    return time(one, n, n) / time(other, n, n)

# %% role="gpu"
guide = "limited by memory (NVIDIA guide, V100)"
answers = gpu_table(
    sheet,
    limits.asks("time of GELU on 256 x 256 divided by time of GELU on 64 x "
                "64", "16, or 1 if launches dominate",
                lambda: us("gelu", 256, 256) / us("gelu", 64, 64), below=2),
    limits.asks("time of ReLU divided by time of a copy",
                ratio(least, "relu", "copy"),
                lambda: ratio(us, "relu", "copy"), guide, below=1.33),
    limits.asks("time of GELU divided by time of a copy",
                "1, or more because of instructions",
                lambda: ratio(us, "gelu", "copy"), below=2),
    limits.asks("time of GELU divided by time of the Linear layer",
                ratio(least, "gelu", "linear"),
                lambda: ratio(us, "gelu", "linear"), above=1 / 160),
    limits.asks("time of Linear for 64 rows divided by time for 1 row",
                least("linear", 64, 8192) / least("linear", 1, 8192),
                lambda: us("linear", 64, 8192) / us("linear", 1, 8192),
                f"1 row: {guide}", below=4))
answers

# %% [markdown] role="gpu"
# GELU does not take 1/1600 of the Linear layer's time. The datasheets predict 1/14 on
# an H100 and 1/20 on an H200, because GELU has few FLOPs but moves two thirds of the
# Linear layer's bytes.
#
# **On the H100 used for the recorded run**, every matrix product of up to 1,024 rows and
# columns takes about 14 µs, and every GELU on a matrix of these sizes takes about 7 µs.
# According to the datasheet, the arithmetic of the product with 1,024 rows takes 2 µs.
# The rest of the time is the cost of the launch, which is the same at each of these
# sizes. In the Linear layer of width 8,192, 64 rows take 3 % more time than one row. GELU
# takes 1/15 of its Linear layer's time and a tenth more time than a copy. The H100's
# memory is slower than an H200's, so this card can execute 40 instructions while it reads
# and writes one value. The copy itself reaches 2.9 of the datasheet's 3.35 TB/s.
#
# The product's FLOP rate does not keep growing with the matrix size. At a size of 4,096,
# the product runs at four fifths of the datasheet's rate, and at 8,192 its rate is lower.
# The recorded run does not show why. Stage 9 calls the same product a dozen times instead
# of two hundred, and there, each call takes 1.38 ms instead of 1.52 ms. A card at its
# power limit lowers its clock rate, but the recorded runs do not include the clock rate,
# and they may come from two different H100s.
#
# **Keep:** Before you speed up a step, count its FLOPs and its bytes. Above the ridge,
# use fewer or cheaper FLOPs. Below the ridge, move fewer bytes: fuse the activation into
# the step before it, stay in 16 bits, and put more rows into a batch. If a step is far
# below both roofs, save launch time: use larger batches, `torch.compile`, or CUDA
# graphs. **Source:** [Williams, Waterman & Patterson 2009, "Roofline: an insightful
# visual performance model"](https://doi.org/10.1145/1498765.1498785); [NVIDIA, GPU
# Performance Background User's
# Guide](https://docs.nvidia.com/deeplearning/performance/dl-performance-gpu-background/index.html).

# %% [markdown] role="summary"
# ## What you take with you
#
# - A neuron adds up weighted inputs and draws a line. A layer is many neurons, computed as
#   one matrix product. Without activations, many layers collapse into one.
# - Training repeats three steps: compute the loss, compute its gradient, and take a small
#   step against the gradient.
# - Training does not always find an answer that the network can represent.
# - A classifier that ends in a linear layer returns logits, and a probability of one half
#   corresponds to a logit of 0. If a class is rare, look at the recall.
# - A ReLU unit is dead if it is off for every input. Check for NaN before you count the
#   dead units.
# - Every layer multiplies the gradient by its slope and its weights. Choose the init that
#   fits the activation.
# - Inference uses `eval()` **and** `no_grad()`.
# - Each PyTorch operation has a fixed cost, so apply operations to whole tensors.
#
# **Next:** Stage 2 follows the gradient backwards, one node at a time.
