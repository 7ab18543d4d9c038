"""A check of windows over the tables alone: each instant from now on, in one snapshot of the database.

It shares no code with the service: it reads rows, and sums amounts at each instant at which a sum changes.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import sqlalchemy as sa

_NOW = {
    "sqlite": "(julianday('now') - 2440587.5) * 86400.0",
    "postgresql": "extract(epoch FROM clock_timestamp())",
    "mysql": "timestampdiff(MICROSECOND, '1970-01-01', utc_timestamp(6)) / 1000000e0",
}
_AMOUNTS = """
SELECT p.uuid, r.name, c.uuid, c.consumer_type, a.used, 0 AS is_planned, w.starts_at, w.expires_at,
       CASE WHEN e.generation = c.generation THEN e.expires_at END AS ends_at,
       CASE WHEN e.generation = c.generation THEN s.uuid END AS taken_from,
       CASE WHEN w.is_maintenance THEN 1 ELSE 0 END AS is_maintenance
FROM allocations a
JOIN consumers c ON c.id = a.consumer_id
JOIN resource_providers p ON p.id = a.provider_id
JOIN resource_classes r ON r.id = a.resource_class_id
LEFT JOIN reservations w ON w.consumer_id = c.id
LEFT JOIN claim_expiries e ON e.consumer_id = c.id AND e.is_final
LEFT JOIN consumers s ON s.id = e.window_id
UNION ALL
SELECT p.uuid, r.name, c.uuid, NULL, a.used, 1, w.starts_at, w.expires_at, NULL, NULL,
       CASE WHEN w.is_maintenance THEN 1 ELSE 0 END
FROM planned_allocations a
JOIN consumers c ON c.id = a.consumer_id
JOIN resource_providers p ON p.id = a.provider_id
JOIN resource_classes r ON r.id = a.resource_class_id
JOIN reservations w ON w.consumer_id = c.id
"""
_PROMISES = """
SELECT p.uuid, r.name, c.uuid, a.used, w.expires_at
FROM window_promises a
JOIN consumers c ON c.id = a.consumer_id
JOIN resource_providers p ON p.id = a.provider_id
JOIN resource_classes r ON r.id = a.resource_class_id
JOIN reservations w ON w.consumer_id = c.id
"""
_CAPACITIES = """
SELECT p.uuid, r.name, (i.total - i.reserved) * i.allocation_ratio
FROM inventories i
JOIN resource_providers p ON p.id = i.provider_id
JOIN resource_classes r ON r.id = i.resource_class_id
"""


ClassKey = tuple[str, str]
"""The uuid of a provider, and the name of a resource class."""


@dataclass(frozen=True)
class HeldAmount:
    """An amount from ``begin`` until ``end``, in seconds since 1970, minus infinity for one in use.

    ``reservation`` is the uuid of the reservation that still holds a part of the amount itself.
    """

    used: int
    begin: float
    end: float = math.inf
    is_maintenance: bool = False
    reservation: str | None = None


def sum_at(amounts: Iterable[HeldAmount], instant: float) -> int:
    """Return the sum at one instant."""
    return sum(each.used for each in amounts if each.begin <= instant < each.end)


def busiest_sum(amounts: list[HeldAmount], now: float, end: float = math.inf) -> int:
    """Return the largest sum at an instant from now on, before ``end``."""
    instants = [now, *(each.begin for each in amounts if now < each.begin < end)]
    return max(sum_at(amounts, instant) for instant in instants)


@dataclass(frozen=True)
class WindowBooks:
    """The amounts of one snapshot of the database, by provider and class, with those that have no end.

    ``wrong`` has descriptions of promises and holds that contradict the amounts.
    """

    now: float
    capacities: Mapping[ClassKey, float]
    amounts: Mapping[ClassKey, list[HeldAmount]]
    wrong: list[str] = field(default_factory=list)

    def find_excess(self, capacity: Mapping[str, float] | None = None) -> list[str]:
        """Return descriptions of instants above the capacity; amounts of maintenances do not count.

        :param capacity: capacities by provider that count instead of those of the inventories, for providers
            with inventories that an operator has lowered.
        """
        found = []
        for key, amounts in sorted(self.amounts.items()):
            most = (capacity or {}).get(key[0], self.capacities.get(key, 0.0))
            busiest = busiest_sum([each for each in amounts if not each.is_maintenance], self.now)
            if busiest > most:
                found.append(f"{busiest} of {most} {key[1]} at an instant of {key[0]}")
        return found

    def find_growth(self, earlier: "WindowBooks", capacity: float) -> list[str]:
        """Return descriptions of instants that have got more amounts than a maintenance leaves free.

        Guests and windows from before the maintenance may stay, but nothing is added to them.

        :param earlier: an earlier snapshot; only maintenances of both snapshots count.
        :param capacity: the largest capacity between the snapshots.
        """
        found = []
        for key, amounts in sorted(self.amounts.items()):
            before = earlier.amounts.get(key, [])
            known = {each.reservation for each in before if each.is_maintenance}
            maintained = [each for each in amounts if each.is_maintenance and each.reservation in known]
            others, others_before = (
                [each for each in some if not each.is_maintenance] for some in (amounts, before)
            )
            starts = {each.begin for each in (*others, *maintained)} | {each.end for each in others_before}
            for instant in sorted({self.now, *(each for each in starts if self.now < each < math.inf)}):
                taken = sum_at(maintained, instant)
                present, past = sum_at(others, instant), sum_at(others_before, instant)
                if taken and present > max(past, capacity - taken):
                    found.append(f"{present} {key[1]} of {key[0]} in a maintenance of {taken}, before {past}")
        return found

    def planned_places(self) -> dict[str, list[tuple[str, HeldAmount]]]:
        """Return the amounts of windows that have not begun, with their providers, by uuid of the window."""
        found = defaultdict[str, list[tuple[str, HeldAmount]]](list)
        for (provider, _), amounts in self.amounts.items():
            for each in amounts:
                if each.reservation is not None and each.begin > -math.inf and not each.is_maintenance:
                    found[each.reservation].append((provider, each))
        return found

    def compare_moves(self, earlier: "WindowBooks") -> tuple[int, list[str]]:
        """Return the number of windows that have moved since an earlier snapshot, and their faults.

        Each window is for one provider and one resource class.
        """
        before, number, wrong = earlier.planned_places(), 0, list[str]()
        for uuid, places in self.planned_places().items():
            ((provider, held), *others), ((old_provider, old), *_) = places, before.get(uuid, places)
            number += provider != old_provider
            # a client can give a part of the amounts back meanwhile
            if others or held.begin != old.begin or held.used > old.used:
                wrong.append(f"window {uuid} was {old} of {old_provider}, and is {places}")
        return number, wrong

    def degraded_reservations(self) -> set[str]:
        """Return the uuids of reservations with an instant ahead at which a sum is above the capacity."""
        return {
            each.reservation
            for key, amounts in self.amounts.items()
            for each in amounts
            if each.reservation is not None and self.now < each.end
            if busiest_sum(amounts, max(self.now, each.begin), each.end) > self.capacities.get(key, 0.0)
        }


def read_books(url: str) -> WindowBooks:
    """Read the amounts, and check promises and holds."""
    engine = sa.create_engine(url, poolclass=sa.NullPool)
    kind = engine.dialect.name.replace("mariadb", "mysql")
    if kind != "sqlite":
        engine = engine.execution_options(isolation_level="REPEATABLE READ")
    with engine.begin() as conn:
        if kind == "sqlite":
            # the driver begins no transaction for a query
            conn.exec_driver_sql("BEGIN")
        rows = conn.exec_driver_sql(_AMOUNTS).all()
        promises = conn.exec_driver_sql(_PROMISES).all()
        capacities = {(uuid, name): float(most) for uuid, name, most in conn.exec_driver_sql(_CAPACITIES)}
        cut = conn.exec_driver_sql(
            "SELECT consumer_id FROM claim_expiries WHERE kept_until > expires_at"
        ).all()
        now = float(conn.exec_driver_sql(f"SELECT {_NOW[kind]}").scalar_one())
    held: dict[ClassKey, int] = defaultdict(int)
    timed, endless = defaultdict[ClassKey, list[HeldAmount]](list), defaultdict[ClassKey, int](int)
    begun: dict[ClassKey, int] = defaultdict(int)
    # what a window has is what was promised to it: its claims use a part of that as long as it lasts
    promised = {(provider, name, window): float(end) for provider, name, window, _, end in promises}
    parts: dict[tuple[str, str, str], int] = defaultdict(int)
    claimed: dict[tuple[str, str, str], int] = defaultdict(int)
    for (
        provider,
        name,
        consumer,
        consumer_type,
        used,
        is_planned,
        starts_at,
        expires_at,
        ends_at,
        window,
        is_maintenance,
    ) in rows:
        key = (provider, name)
        if (part := (provider, name, window or consumer)) in promised:
            parts[part] += used
            begun[key] += used
            if window:
                claimed[part] += used
                timed[key].append(HeldAmount(used, promised[part], float(ends_at)))
            continue
        own = consumer if expires_at is not None else None
        if consumer_type == "WINDOW_HOLD":
            held[key] += used
        elif is_planned:
            begin, end = float(starts_at), float(expires_at)
            timed[key].append(HeldAmount(used, begin, end, bool(is_maintenance), own))
        elif starts_at is not None or ends_at is not None:
            end = float(expires_at or ends_at)
            timed[key].append(HeldAmount(used, -math.inf, end, bool(is_maintenance), own))
            begun[key] += used
        else:
            endless[key] += used
    for provider, name, window, used, end in promises:
        is_held = used > claimed[provider, name, window]
        own = window if is_held else None
        timed[provider, name].append(HeldAmount(used, -math.inf, float(end), reservation=own))
    wrong = [
        f"window {window} and its claims have {parts[provider, name, window]} of {used} {name} of {provider}"
        for provider, name, window, used, _ in promises
        if parts[provider, name, window] > used
    ]
    wrong += [f"preemptible claim of consumer {consumer} ends too early" for (consumer,) in cut]
    for key in sorted({*held, *timed}):
        least = max(0, busiest_sum(timed[key], now) - begun[key])
        largest = max(0, busiest_sum(timed[key], -math.inf) - begun[key])
        if not least <= held[key] <= largest:
            wrong.append(f"hold of {key[1]} of {key[0]}: {held[key]}, not {least} to {largest}")
    amounts = {
        key: [*timed[key], HeldAmount(endless[key], -math.inf)] for key in sorted({*held, *timed, *endless})
    }
    return WindowBooks(now, capacities, amounts, wrong)


def find_broken_promises(url: str, capacity: Mapping[str, float] | None = None) -> list[str]:
    """Return descriptions of instants above the capacity, and of wrong holds; none, if all is right.

    :param capacity: as for :meth:`WindowBooks.find_excess`.
    """
    books = read_books(url)
    return [*books.find_excess(capacity), *books.wrong]
