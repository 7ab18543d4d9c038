"""Options in force, and the origin of each: a file, the environment or its default."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from oslo_config import cfg

from compute_agent import conf as agent_conf
from compute_agent.conf import written

DEFAULT: Final = "default"
SECRET: Final = "***"
_MAX_SHOWN: Final = 80
MAX_CHANGES: Final = 20
"""The number of changed options that a sentence names."""
_SOUNDS_SECRET: Final = re.compile(r"password|secret|token", re.I)
"""Names of unknown options with values to hide, such as those of a plugin with a misspelt name."""


@dataclass(frozen=True, slots=True)
class OptionOrigin:
    """An option in force.

    :param value: the text of a file; ``***`` for secret options.
    :param origin: the file, the variable of the environment, or ``default``, with a remark if the option has
        another name there or no effect.
    """

    section: str
    option: str
    value: str
    origin: str


def settings(
    conf: cfg.ConfigOpts, called: Mapping[Path, str] = MappingProxyType({}), *, masked: bool = True
) -> Iterator[OptionOrigin]:
    """All known options by section, then unknown ones in the files.

    :param called: names of files that are not shown by their paths.
    :param masked: whether secrets are ``***``.

    :raises OSError: a file is gone, or cannot be read any more.
    """
    # Entries are taken out as known options claim them, so that the rest is unknown.
    found = _written_values(conf, called)
    for section, option in _known_options(conf):
        places = [(section, option.dest)] + [
            (_normal_section(old.group or section), old.name) for old in option.deprecated_opts if old.name
        ]
        texts = {place: found.pop(place) for place in places if place in found}
        try:
            holder = conf if section == "DEFAULT" else conf[section]
            value = getattr(holder, option.dest)
        except (cfg.NoSuchOptError, cfg.NoSuchGroupError):  # a plugin registers it when it is used
            for text, file in texts.values():
                yield OptionOrigin(section, option.dest, SECRET if option.secret and masked else text, file)
            continue
        location = conf.get_location(option.dest, None if section == "DEFAULT" else section)
        if location is not None and location.location is cfg.Locations.environment:
            origin = f"environment {location.detail}"
        elif texts:
            place = next(iter(texts))
            there = "" if place == places[0] else f", as [{place[0]}] {place[1]}"
            origin = f"{texts[place][1]}{there}"
        else:
            origin = DEFAULT
        hidden = masked and option.secret and value
        yield OptionOrigin(section, option.dest, SECRET if hidden else _text(value), origin)
    free = agent_conf.free_sections(conf)
    families = tuple(name for name in free if name.endswith(":"))
    for (section, name), (text, file) in found.items():
        effect = "" if section in free or section.startswith(families) else ", without effect"
        hidden = masked and _SOUNDS_SECRET.search(name)
        yield OptionOrigin(section, name, SECRET if hidden else text, f"{file}{effect}")


@dataclass(frozen=True, slots=True)
class OptionValue:
    """The value of an option, to be compared with a later one.

    :ivar shown: what an operator may read; empty for a value that may be a secret.
    :ivar mark: differs between two values of one option.
    """

    shown: str
    mark: int

    def __str__(self) -> str:
        return self.shown if len(self.shown) <= _MAX_SHOWN else f"{self.shown[:_MAX_SHOWN]}..."


OptionValues = Mapping[tuple[str, str], OptionValue]
"""Values by section and name of the option."""


def option_values(conf: cfg.ConfigOpts) -> OptionValues | None:
    """The value of each option in force; None if a file went away, or changed, after it was read."""
    secret = {(section, option.dest): option.secret for section, option in _known_options(conf)}
    found = {}
    try:
        for one in settings(conf, masked=False):
            key = one.section, one.option
            # An unknown option of a section such as [placement] may be a misspelt secret.
            hidden = secret.get(key, ":" not in one.section) or _SOUNDS_SECRET.search(one.option)
            # Python's hash has a key of this process, and tells nothing about the value.
            found[key] = OptionValue("" if hidden else one.value, hash(one.value))
    except (OSError, cfg.Error):
        return None
    return found


def changed_values(before: OptionValues, after: OptionValues) -> Iterator[str]:
    """A few words about each option with another value, such as ``[policy] name = follow (was none)``.

    Beyond ``MAX_CHANGES`` options there is only their number.
    """
    changed = sorted(key for key in before.keys() | after.keys() if before.get(key) != after.get(key))
    for section, option in changed[:MAX_CHANGES]:
        old, new = before.get((section, option)), after.get((section, option))
        if new is None:
            yield f"[{section}] {option} removed"
        elif not new.shown:
            yield f"[{section}] {option} changed"
        else:
            yield f"[{section}] {option} = {new} ({'new' if old is None else f'was {old}'})"
    if len(changed) > MAX_CHANGES:
        yield f"{len(changed) - MAX_CHANGES} more options"


def _written_values(
    conf: cfg.ConfigOpts, called: Mapping[Path, str]
) -> dict[tuple[str, str], tuple[str, str]]:
    """Texts and files by section and option, later files in place of earlier ones."""
    return {
        (_normal_section(section), name): (text, called.get(file, str(file)))
        for file in written.files_of(conf)
        for section, options in written.read([file]).items()
        for name, text in options.items()
    }


def _normal_section(section: str) -> str:
    """The name of a section as oslo.config compares it: without case, except DEFAULT and families."""
    return section if section == "DEFAULT" or ":" in section else section.lower()


def _known_options(conf: cfg.ConfigOpts) -> Iterator[tuple[str, Any]]:
    """Each option with its section, once.

    Options of families are left out, as they stand for many sections.
    """
    seen = {("DEFAULT", name) for name in agent_conf.OWN_OPTIONS}
    for section, options in agent_conf.known_options(conf):
        for option in options:
            if (section, option.dest) not in seen and not section.endswith(":NAME"):
                seen.add((section, option.dest))
                yield section, option


def _text(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, list | tuple):
        return ",".join(map(str, value))
    if isinstance(value, dict):
        return ",".join(f"{name}:{each}" for name, each in value.items())
    return str(value)
