"""The n earliest windows over REST, for groups, devices, flavors and several claims: each hour is tried.

The judge shares no code with the service: it tries all providers for all groups, at each whole hour.
"""

import random
import time
from collections.abc import Sequence
from datetime import datetime
from typing import Any

import pytest

from tests.examples import examples
from tests.placement.api.ext.small_cloud import (
    HOUR,
    LAST,
    QUESTIONS,
    TREES,
    Amounts,
    SmallCloud,
    amounts_of,
    make_cloud,
)
from tests.placement.moving_clock import iso
from tests.placement.running import Admin

ANY_HOST = "any host"
"""The key of the windows of several claims, which may have other hosts in each window."""


@pytest.fixture
def cloud(admin: Admin) -> SmallCloud:
    return make_cloud(admin, TREES)


def book_randomly(admin: Admin, cloud: SmallCloud, rng: random.Random, base: float) -> list[str]:
    """Book windows at random hours; return their uuids."""
    made = []
    cloud.booked = {hour: Amounts() for hour in range(LAST)}
    for _ in range(14):
        begin = rng.randrange(LAST - 1)
        end = rng.randrange(begin + 1, min(LAST, begin + 6))
        body = {"starts_at": iso(base + begin * HOUR), "expires_at": iso(base + end * HOUR)}
        body |= {"project_id": "project", "user_id": "user", **rng.choice(QUESTIONS).fields}
        answer = admin("POST", "/ext/v1/reservations", json=body | {"movable": False})
        assert answer.status_code in (201, 409), answer.text
        if answer.status_code == 201:
            made.append(answer.json["reservation"]["uuid"])
            for hour in range(begin, end):
                cloud.booked[hour] += amounts_of(answer.json["reservation"])
    return made


@pytest.mark.parametrize("is_joint", [False, True])
def test_the_windows_are_the_earliest_of_all_hours(admin: Admin, cloud: SmallCloud, is_joint: bool) -> None:
    for _ in range(examples(15)):
        seed = random.randrange(1 << 32)
        rng, base = random.Random(seed), float(int(time.time()) + HOUR)
        made = book_randomly(admin, cloud, rng, base)
        for _ in range(6):
            check_question(admin, cloud, rng, base, f"seed {seed}", is_joint=is_joint)
        for each in made:
            assert admin("DELETE", f"/ext/v1/reservations/{each}").status_code == 204


def check_question(
    admin: Admin, cloud: SmallCloud, rng: random.Random, base: float, seed: str, *, is_joint: bool
) -> None:
    duration, first, last = rng.randint(1, 5), rng.randrange(4), rng.randrange(4, LAST + 3)
    questions = [rng.choice(QUESTIONS) for _ in range(rng.randint(1, 3) if is_joint else 1)]
    apart = is_joint and rng.random() < 0.4
    fields = (
        {"claims": [each.fields for each in questions], "different_hosts": apart}
        if is_joint
        else questions[0].fields
    )
    times = {"not_before": iso(base + first * HOUR), "deadline": iso(base + (last + duration) * HOUR)}
    body = {"duration": duration * HOUR, **times, **fields}

    def find(limit: int) -> list[dict[str, Any]]:
        answer = admin("POST", "/ext/v1/availability", json=body | {"limit": limit})
        assert answer.status_code == 200, answer.text
        assert answer.json["is_complete"]
        found: list[dict[str, Any]] = answer.json["windows"]
        return found

    def hour_of(text: str) -> int:
        hours = (datetime.fromisoformat(text).timestamp() - base) / HOUR
        assert hours == int(hours), seed
        return int(hours)

    def earliest(hosts: Sequence[str], after: int) -> int | None:
        starts = range(after, last + 1)
        fitting = (t for t in starts if cloud.fits(questions, hosts, range(t, t + duration), apart=apart))
        return next(fitting, None)

    found = find(100)
    starts = [hour_of(each["starts_at"]) for each in found]
    assert starts == sorted(starts), seed
    # a single request gets the windows of each host; several claims get one window after the other
    keys = [ANY_HOST] if len(questions) > 1 else [*cloud.hosts]
    ahead: dict[str, int | None] = dict.fromkeys(keys, first)
    for start, window in zip(starts, found, strict=True):
        places = window["claims"] if is_joint else [window]
        roots = [each["root_provider_uuid"] for each in places]
        assert len(set(roots)) == len(roots) or not apart, seed
        for question, place in zip(questions, places, strict=True):
            choices = cloud.possible_amounts(question, place["root_provider_uuid"])
            assert any(amounts_of(place) == each for each in choices), seed
        taken = sum((amounts_of(each) for each in places), Amounts())
        until = None if window["free_until"] is None else hour_of(window["free_until"])
        assert until is None or until >= start + duration, seed
        assert cloud.has_room(taken, range(start, until or 2 * LAST)), seed
        assert until is None or not cloud.has_room(taken, [until]), seed
        key = ANY_HOST if len(questions) > 1 else roots[0]
        after, hosts = ahead[key], [*cloud.hosts] if key == ANY_HOST else [key]
        assert after is not None, seed
        assert start == earliest(hosts, after), seed
        ahead[key] = until
    for key, after in ahead.items():
        if after is not None:
            assert earliest([*cloud.hosts] if key == ANY_HOST else [key], after) is None, seed
    for limit in (1, 2, 3):
        assert find(limit) == found[:limit], seed
