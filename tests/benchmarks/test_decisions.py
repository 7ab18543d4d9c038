"""The program that measures decisions of the service still finds decisions to measure."""

import pytest

from benchmarks.decisions import PARTS, DecisionCall, format_percentiles, full_hosts, move_calls
from placement_extras.planner.drain_plan import DisplacedGuests
from placement_extras.planner.migration_plan import MigrationPlan


@pytest.mark.parametrize("part", PARTS)
def test_every_part_is_measured_in_a_small_world(part: str) -> None:
    found: dict[str, DecisionCall] = dict(PARTS[part](12))
    assert len(found) >= 4
    assert all(deed() is not None for deed in found.values())


def test_hosts_are_as_full_as_their_guests_make_them() -> None:
    snapshot, held = full_hosts(12)
    for provider in snapshot:
        used = dict.fromkeys(provider.inventories, 0)
        for each in held:
            if each.provider_id == provider.id:
                used[each.resource_class] += each.used
        assert used == provider.used
        assert all(provider.free(name) >= 0 for name in used)


def test_the_world_has_guests_to_displace_and_guests_to_move() -> None:
    one, ten, large, larger = (deed() for _, deed in move_calls(20))
    assert isinstance(one, DisplacedGuests)
    assert isinstance(ten, DisplacedGuests)
    assert 0 < one.guests < ten.guests
    for each in (large, larger):
        assert isinstance(each, MigrationPlan)
        assert each.moves


def test_percentiles_are_printed() -> None:
    assert format_percentiles(list(map(float, range(100)))) == "   50.0 (p95    95.0, p99    99.0)"
