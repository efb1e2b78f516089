"""Forward correction."""

import pytest
import torch

from labelsieve.methods import Problem, make
from labelsieve.methods.f_correction import ForwardCorrection, transition_from_confident
from tests.methods.loops import CLASSES, made_up_training, run


def test_minimum_with_the_true_matrix_is_the_clean_posterior():
    """With the true transition, the loss is least where the prediction is the clean posterior."""
    transition = torch.tensor([[0.6, 0.4, 0], [0, 0.6, 0.4], [0.4, 0, 0.6]])
    clean = torch.tensor([0.2, 0.5, 0.3])
    noisy = clean @ transition
    loss = ForwardCorrection(3, warmup=0, estimate="stack")
    loss.transition.copy_(transition)
    logits = torch.zeros(3, requires_grad=True)
    optimizer = torch.optim.LBFGS([logits], max_iter=200, tolerance_change=1e-12)

    def closure():
        optimizer.zero_grad()
        every = logits.expand(1, 3, 3)
        each = torch.stack(
            [loss(every[:, i : i + 1], torch.tensor([[i]]), torch.ones(1, 1), None, None) for i in range(3)]
        )
        total = (noisy * each.flatten()).sum()
        total.backward()
        return total

    optimizer.step(closure)
    assert torch.allclose(logits.softmax(0), clean, atol=1e-3)


def stacked_transition(sums):
    """Return the transition matrix after an epoch with these sums of predictions, [observed, predicted]."""
    loss = ForwardCorrection(2, warmup=0, estimate="stack")
    loss.sums.copy_(torch.tensor([sums]))
    loss.end_epoch(None)
    return loss.transition[0]


def test_stacked_transition_is_the_normalized_transpose():
    transition = stacked_transition([[6, 2], [4, 8]])  # observed 0: predicted 0 in 6, 1 in 2
    assert torch.allclose(transition, torch.tensor([[0.6, 0.4], [0.2, 0.8]]))
    assert torch.equal(stacked_transition([[5, 0], [1, 0]])[1], torch.tensor([0.0, 1.0]))  # 1 is never predicted


def test_transition_from_confident_uses_the_quantile_of_each_column():
    first = torch.linspace(0.01, 0.99, 100, dtype=torch.float64)
    probs = torch.stack([first, 1 - first], -1)[None]
    surest = transition_from_confident(probs, 1.0)[0]
    assert torch.allclose(surest, torch.tensor([[0.99, 0.01], [0.01, 0.99]], dtype=torch.float64))
    assert transition_from_confident(probs, 0.97)[0, 0, 0].item() == pytest.approx(first[97].item())


def test_correction_starts_after_the_warmup():
    loss = ForwardCorrection(3, warmup=2, estimate="stack")
    probs, labels = torch.rand(1, 30, 3).softmax(-1), torch.randint(3, (30,))
    for epoch in range(2):
        loss.start_epoch(epoch)
        assert torch.equal(loss.transition[0], torch.eye(3))
        loss.observe(probs, labels, None, torch.ones(1, 30, dtype=torch.bool))
        loss.end_epoch(None)
    assert not torch.equal(loss.transition[0], torch.eye(3))
    assert torch.allclose(loss.transition.sum(-1), torch.ones(1, 3))


def test_second_round_without_patrinis_estimate_is_an_error():
    method = make("f-correction", Problem(CLASSES, 0.4, 1), estimate="patrini")
    method.start_round(1)
    with pytest.raises(ValueError, match=r"pass predict= to loss_fn\.rounds"):
        method.start_epoch(0)


def test_summed_predictions_are_part_of_a_checkpoint():
    """In a loop without end_epoch the transition is made by the next start_epoch, in another process too."""
    labels, steps = made_up_training(11, epochs=2)
    one, other = (make("f-correction", Problem(CLASSES, 0.4, 2)) for _ in range(2))
    run(one, labels, steps)
    other.load_state_dict(one.state_dict())
    for method in (one, other):
        method.start_epoch(2)
    assert torch.equal(one.loss.transition, other.loss.transition)
    assert not torch.equal(one.loss.transition[0], torch.eye(CLASSES))
