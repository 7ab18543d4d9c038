"""Random histories of windows that move: on several hosts, and with sharing providers.

Hosts have different traits and racks, and pools share within their rack. After each request, each window has
the same amounts as before, at places that its claims allow, and has moved only if an answer says so.
"""

import random
import time
import uuid
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from werkzeug.test import TestResponse

from placement.read_model.provider import DISABLED, SHARES
from placement.search.claims import window_room
from tests.databases import DatabaseServer
from tests.examples import examples
from tests.placement.api.ext.windows import HOUR, PATH
from tests.placement.builders import make_provider, provider_path
from tests.placement.moving_clock import advance_clock, iso
from tests.placement.running import Admin, application
from tests.placement.workers.window_tables import find_broken_promises

RACKS: Final = [str(uuid.UUID(int=number)) for number in (1, 2)]
FAST: Final = "CUSTOM_FAST"
Document = dict[str, Any]


class BookedClaims(NamedTuple):
    """The queries of a window, and whether they are for different hosts."""

    queries: Sequence[str]
    are_apart: bool = False


class ProviderFacts(NamedTuple):
    """The traits and aggregates of a provider."""

    traits: frozenset[str]
    aggregates: frozenset[str]


@pytest.fixture(autouse=True)
def unlimited(monkeypatch: pytest.MonkeyPatch) -> None:
    """Searches for moves end by their other limits, however slow the machine is."""
    monkeypatch.setattr(window_room, "_HOSTS_SECONDS", 5.0)
    monkeypatch.setattr(window_room, "_SEARCH_SECONDS", 5.0)


@dataclass
class MovingCloud:
    """Two workers with hosts of 8 VCPU and pools of 8 GB; all windows are within few hours."""

    url: str
    rng: random.Random
    base: float = field(default_factory=lambda: time.time() - HOUR / 2)
    hosts: list[str] = field(default_factory=list)
    pools: list[str] = field(default_factory=list)
    windows: dict[str, BookedClaims] = field(default_factory=dict)
    moved: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._admins = [Admin(application(self.url)) for _ in range(2)]
        self.admin("PUT", f"/traits/{FAST}")
        for _ in range(self.rng.randint(3, 5)):
            self.add_host([], RACKS[0])
        for _ in range(self.rng.randint(0, 2)):
            self.add_host(self.rng.choice([[], [FAST]]), self.rng.choice(RACKS))
        for _ in range(self.rng.randint(1, 3)):
            pool = make_provider(self.admin, str(uuid.uuid4()), DISK_GB=8)
            self.describe(pool, [SHARES], [self.rng.choice(RACKS)])
            self.pools.append(pool)

    @property
    def admin(self) -> Admin:
        return self.rng.choice(self._admins)

    def add_host(self, traits: list[str], rack: str) -> None:
        most = self.rng.choice([4, 8])
        host = make_provider(self.admin, str(uuid.uuid4()), VCPU={"total": 8, "max_unit": most})
        self.describe(host, traits, [rack])
        self.hosts.append(host)

    def describe(self, provider: str, traits: Sequence[str], aggregates: Sequence[str]) -> None:
        for part, values in (("traits", traits), ("aggregates", aggregates)):
            generation = self.admin("GET", provider_path(provider)).json["generation"]
            body = {part: values, "resource_provider_generation": generation}
            assert self.admin("PUT", provider_path(provider, part), json=body).status_code == 200

    def facts(self) -> dict[str, ProviderFacts]:
        return {
            each: ProviderFacts(
                *(
                    frozenset(self.admin("GET", provider_path(each, part)).json[part])
                    for part in ("traits", "aggregates")
                )
            )
            for each in (*self.hosts, *self.pools)
        }

    def times(self) -> dict[str, str]:
        begin, hours = self.rng.randint(1, 3), self.rng.randint(1, 2)
        return {
            "starts_at": iso(self.base + begin * HOUR),
            "expires_at": iso(self.base + (begin + hours) * HOUR),
        }

    def query(self) -> str:
        vcpus, disk = self.rng.choice([1, 2, 3, 4, 4, 6, 8]), self.rng.choice([1, 2, 4, 6])
        pools = [f"resources_{each}=DISK_GB:{disk}" for each in "AB"]
        return self.rng.choice(
            [
                *[f"resources=VCPU:{vcpus}"] * 4,
                f"resources=VCPU:{vcpus}&required={FAST}",
                *[f"resources=VCPU:{vcpus},DISK_GB:{disk}"] * 3,
                f"resources=DISK_GB:{disk}",
                "&".join([f"resources=VCPU:{vcpus}", *pools, "group_policy=isolate"]),
                "&".join([*pools, "group_policy=isolate"]),
            ]
        )

    def new_body(self) -> tuple[Document, BookedClaims]:
        owner = {"project_id": self.rng.choice("pq"), "user_id": "user", "uuid": str(uuid.uuid4())}
        query, body = self.query(), owner | self.times()
        if self.rng.random() < 0.3:
            count, are_apart = self.rng.randint(2, 3), self.rng.random() < 0.5
            claims = {"claims": [{"query": query, "count": count}], "different_hosts": are_apart}
            return body | claims, BookedClaims([query] * count, are_apart)
        extra = self.rng.choice([{}, {}, {}, {"movable": False}, {"allowed_hosts": self.hosts[:1]}])
        return body | {"query": query, **extra}, BookedClaims([query])

    def note_answer(self, body: Document, claims: BookedClaims, answer: TestResponse) -> None:
        assert answer.status_code in (201, 409), answer.text
        if answer.status_code == 201:
            self.windows[body["uuid"]] = claims
            self.moved.update(answer.json["moved"])

    def book(self) -> None:
        body, claims = self.new_body()
        self.note_answer(body, claims, self.admin("POST", PATH, json=body))

    def book_two(self) -> None:
        """Book two windows at once, each with another worker."""
        both = [self.new_body() for _ in range(2)]
        with ThreadPoolExecutor(2) as threads:
            answers = threads.map(lambda admin, each: admin("POST", PATH, json=each[0]), self._admins, both)
        for each, answer in zip(both, answers, strict=True):
            self.note_answer(*each, answer)

    def let_move(self) -> None:
        """Make windows for several claims movable."""
        for window, shown in self.shown().items():
            if len(self.windows[window].queries) > 1 and not shown["movable"]:
                body = {"generation": shown["generation"], "movable": True}
                assert self.admin("PUT", f"{PATH}/{window}", json=body).status_code == 200

    def cancel(self) -> None:
        if self.windows:
            window = self.rng.choice(list(self.windows))
            assert self.admin("DELETE", f"{PATH}/{window}").status_code in (204, 404)

    def maintain(self) -> None:
        host = self.rng.choice([*self.hosts, *self.pools])
        body = {"maintenance_of": host, "project_id": "ops", "user_id": "eve", **self.times()}
        answer = self.admin("POST", PATH, json=body)
        assert answer.status_code in (201, 409), answer.text
        if answer.status_code == 201:
            self.moved.update(answer.json["moved"])
            if self.rng.random() < 0.5:
                uuid = answer.json["reservation"]["uuid"]
                assert self.admin("DELETE", f"{PATH}/{uuid}").status_code == 204

    def change_host(self) -> None:
        """Disable or enable a host or a pool, or move it to another rack."""
        provider = self.rng.choice([*self.hosts, *self.pools])
        traits, aggregates = self.facts()[provider]
        if self.rng.random() < 0.6:
            traits ^= {DISABLED}
        else:
            aggregates = frozenset(self.rng.choice([RACKS[:1], RACKS[1:], RACKS]))
        self.describe(provider, sorted(traits), sorted(aggregates))

    def wait(self) -> None:
        advance_clock(self.url, HOUR)

    def shown(self) -> dict[str, Document]:
        """Return the documents of all windows that have not ended."""
        answers = {each: self.admin("GET", f"{PATH}/{each}") for each in self.windows}
        return {
            each: answer.json["reservation"] for each, answer in answers.items() if answer.status_code == 200
        }

    def run_step(self, before: dict[str, Document]) -> dict[str, Document]:
        """Send a request, and compare the windows with those before it; return them."""
        step = self.rng.choice(
            [self.book] * 8
            + [self.book_two, self.maintain, self.maintain, self.change_host]
            + [self.let_move, self.let_move, self.cancel, self.wait]
        )
        facts = self.facts()
        right = {each for each, shown in before.items() if self.is_right(self.windows[each], shown, facts)}
        self.moved.clear()
        step()
        after = self.shown()
        if step != self.change_host:
            for window in right & after.keys():
                assert self.is_right(self.windows[window], after[window], facts)
        for window in before.keys() & after.keys():
            old, new = before[window], after[window]
            assert total(old) == total(new)
            assert (old["allocations"] != new["allocations"]) == (window in self.moved)
            if window in self.moved:
                self.check_move(old, new, facts)
        assert find_broken_promises(self.url) == []
        return after

    def check_move(self, old: Document, new: Document, facts: dict[str, ProviderFacts]) -> None:
        assert (old["movable"], new["state"]) == (True, "pending")
        assert new["generation"] > old["generation"]
        same = ("starts_at", "expires_at", "project_id", "movable")
        assert [old[name] for name in same] == [new[name] for name in same]
        came, left = (
            one["allocations"].keys() - other["allocations"].keys() for one, other in ((new, old), (old, new))
        )
        assert len(came) == len(left) > 0
        assert not any(DISABLED in facts[each].traits for each in came)

    def is_right(self, claims: BookedClaims, shown: Document, facts: dict[str, ProviderFacts]) -> bool:
        """Return whether the claims of a window allow its places."""
        places = list(shown["allocations"])
        hosts, pools = ([each for each in places if each in some] for some in (self.hosts, self.pools))
        query, *others = claims.queries
        if FAST in query and not all(FAST in facts[each].traits for each in hosts):
            return False
        if claims.are_apart and "VCPU" in query and len(hosts) != len(claims.queries):
            return False
        if not others and (len(hosts), len(pools)) != ("VCPU" in query, query.count("DISK_GB")):
            return False
        # a claim on one of several hosts can use any of the pools there
        reachable = [any(facts[one].aggregates & facts[each].aggregates for each in pools) for one in hosts]
        return all(reachable) or not pools


def total(shown: Document) -> Counter[str]:
    found = Counter[str]()
    for held in shown["allocations"].values():
        found.update(held["resources"])
    return found


@settings(
    max_examples=examples(4),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(seed=st.integers(0, 2**32))
def test_windows_keep_their_amounts_and_move_only_to_places_that_their_claims_allow(
    database_server: DatabaseServer, database_template: str, seed: int
) -> None:
    url = database_server.clone(database_template)
    try:
        cloud = MovingCloud(url, random.Random(seed))
        shown: dict[str, Document] = {}
        for _ in range(30):
            shown = cloud.run_step(shown)
    finally:
        database_server.drop_database(url)
