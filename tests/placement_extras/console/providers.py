"""Makes providers of the read model, without a service."""

from collections.abc import Mapping
from typing import Any

from placement.read_model.provider import Attribute, Provider


def provider(
    number: int,
    attributes: Mapping[str, Attribute] | None = None,
    *,
    root: int | None = None,
    name: str = "",
    **fields: Any,
) -> Provider:
    """Return a provider with this id.

    :param root: the id of its root, which is also its parent; without it, the provider is a root.
    """
    root = root or number
    empty = {"inventories": {}, "used": {}, "traits": frozenset(), "aggregates": frozenset()}
    return Provider(
        id=number,
        uuid=f"00000000-0000-0000-0000-{number:012}",
        name=name or f"cn{number}",
        generation=0,
        parent_id=None if number == root else root,
        root_id=root,
        updated_at=0.0,
        attributes=attributes or {},
        **{**empty, **fields},
    )
