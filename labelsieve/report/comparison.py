"""Methods side by side: means with their standard errors, and differences seed by seed."""

import math
from collections.abc import Mapping, Sequence

from labelsieve.report.records import Run

UNKNOWN = "–"
STUDENT = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26)  # of two values, of three, and so on
FEW = 6  # methods, all of whose differences can be read
# The paper's claim, pair by pair: the method and what it must be better than.
PAIRS = (
    ("mentornet-prop", "default"),
    ("mentornet-prop", "mentornet"),
    ("sl-prop", "sl"),
    ("selfie-prop", "selfie"),
    ("co-teaching (all)", "co-teaching"),
)


def mean_and_error(values: Sequence[float]) -> tuple[float, float]:
    """Mean and its standard error (n - 1 in the deviation); the error of a single value is unknown (NaN)."""
    mean = math.fsum(values) / len(values)
    if len(values) < 2:
        return mean, math.nan
    variance = math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1)
    return mean, math.sqrt(variance / len(values))


def interval(values: Sequence[float]) -> tuple[float, float]:
    """The 95% interval of a mean by Student's t; of many values a little wide. Two values at least."""
    mean, error = mean_and_error(values)
    reach = STUDENT[min(len(values) - 2, len(STUDENT) - 1)] * error
    return mean - reach, mean + reach


def shown(values: Sequence[float]) -> str:
    """12.3 ± 0.4"""
    if not values:
        return UNKNOWN
    mean, error = mean_and_error(values)
    return f"{mean:.1f}" if math.isnan(error) else f"{mean:.1f} ± {error:.1f}"


def comparison(groups: Mapping[str, Sequence[Run]]) -> list[list[str]]:
    """A header and a row per method."""
    table = [["method", "best test error %", "last test error %", "kept samples clean %", "seeds"]]
    for method, runs in groups.items():
        best, last = (
            [run.delivered.end[name] for run in runs if name in run.delivered.end] for name in ("best", "last")
        )
        clean = [100 * run.epochs[-1]["precision"] for run in runs if run.epochs[-1]["precision"] is not None]
        table.append([method, shown(best), shown(last), shown(clean), str(len(runs))])
    return table


def pairs(
    errors: Mapping[str, Mapping[int, float]], of: Sequence[tuple[str, str]] = PAIRS
) -> list[tuple[str, str, list[float]]]:
    """Method, base, and the method's error minus its base's for every seed that both have."""
    found = []
    for method, base in of:
        bases, own = errors.get(base, {}), errors.get(method, {})
        differences = [own[seed] - bases[seed] for seed in sorted(own.keys() & bases.keys())]
        if differences:
            found.append((method, base, differences))
    return found


def pairs_among(methods: Sequence[str], against: str | None = None) -> list[tuple[str, str]]:
    """Every method and what it is set against: that one, if one is named.

    Else the paper's pairs, and of a few methods those that are in none of them against the first that is named.
    """
    if against is not None:
        return [(method, against) for method in methods if method != against]
    papers = [pair for pair in PAIRS if set(pair) <= set(methods)]
    paired = {name for pair in papers for name in pair}
    others = methods[1:] if len(methods) <= FEW else ()
    return [*papers, *((method, methods[0]) for method in others if method not in paired)]


def paired_differences(groups: Mapping[str, Sequence[Run]], against: str | None = None) -> list[str]:
    """Last-epoch error of methods minus that of their bases, on the same noise and seed."""
    errors = {method: {run.spec["seed"]: run.end["last"] for run in runs} for method, runs in groups.items()}
    lines = []
    for method, base, differences in pairs(errors, pairs_among(list(groups), against)):
        each = ", ".join(f"{difference:+.1f}" for difference in differences)
        lines.append(f"{method} minus {base}, last test error seed by seed: {each}; mean {shown(differences)}")
    return lines


def run_by_run(groups: Mapping[str, Sequence[Run]], against: str) -> list[list[str]]:
    """A header and a row per run, one number in each place, for other programs."""
    header = ["method", "seed", "best test error", "last test error", "mean of the last ten", "kept samples clean"]
    base = {run.spec["seed"]: run.end["last"] for run in groups.get(against, ())}
    table = [[*header, "against", "last minus that"]]
    for method, runs in groups.items():
        others = {} if method == against else base
        table += [[method, *numbers_of(run), *difference_to(run, against, others)] for run in runs]
    return table


def numbers_of(run: Run) -> list[str]:
    clean = run.epochs[-1]["precision"]
    errors = [f"{run.end[name]:.2f}" for name in ("best", "last", "last_ten")]
    return [str(run.spec["seed"]), *errors, "" if clean is None else f"{100 * clean:.2f}"]


def difference_to(run: Run, against: str, others: Mapping[int, float]) -> list[str]:
    """Against which method, and how much more it errs than that one's run of the same seed, if there is one."""
    seed = run.spec["seed"]
    return [against, f"{run.end['last'] - others[seed]:.2f}"] if seed in others else ["", ""]


def markdown(table: Sequence[Sequence[str]]) -> str:
    header, *rows = table
    lines = [header, ["---"] + ["---:"] * (len(header) - 1), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
