"""Shares that classes and guests ask for: a range of open cache ways in percent, and a cap of bandwidth.

A function that parses or checks a value raises BadShareError for a wrong value.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, TypeVar

from compute_agent.resctrl.bandwidth import BandwidthCap, BandwidthRate
from compute_agent.resctrl.platform import ResctrlPlatform

T = TypeVar("T")
_MAX_MBPS: Final = 10**7


class BadShareError(ValueError):
    """The platform does not support a share, or a text does not describe a share.

    The message names the fault.
    """


@dataclass(frozen=True, slots=True, order=True)
class WayRange:
    """A range of the open ways in percent: ``first`` < ``last``, both within 0..100."""

    first: int
    last: int

    def __post_init__(self) -> None:
        for percent in (self.first, self.last):
            check_percent("range", percent)
        if self.first >= self.last:
            raise BadShareError(f"range {self.first}-{self.last} has to end above its beginning")


@dataclass(frozen=True, slots=True)
class ShareSpec:
    """A share of cache and bandwidth. A field of None, or an empty mapping, asks for nothing.

    :ivar llc: the range of L3 ways on all caches that are not in ``llc_per_cache``.
    :ivar llc_per_cache: ranges that replace ``llc`` on single caches, by L3 cache id.
    :ivar mb: the cap of memory bandwidth on all domains that are not in ``mb_per_cache``.
    :ivar mb_per_cache: caps that replace ``mb`` on single domains, by bandwidth domain.
    :ivar code: the range of L3 ways for code, with CDP; takes precedence over ``llc``.
    :ivar data: the range of L3 ways for data, with CDP; takes precedence over ``llc``.
    :ivar l2: the range of L2 ways. All ways of an L2 cache are open.
    """

    llc: WayRange | None = None
    # The field is left out of the hash, because a mapping has no hash.
    llc_per_cache: Mapping[int, WayRange] = field(default_factory=dict, hash=False)
    mb: BandwidthCap | None = None
    mb_per_cache: Mapping[int, BandwidthCap] = field(default_factory=dict, hash=False)
    code: WayRange | None = None
    data: WayRange | None = None
    l2: WayRange | None = None

    def __bool__(self) -> bool:
        return self != ShareSpec()

    def range_on(self, cache: int, resource: str = "") -> WayRange | None:
        """The range of ways that the share has on a cache; None if there is no range.

        :param resource: the line of schemata, such as ``L3CODE``.
        """
        own = self.code if resource.endswith("CODE") else self.data if resource.endswith("DATA") else None
        return own or self.llc_per_cache.get(cache, self.llc)

    def cap_on(self, domain: int) -> BandwidthCap | None:
        """The bandwidth cap that the share has on a domain; None if there is no cap."""
        return self.mb_per_cache.get(domain, self.mb)

    def overlaid_on(self, base: ShareSpec) -> ShareSpec:
        """A copy of this share, in which ``base`` supplies the values that are missing."""
        # A range for the whole cache also replaces separate ranges for code and data in ``base``.
        silent = self.llc is None and not self.llc_per_cache
        return ShareSpec(
            self.llc or base.llc,
            # A value for all caches also replaces the exceptions of ``base``, because the value is meant for
            # all caches.
            {**(base.llc_per_cache if self.llc is None else {}), **self.llc_per_cache},
            base.mb if self.mb is None else self.mb,  # The code does not use "or", because 0 is a percent.
            {**(base.mb_per_cache if self.mb is None else {}), **self.mb_per_cache},
            self.code or (base.code if silent else None),
            self.data or (base.data if silent else None),
            self.l2 or base.l2,
        )

    def without_unsupported(self, platform: ResctrlPlatform) -> tuple[ShareSpec, tuple[str, ...]]:
        """The share without masks that the platform does not support, and a reason for each left-out mask."""
        reasons = []
        code, data, l2 = self.code, self.data, self.l2
        if (code or data) and not (platform.l3 and platform.l3.has_cdp):
            reasons.append("code and data have separate masks only with the mount option cdp")
            code = data = None
        if l2 and platform.l2 is None:
            reasons.append("this host cannot control L2 caches")
            l2 = None
        return replace(self, code=code, data=data, l2=l2), tuple(reasons)

    def check_supported(self, platform: ResctrlPlatform) -> None:
        """Check that the platform has the controls and domains that the share asks for."""
        for name, asked, control in (
            ("LLC", self.llc is not None or self.llc_per_cache, platform.l3),
            ("MB", self.mb is not None or self.mb_per_cache, platform.mb),
        ):
            if asked and control is None:
                raise BadShareError(f"this host cannot control {name}")
        # Only the first reason is raised, because the share is refused as a whole.
        for reason in self.unknown_domains(platform):
            raise BadShareError(reason)

    def unknown_domains(self, platform: ResctrlPlatform) -> Iterator[str]:
        """Yield a message about each cache or domain that the platform lacks, though it has the control."""
        for name, per_cache, control in (
            ("LLC", self.llc_per_cache, platform.l3),
            ("MB", self.mb_per_cache, platform.mb),
        ):
            if control is None:
                # A missing control causes no message, because one configuration is for hosts with and without
                # the control.
                continue
            for cache in sorted(per_cache.keys() - set(control.ids)):
                known = ", ".join(map(str, control.ids))
                yield f"{name} has no cache id {cache}: the ids are {known}"


def parse_range(text: str) -> WayRange:
    """The range in the text of an option, such as ``0-30``."""
    # The pattern accepts up to 4 digits, so that the message about a value above 100 can quote the number.
    match = re.fullmatch(r"\s*([0-9]{1,4})\s*-\s*([0-9]{1,4})\s*", text, re.ASCII)
    if match is None:
        raise BadShareError(f"{text!r} is not a range of percents such as 0-30")
    return WayRange(int(match[1]), int(match[2]))


def parse_percent(text: str) -> int:
    """The percent in the text of an option, such as ``40``."""
    if not re.fullmatch(r"\s*[0-9]{1,4}\s*", text, re.ASCII):
        raise BadShareError(f"{text!r} is not a whole percent")
    return check_percent("bandwidth", int(text))


def parse_rate(text: str) -> BandwidthRate:
    """The bandwidth in MB/s in the text of an option, such as ``4000``."""
    if not re.fullmatch(r"\s*[0-9]{1,9}\s*", text, re.ASCII):
        raise BadShareError(f"{text!r} is not a whole number of MB/s")
    return check_rate("bandwidth", int(text))


def parse_per_cache(text: str, parse: Callable[[str], T]) -> dict[int, T]:
    """The exceptions by cache id in the text of an option, such as ``0:0-50, 1:20-80``.

    :param parse: a function that parses the value for one cache.
    """
    found: dict[int, T] = {}
    for part in filter(None, (piece.strip() for piece in text.split(","))):
        cache, colon, value = part.partition(":")
        if not colon or not re.fullmatch(r"[0-9]{1,9}", cache.strip(), re.ASCII):
            raise BadShareError(f"{part!r} is not CACHE:VALUE such as 0:20")
        if int(cache) in found:  # Ids are compared as numbers, because "1:20, 01:30" names one cache twice.
            raise BadShareError(f"cache {int(cache)} is named twice in {text!r}")
        found[int(cache)] = parse(value)
    return found


def check_percent(where: str, value: int) -> int:
    """Return ``value`` if it is a percent from 0 to 100.

    :param where: the beginning of the error message, which names the option.
    """
    if not 0 <= value <= 100:
        raise BadShareError(f"{where}: {value} is not within 0..100 percent")
    return value


def check_rate(where: str, value: int) -> BandwidthRate:
    """Return the rate of ``value`` MB/s.

    :param where: the beginning of the error message, which names the option.
    """
    # 0 would stop the guest.
    if not 1 <= value <= _MAX_MBPS:
        raise BadShareError(f"{where}: {value} is not within 1..{_MAX_MBPS} MB/s")
    return BandwidthRate(value)
