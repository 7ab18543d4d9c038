"""Tests of which watermarks a decision uses."""

import pytest

from compute_agent.throttling.watermarks.sections import WatermarkAction
from tests.compute_agent.throttling.watermarks.builders import line, rules


@pytest.mark.parametrize("order", [1, -1])
def test_watermarks_are_found_by_metric_and_action(order):
    lines = [
        line("cpu", throttle_down=80, throttle_up=60),
        line("cpu-evict", evict=90),
        line("bandwidth", "bandwidth_usage", throttle_down=70),
        line("memory", "memory_usage", throttle_down=50, evict=90),
    ][::order]
    found = rules(*lines).of_metric

    def names(metric, action):
        return {one.name for one in found(metric, action)}

    assert names("cpu_usage", WatermarkAction.THROTTLE_DOWN) == {"cpu"}
    assert names("cpu_usage", WatermarkAction.EVICT) == {"cpu-evict"}
    assert names("memory_usage", WatermarkAction.THROTTLE_DOWN) == {"memory"}
    assert names("memory_usage", WatermarkAction.THROTTLE_UP) == set()
    assert names("bandwidth_usage", WatermarkAction.THROTTLE_DOWN) == {"bandwidth"}


def test_watermarks_are_selected_by_mode():
    both = rules(line("real", throttle_down=80), line("tried", throttle_down=70, preview=True))
    assert [one.name for one in both.with_preview(preview=False).watermarks] == ["real"]
    assert [one.name for one in both.with_preview(preview=True).watermarks] == ["tried"]
