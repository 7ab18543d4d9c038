"""Reads the fields that a visitor has typed into a form about a guest: a query, or a flavor of Nova."""

import re
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote

from placement.exceptions import InvalidRequest
from placement.search.diagnosis import sentences
from placement_extras.console.page_request import field_texts

_MAX_TEXT: Final = 8192
_ADDRESS: Final = re.compile(r"""allocation_candidates\?([^\s"'`<>#\\]*)([^\n]*)""")
_CURL: Final = re.compile(r"(\$ *)?curl\s")
_DATA: Final = ("-d", "--data", "--data-ascii", "--data-raw", "--data-urlencode")
"""Options of curl for parameters. With its option ``-G``, curl adds these parameters to the address."""


@dataclass(frozen=True, slots=True)
class GuestQuestion:
    """The fields of a form that describe a guest. If it has a query, the fields of a flavor are ignored."""

    query: str = ""
    vcpus: str = ""
    ram: str = ""
    disk: str = ""
    specs: str = ""

    @classmethod
    def from_form(cls, arguments: Mapping[str, str]) -> "GuestQuestion":
        """Return the fields of a sent form."""
        return cls(**field_texts(arguments, cls.__slots__, _MAX_TEXT))

    @property
    def is_asked(self) -> bool:
        """Whether the visitor has filled in a query or a number of VCPUs."""
        return bool(self.query or self.vcpus)

    def request_body(self) -> dict[str, Any]:
        """Return the body of the REST request.

        :raises InvalidRequest: a field is not a number, or an extra spec is invalid.
        """
        if self.query:
            return {"query": query_of(self.query)}
        flavor: dict[str, Any] = {
            "vcpus": _parse_integer("VCPUs", self.vcpus),
            "ram": _parse_integer("RAM", self.ram or "0"),
            "disk": _parse_integer("disk", self.disk or "0"),
            "extra_specs": {},
        }
        for line in self.specs.splitlines():
            if text := line.strip():
                name, equals, value = text.partition("=")
                if not equals:
                    raise InvalidRequest(f"An extra spec has the form NAME=VALUE, not {text[:80]!r}.")
                flavor["extra_specs"][name.strip()] = value.strip()
        return {"flavor": flavor}


def query_of(text: str) -> str:
    """Return the query string in a pasted text.

    The text is a query on one or more lines, a URL, a line of a log, or a command of curl. A URL can be in
    quotes or after the word ``GET``. If the text has several URLs, the first one counts.

    :raises InvalidRequest: a command of curl has an unclosed quote.
    """
    text = text.strip()
    if _CURL.match(text):
        return _of_curl(text)
    if address := _ADDRESS.search(text):
        # text after the address on the same line belongs to the log; the next lines can have more parameters
        text = "\n".join((address[1], *_parameter_lines(text[address.end() :])))
    elif "?" in text:
        # the query begins after the last question mark, because the address before it can have question marks
        text = text.rpartition("?")[2]
    return "&".join(line.strip().strip("&") for line in text.splitlines() if line.strip())


def _parameter_lines(text: str) -> Iterable[str]:
    # other lines are ignored, because visitors sometimes paste a whole log
    return (line for line in text.splitlines() if re.fullmatch(r"\s*&?[a-z_A-Z0-9-]+=\S*\s*", line))


def _of_curl(command: str) -> str:
    # a backslash at the end of a line continues the command
    words = iter(words_of(command.replace("\\\n", " ")))
    found: list[str] = []
    for word in words:
        if word in _DATA:
            name, equals, value = next(words, "").partition("=")
            found.append(name + equals + (quote(value) if word == "--data-urlencode" else value))
        elif address := _ADDRESS.search(word):
            found.append(address[1])
    return "&".join(filter(None, found))


def words_of(text: str) -> list[str]:
    """Split a command into words, as a shell does; raise InvalidRequest if a quote is not closed."""
    try:
        return shlex.split(text)
    except ValueError as error:
        raise InvalidRequest(f"A quote is not closed in {text[:80]!r}.") from error


def _parse_integer(what: str, text: str) -> int:
    # the length is checked first, because int() of thousands of digits takes long
    if not (text.isascii() and text.isdigit() and len(text) <= 10):
        raise InvalidRequest(f"The number of {what} is a whole number, not {text[:40]!r}.")
    return int(text)


def condition_words(clause: Mapping[str, Any]) -> str:
    """Return the words that describe hosts which meet this condition of an explanation."""
    words = sentences.words_of(clause["condition"])
    return words.render(words.meeting, clause["names"], clause["amount"])


def selective_steps(steps: Iterable[Mapping[str, Any]], hosts: int) -> list[tuple[str, int]]:
    """Return the conditions that exclude hosts, each with the number of hosts that are left after it.

    If a condition leaves no host, the list ends with this condition.

    :param hosts: the number of hosts before the first condition.
    """
    told = []
    for step in steps:
        # a condition that excludes no host is left out, unless it is about an amount, which visitors expect
        if step["hosts"] < hosts or step["condition"] in ("resource_class", "capacity"):
            told.append((condition_words(step), step["hosts"]))
        hosts = step["hosts"]
        if not hosts:
            break
    return told
