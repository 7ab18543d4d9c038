"""What of our content the tables of OpenStack Placement can hold."""

from dataclasses import replace
from typing import Final

from placement.db.tables import RESERVATION
from placement_extras.migration.difference import CUSTOM, PortableContent
from placement_extras.migration.reference import StockContent

_DIGITS: Final = 6  # of a FLOAT of MySQL
_NAMED: Final = 10  # of things that may be many


def expressible(after: PortableContent, source: StockContent) -> tuple[PortableContent, list[str]]:
    """What of our content the tables of the source can hold, and in words what they cannot."""
    notes: list[str] = []
    things = dict(after.things)
    reserved = [key for key, (*_, kind, _generation) in things["consumers"].items() if kind == RESERVATION]
    if reserved:
        notes.append(
            f"reservations: OpenStack Placement has none, {len(reserved)} consumers hold what is reserved"
            f" until their allocations are deleted: {', '.join(uuid for (uuid,) in reserved[:_NAMED])}"
            + (" ..." if len(reserved) > _NAMED else "")
        )
    if not source.has_types:
        typed = [key for key, (*_, kind, _generation) in things["consumers"].items() if kind is not None]
        if typed:
            notes.append(f"consumer type: the old schema has none, {len(typed)} consumers lose theirs")
        things["consumers"] = {
            key: (project, user, None, generation)
            for key, (project, user, _, generation) in things["consumers"].items()
        }
    if source.conn.dialect.name not in ("sqlite", "postgresql"):
        rounded = {
            key: (*units, float(f"{ratio:.{_DIGITS}g}"))
            for key, (*units, ratio) in things["inventories"].items()
        }
        for key in sorted(key for key, value in rounded.items() if value != things["inventories"][key]):
            was, now = things["inventories"][key][-1], rounded[key][-1]
            notes.append(f"allocation ratio of {key[1]} of {key[0]}: {was!r} becomes {now!r}")
        things["inventories"] = rounded
    known = set(source.classes.values())
    for name in sorted({name for _, name in things["inventories"]} - known):
        if not name.startswith(CUSTOM):
            notes.append(
                f"resource class {name}: OpenStack Placement has none, it stays as if it were custom"
            )
    return replace(after, things=things), notes
