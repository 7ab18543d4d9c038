"""Parses parts of query strings: parameters by microversion, and amounts, traits, aggregates and trees.

Callers pass a query string as pairs, each with a name and a value. An unknown parameter is an error. If a
parameter occurs several times, its last value counts, unless its parser reads all values. All values have to
be valid. Error messages have the words of OpenStack Placement.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Final

from placement import microversion
from placement.exceptions import InvalidRequest
from placement.microversion import Microversion
from placement.schemas.base import StrictSchema, StringField, canonical_uuid, load

Params = Sequence[tuple[str, str]]
"""The parameters of a query string: pairs, each with a name and a value, in the order of the query."""


def since_version(version: Microversion) -> dict[str, Any]:
    """Return the ``metadata`` of a field of a query: the microversion that introduced the field."""
    return {"since": version}


def all_values(params: Params, name: str) -> list[str]:
    """Return all values of a parameter, in the order of the query string."""
    return [value for key, value in params if key == name]


def load_query(schema: type[StrictSchema], params: Params, version: Microversion) -> dict[str, Any]:
    """Return the last value of each parameter, as the schema loads it.

    :raises InvalidRequest: the microversion does not have one of the parameters, or a value is invalid.
    """
    loader = schema_at(schema, version)
    last = dict(params)
    for key, value in params:
        # all values have to be valid, although only the last value counts
        if value is not last[key]:
            load(loader, {**last, key: value}, PREFIX)
    return load(loader, last, PREFIX)


# the schemas are cached, because making a schema takes longer than reading a query
@lru_cache(maxsize=256)
def schema_at(schema: type[StrictSchema], version: Microversion) -> StrictSchema:
    """Return the schema with only those fields that a microversion has."""
    known = [
        name for name, field in schema().fields.items() if field.metadata.get("since", version) <= version
    ]
    return schema(only=known)


PREFIX: Final = "Invalid query string parameters: "

MAX_PAGE: Final = 1000
"""The maximum number of items in an answer of ``/ext/v1``."""


class PageLimit(StringField):
    """A field for the maximum number of items in an answer, loaded as at most :data:`MAX_PAGE`."""

    def __init__(self) -> None:
        meaning = "a number from 1 to 9999"
        super().__init__(pattern="^[1-9][0-9]{0,3}$", meaning=meaning, load_default=MAX_PAGE)

    def _deserialize(self, value: Any, attr: str | None, data: Any, **kwargs: Any) -> Any:
        # a higher limit than the maximum is no error, so that clients do not have to know the maximum
        return min(MAX_PAGE, int(super()._deserialize(value, attr, data, **kwargs)))


_RESOURCES_FORM: Final = (
    "Badly formed resources parameter. Expected resources query string parameter in form: "
    "?resources=VCPU:2,MEMORY_MB:1024. Got: {got}."
)
_ANY_TRAIT_FORM: Final = "in:HW_CPU_X86_VMX,CUSTOM_MAGIC"


def parse_resources(text: str) -> dict[str, int]:
    """Parse a text such as ``VCPU:2,MEMORY_MB:1024`` to amounts by class; a class's last amount counts."""
    if not text.strip():
        raise InvalidRequest(_RESOURCES_FORM.format(got="empty string"))
    resources: dict[str, int] = {}
    for part in text.split(","):
        name, colon, amount = part.partition(":")
        if not colon or ":" in amount:
            raise InvalidRequest(_RESOURCES_FORM.format(got=part))
        resources[name] = _parse_amount(name, amount)
    return resources


def _parse_amount(name: str, text: str) -> int:
    try:
        amount = int(text)
    except ValueError:
        raise InvalidRequest(
            f"Requested resource {name} expected positive integer amount. Got: {text}."
        ) from None
    if amount < 1:
        raise InvalidRequest(f"Requested resource {name} requires amount >= 1. Got: {amount}.")
    return amount


Required = tuple[tuple[frozenset[str], ...], frozenset[str]]
"""Sets of traits (a provider needs a trait of each set), and the forbidden traits."""


def parse_required(values: Sequence[str], version: Microversion, *, any_of: bool = True) -> Required:
    """Parse the values of ``required`` to sets of alternative traits, and the forbidden traits.

    Before microversion 1.39, only the last of several values counts.

    :param any_of: whether a value is allowed to begin with ``in:``, which means any of the traits.
    """
    required: list[frozenset[str]] = []
    forbidden: set[str] = set()
    for text in values if version >= microversion.ANY_TRAITS else values[-1:]:
        if text.startswith("in:"):
            if not any_of or version < microversion.ANY_TRAITS:
                raise InvalidRequest(
                    f"{PREFIX}The format '{_ANY_TRAIT_FORM}' only supported since microversion 1.39. "
                    f"Got: {text}"
                )
            names = _split_traits(text.removeprefix("in:"), text, _ANY_TRAIT_FORM)
            if any(name.startswith("!") for name in names):
                raise InvalidRequest(
                    f"{PREFIX}The format '{_ANY_TRAIT_FORM}' does not support forbidden traits. Got: {text}"
                )
            required.append(frozenset(names))
            continue
        form = (
            "HW_CPU_X86_VMX,CUSTOM_MAGIC"
            if version < microversion.FORBIDDEN_TRAITS
            else "HW_CPU_X86_VMX,!CUSTOM_MAGIC"
        )
        for name in _split_traits(text, text, form):
            if not name.startswith("!"):
                required.append(frozenset((name,)))
            elif version < microversion.FORBIDDEN_TRAITS:
                raise InvalidRequest(
                    f"{PREFIX}Expected 'required' parameter value of the form: {form}. Got: {text}"
                )
            else:
                # all leading exclamation marks are removed, as in OpenStack Placement
                forbidden.add(name.lstrip("!"))
    # duplicates are dropped and the order is kept, so that equal queries give equal requests
    return tuple(dict.fromkeys(required)), frozenset(forbidden)


def _split_traits(names: str, text: str, form: str) -> list[str]:
    found = [name.strip() for name in names.split(",")]
    if not all(name.lstrip("!") for name in found):
        raise InvalidRequest(
            f"{PREFIX}Expected 'required' parameter value of the form: {form}. Got an empty trait in: {text}"
        )
    return found


MemberOf = tuple[tuple[frozenset[str], ...], frozenset[str]]
"""Sets of aggregates (a provider has to be in an aggregate of each set), and the forbidden aggregates."""


def parse_member_of(values: Sequence[str], version: Microversion) -> MemberOf:
    """Parse the values of ``member_of`` to sets of alternative aggregates, and the forbidden aggregates."""
    if len(values) > 1 and version < microversion.REPEATED_MEMBER_OF:
        raise InvalidRequest("Multiple member_of parameters are not supported")
    member_of: list[frozenset[str]] = []
    forbidden: set[str] = set()
    for text in values:
        names = text.removeprefix("!")
        if names.startswith("in:"):
            several = names.removeprefix("in:").split(",")
        elif "," in names:
            raise InvalidRequest(
                "Multiple values for 'member_of' must be prefixed with the 'in:' or '!in:' keyword "
                f"using the valid microversion. Got: {text}"
            )
        else:
            several = [names]
        aggregates = frozenset(
            _parse_uuid(name, "Expected 'member_of' parameter to contain valid UUID(s).") for name in several
        )
        if not text.startswith("!"):
            member_of.append(aggregates)
        elif version < microversion.FORBIDDEN_AGGREGATES:
            raise InvalidRequest(
                "Forbidden member_of parameters are not supported in the specified microversion"
            )
        else:
            forbidden |= aggregates
    return tuple(dict.fromkeys(member_of)), frozenset(forbidden)


def parse_in_tree(text: str) -> str:
    """Parse the uuid in ``in_tree``, which can be the uuid of any provider in the tree."""
    return _parse_uuid(text, "Expected 'in_tree' parameter to be a format of uuid.")


def _parse_uuid(text: str, expected: str) -> str:
    uuid = canonical_uuid(text)
    if uuid is None:
        raise InvalidRequest(f"{PREFIX}{expected} Got: {text}")
    return uuid
