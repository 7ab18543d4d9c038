"""The reference of all options of a program, from its registrations with oslo.config."""

import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final

from stevedore.named import NamedExtensionManager

ROOT: Final = Path(__file__).parents[2]

PROGRAMS: Final = ("placement", "compute-agent")
"""The programs with options. `etc/PROGRAM/config-generator.conf` lists the namespaces of the options."""

Sections = Mapping[str, Mapping[str, Any]]
"""Options by section and name."""


@cache
def sections(program: str) -> Sections:
    """Return all options in the sample file of a program: its own options, and those of its libraries."""
    found: dict[str, dict[str, Any]] = {}
    for group, listed in _listed(program):
        section = found.setdefault(group, {})
        for option in listed:
            section[option.dest] = option
    return dict(sorted(found.items(), key=lambda each: (each[0] != "DEFAULT", each[0])))


def _listed(program: str) -> Iterator[tuple[str, Iterable[Any]]]:
    manager = NamedExtensionManager(
        "oslo.config.opts", names=_namespaces(program), invoke_on_load=True, name_order=True
    )
    for extension in manager:
        for group, listed in extension.obj:
            yield getattr(group, "name", group) or "DEFAULT", listed


def _namespaces(program: str) -> list[str]:
    """Return the namespaces of the program's options, in the order of its `config-generator.conf`."""
    text = (ROOT / "etc" / program / "config-generator.conf").read_text()
    return re.findall(r"^namespace = (\S+)$", text, re.MULTILINE)


def anchor(program: str, section: str, name: str) -> str:
    """Return the anchor of an option in the reference."""
    return re.sub(r"[^a-z0-9]+", "-", f"option-{program}-{section}-{name}".lower())


def page(program: str) -> str:
    """Return the reference of a program's options, as markdown."""
    return "\n".join(
        line for name, listed in sections(program).items() for line in _section(program, name, listed)
    )


def _section(program: str, section: str, listed: Mapping[str, Any]) -> Iterator[str]:
    yield f"\n## [{section}]\n"
    for name, option in sorted(listed.items()):
        yield f"({anchor(program, section, name)})="
        yield f"### {name}\n"
        yield f"`[{section}]` {', '.join(_facts(option))}\n"
        if option.deprecated_for_removal:
            yield f"**Deprecated**{f' since {option.deprecated_since}' if option.deprecated_since else ''}. "
            yield f"{_text(option.deprecated_reason or '')}\n"
        yield f"{_text(option.help or '')}\n"
        for value, meaning in _choices(option):
            yield f"- `{value}`{f': {_text(meaning)}' if meaning else ''}"
        yield ""


def _facts(option: Any) -> Iterator[str]:
    yield _type(option.type)
    default = option.sample_default if option.sample_default is not None else option.default
    if default is None or default == "" or default == [] or default == {}:
        yield "no default"
    elif isinstance(default, list | tuple):
        yield f"default `{','.join(map(str, default))}`"
    else:
        yield f"default `{_code(str(default).lower() if isinstance(default, bool) else str(default))}`"
    least, most = getattr(option.type, "min", None), getattr(option.type, "max", None)
    if least is not None:
        yield f"at least {least}"
    if most is not None:
        yield f"at most {most}"
    if option.required:
        yield "required"
    if getattr(option, "secret", False):
        yield "secret"


def _type(kind: Any) -> str:
    names = {"String": "text", "Integer": "whole number", "Float": "number", "Boolean": "true or false"}
    name = type(kind).__name__ if not isinstance(kind, type) else kind.__name__
    return names.get(name, name.lower())


def _choices(option: Any) -> Iterable[tuple[Any, str]]:
    choices = getattr(option.type, "choices", None)
    return choices.items() if isinstance(choices, dict) else ((each, "") for each in choices or ())


def _code(text: str) -> str:
    return text.replace("`", "'").replace("\n", " ")


def _text(text: str) -> str:
    """Return a help text as markdown, with all characters escaped that markdown would treat as markup."""
    text = re.sub(r"\s*\n\s*", " ", text.strip())
    text = re.sub(r"``?(.+?)``?", r"\1", text)
    return re.sub(r"([\\`*_<>\[\]#|$~{}])", r"\\\1", text)
