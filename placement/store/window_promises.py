"""Reads the promises of windows from which claims have taken amounts.

The module :mod:`placement.store.time_profile` explains promises and returns. Every transaction that writes a
window locks the window's consumer, so promises only change under this lock. But claims from the window end
without this lock. So the unused part of a promise is only certain while the transaction has also locked the
buckets of the providers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Final

import sqlalchemy as sa

from placement.db.batch import split_rows
from placement.db.tables import (
    RESERVATION,
    allocations,
    claim_expiries,
    consumers,
    join_amounts,
    reservations,
    resource_classes,
    resource_providers,
    window_promises,
)
from placement.store.allocations import Allocation
from placement.store.consumers import EXPIRING_CONSUMERS
from placement.store.time_profile import HoldKey


@dataclass(frozen=True, slots=True)
class PromisedAmount:
    """The two parts of an amount that a window has promised; both parts have the window as consumer.

    ``held`` belongs to the window itself, even if it is not an allocation again yet. Claims use ``claimed``.
    """

    held: Allocation
    claimed: Allocation


def promised_amounts(conn: sa.Connection, windows: Collection[str]) -> list[PromisedAmount]:
    """Return the promises of these windows, given by uuid.

    A window has promises only if claims have taken amounts from it.
    """
    found = []
    for chunk in split_rows(sorted(windows)):
        for row in conn.execute(_PROMISED, {"windows": chunk}):
            # some drivers return sums as Decimal
            used, updated_at, claimed = row[5], row[6], int(row[7])
            held, taken = (
                Allocation(*row[:5], each, updated_at) for each in (max(0, used - claimed), claimed)
            )
            found.append(PromisedAmount(held, taken))
    return found


def taken_by(conn: sa.Connection, window: str, claims: Collection[str]) -> Counter[HoldKey]:
    """Return the amounts that these consumers have from a window, and give back when they claim again."""
    found: Counter[HoldKey] = Counter()
    for provider, name, used in conn.execute(_TAKEN, {"window": window, "claims": sorted(claims)}):
        found[provider, name] += used
    return found


def source_windows(conn: sa.Connection, claims: Sequence[str]) -> dict[str, str]:
    """Return the windows from which the present claims of these consumers have taken amounts, by consumer."""
    return {
        consumer: window
        for chunk in split_rows(claims)
        for consumer, window in conn.execute(_SOURCES, {"claims": chunk})
    }


def claimed_sum(*conditions: sa.ColumnElement[bool]) -> sa.ScalarSelect[Any]:
    """Return a correlated query for the part of a promise that claims with these conditions use."""
    return (
        sa.select(sa.func.coalesce(sa.func.sum(allocations.c.used), 0))
        .select_from(EXPIRING_CONSUMERS)
        .join(allocations, allocations.c.consumer_id == consumers.c.id)
        .where(
            claim_expiries.c.is_final,
            claim_expiries.c.window_id == window_promises.c.consumer_id,
            allocations.c.provider_id == window_promises.c.provider_id,
            allocations.c.resource_class_id == window_promises.c.resource_class_id,
            *conditions,
        )
        .correlate(window_promises)
        .scalar_subquery()
    )


_window: Final = consumers.alias("window_consumers")
_PROMISED: Final = (
    sa.select(
        _window.c.uuid,
        _window.c.generation,
        resource_providers.c.uuid,
        resource_providers.c.generation,
        resource_classes.c.name,
        window_promises.c.used,
        _window.c.updated_at,
        claimed_sum(),
    )
    .select_from(window_promises)
    .join(_window, _window.c.id == window_promises.c.consumer_id)
    .join(resource_providers, resource_providers.c.id == window_promises.c.provider_id)
    .join(resource_classes, resource_classes.c.id == window_promises.c.resource_class_id)
    .where(_window.c.uuid.in_(sa.bindparam("windows", expanding=True)))
    .order_by(_window.c.id, resource_providers.c.id, resource_classes.c.id)
)
_from_windows: Final = EXPIRING_CONSUMERS.join(_window, _window.c.id == claim_expiries.c.window_id)
_of_claims: Final = consumers.c.uuid.in_(sa.bindparam("claims", expanding=True))
_TAKEN: Final = (
    sa.select(resource_providers.c.uuid, resource_classes.c.name, allocations.c.used)
    .select_from(join_amounts(allocations, _from_windows))
    .where(claim_expiries.c.is_final, _window.c.uuid == sa.bindparam("window"), _of_claims)
)
_SOURCES: Final = (
    sa.select(consumers.c.uuid, _window.c.uuid.label("window"))
    .select_from(_from_windows)
    # a consumer that has got another type is no window any more
    .join(reservations, reservations.c.consumer_id == _window.c.id)
    .where(claim_expiries.c.is_final, _window.c.consumer_type == RESERVATION, _of_claims)
)
