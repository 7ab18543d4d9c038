"""Windows of all requests move while random bookings come in, and still get what they requested."""

import random
import time
from collections import Counter

from placement.store.time_profile import TimeWindow
from tests.examples import examples
from tests.placement.api.ext.small_cloud import (
    LAST,
    QUESTIONS,
    TREES,
    Amounts,
    Question,
    SmallCloud,
    amounts_of,
    make_cloud,
)
from tests.placement.api.ext.windows import HOUR, PATH
from tests.placement.moving_clock import iso
from tests.placement.running import Admin

_MAX_ROUNDS = 200
"""Maximum number of rounds without a move; about half of the rounds have one."""
Booked = dict[str, tuple[Question, TimeWindow, Amounts]]
"""The request of each window, its hours, and its present amounts, by uuid of the window."""


def test_moved_windows_keep_their_times_and_get_the_amounts_of_their_requests(admin: Admin) -> None:
    cloud = make_cloud(admin, [*TREES, *TREES])
    moves = 0
    for number in range(_MAX_ROUNDS):
        if moves and number >= examples(10):
            break
        seed = random.randrange(1 << 32)
        rng, base = random.Random(seed), float(int(time.time()) + HOUR)
        booked: Booked = {}
        for _ in range(40):
            begin = rng.randrange(LAST - 1)
            window = TimeWindow(begin, rng.randrange(begin + 1, min(LAST, begin + 6)))
            question = rng.choice(QUESTIONS)
            times = {
                "starts_at": iso(base + window.starts_at * HOUR),
                "expires_at": iso(base + window.ends_at * HOUR),
            }
            owner = {"project_id": "project", "user_id": "user"}
            answer = admin("POST", PATH, json={**times, **owner, **question.fields})
            if answer.status_code == 201:
                made = answer.json["reservation"]
                booked[made["uuid"]] = question, window, amounts_of(made)
                moves += check_windows(admin, cloud, booked, base, f"seed {seed}")
            else:
                assert answer.status_code == 409, answer.text
        for each in booked:
            assert admin("DELETE", f"{PATH}/{each}").status_code == 204
    assert moves


def check_windows(admin: Admin, cloud: SmallCloud, booked: Booked, base: float, seed: str) -> int:
    """Check all windows, and return the number of windows that have moved."""
    moves, by_hour = 0, [Amounts() for _ in range(LAST)]
    roots = {uuid: root for root, members in cloud.hosts.items() for uuid in members}
    documents = {each["uuid"]: each for each in admin("GET", f"{PATH}?limit=100").json["reservations"]}
    assert documents.keys() == booked.keys()
    for uuid, (question, window, before) in booked.items():
        shown = documents[uuid]
        amounts = amounts_of(shown)
        (root,) = {roots[provider] for provider, _ in amounts}
        assert amounts in cloud.possible_amounts(question, root), seed
        assert sum_by_class(amounts) == sum_by_class(before), seed
        times = [iso(base + at * HOUR) for at in (window.starts_at, window.ends_at)]
        assert ([shown["starts_at"], shown["expires_at"]], shown["degraded"]) == (times, []), seed
        moves += amounts != before
        booked[uuid] = question, window, amounts
        for hour in range(int(window.starts_at), int(window.ends_at)):
            by_hour[hour] += amounts
    for each in by_hour:
        assert all(used <= cloud.capacities[key] for key, used in each.items()), seed
    return moves


def sum_by_class(amounts: Amounts) -> Counter[str]:
    found = Counter[str]()
    for (_, name), used in amounts.items():
        found[name] += used
    return found
