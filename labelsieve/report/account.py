"""An account in sentences written by hand whose numbers are not: they are looked up in the records.

A template is paragraphs with blank lines between them. `{kind: about}` is replaced by a fact. `@if kind: about` before
a sentence is a claim that must hold for it; what follows `@otherwise` is said if the records say the opposite, what
follows `@missing` if they do not say enough. Lines that begin with # are remarks.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from labelsieve.errors import InputError

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
