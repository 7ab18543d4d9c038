"""Several ask for limits of a guest: the lowest is in force, and nobody takes away what is another's."""

import pytest

from compute_agent.loops.limits import LimitBook
from compute_agent.model.messages import DriverError
from compute_agent.model.resource import ThrottleControl
from tests.compute_agent.loops.overload import QUOTA, Overload


@pytest.fixture
def host(tmp_path):
    host = Overload(tmp_path)
    host.boot()
    host.run("guest", 1.0)
    yield host
    host.crash()


@pytest.fixture
def book(host):
    return LimitBook(host.pipeline)


def test_the_lowest_limit_is_in_force(host, book):
    book.limit("a", "guest", QUOTA, 2.0)
    book.limit("b", "guest", QUOTA, 3.0)
    assert host.limits() == {"guest": 2.0}
    book.limit("a", "guest", QUOTA, None)
    assert host.limits() == {"guest": 3.0}
    book.limit("b", "guest", QUOTA, None)
    assert host.limits() == {}


def test_a_limit_that_the_kernel_does_not_take_is_not_asked_for_any_more(host, book):
    book.limit("a", "guest", QUOTA, 3.0)
    host.driver.unlimited.add("guest")
    with pytest.raises(DriverError):
        book.limit("b", "guest", QUOTA, 2.0)
    assert book.combined() == {"guest": {QUOTA: 3.0}}


def test_what_differs_is_put_right(host, book, caplog):
    book.keep("a", {"guest": {QUOTA: 2.0}, "gone": {ThrottleControl("blockio"): 1.0}})
    book.repair(host.pipeline.views())
    assert host.limits() == {"guest": 2.0}
    book.keep("a", {})
    book.repair(host.pipeline.views())
    assert host.limits() == {}
    host.driver.unlimited.add("guest")
    for _ in range(3):
        book.keep("a", {"guest": {QUOTA: 2.0}})
        book.repair(host.pipeline.views())
    assert caplog.text.count("cannot be set right") == 1
