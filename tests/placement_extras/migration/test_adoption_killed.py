"""A move that is killed anywhere on its way loses nothing, and can be finished and undone.

``KILL_POINTS`` says at how many of its statements to kill it, spread over all of them; ``make test-kills``
takes many.
"""

import multiprocessing
import os
import signal

import pytest
import sqlalchemy as sa

from placement.db import adoption, migration
from placement.db.adoption import AdoptionStage
from placement.exceptions import Conflict, Unavailable
from placement_extras.migration.abandonment import AbandonWay, abandon
from placement_extras.migration.adoption import adopt, drop_stock
from placement_extras.migration.content import compare, of_ours, portable
from placement_extras.migration.stock_database import open_source
from tests.placement.maintenance.conftest import OWNER, MaintainedService
from tests.placement_extras.migration import reference_world as world
from tests.placement_extras.migration.test_adoption import contents, write

pytestmark = pytest.mark.slow

POINTS = int(os.environ.get("KILL_POINTS", "5"))
_FORK = multiprocessing.get_context("fork")  # which has imported everything


def _adopt(url):
    adopt(url, OWNER, ["LLC", "MBA"])


def _adopt_and_write(url):
    _adopt(url)
    write(MaintainedService(url))


def _carry_back(url):
    abandon(url, OWNER, AbandonWay.CARRY_BACK)


def _drop_stock(url):
    drop_stock(url)


def _watched(action, url, last, counted):
    """Do it, and be killed after so many statements, or when a transaction is committed after them."""

    def count(conn, cursor=None, statement="", *_):
        if "migration_lock" in statement:  # which beats as time goes by
            return
        counted.value += 1
        if counted.value == last:
            os.kill(os.getpid(), signal.SIGKILL)

    sa.event.listen(sa.Engine, "after_cursor_execute", count)
    sa.event.listen(sa.Engine, "commit", count)
    action(url)


def run(action, url, last=0):
    """Do it in a process that is killed; how many statements it came to."""
    counted = _FORK.Value("i", 0)
    process = _FORK.Process(target=_watched, args=(action, url, last, counted))
    process.start()
    process.join(120)
    assert process.exitcode == (-signal.SIGKILL if last else 0)
    return counted.value


@pytest.fixture(scope="module")
def clone(database_server):
    """Makes a copy of a database that nobody uses; it is gone after the tests."""
    urls = []

    def make(url):
        urls.append(database_server.clone(url))
        return urls[-1]

    yield make
    for url in urls:
        database_server.drop_database(url)


@pytest.fixture(scope="module")
def stock(database_server, clone):
    """A database of OpenStack Placement, to be cloned."""
    reference = world.ReferenceDatabase(database_server.fresh_database())
    reference.fill()
    reference.at_revision(adoption.REVISIONS[-1])
    return reference.url


@pytest.fixture(scope="module")
def written(stock, clone):
    """The same, adopted and written to, to be cloned."""
    url = clone(stock)
    run(_adopt_and_write, url)
    return url


@pytest.fixture(scope="module")
def kept(stock):
    """What is in it: all rows, and what clients see of them."""
    return contents(stock), theirs(stock)


@pytest.fixture(scope="module")
def held(written):
    """What clients see of that."""
    return ours(written)


@pytest.fixture(scope="module")
def lengths(stock, written, clone):
    """How many statements a move has, there and back or for good."""
    actions = ((_adopt, stock), (_carry_back, written), (_drop_stock, written))
    return {action: run(action, clone(url)) for action, url in actions}


def state(url):
    """What a service of ours says that starts on it."""
    try:
        migration.require_schema(url)
        return "ours"
    except Unavailable as error:
        return str(error)


def ours(url):
    engine = sa.create_engine(url, poolclass=sa.NullPool)
    with engine.connect() as conn:
        return portable(of_ours(conn))


def theirs(url):
    with open_source(url, OWNER) as source:
        return portable(source)


def at(point, length):
    """The statement to be killed at; the first, the last and those between in equal steps."""
    return 1 + point * (length - 1) // max(1, POINTS - 1)


@pytest.mark.parametrize("point", range(POINTS))
def test_an_adoption_that_was_killed_is_finished_or_undone(stock, kept, clone, lengths, point):
    before, held = kept
    url = clone(stock)
    run(_adopt, url, at(point, lengths[_adopt]))
    record = migration.look(url).record
    present = contents(url)
    if record is None:
        # MariaDB keeps a table that has just been made; without a row it says nothing
        assert not present.pop("stock_adoption", [])
        assert present == before
        assert f"(revision {adoption.REVISIONS[-1]})" in state(url)
        _adopt(url)
        assert compare(held, ours(url)) == {}
        return
    for name, rows in before.items():
        assert rows in (present.get(name), present.get(f"stock_{name}")), name
    assert (
        state(url) == "ours"
        if record.stage is AdoptionStage.ADOPTED
        else "'placement-manage db adopt' goes on" in state(url)
    )
    if point % 2:
        abandon(url, OWNER)
        assert contents(url) == before
    else:
        _adopt(url)
        assert compare(held, ours(url)) == {}
        assert migration.look(url).record.stage is AdoptionStage.ADOPTED


@pytest.mark.parametrize("point", range(POINTS))
def test_a_way_back_that_was_killed_is_finished_or_undone(written, held, clone, lengths, point):
    url = clone(written)
    run(_carry_back, url, at(point, lengths[_carry_back]))
    record = migration.look(url).record
    if record is not None and record.stage is AdoptionStage.ADOPTED:
        assert state(url) == "ours"
        assert compare(held, ours(url)) == {}
        if point % 2:
            return  # nothing was done
    if record is not None:
        if record.stage is AdoptionStage.ABANDONING:
            assert "'placement-manage db abandon' goes on" in state(url)
            if point % 2 and record.way != adoption.CARRIED:
                assert "'placement-manage db adopt' stays" in state(url)
                _adopt(url)
                assert state(url) == "ours"
                assert compare(held, ours(url)) == {}
                return
        _carry_back(url)
    assert compare(held, theirs(url)) == {}
    assert not {name for name in contents(url) if name.startswith(("stock_", "adopted_", "change_"))}


@pytest.mark.parametrize("point", range(POINTS))
def test_a_removal_of_the_old_tables_that_was_killed_is_finished(written, held, clone, lengths, point):
    url = clone(written)
    run(_drop_stock, url, at(point, lengths[_drop_stock]))
    record = migration.look(url).record
    assert state(url) == "ours"
    assert compare(held, ours(url)) == {}
    if record is None:
        with pytest.raises(Conflict, match="removed already"):
            drop_stock(url)
    else:
        if record.stage is AdoptionStage.DROPPING:
            with pytest.raises(Conflict, match="'placement-manage db drop-stock' goes on"):
                abandon(url, OWNER, AbandonWay.CARRY_BACK)
            assert migration.look(url).record == record
        drop_stock(url)
    assert not {name for name in contents(url) if name.startswith("stock_")}
    assert migration.look(url).record is None
    assert compare(held, ours(url)) == {}
