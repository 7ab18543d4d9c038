"""Tests of the order in which actions concern guests."""

import pytest

from compute_agent.throttling.watermarks.metrics import (
    CPU_ORDER,
    GENERAL_ORDER,
    MEMORY_ORDER,
    combined_order,
    sort_guests,
)
from compute_agent.usage.snapshot import GuestUsage, MetricSeries
from tests.compute_agent.throttling.watermarks.builders import CPU, MEMORY, guest


def names(sorter, series, *guests):
    return [one.uuid for one in sort_guests(guests, sorter, series)]


FIRST_BY = [
    # The first guest of each pair comes first, even if all later criteria favour the other guest.
    (GENERAL_ORDER, CPU, guest("z", qos_class="BE", priority=9), guest("a", qos_class="LS", started=9)),
    (GENERAL_ORDER, CPU, guest("z", priority=1), guest("a", priority=2, started=9)),
    (GENERAL_ORDER, CPU, guest("z", started=2), guest("a", started=1)),
    (GENERAL_ORDER, CPU, guest("a"), guest("z")),
    (CPU_ORDER, CPU, guest("z", 1.0), guest("a", 9.0, qos_class="LS")),
    (CPU_ORDER, CPU, guest("z", 2.0, priority=0), guest("a", 9.0, priority=1)),
    (CPU_ORDER, CPU, guest("z", 2.0, vcpus=8.0), guest("a", 1.0, vcpus=1.0, started=9)),
    (CPU_ORDER, CPU, guest("z", 2.0, vcpus=2.0), guest("a", 2.0, vcpus=4.0, started=9)),
    (CPU_ORDER, CPU, guest("z", 2.0, started=9), guest("a", 2.0)),
    (CPU_ORDER, CPU, guest("z", 0.1), guest("a")),
    (CPU_ORDER, CPU, guest("z", 0.0, started=9), guest("a")),  # unknown use counts as 0
    (MEMORY_ORDER, MEMORY, guest("z", memory=0.0, started=9), guest("a")),
    (MEMORY_ORDER, MEMORY, guest("z", memory=2.0), guest("a", memory=1.0, started=9)),
    (MEMORY_ORDER, MEMORY, guest("z", memory=1.0, started=9), guest("a", memory=1.0)),
]


@pytest.mark.parametrize(("sorter", "series", "first", "second"), FIRST_BY)
def test_first_difference_decides(sorter, series, first, second):
    assert names(sorter, series, second, first) == [first.uuid, second.uuid]
    assert names(sorter, series, first, second) == [first.uuid, second.uuid]


def test_a_guest_with_unknown_start_counts_as_the_oldest():
    unknown, young = GuestUsage("a", "BE", 0), GuestUsage("z", "BE", 0, started=0.5)
    assert names(GENERAL_ORDER, CPU, unknown, young) == ["z", "a"]


def test_new_metric_gives_one_comparison_between_the_general_ones():
    series = MetricSeries("disk_latency", "sda")
    own = combined_order(lambda one, series: -one.usage.get(series, 0.0))
    slow, slower = guest("a", usage={series: 5.0}), guest("z", usage={series: 9.0})
    dear = guest("m", usage={series: 99.0}, priority=1)
    assert names(own, series, slow, dear, slower) == ["z", "a", "m"]
