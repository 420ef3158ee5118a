"""Estimate how many labels are wrong from outputs of networks that did not train on them.

An example of true class t carries the label y with probability Q[t, y]. Its true class has the
probability p(t) = softmax(outputs / temperature)[t], so that its label has Σ_t p(t) Q[t, y]. Q and
the temperature are those of the highest likelihood (the forward correction of Patrini et al. 2017,
fitted by expectation and maximisation). A label is wrong with probability
1 − p(y) Q[y, y] / Σ_t p(t) Q[t, y]."""

from typing import Any, NamedTuple

import numpy as np

Array = np.ndarray[Any, Any]

TEMPERATURES = (0.1, 0.14, 0.2, 0.28, 0.4, 0.56, 0.8, 1.1, 1.6, 2.2, 3.2)
ROUNDS = 60
SYMMETRIC = 10.0  # examples of each class that count beside it as if noise were symmetric
FIRST_GUESS = 0.1  # of the noise
TINY = 1e-12

HALF = 0.5  # of the ambiguity by which the estimate may be off in either direction
NORMAL = 1.96  # standard deviations on either side of a 95% interval
LEAST_VARIANCE = 0.01  # of one label: a sample without a wrong label does not prove that none is
MOST_DISAGREEMENT = 0.5  # of networks and labels; beyond it all may be the networks' own errors
WIDEST = 0.35  # interval that still says how many are wrong


class Judgement(NamedTuple):
    """Of each example (n,): the chance that its label is wrong, the most likely class given outputs
    and label, that by the outputs alone, and the chance that this one is not right."""

    wrong: Array
    suggested: Array
    predicted: Array
    ambiguity: Array


class Rate(NamedTuple):
    """The share of wrong labels, with an interval that its uncertainty gives."""

    share: float
    low: float
    high: float

    @property
    def known(self) -> bool:
        """Return whether the interval is narrow enough to speak of a number."""
        return self.high - self.low <= WIDEST


def judge_out_of_sample(outputs: Array, labels: Array) -> Judgement:
    """Judge labels (n,) by outputs (n, classes) of networks that did not train on them."""
    one_hot_labels = np.eye(outputs.shape[1])[labels]
    fits = []
    for temperature in TEMPERATURES:
        chances = softmax(outputs / temperature)
        posterior, likelihood = fitted(chances, labels, one_hot_labels)
        fits.append((likelihood, chances, posterior))
    _, chances, posterior = max(fits, key=lambda fit: fit[0])
    return Judgement(
        1 - posterior[np.arange(len(labels)), labels],
        posterior.argmax(1),
        chances.argmax(1),
        1 - chances.max(1),
    )


def fitted(chances: Array, labels: Array, one_hot_labels: Array) -> tuple[Array, float]:
    """Return the probabilities (n, classes) of the true classes given the labels, under the Q of
    the highest likelihood, and the mean log-likelihood of the labels."""
    classes = chances.shape[1]
    right = np.eye(classes)
    noise = FIRST_GUESS
    symmetric = (1 - noise) * right + noise * (1 - right) / (classes - 1)
    flips = symmetric
    for _ in range(ROUNDS):
        joint = chances * flips[:, labels].T
        posterior = joint / (joint.sum(1, keepdims=True) + TINY)
        carried = posterior.T @ one_hot_labels  # how many of each class carry each label
        noise = 1 - np.trace(carried) / len(labels)
        symmetric = (1 - noise) * right + noise * (1 - right) / (classes - 1)
        flips = carried + SYMMETRIC * symmetric
        flips /= flips.sum(1, keepdims=True)
    joint = chances * flips[:, labels].T
    total = joint.sum(1) + TINY
    return joint / total[:, None], float(np.log(total).mean())


def rate_of(judged: Judgement, labels: Array, wrong_in_training: Array, classes: int) -> Rate:
    """Return the share of wrong labels among examples.

    `wrong_in_training` (n,) are the chances that another model gave them, the one of the outputs
    in training (methods/odds.py); NaN: none. The two models err for different reasons: the first
    takes a wrong label of an ambiguous example for ambiguity, the second what a weak network learns
    by heart for right. The estimate is their mean (of two classes, of which the second counts too
    few, the first alone). The interval spans both, and beyond them half of the ambiguity and 1.96
    standard deviations of a sample; more labels than networks disagree with are hardly wrong."""
    held_out = float(judged.wrong.mean())
    finite = wrong_in_training[np.isfinite(wrong_in_training)]
    in_training = float(finite.mean()) if len(finite) else held_out
    share = held_out if classes == 2 else (held_out + in_training) / 2
    doubt = float((judged.wrong * (1 - judged.wrong)).mean())
    sampled = NORMAL * ((max(share * (1 - share), LEAST_VARIANCE) + doubt) / len(labels)) ** 0.5
    margin = HALF * float(judged.ambiguity.mean()) + sampled
    disagreement = float((judged.predicted != labels).mean())
    low = max(0.0, min(held_out, in_training) - margin)
    if disagreement > MOST_DISAGREEMENT:
        low = 0.0
    high = min(disagreement + sampled, max(held_out, in_training) + margin, 1.0)
    return Rate(share, low, max(share, high))


def softmax(outputs: Array) -> Array:
    """Return the softmax over the last axis in float64."""
    powers = np.exp(outputs.astype(np.float64) - outputs.max(1, keepdims=True))
    return np.asarray(powers / powers.sum(1, keepdims=True))
