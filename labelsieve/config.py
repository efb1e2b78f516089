"""The settings of a command as a file (--save-config, --config), and those of an earlier run (--like).

A file is flat TOML: its keys are the names of the options, without dashes in front, and `data`. Options on the command
line win over the file, which wins over the run. A file is yours; a run folder may be a stranger's, so no path but that
of its data and no name of code is taken from it.
"""

import json
import shlex
import tomllib
from argparse import Action, ArgumentParser, Namespace
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from labelsieve.errors import InputError, nearest
from labelsieve.files import refuse_others, writing
from labelsieve.runs.read import plain_command, refuse_no_run
from labelsieve.runs.record import read_head
from labelsieve.runs.spec import Experiment, with_defaults
from labelsieve.text import printable

HEADER = "# Settings of labelsieve; use them with --config. Options on the command line win."
NOT_SETTINGS = ("help", "config", "save_config", "like", "dry_run")
NUMBER_OR_WORD = ("noise_rate",)  # a number, or auto
OWN = ("out", "cache", "workers", "log")  # not taken from another run
PATHS = ("labels", "features", "init", "weights", "model", "backbone", "noise")  # may name files or code
MACHINE = ("device", "precision", *OWN)

Settings = dict[str, Any]  # by the name of the attribute


def earlier_settings(parser: ArgumentParser, options: Namespace) -> Settings:
    """Return the settings of the run and of the file that the options name."""
    found = settings_like(options.like, parser, options) if getattr(options, "like", None) else {}
    return found | (read_settings(options.config, parser) if options.config else {})


def merged(parser: ArgumentParser, words: list[str], earlier: Settings) -> Namespace:
    """Parse the words of a command line, with earlier settings in place of the defaults."""
    given = parser.parse_args(words)
    parser.set_defaults(**{name: value for name, value in earlier.items() if not isinstance(value, list)})
    options = parser.parse_args(words)
    for name, values in earlier.items():
        if isinstance(values, list):  # such as --set: of values for one name, that of the command line wins
            ours = {value.partition("=")[0] for value in getattr(given, name)}
            setattr(options, name, [v for v in values if v.partition("=")[0] not in ours] + getattr(given, name))
    return options


def changed_settings(parser: ArgumentParser, options: Namespace, defaults: Mapping[str, Any]) -> Settings:
    """Return the settings that differ from the defaults; the data always."""
    values = {action.dest: getattr(options, action.dest) for action in _actions(parser)}
    return {name: value for name, value in values.items() if name == "data" or value != defaults[name]}


def defaults_of(parser: ArgumentParser) -> Settings:
    """Return the defaults of all settings of a command."""
    return {action.dest: action.default for action in _actions(parser)}


def command_words(parser: ArgumentParser, settings: Settings) -> list[str]:
    """Return the words of a command line that has these settings."""
    words: list[str] = []
    for action in _actions(parser):
        if action.dest not in settings:
            continue
        value, options = settings[action.dest], action.option_strings
        if not options:
            words.append(str(value))
        elif isinstance(value, bool):
            words.append(options[0] if value else options[-1])
        else:
            values = value if isinstance(value, list) else [value]
            words += [word for each in values for word in (options[0], str(each))]
    return words


# ---- files ---------------------------------------------------------------------------------------------------------


def by_key(parser: ArgumentParser, settings: Settings) -> Settings:
    """Return settings by their keys in a file."""
    keys = {action.dest: _key(action) for action in _actions(parser)}
    return {keys[name]: value for name, value in settings.items()}


def save_settings(path: Path, settings: Settings) -> None:
    """Write settings, by key, to a file; a file with other content is not replaced."""
    refuse_others(path, HEADER)
    lines = [HEADER, *(f"{key} = {_toml(value)}" for key, value in settings.items())]
    try:
        content = "\n".join([*lines, ""]).encode()
    except UnicodeEncodeError:
        raise InputError(f"cannot write {path}: a name in the settings is not valid Unicode") from None
    if path.is_file() and path.read_bytes() != content:
        raise InputError(f"{path} contains other settings; name another file, or delete it")
    with writing(path) as file:
        file.write(content)


def read_settings(path: Path, parser: ArgumentParser) -> Settings:
    """Read settings from a file; refuse unknown keys and wrong types."""
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InputError(f"{path} is not valid TOML: {error}") from error
    known = {_key(action): action for action in _actions(parser)}
    for key in values:
        if key not in known:
            raise InputError(f"{path}: unknown key {key!r}: {nearest(key, known)}")
    return {known[key].dest: _checked(value, known[key], f"{path}: {key}") for key, value in values.items()}


def _actions(parser: ArgumentParser) -> list[Action]:
    return [action for action in parser._actions if action.dest not in NOT_SETTINGS]


def _key(action: Action) -> str:
    return action.option_strings[0].strip("-") if action.option_strings else action.dest


def _checked(value: Any, action: Action, place: str) -> Any:
    """Return a value of a file as the command line would, or raise InputError if it has another type."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    kind = getattr(action.type, "__name__", "")
    if not kind and action.dest in NUMBER_OR_WORD and (is_number or isinstance(value, str)):
        return str(value)
    if isinstance(action.default, bool):
        fits, wanted = isinstance(value, bool), "true or false"
    elif isinstance(action.default, list):
        fits, wanted = isinstance(value, list) and all(isinstance(each, str) for each in value), "a list of texts"
    elif kind == "integer":
        fits, wanted = is_number and isinstance(value, int), "an integer"
    elif kind == "number":
        fits, wanted = is_number, "a number"
    else:
        fits, wanted = isinstance(value, str), "a text in quotes"
    if not fits:
        raise InputError(f"{place} must be {wanted}, got {printable(str(value))[:80]}")
    if kind in ("integer", "Path"):
        convert: Callable[[str], Any] = Path if kind == "Path" else int
        return convert(value)
    return float(value) if kind == "number" else value


def _toml(value: Any) -> str:
    """Return a plain value in TOML."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, list):
        return f"[{', '.join(map(_toml, value))}]"
    return json.dumps(str(value), ensure_ascii=False).replace("\x7f", "\\u007f")  # TOML escapes what JSON escapes


# ---- earlier runs --------------------------------------------------------------------------------------------------


def settings_like(run: Path, parser: ArgumentParser, options: Namespace) -> Settings:
    """Return the settings of an earlier run, from its command, or from its specification if a sweep trained it."""
    refuse_no_run(run)
    head = read_head(run)
    try:
        command = plain_command(str(head.get("command", "")))
        found = _of_command(parser, command) if command else _of_specification(parser, head["experiment"])
    except InputError as error:
        raise InputError(f"cannot train like {run}: {error}") from error
    found = {name: value for name, value in found.items() if name not in OWN}
    defaults = defaults_of(parser)
    for name in (name for name in PATHS if name in found and _is_foreign(name, str(found[name]))):
        if getattr(options, name) == defaults[name]:
            flag = f"--{name.replace('_', '-')} {shlex.quote(printable(str(found[name])))}"
            raise InputError(f"{run} was trained with {flag}, which is not taken from a folder: add it, or another")
        del found[name]
    return found


def _is_foreign(name: str, value: str) -> bool:
    """Return whether a setting of a run names a file, or code to import."""
    if name in ("model", "backbone"):
        return ":" in value
    return name != "noise" or Path(value).suffix in (".npy", ".csv")


def _of_command(parser: ArgumentParser, command: str) -> Settings:
    options, unknown = parser.parse_known_args(shlex.split(command)[2:])
    if unknown:
        raise InputError(f"its command has {printable(unknown[0])}, which this version does not know")
    return changed_settings(parser, options, defaults_of(parser))


def _of_specification(parser: ArgumentParser, spec: Mapping[str, Any]) -> Settings:
    """Return every setting of a specification, because the command line has other defaults for some."""
    default, known, whole = Experiment().as_dict(), defaults_of(parser), with_defaults(dict(spec))
    whole["set"] = [f"{name}={json.dumps(value)}" for name, value in whole.pop("options")]
    whole |= {"scores": ",".join(map(str, whole["scores"])), "noise_rate": str(whole["noise_rate"])}
    if whole["noise"] is None:
        del whole["rate"]
    if without := [name for name in whole if name not in known and whole[name] != default[name]]:
        raise InputError(f"it was trained with {_listed(without)}, for which there is no option")
    return {
        name: value for name, value in whole.items() if name in known and value != known[name] and name not in MACHINE
    }


def _listed(names: Iterable[str]) -> str:
    return ", ".join(name.replace("_", " ") for name in names)
