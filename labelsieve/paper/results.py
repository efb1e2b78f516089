"""An account in sentences written by hand whose numbers are not: they are looked up in the records.

A template is paragraphs with blank lines between them. `{kind: about}` is replaced by a fact. `@if kind: about` before
a sentence is a claim that must hold for it; what follows `@otherwise` is said if the records say the opposite, what
follows `@missing` if they do not say enough. Lines that begin with # are remarks."""

import json
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any, TypeVar

from labelsieve.errors import InputError, LabelsieveError, nearest
from labelsieve.files import write_atomically
from labelsieve.paper.comparison import (
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
    within,
)
from labelsieve.paper.figures import DATASETS, DRAWN, USUAL, look_up, points
from labelsieve.paper.figures import Known as Mark
from labelsieve.paper.reproduce import Known, Trial, entries
from labelsieve.paper.tables import NOISE_RATE, SL_BETA, Cell, Table, experiment, tables
from labelsieve.runs.find import Identity, identity, known_runs
from labelsieve.runs.read import Run, read_run
from labelsieve.runs.spec import Experiment
from labelsieve.runs.tables import Rows, interval, markdown, mean_and_error, pairs

ACCOUNT = Path(__file__).with_name("account.md")
Ask = Callable[[str, str], str | None]
Judge = Callable[[str, str], bool | None]


@dataclass(frozen=True)
class Sentence:
    """What is said if all claims hold, and what instead."""

    holds: str
    claims: tuple[str, ...] = ()
    otherwise: str = ""
    missing: str = ""  # empty: nothing is said


def told(template: str, fact: Ask, claim: Judge) -> str:
    """The account that the records allow."""
    return "\n\n".join(filter(None, (spoken(sentence, fact, claim) for sentence in sentences(template))))


def sentences(template: str) -> list[Sentence]:
    """The paragraphs of a template."""
    lines = [line for line in template.splitlines() if not line.startswith("#")]
    return [parsed(paragraph) for paragraph in re.split(r"\n\s*\n", "\n".join(lines)) if paragraph.strip()]


def parsed(paragraph: str) -> Sentence:
    parts: dict[str, list[str]] = {"holds": [], "otherwise": [], "missing": []}
    claims, place = [], "holds"
    for line in paragraph.strip().splitlines():
        word, _, rest = line.partition(" ")
        if word == "@if":
            claims.append(rest)
        elif word in ("@otherwise", "@missing"):
            place = word[1:]
        else:
            parts[place].append(line)
    said = {name: "\n".join(lines) for name, lines in parts.items()}
    if bool(claims) != bool(said["otherwise"]):
        raise InputError(f"@if and @otherwise go together: nothing may be left unsaid, in {said['holds'][:60]!r}")
    return Sentence(claims=tuple(claims), **said)


def spoken(sentence: Sentence, fact: Ask, claim: Judge) -> str:
    """One sentence, or what is said instead of it."""
    verdicts = [claim(*asked(words)) for words in sentence.claims]
    text = None
    if None not in verdicts:
        text = filled(sentence.holds if all(verdicts) else sentence.otherwise, fact)
    return (filled(sentence.missing, fact) or "") if text is None else text


def filled(text: str, fact: Ask) -> str | None:
    """The text with its facts; None if one of them is missing."""
    facts = {words: fact(*asked(words)) for words in re.findall(r"\{(.*?)\}", text)}
    if None in facts.values():
        return None
    return re.sub(r"\{(.*?)\}", lambda match: str(facts[match[1]]), text)


def asked(words: str) -> tuple[str, str]:
    """kind: about"""
    kind, _, about = words.partition(": ")
    return kind.strip(), about.strip()


T = TypeVar("T")
FAR = 1.5  # points
VERDICTS = {
    "yes": "within two standard errors",
    "no": "more than two standard errors",
    "n too small": "too few trials to judge",
    "no spread printed": "without a printed spread to judge it by",
}


@dataclass(frozen=True)
class Outcome:
    """A cell, and its runs by seed."""

    entry: Entry
    runs: Mapping[int, Run]

    @property
    def name(self) -> str:
        return f"{self.entry.data} {self.entry.column} {self.entry.method}"

    @property
    def last(self) -> list[float]:
        return [float(run.end["last"]) for run in self.runs.values()]

    @property
    def kept(self) -> list[float]:
        """Right labels among the samples that the last epoch learnt from, in percent."""
        shares = [run.epochs[-1].get("precision") for run in self.runs.values()]
        return [100 * share for share in shares if share is not None]


Outcomes = Mapping[str, Outcome]  # by name


def looked_up(name: str, outcomes: Outcomes) -> Outcome | None:
    """The cell of this name, if any of its runs is there; in brackets behind it may stand what is done differently."""
    if name not in outcomes and name.partition(" (")[0] not in outcomes:
        raise InputError(f"the account speaks of {name!r}, which no table has: {nearest(name, outcomes)}")
    found = outcomes.get(name)
    return found if found and found.runs else None


def two_of(about: str, outcomes: Outcomes) -> list[Outcome | None]:
    """The cells of `cifar10 pair 40% mentornet-prop over mentornet`."""
    first, _, base = about.partition(" over ")
    where = " ".join(first.split()[:3])  # data, kind of noise, rate
    return [looked_up(name, outcomes) for name in (first, f"{where} {base}")]


def both(about: str, outcomes: Outcomes) -> list[float]:
    """The first one's error minus the second one's for every seed that both have."""
    errors = [outcome.entry.errors if outcome else {} for outcome in two_of(about, outcomes)]
    return [errors[0][seed] - errors[1][seed] for seed in sorted(errors[0].keys() & errors[1].keys())]


def printed(about: str, outcomes: Outcomes) -> str | None:
    """By how much the first one's printed error is below the second one's, or above it: 4.6 points lower"""
    means = [cell.entry.published[0] for cell in two_of(about, outcomes) if cell and cell.entry.published]
    if len(means) < 2:
        return None
    points = round(means[0] - means[1], 2)
    return f"{abs(points):g} points {'lower' if points < 0 else 'higher'}" if points else "the same"


def fact(kind: str, about: str, outcomes: Outcomes) -> str | None:
    """The words for `kind: about`; None if it was not run."""
    if " over " in about:
        return one_of(OF_TWO, kind)(about, outcomes)
    outcome = looked_up(about, outcomes)
    return one_of(OF_ONE, kind)(outcome) if outcome else None


def claim(kind: str, about: str, outcomes: Outcomes) -> bool | None:
    """Whether `kind: about` holds; None if too little was run to tell."""
    if " over " in about:
        found = both(about, outcomes)
        return one_of(CLAIMS_OF_TWO, kind)(found) if len(found) > 1 else None
    outcome = looked_up(about, outcomes)
    return one_of(CLAIMS_OF_ONE, kind)(outcome) if outcome and len(outcome.runs) > 1 else None


def one_of(kinds: Mapping[str, T], kind: str) -> T:
    if kind not in kinds:
        raise InputError(f"the account asks for {kind!r}, which is not known: {nearest(kind, kinds)}")
    return kinds[kind]


def spread(values: Sequence[float]) -> str:
    """28.62 ± 1.18"""
    if not values:
        return "–"
    mean, error = mean_and_error(values)
    return f"{mean:.2f}" if math.isnan(error) else f"{mean:.2f} ± {error:.2f}"


def compared(differences: Sequence[float]) -> str | None:
    """lower in 3 of 3 trials, on average by 8.19 ± 1.74 points (95% interval 0.69 to 15.68)"""
    if not differences:
        return None
    mean, error = mean_and_error(differences)
    word = "lower" if mean < 0 else "higher"
    if len(differences) == 1:
        return f"{word} in the one trial there is, by {abs(mean):.2f} points"
    agree = sum(one * mean > 0 for one in differences)
    low, high = sorted(math.copysign(1, mean) * end for end in interval(differences))
    return (
        f"{word} in {agree} of {len(differences)} trials, on average by {abs(mean):.2f} ± {error:.2f} points "
        f"(95% interval {low:.2f} to {high:.2f})"
    )


def beside(outcome: Outcome) -> str:
    """17.68 ± 0.28 (3), paper 18.4 ± 0.35, difference -0.72, within two standard errors"""
    entry = outcome.entry
    if entry.published is None:
        return ours(entry)
    return f"{ours(entry)}, paper {papers(entry)}, difference {difference(entry)}, {VERDICTS[within(entry)]}"


def trials(outcome: Outcome) -> str:
    """19.16, 23.98, 18.17"""
    return ", ".join(f"{outcome.entry.errors[seed]:.2f}" for seed in sorted(outcome.entry.errors))


def lost_classes(run: Run, row: Mapping[str, Any]) -> int:
    """How many classes kept fewer than half as many samples in this epoch as they should have."""
    least = (1 - run.spec["noise_rate"]) / 2
    return sum(share < least for share in row.get("kept") or [])


def given_up(run: Run) -> list[int]:
    """The epochs, counted from 1, in which some class did."""
    return [number for number, row in enumerate(run.epochs, 1) if lost_classes(run, row)]


def lost(outcome: Outcome) -> str:
    """How many classes did in the last epoch, trial by trial: 4 of 100, 0 of 100"""
    ends = [(run, run.epochs[-1]) for _, run in sorted(outcome.runs.items())]
    return ", ".join(f"{lost_classes(run, row)} of {len(row.get('kept') or [])}" for run, row in ends)


def where_given_up(outcome: Outcome) -> str:
    """seed 2 in epochs 26 to 86 (error 20.07 at best in these)"""
    said = []
    for seed, run in outcome.runs.items():
        if epochs := given_up(run):
            best = min(run.epochs[number - 1]["test_error"] for number in epochs)
            span = f"epochs {epochs[0]} to {epochs[-1]}" if len(epochs) > 1 else f"epoch {epochs[0]}"
            said.append(f"seed {seed} in {span} (error {best:.2f} at best in these)")
    return "; ".join(said)


def clearly_lower(differences: Sequence[float]) -> bool:
    """In every trial, and so that zero is outside of the 95% interval."""
    return max(differences) < 0 and interval(differences)[1] < 0


def excess(outcome: Outcome) -> float:
    """By how many points the mean is above the printed one; 0 if none is printed."""
    printed = outcome.entry.published
    return 0.0 if printed is None else mean_and_error(list(outcome.entry.errors.values()))[0] - printed[0]


OF_ONE: dict[str, Callable[[Outcome], str]] = {
    "ours": lambda outcome: ours(outcome.entry),
    "beside": beside,
    "trials": trials,
    "given up": lambda outcome: where_given_up(outcome) or "no trial",
    "lost": lost,
    "last": lambda outcome: f"{spread(outcome.last)} ({len(outcome.last)})",
    "kept": lambda outcome: f"{spread(outcome.kept)} ({len(outcome.kept)})",
}
OF_TWO: dict[str, Callable[[str, Outcomes], str | None]] = {
    "compared": lambda about, outcomes: compared(both(about, outcomes)),
    "printed": printed,
}
CLAIMS_OF_ONE: dict[str, Callable[[Outcome], bool]] = {
    "far below": lambda outcome: excess(outcome) < -FAR,
    "below": lambda outcome: excess(outcome) < 0,
    "near": lambda outcome: outcome.entry.published is not None and abs(excess(outcome)) <= FAR,
}
CLAIMS_OF_TWO: dict[str, Callable[[Sequence[float]], bool]] = {"clearly lower": clearly_lower}


HEADER = ["data", "noise", "pair", "paper", "ours (n)", "95% interval", "verdict"]


def claims(entries: Iterable[Entry]) -> Rows:
    """A header, and a line for every pair of which there is a trial: the best error of the first minus the second's."""
    groups: dict[tuple[str, str], dict[str, Entry]] = {}
    for entry in sorted(entries, key=dominant_first):
        groups.setdefault((entry.data, entry.column), {}).setdefault(entry.method, entry)
    return [HEADER, *(row for where, found in groups.items() for row in claimed(where, found))]


def claimed(where: tuple[str, str], found: Mapping[str, Entry]) -> Rows:
    rows = []
    for method, base, differences in pairs({name: entry.errors for name, entry in found.items()}):
        printed = printed_difference(found[method], found[base])
        mean, error = mean_and_error(differences)
        ours = f"{mean:+.2f}" + ("" if math.isnan(error) else f" ± {error:.2f}") + f" ({len(differences)})"
        ends = " to ".join(f"{end:+.2f}" for end in interval(differences)) if len(differences) > 1 else ""
        papers = "" if printed is None else f"{printed:+.1f}"
        rows.append([*where, f"{method} minus {base}", papers, ours, ends, verdict(differences, printed)])
    return rows


def printed_difference(method: Entry, base: Entry) -> float | None:
    if method.published is None or base.published is None:
        return None
    return round(method.published[0] - base.published[0], 2)


def verdict(differences: Sequence[float], printed: float | None) -> str:
    """Whether ours go the paper's way; sure if zero is outside of the interval."""
    if printed is None:
        return ""
    if len(differences) < 2:
        return "one trial"
    low, high = interval(differences)
    if low <= 0 <= high:
        return "alike, as in the paper" if printed == 0 else "uncertain"
    return "holds" if printed * low > 0 else "differs"


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


FIGURES = "figures"  # folder beside the page
DRAWINGS = ((7, None), (3, None), (8, None), (9, None), (10, None), (11, None), (11, "cifar10"))
CAPTIONS = {
    3: "the scores of single samples at the end of the warm-up, one class of one run",
    7: "the kinds of noise as they are drawn here",
    8: "best test error under pair noise",
    9: "best test error under symmetry noise",
    10: "best test error by λ",
    11: "right labels among the selected samples, epoch by epoch",
}
NOT_AT_HAND = ("tiny-imagenet", "animal10n", "clothing1m")
TRIALS = 3  # the paper's


@dataclass(frozen=True)
class Drawing:
    """A figure and the runs that there are of it."""

    number: int
    dataset: str | None  # None: the paper's
    marks: list[Mark]

    @property
    def file(self) -> str:
        return f"figure-{self.number}" + (f"-{self.dataset}" if self.dataset else "") + ".svg"

    @property
    def caption(self) -> str:
        text = f"Figure {self.number}: {CAPTIONS[self.number]}"
        if self.dataset:
            papers = " and ".join(DATASETS[data] for data in USUAL[self.number])
            text += f", on {DATASETS[self.dataset]} (the paper's is of {papers})"
        there = sum(bool(mark.paths) for mark in self.marks)
        parts = f"; of its {len(self.marks)} experiments {there} were run" if there < len(self.marks) else ""
        return f"{text}{parts}."

    def svg(self) -> bytes:
        return DRAWN[self.number](self.marks)["svg"]


def results(folder: Path, out: Path, check: bool) -> None:
    """Write the page and its figures, or fail if those that are there are not what would be written."""
    if not folder.is_dir():
        raise InputError(f"no folder {folder} with records: name another with --results")
    text, drawings = page_of(folder)
    files = {out: text.encode()} | {out.parent / FIGURES / one.file: one.svg() for one in drawings}
    if check:
        stale = [str(path) for path, content in files.items() if not current(path, content)]
        if stale:
            raise LabelsieveError(f"{', '.join(stale)}: not what the records give; run labelsieve results and commit")
        print(f"{out} is what the records give")
    else:
        write(files)
        print(f"page: {out}, with {len(drawings)} figures")


def write(files: dict[Path, bytes]) -> None:
    for path, content in files.items():
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"cannot write to {path.parent}: {error.strerror}") from error
        write_atomically(path, content)


def current(path: Path, content: bytes) -> bool:
    """Whether a file holds this; a figure of another version of matplotlib only has to be there."""
    if not path.is_file():
        return False
    there = path.read_bytes()
    return there == content or (path.suffix == ".svg" and drawn_by(there) != drawn_by(content))


def drawn_by(svg: bytes) -> bytes | None:
    found = re.search(rb"Matplotlib v([\w.+]+)", svg)
    return found and found[1]


def page_of(folder: Path) -> tuple[str, list[Drawing]]:
    """The page and the figures that belong to it."""
    known = known_runs(folder)
    seeds = trials_of(known)
    drawings = list(drawings_of(folder, seeds))
    parts: list[Part] = []
    outcomes: dict[str, Outcome] = {}
    used: set[Identity] = set()
    for table in tables().values():
        for data in dict.fromkeys(cell.experiment.data for cell in table.cells):
            cells = [cell for cell in table.cells if cell.experiment.data == data]
            trials = [Trial(cell, seed) for cell in cells for seed in range(seeds)]
            found = outcomes_of(table, cells, trials, known)
            parts.append(part_of(table, data, found, missing(trials, known)))
            outcomes |= {one.name: one for one in found if one.name not in outcomes}
            used |= {trial.identity for trial in trials if not trial.cell.variant}
    early = {identity(point.experiment.as_dict()) for point in points(3)}  # they end when the selecting begins
    rest = {each: path for each, path in known.items() if each not in used and dict(each)["data"] in SL_BETA}
    others = other_outcomes({each: path for each, path in rest.items() if each not in early}, outcomes)
    outcomes |= {one.name: one for one in others}
    of_figures = {path for one in drawings for mark in one.marks for path in mark.paths.values()}
    of_tables = {known[each] for each in used if each in known}
    runs = [cached_run(path) for path in sorted(of_tables | of_figures | set(rest.values()))]
    pictures = [Picture(f"{FIGURES}/{one.file}", one.caption) for one in drawings]
    account = ACCOUNT.read_text(encoding="utf-8")
    return results_page(parts, outcomes, others, runs, pictures, account), drawings


@cache
def cached_run(path: Path) -> Run:
    return read_run(path, with_tables=False)


def trials_of(known: Known) -> int:
    """The most trials that any of the paper's experiments has, three at least."""
    fields = map(dict, known)
    return max(TRIALS, *(1 + int(one["seed"]) for one in fields if one["data"] in SL_BETA), 0)


def outcomes_of(table: Table, cells: list[Cell], trials: list[Trial], known: Known) -> list[Outcome]:
    """Every cell with its runs."""
    runs: dict[Cell, dict[int, Run]] = {cell: {} for cell in cells}
    for trial in trials:
        if trial.identity in known:
            runs[trial.cell][trial.seed] = cached_run(known[trial.identity])
    found = entries(table, cells, trials, known)
    return [Outcome(entry, runs[cell]) for cell, entry in zip(cells, found, strict=True)]


def missing(trials: Iterable[Trial], known: Known) -> int:
    """How many of the paper's trials are not there."""
    return len({trial.identity for trial in trials if trial.seed < TRIALS} - known.keys())


def part_of(table: Table, data: str, found: list[Outcome], missing: int) -> Part:
    why = "its data is not at hand" if data in NOT_AT_HAND else "not run yet"
    title = table.title.replace(" of the paper", "")
    return Part(table.name, title, data, [one.entry for one in found], missing, table.notes, why)


def drawings_of(folder: Path, seeds: int) -> Iterator[Drawing]:
    """The figures of which there is a run, or that need none."""
    for number, dataset in DRAWINGS:
        marks = look_up(points(number, dataset), 1 if number == 3 else seeds, folder)
        if not marks or any(mark.paths for mark in marks):
            yield Drawing(number, dataset, marks)


def other_outcomes(known: Known, outcomes: Outcomes) -> list[Outcome]:
    """Runs that no table has, named by what they do differently."""
    groups: dict[str, Outcome] = {}
    for each, path in known.items():
        fields = dict(each)
        entry = Entry(fields["data"], fields["method"], fields["noise"], fields["rate"], {})
        cell = outcomes.get(Outcome(entry, {}).name)
        run = cached_run(path)
        there = replace(
            entry,
            method=" ".join(filter(None, [entry.method, changes(each)])),
            errors={fields["seed"]: float(run.end["best"])},
            published=cell.entry.published if cell else None,
        )
        one = Outcome(there, {fields["seed"]: run})
        before = groups.get(one.name, one)
        errors = {**before.entry.errors, **there.errors}
        groups[one.name] = Outcome(replace(there, errors=errors), {**before.runs, **one.runs})
    return [groups[name] for name in sorted(groups)]


def changes(each: Identity) -> str:
    """What an experiment does differently from the paper's with the same data, noise, method and seed, in brackets."""
    fields, usual = dict(each), dict(identity(usual_for(dict(each)).as_dict()))
    fields, usual = ({**one, **dict(one["options"]), "options": ()} for one in (fields, usual))
    different = sorted(name for name in fields.keys() | usual.keys() if fields.get(name) != usual.get(name))
    words = [f"{name} {fields[name]}" if name in fields else f"{name} by default" for name in different]
    return f"({', '.join(words)})" if words else ""


def usual_for(fields: dict[str, Any]) -> Experiment:
    data, method, noise, rate, seed = (fields[name] for name in ("data", "method", "noise", "rate", "seed"))
    if noise or data in NOISE_RATE:
        return experiment(data, method, noise, rate, seed)
    return replace(experiment(data, method, "its own", rate, seed), noise=None)
