"""The sums of windows that the database computes, compared with those that the service computes."""

import random

import pytest

from placement.db.database import ServiceDatabase
from placement.store.time_schedule import read_schedule
from placement.store.usages import WindowUsage, read_sums
from tests.examples import examples
from tests.placement.api.ext.windows import HOUR, PATH, book
from tests.placement.builders import make_provider, new_claim, post_claims
from tests.placement.moving_clock import advance_clock, after
from tests.placement.running import Admin


@pytest.mark.slow
def test_the_database_computes_the_same_sums(admin: Admin, url: str) -> None:
    for name in "ab":
        make_provider(admin, name, VCPU=32, MEMORY_MB=1024)
    seed = random.randrange(1 << 32)
    rng, windows, claims = random.Random(seed), list[str](), list[str]()
    database = ServiceDatabase(url)
    for _ in range(examples(40)):
        step = rng.random()
        query = f"resources=VCPU:{rng.randint(1, 4)},MEMORY_MB:{rng.randint(1, 64)}"
        if step < 0.35:
            begin = rng.choice([0.0, 0.0, rng.uniform(0.1, 3)])
            booked = book(admin, 1, begin, begin + rng.uniform(1, 6), query=query)
            if booked.status_code == 201:
                windows.append(booked.json["reservation"]["uuid"])
        elif step < 0.7:
            claim = new_claim(query, project_id="project")
            source = {"reservation": rng.choice(windows)} if windows and rng.random() < 0.8 else {}
            claimed = post_claims(admin, claim, ends_at=after(rng.uniform(0.1, 2) * HOUR), **source)
            if claimed.status_code == 201:
                claims.append(claim["consumer_uuid"])
        elif step < 0.8 and claims:
            admin("DELETE", f"/allocations/{claims.pop(rng.randrange(len(claims)))}")
        elif step < 0.85 and windows:
            admin("DELETE", f"{PATH}/{windows.pop(rng.randrange(len(windows)))}")
        else:
            advance_clock(url, rng.uniform(0, 0.5) * HOUR)
        # windows begin and end, as before each scrape
        admin("GET", PATH)
        with database.read() as conn:
            expected, found = WindowUsage.from_schedule(read_schedule(conn)), read_sums(conn)
        assert (found.pending, found.active) == (expected.pending, expected.active), f"seed {seed}"
        for one, other in ((found.booked, expected.booked), (found.used, expected.used)):
            names = {*one, *other}
            assert [one.get(name, 0) for name in names] == [other.get(name, 0) for name in names], (
                f"seed {seed}"
            )
        assert found.lent is None
