"""What somebody asks for in percent: a share of the open cache ways, and a cap on bandwidth."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeVar

from compute_agent.resctrl.platform import Platform

T = TypeVar("T")


class BadWishError(ValueError):
    """A wish that cannot be had, or a text that is none; the text names what is wrong."""


@dataclass(frozen=True, slots=True, order=True)
class WayRange:
    """A part of the open ways in percent, ``first`` < ``last``, both within 0..100."""

    first: int
    last: int

    def __post_init__(self) -> None:
        for percent in (self.first, self.last):
            check_percent("range", percent)
        if self.first >= self.last:
            raise BadWishError(f"range {self.first}-{self.last} ends where it begins or before")


@dataclass(frozen=True, slots=True)
class Wish:
    """Cache and bandwidth for all domains, and what differs on some; None leaves the choice to others.

    ``code`` and ``data`` go before ``llc`` and what differs on caches, where the two have masks of their own.
    ``l2`` is of the caches of level 2, of which all ways are open.
    """

    llc: WayRange | None = None
    llc_per_cache: Mapping[int, WayRange] = field(default_factory=dict, hash=False)
    mb: int | None = None
    mb_per_cache: Mapping[int, int] = field(default_factory=dict, hash=False)
    code: WayRange | None = None
    data: WayRange | None = None
    l2: WayRange | None = None

    def __bool__(self) -> bool:
        return self != Wish()

    def range_on(self, cache: int, resource: str = "") -> WayRange | None:
        """The part of a cache that is asked for, as a line of schemata has it (``L3CODE``: with code)."""
        own = self.code if resource.endswith("CODE") else self.data if resource.endswith("DATA") else None
        return own or self.llc_per_cache.get(cache, self.llc)

    def percent_on(self, domain: int) -> int | None:
        """The bandwidth that is asked for on an MB domain."""
        return self.mb_per_cache.get(domain, self.mb)

    def over(self, base: Wish) -> Wish:
        """The wish where it says something, else ``base``."""
        silent = self.llc is None and not self.llc_per_cache
        return Wish(
            self.llc or base.llc,
            {**(base.llc_per_cache if self.llc is None else {}), **self.llc_per_cache},
            base.mb if self.mb is None else self.mb,
            {**(base.mb_per_cache if self.mb is None else {}), **self.mb_per_cache},
            self.code or (base.code if silent else None),
            self.data or (base.data if silent else None),
            self.l2 or base.l2,
        )

    def on(self, platform: Platform) -> tuple[Wish, tuple[str, ...]]:
        """The wish without masks that the platform does not have, and why it is without them."""
        reasons = []
        code, data, l2 = self.code, self.data, self.l2
        if (code or data) and not (platform.l3 and platform.l3.cdp):
            reasons.append("code and data have no masks of their own here, which takes the mount option cdp")
            code = data = None
        if l2 and platform.l2 is None:
            reasons.append("the ways of L2 caches cannot be controlled on this host")
            l2 = None
        return replace(self, code=code, data=data, l2=l2), tuple(reasons)

    def check(self, platform: Platform) -> None:
        """See that the platform has what is asked for.

        :raises BadWishError: where the platform has no such domain, or no such control at all.
        """
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
    """The range of an option, ``0-30``.

    :raises BadWishError:
    """
    match = re.fullmatch(r"\s*([0-9]{1,4})\s*-\s*([0-9]{1,4})\s*", text, re.ASCII)
    if match is None:
        raise BadWishError(f"{text!r} is not a range of percents such as 0-30")
    return WayRange(int(match[1]), int(match[2]))


def parse_percent(text: str) -> int:
    """The bandwidth of an option, ``40``.

    :raises BadWishError:
    """
    if not re.fullmatch(r"\s*[0-9]{1,4}\s*", text, re.ASCII):
        raise BadWishError(f"{text!r} is not a whole percent")
    return check_percent("bandwidth", int(text))


def parse_per_cache(text: str, parse: Callable[[str], T]) -> dict[int, T]:
    """Overrides of an option, ``0:0-50, 1:20-80``, each value read by ``parse``.

    :raises BadWishError:
    """
    found: dict[int, T] = {}
    for part in filter(None, (piece.strip() for piece in text.split(","))):
        cache, colon, value = part.partition(":")
        if not colon or not re.fullmatch(r"[0-9]{1,9}", cache.strip(), re.ASCII):
            raise BadWishError(f"{part!r} is not CACHE:VALUE such as 0:20")
        if int(cache) in found:
            raise BadWishError(f"cache {int(cache)} is named twice in {text!r}")
        found[int(cache)] = parse(value)
    return found


def check_percent(where: str, value: int) -> int:
    """The value, which has to be a percent.

    :raises BadWishError: that begins with ``where``.
    """
    if not 0 <= value <= 100:
        raise BadWishError(f"{where}: {value} is not within 0..100 percent")
    return value
