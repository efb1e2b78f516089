"""A plain PyTorch training loop.

40% of the labels of 6,000 images of Fashion-MNIST become the next class. Three lines of the loop change: the loss, the
iteration over its epochs, and the call of the loss instead of cross-entropy. The method `default` is plain
cross-entropy, `mentornet` leaves out the samples with the largest loss, and `mentornet-prop`, the method of the paper,
also learns which classes are mixed up.
"""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import labelsieve
from labelsieve.data import load_data
from labelsieve.noise import corrupt, pair


def train(
    method: str, data: TensorDataset, epochs: int = 12, warmup: int = 4
) -> tuple[nn.Module, labelsieve.SieveLoss]:
    """Train a small network on noisy labels; return it with the loss."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    loader = DataLoader(data, batch_size=128, shuffle=True)

    options = {} if method == "default" else {"align": True, "floor": 0.5}  # no class may be given up
    loss_fn = labelsieve.SieveLoss(method, num_classes=10, noise_rate=0.4, warmup=warmup, **options)  # 1
    for _ in loss_fn.epochs(epochs):  # 2
        for inputs, labels in loader:
            loss = loss_fn(model(inputs), labels)  # 3
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return model, loss_fn


@torch.no_grad()
def accuracy(model: nn.Module, images: torch.Tensor, labels: torch.Tensor) -> float:
    return (model(images).argmax(1) == labels).float().mean().item()


def main() -> None:
    sets = load_data("fashion")  # embedded in the package
    train_images, test_images = (part.images.float() / 255 - 0.5 for part in (sets.train, sets.test))
    noisy = corrupt(sets.train.labels, pair(10, 0.4), seed=0)
    print(f"wrong labels in the training set: {(noisy != sets.train.labels).float().mean():.1%}")

    print("accuracy on 1,000 test images with right labels:")
    for method in ("default", "mentornet", "mentornet-prop"):
        model, loss_fn = train(method, TensorDataset(train_images, noisy))
        print(f"  {method:16}{accuracy(model, test_images, sets.test.labels):.1%}")

    names, sources = sets.train.classes, loss_fn.penalty.argmax(1)
    print("learnt by mentornet-prop: wrong labels", end=" ")
    print(", ".join(f"{names[k]} come from {names[sources[k]]}" for k in (1, 2)))


if __name__ == "__main__":
    main()
