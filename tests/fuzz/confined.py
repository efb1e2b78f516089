"""Run a command in a child process with bounded time and memory, and note every file that it opens."""

import contextlib
import io
import os
import resource
import signal
import sys
import tempfile
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from labelsieve.cli import execute

CPU_SECONDS, MEGABYTES = 20, 2000  # what a command on small input may take
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
CHANGING = ("os.mkdir", "os.remove", "os.rename", "os.rmdir", "os.truncate", "os.link", "os.symlink", "os.chmod")


class Confined(NamedTuple):
    """What a command did in a child process."""

    code: int  # negative: the signal that killed it
    printed: str
    errors: str  # the part of it that went to standard error
    written: list[str]  # paths that it opened for writing, created, renamed or deleted
    read: list[str]
    seconds: float  # of CPU
    megabytes: float  # most memory beyond what it had at its start


def quietly(argv: list[str]) -> tuple[int, str, str]:
    """Run a command in this process; return its exit code and what it printed."""
    out, err = io.StringIO(), io.StringIO()
    with warnings.catch_warnings(), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        warnings.simplefilter("ignore")
        code = execute(argv)
    return code, out.getvalue(), err.getvalue()


def run_confined(argv: Sequence[str]) -> Confined:
    """Fork, run a command there, and return what it did.

    The kernel ends a child that takes more than CPU_SECONDS, and refuses it more than MEGABYTES of address space beyond
    that of this process; the command then reports that memory ran out, which `check_bounds` does not accept.
    """
    log = Path(tempfile.mkstemp(prefix="labelsieve-confined-")[1])
    space = _memory()[0]
    child = os.fork()
    if child == 0:
        code = 99
        try:
            resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS))
            if space:
                resource.setrlimit(resource.RLIMIT_AS, (space + MEGABYTES * 2**20,) * 2)
            code = _run(list(argv), log)
        finally:
            os._exit(code)
    _, status, usage = os.wait4(child, 0)
    lines = log.read_text(encoding="utf-8", errors="surrogateescape").split("\n")
    log.unlink()
    kinds = {kind: [line[1:] for line in lines if line.startswith(kind)] for kind in "wrpem"}
    printed, errors = ("".join(f"{line}\n" for line in kinds[kind]) for kind in "pe")
    seconds = usage.ru_utime + usage.ru_stime
    megabytes = max(0.0, usage.ru_maxrss / 1024 - float(kinds["m"][0])) if kinds["m"] else 0.0
    code = os.waitstatus_to_exitcode(status)
    return Confined(code, printed + errors, errors, kinds["w"], kinds["r"], seconds, megabytes)


def check_bounds(found: Confined, what: str) -> None:
    """Fail if a command took too much time or memory."""
    assert found.code != -signal.SIGXCPU and found.code != -signal.SIGKILL, f"{what}: more than {CPU_SECONDS} CPU s"
    assert found.megabytes < MEGABYTES and "out of memory" not in found.errors, f"{what}: too much memory"


def _memory() -> tuple[int, int]:
    """Return the address space and the resident memory of this process in bytes; the first is 0 if it is not known."""
    facts = Path("/proc/self/statm")
    if not facts.exists():  # not Linux
        return 0, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    space, resident = (int(pages) * resource.getpagesize() for pages in facts.read_text().split()[:2])
    return space, resident


def _run(argv: list[str], log: Path) -> int:
    """Run a command and log what it opens and prints."""
    signal.signal(signal.SIGXCPU, signal.SIG_DFL)
    noted = os.open(log, os.O_WRONLY | os.O_APPEND)
    os.write(noted, f"m{_memory()[1] / 2**20}\n".encode())

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
    for kind, text in (("p", out), ("e", errors)):
        for line in text.splitlines():
            os.write(noted, f"{kind}{line}\n".encode("utf-8", "replace"))
    return code
