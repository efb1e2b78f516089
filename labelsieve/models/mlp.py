"""A small network for tables: rows of features; images are laid out as rows."""

from torch import Tensor, nn

from labelsieve.models.dropout import Dropout

HIDDEN = 256


class MLP(nn.Module):
    """Two hidden layers of 256 with batch-norm, ReLU and dropout; columns of any scale are standardised first."""

    def __init__(self, features: int, num_classes: int) -> None:
        super().__init__()
        standardise = nn.BatchNorm1d(features, affine=False)
        self.layers = nn.Sequential(
            nn.Flatten(), standardise, *hidden(features), *hidden(HIDDEN), nn.Linear(HIDDEN, num_classes)
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)  # type: ignore[no-any-return]


def hidden(inputs: int) -> list[nn.Module]:
    return [nn.Linear(inputs, HIDDEN), nn.BatchNorm1d(HIDDEN), nn.ReLU(), Dropout(0.5)]
