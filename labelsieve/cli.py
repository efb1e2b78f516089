"""The command line: find the command, parse its options, run it, and turn errors into one line and an exit code."""

import errno
import os
import shlex
import sys
import warnings
from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from typing import NoReturn

import labelsieve
from labelsieve.commands import COMMANDS, find_command
from labelsieve.errors import DamagedFile, InputError, LabelsieveError, is_out_of_memory, nearest, unexpected

RESUMABLE = ("train", "embed", "table", "compare", "figure", "demo")  # commands that resume when run again


FULL = (errno.ENOSPC, errno.EDQUOT)  # errors of a full disk
# Threads wait for each other actively for a moment, then asleep (decision 45).
THREADS_WAIT = {"OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "2000"}
_OTHER_WARNINGS = warnings.formatwarning
LONGEST_LINE = 2000  # characters of a message


class _Parser(ArgumentParser):
    """An argument parser that reports errors as InputError."""

    def error(self, message: str) -> NoReturn:
        raise InputError(f"{message}; see {self.prog} --help")


def main(argv: Sequence[str] | None = None) -> None:
    """Run a command and exit with its code."""
    if not THREADS_WAIT.keys() & os.environ:
        os.environ.update(THREADS_WAIT)  # before torch is imported
    warnings.formatwarning = _one_line
    try:
        code = execute(sys.argv[1:] if argv is None else argv)
        sys.stdout.flush()
    except BrokenPipeError:  # such as `labelsieve methods | head -1`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 0
    sys.exit(code)


def _one_line(
    message: Warning | str, category: type[Warning], filename: str, lineno: int, line: str | None = None
) -> str:
    """Return the line for a damaged file; other warnings say where in the code they come from."""
    if category is DamagedFile:
        return f"warning: {message}\n"
    return _OTHER_WARNINGS(message, category, filename, lineno, line)


def execute(argv: Sequence[str]) -> int:
    """Run a command and return its exit code; errors are printed in one line."""
    try:
        run, options = parse(argv)
        run(options)
    except LabelsieveError as error:
        return _fail(str(error), error.exit_code)
    except KeyboardInterrupt:
        resumable = "".join(argv[:1]) in RESUMABLE
        return _fail(f"stopped by Ctrl-C{'; run the same command again to resume' if resumable else ''}", 130)
    except BrokenPipeError:
        raise
    except OSError as error:
        if error.filename is None:
            return _fail(unexpected(error), 1)
        return _fail(f"cannot use {error.filename}: {error.strerror}", 4 if error.errno in FULL else 2)
    except Exception as error:
        if isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and is_out_of_memory(error)):
            return _fail("out of memory: use a smaller --batch or less data", 4)
        return _fail(unexpected(error), 1)
    return 0


def parse(argv: Sequence[str]) -> tuple[Callable[[Namespace], None], Namespace]:
    """Return the function of the command and its options; print help or version and exit if requested."""
    name, *rest = argv or [""]
    if "TORCHELASTIC_RUN_ID" in os.environ and name in COMMANDS and name != "train":
        raise InputError(f"torchrun works with labelsieve train only; run labelsieve {name} without it")
    if name not in COMMANDS:
        _overview().parse_args([name] if name.startswith("-") else [])
        raise InputError(
            f"unknown command {name!r}: {nearest(name, COMMANDS)}" if name else "name a command; see --help"
        )
    command = find_command(name)
    parser = _Parser(f"labelsieve {name}", description=COMMANDS[name], allow_abbrev=False)
    command.add_arguments(parser)
    positional = [action for action in parser._actions if not action.option_strings]
    names = [f"[{action.metavar}]" if action.nargs in ("?", "*") else str(action.metavar) for action in positional]
    parser.usage = " ".join([parser.prog, *names, "[OPTIONS]"])
    options, unknown = parser.parse_known_args(rest)
    if unknown:
        raise InputError(_describe_unknown(parser, unknown))
    words = _without_equals(rest)
    if any(getattr(options, each, None) for each in ("config", "like", "save_config")):
        options, words = _with_settings(parser, options, rest)
    options.command_line = shlex.join(["labelsieve", name, *words])
    return command.run, options


def _with_settings(parser: ArgumentParser, options: Namespace, rest: list[str]) -> tuple[Namespace, list[str]]:
    """Return the options with the settings of a file or an earlier run, and the words of a command that has them all.

    The command is stored in the run, to resume it: it must not depend on files that may change.
    """
    from labelsieve import config

    defaults = config.defaults_of(parser)
    if options.config or getattr(options, "like", None):
        options = config.merged(parser, rest, config.earlier_settings(parser, options))
    settings = config.changed_settings(parser, options, defaults)
    options.settings = config.by_key(parser, settings)  # written by the command once it has checked them
    return options, config.command_words(parser, settings)


def _overview() -> _Parser:
    lines = "\n".join(f"  {name:10}{summary}" for name, summary in COMMANDS.items())
    parser = _Parser(
        "labelsieve",
        usage="labelsieve COMMAND [OPTIONS]",
        description=labelsieve.__doc__,
        epilog=f"commands:\n{lines}\n\n`labelsieve COMMAND --help` shows the options of a command.",
        formatter_class=RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"labelsieve {labelsieve.__version__}")
    return parser


def _describe_unknown(parser: ArgumentParser, unknown: Sequence[str]) -> str:
    """Describe the first word that the parser does not know: a misspelt option, or a path without quotes."""
    options = [word.partition("=")[0] for word in unknown if word.startswith("-")]
    known = [name.strip("-") for action in parser._actions for name in action.option_strings]
    if options:
        close = get_close_matches(options[0].strip("-"), known, n=1, cutoff=0.6)
        hint = f"did you mean --{close[0]}? See" if close else "see"
        return f"{parser.prog} has no option {options[0]}; {hint} {parser.prog} --help"
    return f"unexpected argument {unknown[0]!r}; put quotes around a path with spaces, and see {parser.prog} --help"


def _without_equals(words: Sequence[str]) -> list[str]:
    """Return the words with --name=value as two words, and without --dry-run."""
    parts = [word.split("=", 1) if word.startswith("--") and "=" in word else [word] for word in words]
    return [part for split in parts for part in split if part != "--dry-run"]


def _fail(message: str, code: int) -> int:
    if "TORCHELASTIC_RUN_ID" in os.environ and os.environ.get("RANK", "0") != "0":
        return code  # the first process prints the same line
    line = message.encode("unicode_escape").decode() if any(ord(c) < 32 for c in message) else message
    if len(line) > LONGEST_LINE:
        line = f"{line[: LONGEST_LINE // 2]} ... {line[-LONGEST_LINE // 2 :]}"
    print(f"error: {line}", file=sys.stderr)
    return code


if __name__ == "__main__":
    main()
