"""bench_tables: what a bench measured, for the terminal."""

from typing import Any

from rich.table import Table

from labelsieve.experiments.bench_ways import Row

KERNELS = 16  # shown of one step


def epochs_table(rows: list[Row], images: int, floor: float) -> Table:
    table = Table("mentornet-prop", "s / epoch", "spread", "images / s", "x plain", "x floor", "measured on")
    for r in rows:
        table.add_row(
            r.way,
            f"{r.seconds:.3f}",
            f"{r.spread:.3f}",
            f"{images / r.seconds:,.0f}",
            f"{rows[0].seconds / r.seconds:.1f}",
            f"{r.seconds / floor:.1f}",
            f"{r.epochs} x {r.images:,}",
        )
    table.caption = f"floor {floor:.3f} s"
    return table


def steps_table(steps: list[dict[str, Any]]) -> Table:
    table = Table("method", "classes", "ms / step", "µs over default")
    for s in steps:
        over = f"{s['over_default_us']:.0f}" if "over_default_us" in s else ""
        table.add_row(s["method"], str(s["classes"]), f"{s['ms']:.3f}", over)
    return table


def kernels_table(kernels: list[dict[str, Any]]) -> Table:
    total = sum(k["us"] for k in kernels)
    table = Table("kernel of a step", "launches", "µs", "share")
    for k in kernels[:KERNELS]:
        table.add_row(k["kernel"][:70], f"{k['launches']:.0f}", f"{k['us']:.0f}", f"{100 * k['us'] / total:.1f}%")
    rest = kernels[KERNELS:]
    table.add_row(
        f"{len(rest)} others", f"{sum(k['launches'] for k in rest):.0f}", f"{sum(k['us'] for k in rest):.0f}", ""
    )
    table.caption = f"{total:.0f} µs of kernels in {sum(k['launches'] for k in kernels):.0f} launches"
    return table
