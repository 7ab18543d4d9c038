"""How every query string is read, whatever its parameters are.

A query string comes as the pairs in it. An unknown parameter is an error; of a
parameter that is given more than once the last value counts unless a parser
says otherwise, and every value has to be valid.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from placement.microversion import Microversion
from placement.schemas.base import StrictSchema, load
from placement.schemas.terms import PREFIX

Params = Sequence[tuple[str, str]]


def since(version: Microversion) -> dict[str, Any]:
    """What marks a field of a query's schema with the microversion that it came with."""
    return {"since": version}


def all_values(params: Params, name: str) -> list[str]:
    """Every value of a parameter, in the order of the query string."""
    return [value for key, value in params if key == name]


def load_query(schema: type[StrictSchema], params: Params, version: Microversion) -> dict[str, Any]:
    """The last value of each parameter, all values being valid.

    :raises InvalidRequest: for parameters that the version does not know and for invalid values.
    """
    loader = schema_at(schema, version)
    last = dict(params)
    for key, value in params:
        if value is not last[key]:
            load(loader, {**last, key: value}, PREFIX)
    return load(loader, last, PREFIX)


@lru_cache(maxsize=256)
def schema_at(schema: type[StrictSchema], version: Microversion) -> StrictSchema:
    """The schema with those fields only that exist at a microversion."""
    known = [name for name, field in schema().fields.items() if field.metadata["since"] <= version]
    return schema(only=known)
