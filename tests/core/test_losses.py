"""Losses: the oracles of their papers, and the settings in which they are cross-entropy."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from labelsieve.core.losses import Determinant, GeneralizedCrossEntropy, SymmetricCrossEntropy
from labelsieve.core.regularizers import VirtualAdversarial, unit
from labelsieve.methods.cores import ConfidenceRegularized
from labelsieve.methods.elr import EarlyLearning
from labelsieve.methods.f_correction import ForwardCorrection, transition_from_stack, transition_of_sure_samples
from labelsieve.methods.jocor import CriteriaJoint, JointLoss
from labelsieve.methods.sop import SparseNoise

INDEX = torch.arange(12)


def batch(seed=0, classes=4, networks=1):
    random = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(networks, 12, classes, generator=random)
    labels = torch.randint(classes, (12,), generator=random)
    return logits, labels.expand(networks, 12), torch.ones(networks, 12), labels


def measured(loss, logits, target, weight, labels):
    return loss(logits, target, weight, labels, INDEX[: len(labels)])


def one(loss, probs, label):
    """The loss of one sample with these probabilities."""
    logits = torch.tensor([[probs]]).log()
    target = torch.tensor([[label]])
    return loss(logits, target, torch.ones(1, 1), target[0], None).item()


def test_symmetric_cross_entropy_by_hand():
    """p = (.7, .2, .1), label 0: CE .35667, reverse CE 2.76310."""
    assert one(SymmetricCrossEntropy(1, 0), [0.7, 0.2, 0.1], 0) == pytest.approx(0.35667, abs=1e-5)
    assert one(SymmetricCrossEntropy(0, 1), [0.7, 0.2, 0.1], 0) == pytest.approx(2.76310, abs=1e-5)
    assert one(SymmetricCrossEntropy(2, 0.5), [0.7, 0.2, 0.1], 0) == pytest.approx(2 * 0.35667 + 0.5 * 2.7631, abs=1e-4)


def test_generalized_cross_entropy_by_hand():
    """q = .7: p = .7 costs .31563, p = .5 costs .54918; the gradient is p^q times that of cross-entropy."""
    assert one(GeneralizedCrossEntropy(0.7), [0.7, 0.2, 0.1], 0) == pytest.approx(0.31563, abs=1e-5)
    assert one(GeneralizedCrossEntropy(0.7), [0.5, 0.4, 0.1], 0) == pytest.approx(0.54918, abs=1e-5)
    assert one(GeneralizedCrossEntropy(0.7, k=0.5), [0.5, 0.4, 0.1], 0) == pytest.approx(0, abs=1e-6)
    logits = torch.randn(1, 1, 3, requires_grad=True)
    target = torch.tensor([[1]])
    (ours,) = torch.autograd.grad(
        GeneralizedCrossEntropy(0.7)(logits, target, torch.ones(1, 1), target[0], None), logits
    )
    (plain,) = torch.autograd.grad(F.cross_entropy(logits[0], target[0]), logits)
    assert torch.allclose(ours, logits.softmax(-1)[0, 0, 1] ** 0.7 * plain, atol=1e-6)


def test_generalized_cross_entropy_divides_by_the_batch():
    logits, target, weight, labels = batch()
    weight[0, 6:] = 0
    half = measured(GeneralizedCrossEntropy(0.7), logits, target, weight, labels)
    first = measured(GeneralizedCrossEntropy(0.7), logits[:, :6], target[:, :6], weight[:, :6], labels[:6])
    assert torch.allclose(half, first / 2)


def test_determinant_by_hand():
    """Rows (.9, .1), (.8, .2) labelled 0 and (.3, .7), (.4, .6) labelled 1: det 2.0 / loss -ln 2.001... of U = Y'P."""
    logits = torch.tensor([[[0.9, 0.1], [0.8, 0.2], [0.3, 0.7], [0.4, 0.6]]]).log()
    target = torch.tensor([[0, 0, 1, 1]])
    loss = Determinant(2, start=0)(logits, target, torch.ones(1, 4), target[0], None)
    assert loss.item() == pytest.approx(-math.log(2.001), abs=1e-5) == pytest.approx(-0.69365, abs=1e-5)


def test_determinant_does_not_mind_which_noise_the_labels_have():
    """Other labels multiply U by a transition matrix: the loss moves by a constant, here for a relabelling."""
    logits, target, weight, labels = batch()
    swapped = torch.tensor([1, 0, 3, 2])[target]
    loss = Determinant(4, start=0)
    assert torch.allclose(
        measured(loss, logits, target, weight, labels), measured(loss, logits, swapped, weight, labels)
    )


def test_determinant_of_many_classes_is_finite_and_learns():
    """Its determinant is about 10^200: neither it nor its gradient may overflow."""
    target = (torch.arange(4000) % 200).unsqueeze(0)
    logits = (torch.randn(1, 4000, 200) + 6 * F.one_hot(target, 200)).requires_grad_()
    loss = Determinant(200, start=0)(logits, target, torch.ones(1, 4000), target[0], None)
    loss.sum().backward()
    assert loss.isfinite().all() and logits.grad.isfinite().all() and logits.grad.abs().sum() > 0


def test_determinant_says_why_it_cannot_learn_from_too_few_samples():
    logits, target, weight, labels = batch(classes=20)
    logits.requires_grad_()
    with pytest.warns(UserWarning, match="cannot learn from 12 samples of 20 classes"):
        loss = measured(Determinant(20, start=0), logits, target, weight, labels)
    loss.sum().backward()
    assert loss.item() == pytest.approx(-math.log(0.001)) and (logits.grad == 0).all()


def test_determinant_is_cross_entropy_until_it_starts():
    logits, target, weight, labels = batch()
    loss = Determinant(4, start=2)
    assert measured(loss, logits, target, weight, labels).item() == pytest.approx(
        F.cross_entropy(logits[0], labels).item()
    )
    loss.start_epoch(2)
    assert measured(loss, logits, target, weight, labels).item() < F.cross_entropy(logits[0], labels).item()


@pytest.mark.parametrize(
    "loss",
    [
        SymmetricCrossEntropy(1, 0),
        GeneralizedCrossEntropy(1e-5),
        ForwardCorrection(4, warmup=0, estimate="stack"),
        EarlyLearning(4, 12, lam=0.0, beta=0.7),
        ConfidenceRegularized(4, beta=0.0, start=0, full=1),
    ],
    ids=lambda loss: type(loss).__name__,
)
def test_each_is_cross_entropy_at_its_neutral_setting(loss):
    logits, target, weight, labels = batch()
    assert measured(loss, logits, target, weight, labels).item() == pytest.approx(
        F.cross_entropy(logits[0], labels).item(), rel=2e-4
    )


def test_forward_correction_finds_the_clean_posterior():
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


def test_transition_from_the_stack_is_the_transpose_with_rows_of_one():
    sums = torch.tensor([[[6, 2], [4, 8]]])  # observed 0: predicted 0 in 6, 1 in 2
    assert torch.allclose(transition_from_stack(sums, torch.eye(2)[None]), torch.tensor([[[0.6, 0.4], [0.2, 0.8]]]))
    never = torch.tensor([[[5, 0], [1, 0]]])
    assert torch.equal(transition_from_stack(never, torch.eye(2)[None])[0, 1], torch.tensor([0.0, 1.0]))


def test_transition_of_sure_samples_takes_the_quantile_of_each_column():
    first = torch.linspace(0.01, 0.99, 100, dtype=torch.float64)
    probs = torch.stack([first, 1 - first], -1)[None]
    surest = transition_of_sure_samples(probs, 1.0)[0]
    assert torch.allclose(surest, torch.tensor([[0.99, 0.01], [0.01, 0.99]], dtype=torch.float64))
    assert transition_of_sure_samples(probs, 0.97)[0, 0, 0].item() == pytest.approx(first[97].item())


def test_forward_correction_starts_after_the_warm_up():
    loss = ForwardCorrection(3, warmup=2, estimate="stack")
    probs, labels = torch.rand(1, 30, 3).softmax(-1), torch.randint(3, (30,))
    for epoch in range(2):
        loss.start_epoch(epoch)
        assert torch.equal(loss.transition[0], torch.eye(3))
        loss.observe(probs, labels, None, torch.ones(1, 30, dtype=torch.bool))
        loss.end_epoch(None)
    assert not torch.equal(loss.transition[0], torch.eye(3))
    assert torch.allclose(loss.transition.sum(-1), torch.ones(1, 3))


def test_joint_loss_by_hand_and_its_criterion_agree():
    logits, target, weight, labels = batch(networks=2)
    p, q = logits.softmax(-1)
    apart = (p * (p / q).log() + q * (q / p).log()).sum(-1)
    entropy = F.cross_entropy(logits[0], labels, reduction="none") + F.cross_entropy(
        logits[1], labels, reduction="none"
    )
    joint = 0.2 * entropy + 0.8 * apart
    assert measured(JointLoss(0.8), logits, target, weight, labels).sum().item() == pytest.approx(joint.mean().item())
    scores = CriteriaJoint(4, agreement=0.8)(logits.softmax(-1), labels)
    assert torch.allclose(scores, -joint.expand(2, -1), atol=1e-5)


def test_sparse_noise_by_hand():
    """u = .5, v = (0, .4, 0), p = (.7, .2, .1), label 0; the hard prediction is right."""
    loss = SparseNoise(3, 1, lr_u=1, lr_v=1)
    with torch.no_grad():
        loss.u.fill_(0.5)
        loss.v.copy_(torch.tensor([[0.0, 0.4, 0.0]]))
    logits, target = torch.tensor([[[0.7, 0.2, 0.1]]]).log(), torch.tensor([[0]])
    mixed = torch.tensor([0.7 + 0.25, 0.2 - 0.16, 0.1])
    expected = -math.log(mixed[0] / mixed.sum()) + 0.25**2 + 0.16**2
    value = loss(logits, target, torch.ones(1, 1), target[0], torch.tensor([0]))
    assert value.item() == pytest.approx(expected, abs=1e-6)
    value.sum().backward()
    assert loss.v.grad[0, 1].item() == pytest.approx(2 * 0.16 * 2 * 0.4, abs=1e-6)  # of the squared error alone


def test_confidence_rises_linearly_to_its_full_weight():
    loss = ConfidenceRegularized(4, beta=2.0, start=2, full=6)
    betas = []
    for epoch in range(8):
        loss.start_epoch(epoch)
        betas.append(loss.beta.item())
    assert betas == [0, 0, 0, 0.5, 1, 1.5, 2, 2]


def test_the_prior_counts_every_sample_until_the_sieve_begins():
    loss = ConfidenceRegularized(2, beta=2.0, start=0, full=2)
    probs, labels = torch.tensor([[[0.9, 0.1], [0.9, 0.1], [0.9, 0.1], [0.1, 0.9]]]), torch.tensor([0, 1, 1, 1])
    priors = []
    for epoch in range(4):
        loss.start_epoch(epoch)
        priors.append(loss.prior.tolist())
        loss.observe(probs, labels, None, torch.ones(1, 4, dtype=torch.bool))
        loss.end_epoch(None)
    assert priors == [[0.5, 0.5], [0.25, 0.75], [0.25, 0.75], [0.5, 0.5]]  # the sieve drops two of the three ones


def test_vat_is_left_out_of_a_validation_loss():
    from labelsieve import Problem, make

    model, x, y = Softmax(torch.randn(3, 6)), torch.randn(8, 6), torch.randint(3, (8,))
    method = make("vat", Problem(3, 0.1))
    method.start_epoch(0)
    learnt = method(model(x), y, model=model, inputs=x)
    with torch.no_grad():
        assert learnt > method(model(x), y) == method.eval()(model(x), y)


def test_confidence_term_by_hand():
    loss = ConfidenceRegularized(3, beta=2.0, start=0, full=1)
    loss.start_epoch(1)
    mean = -(math.log(0.7) + math.log(0.2) + math.log(0.1)) / 3
    assert one(loss, [0.7, 0.2, 0.1], 0) == pytest.approx(0.35667 - 2 * mean, abs=1e-4)


class Softmax(nn.Module):
    """A linear softmax model, (1, B, K)."""

    def __init__(self, weight):
        super().__init__()
        self.weight = nn.Parameter(weight)

    def forward(self, x):
        return (x @ self.weight.T).unsqueeze(0)


def test_vat_finds_the_dominant_direction_of_curvature():
    """For a linear softmax model the KL's Hessian is W' (diag p - p p') W; power iteration finds its top direction."""
    torch.manual_seed(0)
    weight = torch.tensor([[3.0, 0.2, 0.0], [-1.0, 0.1, 0.3]], dtype=torch.float64)
    model, x = Softmax(weight), torch.tensor([[0.1, -0.2, 0.3]], dtype=torch.float64)
    vat = VirtualAdversarial(radius=0.5, iterations=20, xi=1e-3)
    vat.generator = torch.Generator().manual_seed(0)
    fixed = model(x).detach().log_softmax(-1).double()
    found = vat.adversarial(model, x, fixed)[0]
    p = fixed.exp()[0, 0]
    values, vectors = torch.linalg.eigh(weight.T @ (p.diag() - p.outer(p)) @ weight)
    assert abs(torch.dot(found, vectors[:, values.argmax()])).item() == pytest.approx(1, abs=1e-2)
    assert found.norm().item() == pytest.approx(1, abs=1e-5)


def test_vat_moves_by_the_radius_and_leaves_batch_norm_alone():
    class Spy(nn.Sequential):
        seen = None

        def forward(self, x):
            Spy.seen = x.detach()
            return super().forward(x).unsqueeze(0)

    model = Spy(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3)).train()
    x = torch.randn(10, 6)
    logits = model(x)
    statistics = model[1].running_mean.clone(), model[1].num_batches_tracked.clone()
    penalty = VirtualAdversarial(radius=2.0)(model, x, logits)
    assert torch.allclose((Spy.seen - x).norm(dim=1), torch.full((10,), 2.0), atol=1e-3)
    assert penalty > 0 and penalty.requires_grad
    assert torch.equal(model[1].running_mean, statistics[0]) and model[1].num_batches_tracked == statistics[1]
    assert model[1].track_running_stats


def test_unit_neither_under_nor_overflows():
    tiny, huge = torch.full((1, 4), 1e-30), torch.full((1, 4), 1e30)
    assert unit(huge).norm().item() == pytest.approx(1, abs=1e-5)
    assert unit(tiny).isfinite().all()
