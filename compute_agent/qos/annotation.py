"""The annotation of a guest that asks for cache and bandwidth: Koordinator's ``node.koordinator.sh/resctrl``.

Its design document spells the keys ``LLC``, ``MB`` and ``cacheid``, its API ``llc``, ``mb`` and ``cacheID``;
both are understood, one at a time. Its API leaves out numbers that are 0 (Go's ``omitempty``): an override
without a cache is of cache 0.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Final, TypeVar

from compute_agent.resctrl.share_spec import BadShareError, ShareSpec, WayRange, check_percent

T = TypeVar("T")


def parse_annotation(text: str) -> ShareSpec:
    """The wish of an annotation; an empty text is an empty wish.

    :raises BadWishError:
    """
    if not text.strip():
        return ShareSpec()
    try:
        body = json.loads(text, object_pairs_hook=_no_duplicates)
    except BadShareError:
        raise
    except RecursionError as error:
        raise BadShareError("the annotation is nested too deeply") from error
    except ValueError as error:  # also numbers of thousands of digits
        raise BadShareError(f"the annotation is no JSON: {error}") from error
    top = _object("the annotation", body, ("LLC", "MB"))
    llc, llc_per_cache = _part("LLC", top.get("LLC"), "range", _json_range)
    mb, mb_per_cache = _part("MB", top.get("MB"), "percent", _json_percent)
    return ShareSpec(llc, llc_per_cache, mb, mb_per_cache)


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
        raise BadShareError(f"{name}.schemataPerCache is no list")
    for index, body in enumerate(overrides):
        where = f"{name}.schemataPerCache[{index}]"
        override = _object(where, body, ("cacheid", key))
        if key not in override:
            raise BadShareError(f"{where} has no {key}")
        cache = _whole(f"{where}.cacheid", override.get("cacheid", 0))
        if cache in per_cache:
            raise BadShareError(f"{where}: cache {cache} is named twice")
        per_cache[cache] = parse(f"{where}.{key}", override[key])
    return everywhere, per_cache


_SPELLINGS: Final = {"llc": "LLC", "mb": "MB", "cacheID": "cacheid"}


def _object(where: str, body: object, keys: tuple[str, ...]) -> dict[str, object]:
    """The fields of a JSON object by the first of their spellings."""
    if not isinstance(body, dict):
        raise BadShareError(f"{where} is no object")
    fields: dict[str, object] = {}
    for spelled, value in body.items():
        key = _SPELLINGS.get(spelled, spelled)
        if key not in keys:
            raise BadShareError(f"{where} has an unknown key {spelled!r}: it may have {', '.join(keys)}")
        if key in fields:
            raise BadShareError(f"{where} has {key} twice")
        fields[key] = value
    return fields


def _no_duplicates(pairs: Iterable[tuple[str, object]]) -> dict[str, object]:
    fields: dict[str, object] = {}
    for key, value in pairs:
        if key in fields:
            raise BadShareError(f"the annotation has the key {key!r} twice")
        fields[key] = value
    return fields


def _json_range(where: str, value: object) -> WayRange:
    if not isinstance(value, list) or len(value) != 2:
        raise BadShareError(f"{where} is not a pair of percents")
    try:
        return WayRange(_whole(where, value[0]), _whole(where, value[1]))
    except BadShareError as error:
        raise BadShareError(f"{where}: {error}") from error


def _json_percent(where: str, value: object) -> int:
    return check_percent(where, _whole(where, value))


def _whole(where: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise BadShareError(f"{where}: {value!r} is not a whole number")
    return value
