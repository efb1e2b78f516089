"""SELFIE and SELFIE-Prop against a loop written from the paper."""

import math

import numpy as np
import pytest
import torch

from labelsieve.methods import Problem, make
from labelsieve.methods.selfie import normalized_entropy
from tests.methods.loops import BATCH, CLASSES, SAMPLES, cross_entropy, made_up_training, run, smallest, softmax


@pytest.mark.parametrize("name", ["selfie", "selfie-prop"])
def test_three_rounds_equal_the_reference_loop(name):
    """Three rounds: corrections outlive a restart, the history does not; both overlap rules."""
    warmup, history, threshold, rate = 4, 4, 0.0, 0.4
    labels, steps = made_up_training(2, epochs=8, spread=1.5)
    criterion = {"criterion": "ol"}
    method = make(name, Problem(CLASSES, rate, warmup, SAMPLES), **criterion, history=history, threshold=threshold)
    corrected = {}
    overlaps = refurbished = 0
    for number in range(3):
        past = {i: [] for i in range(SAMPLES)}
        eps = min(rate, 1 - len(corrected) / SAMPLES) if name == "selfie" and number else rate
        method.start_round(number)
        last = -1
        for epoch, index, logits in steps:
            if epoch != last:
                method.start_epoch(epoch)
                last = epoch
            at, y = torch.from_numpy(index), torch.from_numpy(labels[index])
            step = method.step(torch.from_numpy(logits).float(), y, at)
            method.observe(step, y, at)
            probs = softmax(logits)[0]
            losses = [cross_entropy(probs[i], labels[index[i]]) for i in range(BATCH)]
            targets, counted = list(labels[index]), [True] * BATCH
            if epoch < warmup:
                targets = [corrected.get(s, labels[s]) for s in index]
            else:
                clean = smallest(losses, math.ceil(round(BATCH * (1 - eps), 9)))
                for s in index:
                    window = past[s][-history:]
                    if len(window) == history and len(set(window)) == 1:
                        corrected[s] = window[0]
                for i, s in enumerate(index):
                    counted[i] = i in clean or s in corrected
                    overlaps += i in clean and s in corrected
                    if s in corrected and not (name == "selfie-prop" and i in clean):
                        targets[i] = corrected[s]
                        refurbished += 1
            for i, s in enumerate(index):
                past[s].append(int(probs[i].argmax()))
            assert step.decision.weight[0].bool().tolist() == counted
            assert [t for t, c in zip(step.decision.target[0].tolist(), counted, strict=True) if c] == [
                int(t) for t, c in zip(targets, counted, strict=True) if c
            ]
            expected = np.mean([cross_entropy(probs[i], targets[i]) for i in range(BATCH) if counted[i]])
            assert step.loss.item() == pytest.approx(expected, rel=1e-4)
    assert overlaps > 10 and refurbished > 10 and 0 < len(corrected) < SAMPLES


def test_normalized_entropy_has_the_values_of_the_paper():
    """q = 15, one deviation: .1064 for 10 classes, .0462 for 200. q = 25: .0729, .0365, .0317 for 10, 100, 200."""

    def deviating(length, classes):
        history = torch.full((1, length), 3, dtype=torch.int16)
        history[0, 5] = 1
        return normalized_entropy(history, classes)[0].item()

    assert deviating(15, 10) == pytest.approx(0.1064, abs=1e-4)
    assert deviating(15, 200) == pytest.approx(0.0462, abs=1e-4)
    assert [deviating(25, k) for k in (10, 100, 200)] == pytest.approx([0.0729, 0.0365, 0.0317], abs=1e-4)


def test_no_correction_before_the_history_is_full():
    """Empty places are unknown, not votes for class 0 as in the public code."""
    method = make("selfie", Problem(CLASSES, 0.4, 3, SAMPLES), history=3)
    zeros, index = torch.zeros(4, dtype=torch.long), torch.arange(4)
    surely_zero = torch.tensor([5.0, 0, 0, 0, 0]).expand(1, 4, CLASSES)
    method.start_round(0)
    for epoch in range(5):
        method.start_epoch(epoch)
        known = method.relabel.correction_of(index) >= 0
        assert known.all() if epoch == 4 else not known.any()
        if epoch != 1:  # unseen in one epoch: after the warm-up of three, only two predictions are there
            method.observe(method.step(surely_zero, zeros, index), zeros, index)


def test_selfie_prop_without_corrections_is_mentornet_prop():
    labels, steps = made_up_training(3, epochs=6, spread=3.0)
    base = run(make("mentornet-prop", Problem(CLASSES, 0.4, 3)), labels, steps)
    never = make("selfie-prop", Problem(CLASSES, 0.4, 3, SAMPLES), history=3, threshold=0.0)
    never.relabel.threshold = -1.0
    for mine, theirs in zip(run(never, labels, steps), base, strict=True):
        assert torch.equal(mine.loss, theirs.loss)


def test_state_takes_at_most_80_bytes_per_sample():
    with torch.device("meta"):
        method = make("selfie", Problem(1000, 0.4, 25, 10_000_000), history=25)
    per_sample = sum(b.numel() * b.element_size() for b in method.buffers() if b.numel() >= 10_000_000) / 10_000_000
    assert per_sample <= 80
