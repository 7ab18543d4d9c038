"""Tests of several triggers that limit one guest: the lowest limit applies, and no trigger removes another's
limit.
"""

import pytest

from compute_agent.model.messages import DriverError
from compute_agent.model.resource import ThrottleControl
from compute_agent.throttling.arbiter import LimitArbiter
from tests.compute_agent.loops.overload import QUOTA, Overload


@pytest.fixture
def host(tmp_path):
    with Overload(tmp_path) as host:
        host.run("guest", 1.0)
        yield host


@pytest.fixture
def arbiter(host):
    return LimitArbiter(host.pipeline)


def test_the_lowest_limit_is_in_force(host, arbiter):
    arbiter.set_limit("a", "guest", QUOTA, 2.0)
    arbiter.set_limit("b", "guest", QUOTA, 3.0)
    assert host.limits() == {"guest": 2.0}
    arbiter.set_limit("a", "guest", QUOTA, None)
    assert host.limits() == {"guest": 3.0}
    arbiter.set_limit("b", "guest", QUOTA, None)
    assert host.limits() == {}


def test_a_limit_that_the_kernel_does_not_take_is_not_asked_for_any_more(host, arbiter):
    arbiter.set_limit("a", "guest", QUOTA, 3.0)
    host.driver.unlimited.add("guest")
    with pytest.raises(DriverError):
        arbiter.set_limit("b", "guest", QUOTA, 2.0)
    assert arbiter.combined_limits() == {"guest": {QUOTA: 3.0}}


def test_drifted_limits_are_set_again(host, arbiter, caplog):
    arbiter.replace_limits("a", {"guest": {QUOTA: 2.0}, "gone": {ThrottleControl("blockio"): 1.0}})
    arbiter.repair_limits(host.pipeline.guest_views())
    assert host.limits() == {"guest": 2.0}
    arbiter.replace_limits("a", {})
    arbiter.repair_limits(host.pipeline.guest_views())
    assert host.limits() == {}
    host.driver.unlimited.add("guest")
    for _ in range(3):
        arbiter.replace_limits("a", {"guest": {QUOTA: 2.0}})
        arbiter.repair_limits(host.pipeline.guest_views())
    assert caplog.text.count("cannot be set yet; the agent tries again") == 1
