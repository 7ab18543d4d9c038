"""Computes until when a consumer can keep its timed amounts on its present providers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from placement.db.database import WriteTransaction
from placement.store import allocations
from placement.store.time_profile import HoldKey, TimedAmount, TimeWindow, by_key, first_growth
from placement.store.time_schedule import read_schedule


def latest_expiry(
    tx: WriteTransaction,
    consumer: str,
    amounts: Mapping[HoldKey, int],
    present: TimeWindow,
    *,
    has_begun: bool,
) -> tuple[float, list[TimedAmount]]:
    """Return the latest possible end of timed amounts, and the timed amounts of other consumers there.

    The end is infinite if nothing limits it. It is never earlier than the present end.

    :param amounts: the amounts that the consumer keeps. An amount of 0 means that claims use all of it, and
        give it back to the consumer at their ends.
    :param present: the present time of the amounts.
    :param has_begun: whether the amounts have allocations.
    """
    keys = sorted(amounts)
    supplies, class_ids = allocations.read_supplies(tx, {provider for provider, _ in keys})
    schedule = read_schedule(tx.conn, of_providers=supplies)
    by_provider = by_key(schedule.amounts)
    endless, ahead = TimeWindow(present.starts_at, math.inf), TimeWindow(present.ends_at, math.inf)
    latest, others = math.inf, list[TimedAmount]()
    for key in keys:
        provider, name = key
        some = by_provider.get(key, [])
        capacity, used = supplies[provider].balance_of(class_ids.get(name))
        timed = sum(one.used for one in some if one.has_begun)
        timed += sum(amount for held_key, amount in schedule.holds if held_key == key)
        room = capacity - (used - timed)
        beside = [one for one in some if one.consumer != consumer]
        longer = [TimedAmount(consumer, *key, amounts[key], endless, has_begun)]
        longer += [
            # claims give these amounts back at their ends
            replace(one, window=replace(one.window, ends_at=math.inf))
            for one in some
            if one.consumer == consumer and one.is_return and one.window.starts_at > present.starts_at
        ]
        latest = min(latest, first_growth(some, [*beside, *longer], room, ahead))
        others += beside
    return latest, others
