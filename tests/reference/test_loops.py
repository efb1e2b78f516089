"""Methods against plain loops, written from their papers in NumPy, over several epochs."""

import math

import numpy as np
import pytest
import torch

from labelsieve import Problem, make
from labelsieve.runtime import derive

CLASSES, SAMPLES, BATCH = 5, 40, 10


def world(seed, epochs, networks=1, wobble=1.0):
    """Batches of an imaginary training: per epoch and step, index, logits (N, B, K); labels of all samples."""
    random = np.random.default_rng(seed)
    labels = random.integers(0, CLASSES, SAMPLES)
    base = 2 * random.normal(size=(networks, SAMPLES, CLASSES))
    steps = []
    for epoch in range(epochs):
        order = random.permutation(SAMPLES)
        for step in range(SAMPLES // BATCH):
            index = order[step * BATCH : (step + 1) * BATCH]
            steps.append((epoch, index, base[:, index] + wobble * random.normal(size=(networks, BATCH, CLASSES))))
    return labels, steps


def softmax(logits):
    e = np.exp(logits - logits.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def entropy_of(probs, label):
    return -math.log(probs[label])


def run(method, labels, steps, predict=None):
    """Loss and decision of every step."""
    out, last = [], -1
    method.start_round(0)
    for epoch, index, logits in steps:
        if epoch != last:
            if last >= 0:
                method.end_epoch(predict)
            method.start_epoch(epoch)
            last = epoch
        at = torch.from_numpy(index)
        y = torch.from_numpy(labels[index])
        done = method.step(torch.from_numpy(logits).float(), y, at)
        method.observe(done, y, at)
        out.append(done)
    return out


def smallest(losses, count):
    return sorted(range(len(losses)), key=lambda i: losses[i])[:count]


def test_co_teaching():
    labels, steps = world(0, epochs=6, networks=2)
    done = run(make("co-teaching", Problem(CLASSES, 0.4, 0), ramp=4), labels, steps)
    for (epoch, index, logits), step in zip(steps, done, strict=True):
        count = math.ceil(round(BATCH * (1 - 0.4 * min(1, (epoch + 1) / 4)), 9))
        probs = softmax(logits)
        losses = [[entropy_of(probs[n, i], labels[index[i]]) for i in range(BATCH)] for n in (0, 1)]
        picks = [smallest(losses[n], count) for n in (0, 1)]
        expected = [np.mean([losses[0][i] for i in picks[1]]), np.mean([losses[1][i] for i in picks[0]])]
        assert step.losses.tolist() == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("empty", ["skip", "everything"])
def test_co_teaching_plus(empty):
    labels, steps = world(1, epochs=6, networks=2, wobble=0.3)
    for number, (_, _, logits) in enumerate(steps):
        if number % 5 == 4:
            logits[1] = logits[0]  # the networks agree on everything
    method = make("co-teaching+", Problem(CLASSES, 0.4, 0), ramp=4, init_epoch=2, empty=empty)
    skipped = 0
    for (epoch, index, logits), step in zip(steps, run(method, labels, steps), strict=True):
        probs = softmax(logits)
        losses = [[entropy_of(probs[n, i], labels[index[i]]) for i in range(BATCH)] for n in (0, 1)]
        candidates = list(range(BATCH))
        if epoch >= 2:
            candidates = [i for i in range(BATCH) if probs[0, i].argmax() != probs[1, i].argmax()]
        if not candidates and empty == "everything":
            candidates = list(range(BATCH))
        if not candidates:
            assert not step.decision.active.any() and (step.losses == 0).all()
            skipped += 1
            continue
        count = math.ceil(round(len(candidates) * (1 - 0.4 * min(1, (epoch + 1) / 4)), 9))
        picks = [[candidates[j] for j in smallest([losses[n][i] for i in candidates], count)] for n in (0, 1)]
        expected = [np.mean([losses[0][i] for i in picks[1]]), np.mean([losses[1][i] for i in picks[0]])]
        assert step.losses.tolist() == pytest.approx(expected, rel=1e-4)
    assert (skipped > 0) == (empty == "skip")


@pytest.mark.parametrize("name", ["selfie", "selfie-prop"])
def test_selfie(name):
    """Three rounds: corrections outlive a restart, the history does not; both overlap rules."""
    warmup, history, threshold, rate = 4, 4, 0.0, 0.4
    labels, steps = world(2, epochs=8, wobble=1.5)
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
            losses = [entropy_of(probs[i], labels[index[i]]) for i in range(BATCH)]
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
            expected = np.mean([entropy_of(probs[i], targets[i]) for i in range(BATCH) if counted[i]])
            assert step.loss.item() == pytest.approx(expected, rel=1e-4)
    assert overlaps > 10 and refurbished > 10 and 0 < len(corrected) < SAMPLES


def test_selfie_certainty_as_the_paper_counts_it():
    """q = 15, one deviation: .1064 for 10 classes, .0462 for 200. q = 25: .0729, .0365, .0317 for 10, 100, 200."""
    from labelsieve.methods.selfie import normalised_entropy

    def deviating(length, classes):
        history = torch.full((1, length), 3, dtype=torch.int16)
        history[0, 5] = 1
        return normalised_entropy(history, classes)[0].item()

    assert deviating(15, 10) == pytest.approx(0.1064, abs=1e-4)
    assert deviating(15, 200) == pytest.approx(0.0462, abs=1e-4)
    assert [deviating(25, k) for k in (10, 100, 200)] == pytest.approx([0.0729, 0.0365, 0.0317], abs=1e-4)


def test_selfie_waits_until_a_history_is_full():
    """Empty places are unknown, not votes for class 0 as in the public code."""
    method = make("selfie", Problem(CLASSES, 0.4, 3, SAMPLES), history=3)
    zeros, index = torch.zeros(4, dtype=torch.long), torch.arange(4)
    surely_zero = torch.tensor([5.0, 0, 0, 0, 0]).expand(1, 4, CLASSES)
    method.start_round(0)
    for epoch in range(5):
        method.start_epoch(epoch)
        known = method.relabel.settled(index) >= 0
        assert known.all() if epoch == 4 else not known.any()
        if epoch != 1:  # unseen in one epoch: after the warm-up of three, only two predictions are there
            method.observe(method.step(surely_zero, zeros, index), zeros, index)


def test_selfie_that_is_never_certain_is_its_base():
    labels, steps = world(3, epochs=6, wobble=3.0)
    base = run(make("mentornet-prop", Problem(CLASSES, 0.4, 3)), labels, steps)
    never = make("selfie-prop", Problem(CLASSES, 0.4, 3, SAMPLES), history=3, threshold=0.0)
    never.relabel.threshold = -1.0
    for mine, theirs in zip(run(never, labels, steps), base, strict=True):
        assert torch.equal(mine.loss, theirs.loss)


def test_selfie_remembers_ten_million_samples_in_80_bytes_each():
    with torch.device("meta"):
        method = make("selfie", Problem(1000, 0.4, 25, 10_000_000), history=25)
    per_sample = sum(b.numel() * b.element_size() for b in method.buffers() if b.numel() >= 10_000_000) / 10_000_000
    assert per_sample <= 80


def test_active_bias():
    labels, steps = world(4, epochs=6)
    done = run(make("active-bias", Problem(CLASSES, 0.0, 2, SAMPLES)), labels, steps)
    past = {i: [] for i in range(SAMPLES)}
    for (epoch, index, logits), step in zip(steps, done, strict=True):
        probs = softmax(logits)[0]
        weights = np.ones(BATCH)
        if epoch >= 2:
            for i, s in enumerate(index):
                v, n = np.var(past[s]), len(past[s])
                weights[i] = math.sqrt(v + v * v / (n - 1)) + 0.2
            weights *= BATCH / weights.sum()
        expected = np.mean([weights[i] * entropy_of(probs[i], labels[s]) for i, s in enumerate(index)])
        assert step.loss.item() == pytest.approx(expected, rel=1e-4)
        for i, s in enumerate(index):
            past[s].append(probs[i, labels[s]])


def test_active_bias_by_hand():
    """History (.1, .5, .9, .4): variance .081875, weight .290016 + .2 before scaling."""
    from labelsieve.methods.active_bias import ActiveBias

    part = ActiveBias(2)
    for p in (0.1, 0.5, 0.9, 0.4):
        probs = torch.tensor([[[p, 1 - p]]])
        part.observe(probs, torch.tensor([0]), torch.tensor([0]), torch.ones(1, 1, dtype=torch.bool))
    assert (part.squares / part.count)[0, 0].item() == pytest.approx(0.081875)
    both = part(torch.zeros(1, 2, 2), torch.tensor([0, 0]), torch.tensor([0, 1]))[0]
    assert (both[0] / both[1]).item() == pytest.approx(0.490016 / 0.2, rel=1e-5)
    assert both.sum().item() == pytest.approx(2)


def test_lccn():
    """Gibbs sampling with the same uniform draws; counts move with every sample, the transition every third step."""
    labels, steps = world(5, epochs=5)
    method = make("lccn", Problem(CLASSES, 0.4, 2, SAMPLES, seed=9), refresh=3)
    start = softmax(2 * np.random.default_rng(1).normal(size=(SAMPLES, CLASSES)))
    everything = torch.arange(SAMPLES)

    def predict():
        return iter([(torch.from_numpy(start)[None].float(), torch.from_numpy(labels), everything)])

    done = run(method, labels, steps, predict)
    latent = start.argmax(1)
    counts = np.zeros((CLASSES, CLASSES))
    for z, y in zip(latent, labels, strict=True):
        counts[z, y] += 1
    phi = (counts + 1) / (counts + 1).sum(1, keepdims=True)
    moved = 0
    for number, ((epoch, index, logits), step) in enumerate(zip(steps, done, strict=True)):
        probs = softmax(logits)[0]
        targets = labels[index].copy()
        if epoch >= 2:
            u = torch.rand(SAMPLES, generator=torch.Generator().manual_seed(derive(9, "latent") ^ epoch)).numpy()
            for i, s in enumerate(index):
                posterior = probs[i] * phi[:, labels[s]]
                targets[i] = np.searchsorted(np.cumsum(posterior), u[s] * posterior.sum(), side="right")
                counts[latent[s], labels[s]] -= 1
                counts[targets[i], labels[s]] += 1
                moved += latent[s] != targets[i]
                latent[s] = targets[i]
            if (number + 1) % 3 == 0:
                phi = (counts + 1) / (counts + 1).sum(1, keepdims=True)
        assert step.decision.target[0].tolist() == targets.tolist()
        assert step.loss.item() == pytest.approx(
            np.mean([entropy_of(probs[i], t) for i, t in enumerate(targets)]), rel=1e-4
        )
    assert moved > 10
    assert np.allclose(method.relabel.counts.numpy(), counts) and counts.sum() == SAMPLES


def test_lccn_without_a_warm_up_learns_the_labels_for_one_epoch():
    labels, steps = world(5, epochs=3)
    start = softmax(2 * np.random.default_rng(1).normal(size=(SAMPLES, CLASSES)))

    def predict():
        return iter([(torch.from_numpy(start)[None].float(), torch.from_numpy(labels), torch.arange(SAMPLES))])

    done = run(make("lccn", Problem(CLASSES, 0.4, 0, SAMPLES)), labels, steps, predict)
    taught = [step.decision.target[0].numpy() == labels[index] for (_, index, _), step in zip(steps, done, strict=True)]
    per_epoch = SAMPLES // BATCH
    assert np.all(taught[:per_epoch]) and not np.all(taught[per_epoch:])


@pytest.mark.parametrize(
    ("name", "options"), [("lccn", {}), ("gce", {"k": 0.5}), ("mentornet-prop", {"update": "repredict"})]
)
def test_a_loop_that_forgets_to_predict_is_told(name, options):
    method = make(name, Problem(CLASSES, 0.4, 1, SAMPLES), **options)
    method.start_epoch(0)
    with pytest.raises(ValueError, match=r"end_epoch\(predict\)"):
        method.start_epoch(1)


def test_a_second_round_without_patrinis_estimate_is_told():
    method = make("f-correction", Problem(CLASSES, 0.4, 1), estimate="patrini")
    method.start_round(1)
    with pytest.raises(ValueError, match=r"end_round\(predict\)"):
        method.start_epoch(0)


def test_a_stack_survives_a_checkpoint_in_the_middle_of_nowhere():
    """In a loop without end_epoch the transition is made by the next start_epoch, in another process too."""
    labels, steps = world(11, epochs=2)
    one, other = (make("f-correction", Problem(CLASSES, 0.4, 2)) for _ in range(2))
    run(one, labels, steps)
    other.load_state_dict(one.state_dict())
    for method in (one, other):
        method.start_epoch(2)
    assert torch.equal(one.loss.transition, other.loss.transition)
    assert not torch.equal(one.loss.transition[0], torch.eye(CLASSES))


def test_elr():
    labels, steps = world(6, epochs=5)
    done = run(make("elr", Problem(CLASSES, 0.4, 0, SAMPLES), strength=3.0, beta=0.7), labels, steps)
    targets = np.zeros((SAMPLES, CLASSES))
    for (_, index, logits), step in zip(steps, done, strict=True):
        probs = softmax(logits)[0].clip(1e-4, 1 - 1e-4)
        total = 0
        for i, s in enumerate(index):
            targets[s] = 0.7 * targets[s] + 0.3 * probs[i] / probs[i].sum()
            total += entropy_of(softmax(logits)[0, i], labels[s]) + 3 * math.log(1 - (targets[s] * probs[i]).sum())
        assert step.loss.item() == pytest.approx(total / BATCH, rel=1e-4)


def test_twin_networks_co_teach_as_mentornet():
    labels, steps = world(7, epochs=3)
    twins = [(epoch, index, np.repeat(logits, 2, 0)) for epoch, index, logits in steps]
    for criterion in ("ol", "all"):
        two = run(make("co-teaching", Problem(CLASSES, 0.4, 0), criterion, ramp=1), labels, twins)
        single = run(make("mentornet", Problem(CLASSES, 0.4, 0), criterion), labels, steps)
        for a, b in zip(two, single, strict=True):
            assert torch.allclose(a.losses, b.losses.expand(2))


def test_swapping_the_networks_swaps_the_losses():
    labels, steps = world(8, epochs=3, networks=2)
    swapped = [(epoch, index, logits[::-1].copy()) for epoch, index, logits in steps]
    for name in ("co-teaching", "co-teaching+", "jocor"):
        problem = Problem(CLASSES, 0.4, 1)
        for a, b in zip(
            run(make(name, problem), labels, steps), run(make(name, problem), labels, swapped), strict=True
        ):
            assert torch.allclose(a.losses, b.losses.flip(0), atol=1e-6)


def test_truncated_gce_prunes_from_its_epoch_on():
    labels, steps = world(9, epochs=6)
    start = softmax(2 * np.random.default_rng(1).normal(size=(SAMPLES, CLASSES)))

    def predict():
        return iter([(torch.from_numpy(start)[None].float(), torch.from_numpy(labels), torch.arange(SAMPLES))])

    method = make("gce", Problem(CLASSES, 0.4, 0, SAMPLES), k=0.5, prune_from=3, prune_every=2)
    sure = start[np.arange(SAMPLES), labels] > 0.5
    for (epoch, index, logits), step in zip(steps, run(method, labels, steps, predict), strict=True):
        kept = sure[index] if epoch >= 3 else np.ones(BATCH, dtype=bool)
        assert step.decision.weight[0].bool().tolist() == kept.tolist()
        p = softmax(logits)[0][np.arange(BATCH), labels[index]]
        expected = (kept * ((1 - p**0.7) - (1 - 0.5**0.7)) / 0.7).sum() / BATCH
        assert step.loss.item() == pytest.approx(expected, rel=1e-3, abs=1e-5)


def test_cores_sieve_keeps_losses_up_to_the_mean_over_labels():
    labels, steps = world(10, epochs=4)
    method = make("cores", Problem(CLASSES, 0.4, 2))
    for (epoch, index, logits), step in zip(steps, run(method, labels, steps), strict=True):
        logs = -np.log(softmax(logits)[0])
        kept = logs[np.arange(BATCH), labels[index]] <= logs.mean(1)
        assert step.decision.weight[0].bool().tolist() == (kept if epoch >= 2 else np.ones(BATCH, bool)).tolist()
