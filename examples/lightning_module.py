"""A LightningModule.

40% of the labels of 6,000 images of Fashion-MNIST become the next class. `SieveLoss` replaces cross-entropy in the
training step, and `SieveCallback` starts its epochs, moves it to the device, saves it in checkpoints and logs the share
of samples that are kept. Needs `pip install '.[lightning]'` in a clone.
"""

import logging
import warnings

import lightning as L
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import labelsieve
from labelsieve.data import load_data
from labelsieve.integrations.lightning import SieveCallback
from labelsieve.noise import corrupt, pair


class Classifier(L.LightningModule):
    def __init__(self, loss_fn: nn.Module) -> None:
        super().__init__()
        self.network = nn.Sequential(nn.Flatten(), nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 10))
        self.loss_fn = loss_fn

    def training_step(self, batch: list[torch.Tensor], batch_idx: int) -> torch.Tensor:
        inputs, labels = batch
        return self.loss_fn(self.network(inputs), labels)

    def test_step(self, batch: list[torch.Tensor], batch_idx: int) -> None:
        inputs, labels = batch
        self.log("accuracy", (self.network(inputs).argmax(1) == labels).float().mean())

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.network.parameters(), lr=0.05, momentum=0.9)


def train_and_test(loss_fn: nn.Module, train: TensorDataset, test: TensorDataset) -> float:
    """Train with a loss on noisy labels; return the accuracy on the test set."""
    L.seed_everything(0, verbose=False)
    callbacks = [SieveCallback(loss_fn)] if isinstance(loss_fn, labelsieve.SieveLoss) else []
    quiet = {
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
    }
    trainer = L.Trainer(max_epochs=12, callbacks=callbacks, accelerator="cpu", **quiet)
    model = Classifier(loss_fn)
    trainer.fit(model, DataLoader(train, batch_size=128, shuffle=True))
    return trainer.test(model, DataLoader(test, batch_size=1000), verbose=False)[0]["accuracy"]


def main() -> None:
    warnings.filterwarnings("ignore", message=".*does not have many workers")  # the data is in memory
    logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)
    sets = load_data("fashion")
    train_images, test_images = (part.images.float() / 255 - 0.5 for part in (sets.train, sets.test))
    noisy = corrupt(sets.train.labels, pair(10, 0.4), seed=0)
    train, test = TensorDataset(train_images, noisy), TensorDataset(test_images, sets.test.labels)

    sieve = labelsieve.SieveLoss("mentornet-prop", num_classes=10, noise_rate=0.4, warmup=4, align=True, floor=0.5)
    print("accuracy on 1,000 test images with right labels:")
    print(f"  cross-entropy   {train_and_test(nn.CrossEntropyLoss(), train, test):.1%}")
    print(f"  mentornet-prop  {train_and_test(sieve, train, test):.1%}")


if __name__ == "__main__":
    main()
