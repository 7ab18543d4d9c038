"""The text of ini files, for errors about lines that have no effect.

oslo.config silently ignores unknown sections and options. In an ini file all text after an equals sign is the
value, so a comment on the same line becomes a part of the value.
"""

import difflib
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from oslo_config import cfg

NO_COMMENTS: Final = (
    "in an ini file all text after the equals sign is the value: put a comment, which begins with # or ;,"
    " on a line of its own"
)

_FILE: Final = re.compile(r"detail='(.*)'\)")
_COMMENT: Final = re.compile(r"\s[#;]")

Written = Mapping[str, Mapping[str, str]]
"""The texts of values, by section and option. Later files override earlier ones."""


def files_of(conf: cfg.ConfigOpts) -> Iterator[Path]:
    """The files from which a configuration was read. Later files override earlier ones."""
    yield from map(Path, conf.config_file or ())
    for folder in conf.config_dir or ():
        yield from sorted(Path(folder).glob("*.conf"))


def read(files: Iterable[Path]) -> Written:
    """Read the values of ini files as text.

    :raises cfg.ConfigFileParseError: a file is not an ini file.
    :raises OSError: a file cannot be read.
    """
    found: dict[str, dict[str, str]] = {}
    for path in files:
        sections: dict[str, dict[str, list[str]]] = {}
        try:
            cfg.ConfigParser(str(path), sections).parse()
        except cfg.ParseError as error:
            raise cfg.ConfigFileParseError(str(path), str(error)) from error
        for section, options in sections.items():
            found.setdefault(section, {}).update(
                {name: "\n".join(values) for name, values in options.items()}
            )
    return found


def normal_section(section: str) -> str:
    """The name of a section in lower case, because oslo.config ignores the case of these names.

    Names of families and the name ``DEFAULT`` stay unchanged, because their case matters.
    """
    return section if section == "DEFAULT" or ":" in section else section.lower()


def unknown_options(
    written: Written, known: Mapping[str, Collection[str]], free: Collection[str] = ()
) -> list[str]:
    """Sentences about lines of the files that have no effect, or another effect than they seem to have.

    :param known: the names of the known options by section.
    :param free: the sections that can have any option. A name that ends in a colon stands for all sections
        with this prefix.
    """
    found = []
    for section, options in written.items():
        if section in free or section.startswith(tuple(name for name in free if name.endswith(":"))):
            continue
        names = known.get(normal_section(section))
        if names is None:
            found.append(f"[{section}]: there is no such section{name_hint(section, known, '[{}]')}")
            continue
        for name in options:
            if name not in names:
                found.append(
                    f"[{section}] {name}: there is no such option{_place_hint(section, name, known)}"
                )
    for section, options in written.items():
        found += [f"[{section}] {name}: {NO_COMMENTS}" for name, text in options.items() if has_comment(text)]
    return found


def has_comment(value: str) -> bool:
    """Whether a part of a value looks like a comment."""
    return _COMMENT.search(value) is not None


def value_error(section: str, option: str, error: Exception) -> cfg.ConfigFileValueError:
    """The error for a wrong value, with its section and file.

    The error has a hint if the value seems to contain a comment.
    """
    where, _, reason = str(error).rpartition(" is not valid: ")
    file = _FILE.search(where)
    source = f" (in {file[1]})" if file else ""
    hint = f"; {NO_COMMENTS}" if has_comment(reason) else ""
    return cfg.ConfigFileValueError(f"[{section}] {option}: {reason}{source}{hint}")


def names_of(options: Iterable[Any]) -> Iterator[str]:
    """The names that options can have in a file: the current name and the former names."""
    for option in options:
        yield option.dest
        for old in option.deprecated_opts:
            yield old.name


def name_hint(name: str, known: Collection[str], form: str) -> str:
    """The rest of a sentence about an unknown name: the known name that it is probably meant to be, if any.

    :param form: the form of the name in the sentence, such as ``[{}]`` for sections.
    """
    close = _closest_name(name, known)
    return f"; did you mean {form.format(close)}?" if close else ", so it has no effect"


def _place_hint(section: str, name: str, known: Mapping[str, Collection[str]]) -> str:
    elsewhere = sorted(other for other, names in known.items() if name in names)
    if elsewhere:
        return f"; it is one of [{elsewhere[0]}]"
    if close := _closest_name(name, known[normal_section(section)]):
        return f"; did you mean {close}?"
    by_name = {option: other for other, names in sorted(known.items()) for option in names}
    if close := _closest_name(name, by_name):
        return f"; did you mean {close} in [{by_name[close]}]?"
    return ", so it has no effect"


def _closest_name(name: str, known: Collection[str]) -> str:
    folded = {other.lower(): other for other in known}
    close = difflib.get_close_matches(name.lower().replace("-", "_"), folded, n=1, cutoff=0.75)
    return folded[close[0]] if close else ""
