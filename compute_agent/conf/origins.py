"""The options in force, each with the origin of its value: a file, an environment variable or the default."""

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
"""Maximum number of changed options that :func:`changed_values` names."""
_SOUNDS_SECRET: Final = re.compile(r"password|secret|token", re.I)
"""Matches names of unknown options with values that are perhaps secret, such as a misspelt option of a
plugin.
"""


@dataclass(frozen=True, slots=True)
class OptionOrigin:
    """An option in force, as commands show it.

    :param value: the value as text; ``***`` for secret options.
    :param origin: the file or the environment variable that sets the value, or ``default``. A remark follows
        if the file uses an old name of the option, or if the option has no effect.
    """

    section: str
    option: str
    value: str
    origin: str


def settings(
    conf: cfg.ConfigOpts, called: Mapping[Path, str] = MappingProxyType({}), *, masked: bool = True
) -> Iterator[OptionOrigin]:
    """All known options by section, followed by the unknown options in the files.

    :param called: the names to show for files instead of their paths, by path.
    :param masked: whether secrets are replaced by ``***``.

    :raises OSError: a file has been removed since it was read, or cannot be read again.
    """
    # The loop removes the entry of each known option, so the entries of unknown options remain.
    found = _written_values(conf, called)
    for section, option in _known_options(conf):
        places = [(section, option.dest)] + [
            (written.normal_section(old.group or section), old.name)
            for old in option.deprecated_opts
            if old.name
        ]
        texts = {place: found.pop(place) for place in places if place in found}
        try:
            holder = conf if section == "DEFAULT" else conf[section]
            value = getattr(holder, option.dest)
        # the option belongs to a plugin that is not in use, so it is not registered
        except (cfg.NoSuchOptError, cfg.NoSuchGroupError):
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
    """The value of an option, for a comparison with a later value.

    :ivar shown: the text that an operator may read; empty for a value that is perhaps a secret.
    :ivar mark: a number for the comparison. Different values of an option have different numbers.
    """

    shown: str
    mark: int

    def __str__(self) -> str:
        return self.shown if len(self.shown) <= _MAX_SHOWN else f"{self.shown[:_MAX_SHOWN]}..."


OptionValues = Mapping[tuple[str, str], OptionValue]
"""The values by section and name of the option."""


def option_values(conf: cfg.ConfigOpts) -> OptionValues | None:
    """The value of each option in force; None if a file was removed or damaged since it was read."""
    secret = {(section, option.dest): option.secret for section, option in _known_options(conf)}
    found = {}
    try:
        for one in settings(conf, masked=False):
            key = one.section, one.option
            # An unknown option in a section such as [placement] is perhaps the misspelt name of a secret.
            hidden = secret.get(key, ":" not in one.section) or _SOUNDS_SECRET.search(one.option)
            # The hash does not reveal the value, because hashes of texts depend on a random number of this
            # process.
            found[key] = OptionValue("" if hidden else one.value, hash(one.value))
    except (OSError, cfg.Error):
        return None
    return found


def changed_values(before: OptionValues, after: OptionValues) -> Iterator[str]:
    """Texts about changed options, like ``[policy] name = follow (was none)``."""
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
    """The text and file of each option, by section and name; later files override earlier ones."""
    return {
        (written.normal_section(section), name): (text, called.get(file, str(file)))
        for file in written.files_of(conf)
        for section, options in written.read([file]).items()
        for name, text in options.items()
    }


def _known_options(conf: cfg.ConfigOpts) -> Iterator[tuple[str, Any]]:
    """Each known option once, with its section.

    Options of families are left out, because their sections vary.
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
