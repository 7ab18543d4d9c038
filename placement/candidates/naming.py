"""Hosts that clients name, by the uuids of their roots."""

from collections.abc import Iterable

from placement.exceptions import InvalidRequest
from placement.model.snapshot import ModelSnapshot


def named_roots(snapshot: ModelSnapshot, uuids: Iterable[str], meant: str) -> frozenset[int]:
    """The ids of the roots of these uuids.

    :param meant: what the roots are named for, as it goes on after "which".
    :raises InvalidRequest: one of them is of no provider, or of one that is no root.
    """
    found = set()
    for uuid in sorted(uuids):
        root = snapshot.get(uuid)
        if root is None or root.parent_id is not None:
            raise InvalidRequest(f"There is no root provider {uuid}, which {meant}.")
        found.add(root.id)
    return frozenset(found)
