"""Tests of reading the source of a fleet's settings: the log, the status, metrics and attributes show the
result.
"""

import logging
from types import SimpleNamespace

import pytest
from prometheus_client import CollectorRegistry

from compute_agent.fleet.configuration import with_kept
from compute_agent.inventory.provider_tree import ProviderNode, ProviderTree
from compute_agent.loops.fleet import FLEET_THREAD, FleetLoop, FleetTrouble
from tests.compute_agent.builders import has_thread
from tests.compute_agent.fleet.fleets import FleetHost, signed
from tests.waits import wait_for

ROOT = ProviderNode("host", "r", None, attributes={"cpu_capacity": 1.0})
BELOW = ProviderNode("host_NUMA_0", "n", "r")


class Followed:
    """The fleet loop of a host, without its thread."""

    def __init__(self, host: FleetHost) -> None:
        self.host = host
        self.registry = CollectorRegistry()
        self.reports = 0
        self.loop = FleetLoop(host.conf(), lambda options: None, self.registry, self._changed)

    def _changed(self) -> None:
        self.reports += 1

    def follow(self) -> None:
        """Read the source, and then read the configuration again, as the main thread does."""
        self.loop.follow_fleet()
        self.loop.reload(SimpleNamespace(options=with_kept(self.host.own_conf())))

    @property
    def numbers(self) -> tuple[float | None, float | None]:
        (generations, troubles) = (
            [sample for sample in metric.samples if sample.name == f"compute_agent_fleet_{name}"]
            for name in ("generation", "trouble")
            for metric in self.registry.collect()
            if metric.name == f"compute_agent_fleet_{name}"
        )
        (generation,) = generations
        assert generation.labels == {"group": self.host.own_conf().fleet.group or ""}
        return generation.value, max(sample.value for sample in troubles)

    @property
    def reasons(self) -> set[str]:
        value = self.registry.get_sample_value
        return {
            reason
            for reason in FleetTrouble
            if value("compute_agent_fleet_trouble", {"reason": reason.value})
        }

    def attributes(self, *, beside: bool = False) -> dict[str, object]:
        tree = self.loop.add_to_tree(ProviderTree((ROOT, BELOW), beside=beside))
        assert tree.nodes[beside].attributes is not None
        return dict(tree.nodes[beside].attributes)


@pytest.fixture
def followed(tmp_path):
    return Followed(FleetHost(tmp_path))


def test_a_host_without_a_group_reports_nothing(tmp_path):
    host = FleetHost(tmp_path)
    host.write(group="")
    followed = Followed(host)
    followed.follow()
    assert followed.loop.status_fields() == {"fleet": "", "fleet_trouble": "", "fleet_overruled": []}
    assert (followed.numbers, followed.reports) == ((0, 0), 0)
    assert followed.attributes() == {"cpu_capacity": 1.0}


def test_followed_settings_are_logged_and_reported_once(followed, caplog):
    caplog.set_level(logging.INFO)
    followed.host.offer(signed(7))
    for _ in range(3):
        followed.follow()
    assert followed.loop.status_fields()["fleet"] == "edge generation 7"
    assert (followed.numbers, followed.reports) == ((7, 0), 1)
    told = {"fleet.group": "edge", "fleet.generation": 7}
    assert followed.attributes() == {"cpu_capacity": 1.0, **told}
    assert followed.attributes(beside=True) == told
    assert (
        caplog.text.count("stored new settings of the fleet, and applies them soon: edge generation 7") == 1
    )


def test_a_trouble_is_logged_once_until_it_is_over(followed, caplog):
    caplog.set_level(logging.INFO)
    followed.host.offer(signed(7))
    followed.follow()
    followed.host.offer(signed(8, "[DEFAULT]\nstate_path = /\n" + "# long\n" * 99))
    for _ in range(3):
        followed.follow()
    assert followed.loop.status_fields()["fleet"] == "edge generation 7"
    trouble = followed.loop.status_fields()["fleet_trouble"]
    assert "edge generation 8 is refused: [DEFAULT] state_path" in trouble
    assert (followed.numbers, followed.reports) == ((7, 1), 2)
    assert followed.attributes()["fleet.trouble"] == trouble[:250]
    assert caplog.text.count("The host does not follow its fleet") == 1
    followed.host.offer(signed(9))
    followed.follow()
    assert followed.numbers == (9, 0)
    assert "fleet.trouble" not in followed.attributes()
    assert "The host follows its fleet again" in caplog.text


def test_options_that_the_host_overrules_are_named(followed):
    followed.host.write("cpu_allocation_ratio = 2")
    followed.host.offer(signed(1, "[DEFAULT]\ncpu_allocation_ratio = 4\nram_allocation_ratio = 3\n"))
    followed.follow()
    assert followed.loop.status_fields()["fleet_overruled"] == ["[DEFAULT] cpu_allocation_ratio"]


def test_the_status_of_a_host_says_that_the_source_is_away_and_no_settings_are_known(followed):
    followed.follow()
    assert followed.loop.status_fields()["fleet"] == "edge, and no settings of it"
    assert followed.numbers == (0, 1)


def test_a_source_that_is_away_causes_no_writes_to_placement(followed):
    followed.host.offer(signed(7))
    followed.follow()
    before = followed.attributes()
    (followed.host.source / "edge.conf").unlink()
    followed.follow()
    assert followed.numbers == (7, 1)
    assert followed.attributes() == before


def test_the_thread_looks_at_once_and_ends(followed):
    followed.host.offer(signed(7))
    followed.loop.start()
    kept = followed.host.state / "fleet.conf"
    wait_for(kept.exists)
    followed.loop.stop()
    assert not has_thread(FLEET_THREAD)
