"""A check of windows over the tables alone: each instant from now on, in one snapshot of the database.

It shares no code with the service: it reads rows, and sums amounts at each instant at which a sum changes.
"""

import math
from collections import defaultdict
from dataclasses import dataclass

import sqlalchemy as sa

_NOW = {
    "sqlite": "(julianday('now') - 2440587.5) * 86400.0",
    "postgresql": "extract(epoch FROM clock_timestamp())",
    "mysql": "timestampdiff(MICROSECOND, '1970-01-01', utc_timestamp(6)) / 1000000e0",
}
_AMOUNTS = """
SELECT p.uuid, r.name, c.uuid, c.consumer_type, a.used, 0 AS is_planned, w.starts_at, w.expires_at,
       CASE WHEN e.generation = c.generation THEN e.expires_at END AS ends_at,
       CASE WHEN e.generation = c.generation THEN s.uuid END AS taken_from
FROM allocations a
JOIN consumers c ON c.id = a.consumer_id
JOIN resource_providers p ON p.id = a.provider_id
JOIN resource_classes r ON r.id = a.resource_class_id
LEFT JOIN reservations w ON w.consumer_id = c.id
LEFT JOIN claim_expiries e ON e.consumer_id = c.id AND e.is_final
LEFT JOIN consumers s ON s.id = e.window_id
UNION ALL
SELECT p.uuid, r.name, c.uuid, NULL, a.used, 1, w.starts_at, w.expires_at, NULL, NULL
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


@dataclass(frozen=True)
class HeldAmount:
    """An amount from ``begin`` until ``end``, in seconds since 1970, minus infinity for one in use."""

    used: int
    begin: float
    end: float


def busiest_sum(amounts: list[HeldAmount], now: float) -> int:
    """Return the largest sum at an instant from now on."""
    instants = [now, *(each.begin for each in amounts if each.begin > now)]
    return max(sum(each.used for each in amounts if each.begin <= t < each.end) for t in instants)


def find_broken_promises(url: str, capacity: dict[str, int] | None = None) -> list[str]:
    """Return descriptions of instants above the capacity, and of wrong holds; none, if all is right.

    :param capacity: capacities by provider that count instead of those of the inventories, for providers
        with inventories that an operator has lowered.
    """
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
    held: dict[tuple[str, str], int] = defaultdict(int)
    timed, endless = defaultdict(list), defaultdict(int)
    begun: dict[tuple[str, str], int] = defaultdict(int)
    # what a window has is what was promised to it: its claims use a part of that as long as it lasts
    promised = {(provider, name, window): float(end) for provider, name, window, _, end in promises}
    parts: dict[tuple[str, str, str], int] = defaultdict(int)
    for provider, name, _, used, end in promises:
        timed[provider, name].append(HeldAmount(used, -math.inf, float(end)))
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
    ) in rows:
        key = (provider, name)
        if (part := (provider, name, window or consumer)) in promised:
            parts[part] += used
            begun[key] += used
            if window:
                timed[key].append(HeldAmount(used, promised[part], float(ends_at)))
            continue
        if consumer_type == "WINDOW_HOLD":
            held[key] += used
        elif is_planned:
            timed[key].append(HeldAmount(used, float(starts_at), float(expires_at)))
        elif starts_at is not None or ends_at is not None:
            timed[key].append(HeldAmount(used, -math.inf, float(expires_at or ends_at)))
            begun[key] += used
        else:
            endless[key] += used
    wrong = [
        f"window {window} and its claims have {parts[provider, name, window]} of {used} {name} of {provider}"
        for provider, name, window, used, _ in promises
        if parts[provider, name, window] > used
    ]
    wrong += [f"preemptible claim of consumer {consumer} ends too early" for (consumer,) in cut]
    for key in {*held, *timed, *endless}:
        most = (capacity or {}).get(key[0], capacities.get(key, 0.0))
        busiest = endless[key] + busiest_sum(timed[key], now)
        if busiest > most:
            wrong.append(f"{busiest} of {most} {key[1]} at an instant of {key[0]}")
        least = max(0, busiest_sum(timed[key], now) - begun[key])
        largest = max(0, busiest_sum(timed[key], -math.inf) - begun[key])
        if not least <= held[key] <= largest:
            wrong.append(f"hold of {key[1]} of {key[0]}: {held[key]}, not {least} to {largest}")
    return wrong
