"""What somebody asks for in percent: the settings of a QoS class, or the annotation of a guest.

The annotation is Koordinator's `node.koordinator.sh/resctrl`. Its design document spells the keys `LLC`, `MB`
and `cacheid`, its API `llc`, `mb` and `cacheID`; both are understood, one at a time.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from compute_agent.resctrl.platform import Platform

T = TypeVar("T")


class BadWishError(ValueError):
    """Settings or an annotation that cannot be used; the text names what is wrong."""


@dataclass(frozen=True, slots=True, order=True)
class WayRange:
    """A part of the open ways in percent, `first` < `last`, both within 0..100."""

    first: int
    last: int

    def __post_init__(self) -> None:
        for percent in (self.first, self.last):
            _check_percent("range", percent)
        if self.first >= self.last:
            raise BadWishError(f"range {self.first}-{self.last} ends where it begins or before")


@dataclass(frozen=True, slots=True)
class Wish:
    """Cache and bandwidth for all domains, and what differs on some; None leaves the choice to others."""

    llc: WayRange | None = None
    llc_per_cache: Mapping[int, WayRange] = field(default_factory=dict, hash=False)
    mb: int | None = None
    mb_per_cache: Mapping[int, int] = field(default_factory=dict, hash=False)

    def __bool__(self) -> bool:
        return self != Wish()

    def range_on(self, cache: int) -> WayRange | None:
        """The part of a cache that is asked for."""
        return self.llc_per_cache.get(cache, self.llc)

    def percent_on(self, domain: int) -> int | None:
        """The bandwidth that is asked for on an MB domain."""
        return self.mb_per_cache.get(domain, self.mb)

    def over(self, base: Wish) -> Wish:
        """This where it says something, else `base`."""
        return Wish(
            self.llc or base.llc,
            {**(base.llc_per_cache if self.llc is None else {}), **self.llc_per_cache},
            base.mb if self.mb is None else self.mb,
            {**(base.mb_per_cache if self.mb is None else {}), **self.mb_per_cache},
        )

    def check(self, platform: Platform) -> None:
        """Raises BadWishError where the platform has no such domain, or no such control at all."""
        for name, asked, control in (
            ("LLC", self.llc is not None or self.llc_per_cache, platform.l3),
            ("MB", self.mb is not None or self.mb_per_cache, platform.mb),
        ):
            if asked and control is None:
                raise BadWishError(f"{name} cannot be controlled on this host")
        for reason in self.unknown_domains(platform):
            raise BadWishError(reason)

    def unknown_domains(self, platform: Platform) -> Iterator[str]:
        """What is asked for on domains that the platform does not have, in words; of what it can control."""
        for name, per_cache, control in (
            ("LLC", self.llc_per_cache, platform.l3),
            ("MB", self.mb_per_cache, platform.mb),
        ):
            if control is None:
                continue
            for cache in sorted(per_cache.keys() - set(control.ids)):
                known = ", ".join(map(str, control.ids))
                yield f"{name} has no cache id {cache}: there are {known}"


def parse_range(text: str) -> WayRange:
    """The range of an option, `0-30`. Raises BadWishError."""
    match = re.fullmatch(r"\s*([0-9]{1,4})\s*-\s*([0-9]{1,4})\s*", text, re.ASCII)
    if match is None:
        raise BadWishError(f"{text!r} is not a range of percents such as 0-30")
    return WayRange(int(match[1]), int(match[2]))


def parse_percent(text: str) -> int:
    """The bandwidth of an option, `40`. Raises BadWishError."""
    if not re.fullmatch(r"\s*[0-9]{1,4}\s*", text, re.ASCII):
        raise BadWishError(f"{text!r} is not a whole percent")
    return _check_percent("bandwidth", int(text))


def parse_per_cache(text: str, parse: Callable[[str], T]) -> dict[int, T]:
    """Overrides of an option, `0:0-50, 1:20-80`, each value read by `parse`. Raises BadWishError."""
    found: dict[int, T] = {}
    for part in filter(None, (piece.strip() for piece in text.split(","))):
        cache, colon, value = part.partition(":")
        if not colon or not re.fullmatch(r"[0-9]{1,9}", cache.strip(), re.ASCII):
            raise BadWishError(f"{part!r} is not CACHE:VALUE such as 0:20")
        if int(cache) in found:
            raise BadWishError(f"cache {int(cache)} is named twice in {text!r}")
        found[int(cache)] = parse(value)
    return found


def parse_annotation(text: str) -> Wish:
    """The wish of an annotation; an empty text is an empty wish. Raises BadWishError."""
    if not text.strip():
        return Wish()
    try:
        body = json.loads(text, object_pairs_hook=_no_duplicates)
    except BadWishError:
        raise
    except RecursionError as error:
        raise BadWishError("the annotation is nested too deeply") from error
    except ValueError as error:  # also numbers of thousands of digits
        raise BadWishError(f"the annotation is no JSON: {error}") from error
    top = _object("the annotation", body, ("LLC", "MB"))
    llc, llc_per_cache = _part("LLC", top.get("LLC"), "range", _json_range)
    mb, mb_per_cache = _part("MB", top.get("MB"), "percent", _json_percent)
    return Wish(llc, llc_per_cache, mb, mb_per_cache)


def _part(
    name: str, body: object, key: str, parse: Callable[[str, object], T]
) -> tuple[T | None, dict[int, T]]:
    """The value for all caches and the overrides of one part of the annotation."""
    if body is None:
        return None, {}
    fields = _object(name, body, ("schemata", "schemataPerCache"))
    everywhere = None
    if fields.get("schemata") is not None:
        where = f"{name}.schemata"
        schemata = _object(where, fields["schemata"], (key,))
        if key in schemata:
            everywhere = parse(f"{where}.{key}", schemata[key])
    per_cache: dict[int, T] = {}
    overrides = fields.get("schemataPerCache")
    if overrides is None:
        overrides = []
    if not isinstance(overrides, list):
        raise BadWishError(f"{name}.schemataPerCache is no list")
    for index, body in enumerate(overrides):
        where = f"{name}.schemataPerCache[{index}]"
        override = _object(where, body, ("cacheid", key))
        for needed in ("cacheid", key):
            if needed not in override:
                raise BadWishError(f"{where} has no {needed}")
        cache = _whole(f"{where}.cacheid", override["cacheid"])
        if cache in per_cache:
            raise BadWishError(f"{where}: cache {cache} is named twice")
        per_cache[cache] = parse(f"{where}.{key}", override[key])
    return everywhere, per_cache


_SPELLINGS = {"llc": "LLC", "mb": "MB", "cacheID": "cacheid"}


def _object(where: str, body: object, keys: tuple[str, ...]) -> dict[str, object]:
    """The fields of a JSON object by the first of their spellings."""
    if not isinstance(body, dict):
        raise BadWishError(f"{where} is no object")
    fields: dict[str, object] = {}
    for spelled, value in body.items():
        key = _SPELLINGS.get(spelled, spelled)
        if key not in keys:
            raise BadWishError(f"{where} has an unknown key {spelled!r}: it may have {', '.join(keys)}")
        if key in fields:
            raise BadWishError(f"{where} has {key} twice")
        fields[key] = value
    return fields


def _no_duplicates(pairs: Iterable[tuple[str, object]]) -> dict[str, object]:
    fields: dict[str, object] = {}
    for key, value in pairs:
        if key in fields:
            raise BadWishError(f"the annotation has the key {key!r} twice")
        fields[key] = value
    return fields


def _json_range(where: str, value: object) -> WayRange:
    if not isinstance(value, list) or len(value) != 2:
        raise BadWishError(f"{where} is not a pair of percents")
    try:
        return WayRange(_whole(where, value[0]), _whole(where, value[1]))
    except BadWishError as error:
        raise BadWishError(f"{where}: {error}") from error


def _json_percent(where: str, value: object) -> int:
    return _check_percent(where, _whole(where, value))


def _whole(where: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise BadWishError(f"{where}: {value!r} is not a whole number")
    return value


def _check_percent(where: str, value: int) -> int:
    if not 0 <= value <= 100:
        raise BadWishError(f"{where}: {value} is not within 0..100 percent")
    return value
