"""Run a command in a child process that notes every file it opens, and measure its time and memory."""

import os
import resource
import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from tests.fuzz.seeds import quietly

CPU_SECONDS = 20  # the child is killed after these
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
CHANGING = ("os.mkdir", "os.remove", "os.rename", "os.rmdir", "os.truncate", "os.link", "os.symlink", "os.chmod")


class Confined(NamedTuple):
    """What a command did in a child process."""

    code: int  # negative: the signal that killed it
    printed: str
    written: list[str]  # paths that it opened for writing, created, renamed or deleted
    read: list[str]
    seconds: float  # of CPU
    megabytes: float  # most memory beyond that of the parent


def run_confined(argv: Sequence[str]) -> Confined:
    """Fork, run a command there, and return what it did."""
    log = Path(tempfile.mkstemp(prefix="labelsieve-confined-")[1])
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    child = os.fork()
    if child == 0:
        code = 99
        try:
            code = _run(list(argv), log)
        finally:
            os._exit(code)
    _, status, usage = os.wait4(child, 0)
    code = os.waitstatus_to_exitcode(status)
    lines = log.read_text(encoding="utf-8", errors="surrogateescape").split("\n")
    log.unlink()
    kinds = {kind: [line[1:] for line in lines if line.startswith(kind)] for kind in ("w", "r", "p")}
    seconds = usage.ru_utime + usage.ru_stime
    return Confined(
        code, "\n".join(kinds["p"]), kinds["w"], kinds["r"], seconds, max(0, usage.ru_maxrss - before) / 1024
    )


def _run(argv: list[str], log: Path) -> int:
    """Run a command and log what it opens and prints."""
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS))
    signal.signal(signal.SIGXCPU, signal.SIG_DFL)
    noted = os.open(log, os.O_WRONLY | os.O_APPEND)

    def note(kind: str, path: object) -> None:
        if isinstance(path, str | bytes | os.PathLike):
            name = os.path.realpath(os.fsdecode(os.fspath(path))).replace("\n", "?")
            os.write(noted, f"{kind}{name}\n".encode("utf-8", "surrogateescape"))

    def hook(event: str, details: tuple[object, ...]) -> None:
        if event == "open":
            path, mode, flags = details
            writing = isinstance(flags, int) and bool(flags & WRITING)
            note("w" if writing or (isinstance(mode, str) and set(mode) & set("wax+")) else "r", path)
        elif event in CHANGING:
            for path in details[:2]:
                note("w", path)

    sys.addaudithook(hook)
    code, out, errors = quietly(argv)
    for line in f"{out}{errors}".splitlines():
        os.write(noted, f"p{line}\n".encode("utf-8", "replace"))
    return code
