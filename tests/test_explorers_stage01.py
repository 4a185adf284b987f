"""Stage 1's perceptron against its theorem and against a separate search for a line."""

from itertools import pairwise

import numpy as np
import pytest
from scipy.optimize import linprog

from dlsys_helpers.explorers.perceptron import (
    CORRECTIONS,
    LEFT_TO_RIGHT,
    UP,
    learn,
    perceptron,
    points,
)

PLACES = [(across, up) for across in LEFT_TO_RIGHT for up in UP]


@pytest.fixture(autouse=True, scope="module")
def nothing_cached():
    """Keep what we compute here, with the tests' own threads, from other test files."""
    yield
    points.cache_clear()
    learn.cache_clear()


def separable(place):
    """Whether a line separates the points, by a linear program."""
    x, y = (part.double().numpy() for part in points(*place))
    sides = (2 * y - 1)[:, None] * np.column_stack([x, np.ones(len(x))])
    return linprog([0] * 3, -sides, [-1] * len(sides), bounds=(None, None)).success


@pytest.mark.parametrize("place", PLACES)
def test_a_pass_without_a_mistake_ends_the_corrections_and_needs_a_line(place):
    states, mistakes = learn(*place)
    assert len(states) == 1 + sum(mistakes)
    if 0 in mistakes:
        assert separable(place)
        assert set(mistakes[mistakes.index(0):]) == {0}


def test_dragging_the_point_across_turns_a_line_that_settles_into_one_that_does_not():
    settles = {place: 0 in learn(*place)[1] for place in PLACES}
    assert settles[0.8, 0.4]
    assert not settles[-1.6, 0.4]
    assert not separable((-1.6, 0.4))


def test_the_sentence_says_that_the_line_stays_only_of_the_last_line():
    total = len(learn(0.8, 0.4)[0]) - 1
    for made in CORRECTIONS:
        _, said = perceptron(corrections=made)
        assert ("stays where it is" in said) == (made >= total), said
    assert "After 3 of 5 corrections" in perceptron()[1]
    assert "mistakes in all 12 passes" in perceptron(across=-1.6)[1]


def test_every_correction_moves_the_sum_of_its_point_towards_its_label():
    x, y = points(0.8, 0.4)
    states, _ = learn(0.8, 0.4)
    for (w, b), (w_next, b_next) in pairwise(states):
        [row] = [n for n in range(len(x)) if np.allclose(abs(w_next - w), abs(x[n]))]
        assert (b_next - b) == 2 * y[row] - 1
        assert (x[row] @ (w_next - w) + b_next - b) * (2 * y[row] - 1) > 0


def test_the_picture_shows_the_side_that_the_sum_names():
    arrays, said = perceptron(corrections=CORRECTIONS[-1])
    (w, b), x = learn(0.8, 0.4)[0][-1], points(0.8, 0.4)[0]
    cells = np.floor((x.numpy() + 2) / 4 * len(arrays["side"])).astype(int)
    shown = arrays["side"][cells[:, 1], cells[:, 0]]
    far = abs((x @ w + b) / w.norm()).numpy() > 0.2
    np.testing.assert_array_equal(shown[far] > 0, ((x @ w + b) > 0).numpy()[far])
    assert "25 of 25 points are on their side" in said
