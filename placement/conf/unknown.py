"""Options in the files that there are not: misspelt ones would be passed over in silence."""

from collections.abc import Iterator
from difflib import get_close_matches
from typing import Final

from oslo_config import cfg

from placement.conf import api, database, placement

_OTHERS: Final = frozenset({"keystone_authtoken", "healthcheck", "oslo_policy", "cors", "oslo_middleware"})
"""Sections of libraries, which know their options themselves, some only with a plugin."""

_SECTIONS: Final = (api.GROUP.name, database.GROUP.name, placement.GROUP.name)


def unknown_options(conf: cfg.ConfigOpts) -> Iterator[str]:
    """What stands in the files of ``conf`` and is no option of the service, a sentence for each."""
    for file in conf.config_file or ():
        found: dict[str, dict[str, list[str]]] = {}
        cfg.ConfigParser(str(file), found).parse()
        for section, options in found.items():
            yield from _unknown(conf, str(file), section, options)


def _unknown(conf: cfg.ConfigOpts, file: str, section: str, options: dict[str, list[str]]) -> Iterator[str]:
    if section in _OTHERS or section == "DEFAULT":
        return
    if section not in _SECTIONS:
        yield f"{file}: there is no section [{section}]{_instead(section, (*_SECTIONS, *_OTHERS), '[{}]')}"
        return
    known = set(conf[section])
    for name in sorted(options):
        if name.replace("-", "_") not in known:
            yield f"{file}: [{section}] {name}: there is no such option{_instead(name, known, '{}')}"


def _instead(name: str, known: "set[str] | tuple[str, ...]", form: str) -> str:
    near = get_close_matches(name, sorted(known), n=1)
    return f"; did you mean {form.format(near[0])}?" if near else ""
