"""The page of results: what was run, what reproduces, tables and figures, in Markdown and from records alone."""

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial

from labelsieve.report.account import told
from labelsieve.report.beside import (
    LEGEND,
    NOT_RUN,
    Entry,
    blocks,
    difference,
    dominant_first,
    long_form,
    ours,
    paired_blocks,
    papers,
)
from labelsieve.report.claims import claims
from labelsieve.report.comparison import markdown, mean_and_error
from labelsieve.report.facts import FAR, Outcome, Outcomes, claim, excess, fact, spread, where_given_up
from labelsieve.report.formats import Rows
from labelsieve.report.records import Run

MADE = "<!-- Made by `labelsieve results`: edit labelsieve/report/account.md, not this page. -->"
OPENING = """\
Our runs of the paper's experiments beside its printed numbers, made from the records in `results` by
`labelsieve results`, which trains nothing; `labelsieve table N` runs what is missing of a table. Runs on other data,
such as the demo's, are not here."""
CLAIM = """\
The best test error of a method with penalty labels minus that of its base, on the same noise and seed, in points: below
zero they help. Ours: mean ± standard error over (n) seeds, and the 95% interval by Student's t, which three trials
make wide. *Holds*: the interval lies on the paper's side of zero; *uncertain*: zero is in it."""
NUMBERS = f"""\
The best test error in percent of every cell that was run, mean ± standard error over (n) seeds. Near: within {FAR:g}
points, a threshold set before the runs."""
OURS = "ours: mean ± standard error over (n) seeds; –: not run"
FLATTERING = """\
*Best* is the lowest test error of all epochs, which is what the paper reports and what nobody can choose without the
test set; *last* is that of the last epoch; *kept clean* is the share of right labels among the samples that the last
epoch learnt from (for methods without a selection, of all samples). Percent, mean ± standard error over (n) seeds.
*A class given up*: the epochs in which some class kept less than half of the share that is kept of all samples."""
VARIANTS = """\
The same protocol but for what stands in brackets: the best test error beside that of the same trials without the
change, and beside the paper's number. `forward one`: learning from the pass that decides; what else is changed in such
runs is set against such runs."""
ONE_PASS = "forward one"


@dataclass(frozen=True)
class Part:
    """What a table has of one dataset."""

    table: str
    title: str
    data: str
    entries: Sequence[Entry]
    missing: int  # runs
    notes: Sequence[str] = ()
    why: str = "not run yet"

    @property
    def begun(self) -> bool:
        return any(entry.errors for entry in self.entries)


@dataclass(frozen=True)
class Picture:
    """A figure of the page."""

    file: str  # beside the page
    caption: str


def results_page(
    parts: Sequence[Part],
    outcomes: Outcomes,
    variants: Sequence[Outcome],
    runs: Sequence[Run],
    pictures: Sequence[Picture],
    account: str,
) -> str:
    """The whole page; `outcomes` have each run once, but for cells of which none is there."""
    varied_names = {variant.name for variant in variants}
    cells = [outcome for name, outcome in outcomes.items() if outcome.runs and name not in varied_names]
    claimed = claims(outcome.entry for outcome in cells)
    sections = {
        "Do penalty labels help?": [CLAIM, markdown(claimed)] if claimed[1:] else [],
        "Are the numbers the paper's?": [NUMBERS, markdown(numbers(cells))] if cells else [],
        "What was run": [what_was_run(runs), not_run(parts)],
        "What does and does not reproduce": [
            told(account, partial(fact, outcomes=outcomes), partial(claim, outcomes=outcomes))
        ],
        "Tables": [f"- {OURS}\n- {LEGEND}", *(table for part in parts if part.begun for table in shown_part(part))],
        "Best, last, and what was kept": [FLATTERING, markdown(endings(once(outcomes.values())))] if runs else [],
        "Other runs": [VARIANTS, markdown(varied(variants, outcomes))] if variants else [],
        "Figures": [f"![{picture.caption}]({picture.file})\n\n{picture.caption}" for picture in pictures],
    }
    told_sections = [[f"## {title}", *filter(None, body)] for title, body in sections.items() if body]
    return "\n\n".join(["# Results", MADE, OPENING, *(text for section in told_sections for text in section)]) + "\n"


def what_was_run(runs: Sequence[Run]) -> str:
    """How many runs, and on what."""
    if not runs:
        return "Nothing yet."
    header = ["data", "device", "precision", "torch", "Python", "labelsieve", "runs"]
    rows = [[*place, str(count)] for place, count in sorted(Counter(map(place_of, runs)).items())]
    lengths = Counter(run.spec["epochs"] for run in runs)
    epochs = ", ".join(f"{count} of {length} epochs" for length, count in sorted(lengths.items(), reverse=True))
    return f"{len(runs)} finished {'run' if len(runs) == 1 else 'runs'}, {epochs}:\n\n{markdown([header, *rows])}"


def place_of(run: Run) -> tuple[str, ...]:
    """What a run learnt from and what it ran on."""
    versions = [run.versions.get(name, "?") for name in ("torch", "python", "labelsieve")]
    return (run.spec["data"], run.start.get("device", "?"), run.spec.get("precision", "?"), *versions)


def not_run(parts: Sequence[Part]) -> str:
    """A line for everything of which there is no run at all."""
    lines = [f"- table {p.table}, {p.data}: {p.why}; {p.missing} runs" for p in parts if not p.begun]
    return "\n".join(["Not run at all (tables share runs):\n", *lines]) if lines else ""


def shown_part(part: Part) -> list[str]:
    """A heading, the table, differences between methods, and how much of it is missing."""
    tables = [*blocks(part.entries, by_noise=False), *paired_blocks(part.entries)]
    texts = [f"### {part.title}: {part.data}"]
    for table in tables:
        texts += [table.title] if table.title not in ("", part.data) else []
        texts.append(markdown(dashed(table.rows)))
    notes = [*part.notes, *([f"{part.missing} runs are missing"] if part.missing else [])]
    return [*texts, *(["\n".join(f"- {note}" for note in notes)] if notes else [])]


def numbers(outcomes: Sequence[Outcome]) -> Rows:
    """A line per cell, and whether its mean is near the printed one."""
    those = sorted((one for one in outcomes if one.entry.published), key=lambda one: dominant_first(one.entry))
    header, *rows = long_form([one.entry for one in those])
    near = ["yes" if abs(excess(one)) <= FAR else "no" for one in those]
    return [[*header, "near"], *([*row, word] for row, word in zip(rows, near, strict=True))]


def dashed(rows: Rows) -> Rows:
    """Without the words for what is not there."""
    return [["–" if cell == NOT_RUN else cell for cell in row] for row in rows]


def varied(variants: Sequence[Outcome], outcomes: Outcomes) -> Rows:
    """What a change did to the best error, seed by seed where the unchanged run is there."""
    rows = [["data", "method", "noise", "ours (n)", "minus the unchanged, seed by seed", "paper", "ours - paper"]]
    for variant in variants:
        entry = variant.entry
        unchanged = outcomes.get(unchanged_name(variant.name))
        before = unchanged.entry.errors if unchanged else {}
        gains = ", ".join(
            f"{entry.errors[seed] - before[seed]:+.2f}" for seed in sorted(entry.errors) if seed in before
        )
        rows.append([entry.data, entry.method, entry.column, ours(entry), gains, papers(entry), difference(entry)])
    return rows


def unchanged_name(name: str) -> str:
    """Of the runs that a variant is set against: with one pass, if that is not its only change."""
    usual, _, changes = name.partition(" (")
    return f"{usual} ({ONE_PASS})" if ONE_PASS in changes and changes != f"{ONE_PASS})" else usual


def once(outcomes: Iterable[Outcome]) -> list[Outcome]:
    """Cells that have runs, by data and noise, without those whose runs another one has."""
    first: dict[str, Outcome] = {}
    for outcome in outcomes:
        if outcome.runs:
            first.setdefault(json.dumps([run.spec for run in outcome.runs.values()], sort_keys=True), outcome)
    return sorted(first.values(), key=lambda outcome: (outcome.entry.data, outcome.entry.column))


def endings(outcomes: Sequence[Outcome]) -> Rows:
    """Best and last error and the kept samples of every cell."""
    rows = [["data", "noise", "method", "best (n)", "last", "last - best", "kept clean", "a class given up"]]
    for outcome in outcomes:
        best = [float(run.end["best"]) for run in outcome.runs.values()]
        flattered = mean_and_error(outcome.last)[0] - mean_and_error(best)[0]
        entry = outcome.entry
        rows.append([entry.data, entry.column, entry.method, f"{spread(best)} ({len(best)})", spread(outcome.last)])
        rows[-1] += [f"{flattered:+.2f}", spread(outcome.kept), where_given_up(outcome)]
    return rows
