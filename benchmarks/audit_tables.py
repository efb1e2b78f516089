"""Format the record of benchmarks/audit.py as Markdown: average precision, differences, F1 and seconds."""

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.record import NOT_INSTALLED
from labelsieve.runs.tables import markdown, mean_and_error, plus_minus

Cell = Mapping[str, Any]
Group = list[Cell]
OURS = ("labelsieve, true rate", "labelsieve, auto")
PEERS = (
    "cleanlab, self-confidence",
    "cleanlab, normalized margin",
    "AUM, until the first drop",
    "AUM, all epochs",
    "mean loss",
    "mean confidence",
)
POST_HOC = "labelsieve on cleanlab's probabilities"
SCORES = (*OURS, POST_HOC, *PEERS)
DECIDES = "cleanlab, self-confidence"  # the row with the F1 of cleanlab's issues
NAMES = {DECIDES: "cleanlab, find_label_issues"}  # names of the rows in the F1 table
FIGURES = ("average_precision", "auroc", "precision_at_errors", "f1")


def settings(record: Sequence[Cell]) -> dict[str, dict[str, Group]]:
    """Group the cells of all systems and seeds by data and kind of noise."""
    found: dict[str, dict[str, Group]] = {}
    for cell in record:
        found.setdefault(data_of(cell), {}).setdefault(noise_of(cell), []).append(cell)
    return found


def data_of(cell: Cell) -> str:
    few = f", {cell['epochs']} epochs" if cell["epochs"] else ""
    return f"{cell['data']} ({cell['samples']:,} samples{few}, {cell['model']})"


def noise_of(cell: Cell) -> str:
    return str(cell["labels"]) if cell["labels"] else f"{cell['noise']} {100 * cell['rate']:.0f}%"


def by_seed(cells: Iterable[Cell], score: str, figure: str) -> dict[int, float]:
    """Return one figure of one score for each seed."""
    return {cell["seed"]: cell["scores"][score][figure] for cell in cells if figure in cell["scores"].get(score, {})}


def best_peer(cells: Group, peers: Sequence[str] = PEERS) -> str:
    """Return the peer with the highest mean average precision; choosing it afterwards favours the peers."""
    means = {peer: mean_and_error(list(values.values()))[0] for peer in peers if (values := ap(cells, peer))}
    return max(means, key=lambda peer: means[peer])


def ap(cells: Group, score: str) -> dict[int, float]:
    return by_seed(cells, score, "average_precision")


def differences(cells: Group, ours: str, peer: str, figure: str = "average_precision") -> list[float]:
    """Return our figure minus the peer's for each seed that both have."""
    mine, theirs = by_seed(cells, ours, figure), by_seed(cells, peer, figure)
    return [mine[seed] - theirs[seed] for seed in sorted(mine.keys() & theirs.keys())]


def marked(score: str, cells: Iterable[Cell]) -> str:
    """Return the name of the score, with a remark if cleanlab itself did not compute it."""
    without = any(cell["made"]["versions"]["cleanlab"] == NOT_INSTALLED for cell in cells if score in cell["scores"])
    return f"{score} (by its definition)" if score.startswith("cleanlab") and without else score


def present(groups: Iterable[Group], figure: str) -> list[str]:
    """Return the scores for which this figure exists."""
    cells = [cell for group in groups for cell in group]
    return [score for score in SCORES if by_seed(cells, score, figure)]


def precision_table(noises: Mapping[str, Group]) -> str:
    """Return the average precision of each score for each noise, and the differences to the best peer."""
    scores = present(noises.values(), "average_precision")
    rows = [["average precision", *noises]]
    for score in scores:
        name = marked(score, [cell for cells in noises.values() for cell in cells])
        rows.append([name, *(plus_minus(ap(cells, score).values(), 3) for cells in noises.values())])
    rows.append(["best peer", *(best_peer(cells) for cells in noises.values())])
    for ours in OURS:
        if any(ap(cells, ours) for cells in noises.values()):
            gaps = (plus_minus(differences(cells, ours, best_peer(cells)), 3, "+") for cells in noises.values())
            rows.append([f"{ours}, minus best peer", *gaps])
    return markdown(rows)


def decision_table(noises: Mapping[str, Group]) -> str:
    """Return the F1 of the systems that report issues."""
    rows = [["F1 of the reported issues", *noises]]
    for score in present(noises.values(), "f1"):
        cells = (plus_minus(by_seed(group, score, "f1").values(), 3) for group in noises.values())
        rows.append([NAMES.get(score, score), *cells])
    return markdown(rows) if len(rows) > 1 else ""


def time_table(groups: Mapping[str, Mapping[str, Group]]) -> str:
    """Return the mean CPU and wall seconds per audit, also without cleanlab's search for the number of epochs."""
    rows = [
        [
            "seconds for one audit",
            *(f"{data.partition(' (')[0]}, {kind}" for data in groups for kind in ("CPU", "wall")),
        ]
    ]
    everywhere = [[cell for cells in noises.values() for cell in cells] for noises in groups.values()]
    for score in present(everywhere, "cpu"):
        values = [
            mean_of(cell["scores"][score][kind] for cell in cells if score in cell["scores"])
            for cells in everywhere
            for kind in ("cpu", "wall")
        ]
        rows.append([score, *values])
        if score == DECIDES:
            bare = [
                mean_of(cell["scores"][score][kind] - cell["search"][kind] for cell in cells if "search" in cell)
                for cells in everywhere
                for kind in ("cpu", "wall")
            ]
            rows.append(["cleanlab, without the search for the number of epochs", *bare])
    return markdown(rows)


def mean_of(values: Iterable[float]) -> str:
    values = list(values)
    return f"{mean_and_error(values)[0]:.1f}" if values else "–"


def behind(noises: Mapping[str, Group]) -> list[str]:
    """List where labelsieve's mean is not above its rivals': first average precision, then F1."""
    lines = []
    same = {POST_HOC: tuple(peer for peer in PEERS if peer.startswith("cleanlab"))}  # peers with the same probabilities
    for ours in (*OURS, POST_HOC):
        best = {noise: best_peer(cells, same.get(ours, PEERS)) for noise, cells in noises.items() if ap(cells, ours)}
        gaps = {f"{noise}, {peer}": differences(noises[noise], ours, peer) for noise, peer in best.items()}
        rival = "the better of cleanlab's scores" if ours in same else "the best peer"
        lines += losses(f"{ours}, has a lower average precision than {rival}", gaps)
    for ours in (*OURS, POST_HOC):
        gaps = {noise: differences(cells, ours, DECIDES, "f1") for noise, cells in noises.items()}
        lines += losses(f"{ours}, has a lower F1 than {NAMES[DECIDES]}", gaps)
    return lines


def losses(title: str, gaps: Mapping[str, list[float]]) -> list[str]:
    """Return a line with the settings in which labelsieve is behind; empty if there are none."""
    lost = [
        f"{place} ({plus_minus(gap, 3, '+')})" for place, gap in gaps.items() if gap and mean_and_error(gap)[0] <= 0
    ]
    return [f"{title}: {'; '.join(lost)}"] if lost else []


def summary(record: Sequence[Cell]) -> str:
    """Return the tables of docs/audit.md."""
    parts = []
    groups = settings(record)
    for data, noises in groups.items():
        said = behind(noises) or ["labelsieve has higher means than all peers"]
        decided = [table] if (table := decision_table(noises)) else []
        parts += [f"{data}:", precision_table(noises), *decided, "\n".join(f"- {line}." for line in said)]
    return "\n\n".join([*parts, time_table(groups)]) if parts else "The record is empty."


def everything(record: Sequence[Cell]) -> str:
    """Return all figures of all scores."""
    parts = [summary(record)]
    for data, noises in settings(record).items():
        for noise, cells in noises.items():
            rows = [[f"{data}, {noise}", *(figure.replace("_", " ") for figure in FIGURES), "CPU s", "wall s"]]
            for score in present([cells], "cpu"):
                figures = [plus_minus(by_seed(cells, score, figure).values(), 3) for figure in FIGURES]
                seconds = [plus_minus(by_seed(cells, score, kind).values()) for kind in ("cpu", "wall")]
                rows.append([score, *figures, *seconds])
            parts.append(markdown(rows))
    return "\n\n".join(parts)


if __name__ == "__main__":
    print(summary(json.loads(Path(sys.argv[1]).read_text())))
