"""Tests that a move between the two services loses nothing if it is killed at any statement, and that it can
be finished and undone.

``KILL_POINTS`` is the number of statements at which the move is killed, in equal steps; ``make test-kills``
uses many.
"""

import multiprocessing
import os
import signal

import pytest
import sqlalchemy as sa

from placement.db import adoption, migration
from placement.db.adoption import AdoptionStage
from placement.exceptions import Conflict, Unavailable
from placement_extras.migration.abandonment import AbandonWay, abandon_adoption
from placement_extras.migration.adoption import adopt_database, drop_stock
from placement_extras.migration.content import compare_content, own_content, read_portable
from placement_extras.migration.stock_database import open_source
from tests.placement.maintenance.conftest import OWNER, MaintainedService
from tests.placement_extras.migration import reference_world as world
from tests.placement_extras.migration.adopted import contents, write

pytestmark = pytest.mark.slow

POINTS = int(os.environ.get("KILL_POINTS", "5"))
_FORK = multiprocessing.get_context("fork")  # unlike "spawn" it need not import everything again


def _adopt(url):
    adopt_database(url, OWNER, ["LLC", "MBA"])


def _adopt_and_write(url):
    _adopt(url)
    write(MaintainedService(url))


def _carry_back(url):
    abandon_adoption(url, OWNER, AbandonWay.CARRY_BACK)


def _drop_stock(url):
    drop_stock(url)


def _watched(action, url, last, counted):
    """Run an action; kill this process after ``last`` statements and commits (a commit counts as a
    statement).
    """

    def count(conn, cursor=None, statement="", *_):
        if "migration_lock" in statement:  # its heartbeats depend on time, so they would shift the count
            return
        counted.value += 1
        if counted.value == last:
            os.kill(os.getpid(), signal.SIGKILL)

    sa.event.listen(sa.Engine, "after_cursor_execute", count)
    sa.event.listen(sa.Engine, "commit", count)
    action(url)


def run(action, url, last=0):
    """Run an action in a process that is killed at a statement; return the number of its statements."""
    counted = _FORK.Value("i", 0)
    process = _FORK.Process(target=_watched, args=(action, url, last, counted))
    process.start()
    process.join(120)
    assert process.exitcode == (-signal.SIGKILL if last else 0)
    return counted.value


@pytest.fixture(scope="module")
def clone(database_server):
    """Copy a database that has no connections. The copy is removed after the tests."""
    urls = []

    def make(url):
        urls.append(database_server.clone(url))
        return urls[-1]

    yield make
    for url in urls:
        database_server.drop_database(url)


@pytest.fixture(scope="module")
def stock(database_server, clone):
    """A database of OpenStack Placement, of which tests make copies."""
    reference = world.ReferenceDatabase(database_server.fresh_database())
    reference.fill()
    reference.at_revision(adoption.REVISIONS[-1])
    return reference.url


@pytest.fixture(scope="module")
def written(stock, clone):
    """An adopted database with later changes, of which tests make copies."""
    url = clone(stock)
    run(_adopt_and_write, url)
    return url


@pytest.fixture(scope="module")
def kept(stock):
    """All rows of ``stock``, and the content that clients see."""
    return contents(stock), theirs(stock)


@pytest.fixture(scope="module")
def held(written):
    """The content of ``written`` that clients see."""
    return ours(written)


@pytest.fixture(scope="module")
def lengths(stock, written, clone):
    """The number of statements of each move."""
    actions = ((_adopt, stock), (_carry_back, written), (_drop_stock, written))
    return {action: run(action, clone(url)) for action, url in actions}


def state(url):
    """Return "ours" if our service starts on a database; otherwise the error message."""
    try:
        migration.require_schema(url)
        return "ours"
    except Unavailable as error:
        return str(error)


def ours(url):
    engine = sa.create_engine(url, poolclass=sa.NullPool)
    with engine.connect() as conn:
        return read_portable(own_content(conn))


def theirs(url):
    with open_source(url, OWNER) as source:
        return read_portable(source)


def at(point, length):
    """Return the number of the statement at which to kill, from the first to the last in equal steps."""
    return 1 + point * (length - 1) // max(1, POINTS - 1)


@pytest.mark.parametrize("point", range(POINTS))
def test_a_killed_adoption_can_be_finished_and_undone(stock, kept, clone, lengths, point):
    before, held = kept
    url = clone(stock)
    run(_adopt, url, at(point, lengths[_adopt]))
    record = migration.find_database(url).record
    present = contents(url)
    if record is None:
        # MariaDB keeps a table that has just been made; without a row it says nothing
        assert not present.pop("stock_adoption", [])
        assert present == before
        assert f"(revision {adoption.REVISIONS[-1]})" in state(url)
        _adopt(url)
        assert compare_content(held, ours(url)) == {}
        return
    for name, rows in before.items():
        assert rows in (present.get(name), present.get(f"stock_{name}")), name
    assert (
        state(url) == "ours"
        if record.stage is AdoptionStage.ADOPTED
        else "'placement-manage db adopt' continues it" in state(url)
    )
    if point % 2:
        abandon_adoption(url, OWNER)
        assert contents(url) == before
    else:
        _adopt(url)
        assert compare_content(held, ours(url)) == {}
        assert migration.find_database(url).record.stage is AdoptionStage.ADOPTED


@pytest.mark.parametrize("point", range(POINTS))
def test_a_killed_abandonment_can_be_finished_and_undone(written, held, clone, lengths, point):
    url = clone(written)
    run(_carry_back, url, at(point, lengths[_carry_back]))
    record = migration.find_database(url).record
    if record is not None and record.stage is AdoptionStage.ADOPTED:
        assert state(url) == "ours"
        assert compare_content(held, ours(url)) == {}
        if point % 2:
            return  # nothing was done
    if record is not None:
        if record.stage is AdoptionStage.ABANDONING:
            assert "'placement-manage db abandon' continues it" in state(url)
            if point % 2 and record.way != adoption.CARRIED:
                assert "'placement-manage db adopt' stays" in state(url)
                _adopt(url)
                assert state(url) == "ours"
                assert compare_content(held, ours(url)) == {}
                return
        _carry_back(url)
    assert compare_content(held, theirs(url)) == {}
    assert not {name for name in contents(url) if name.startswith(("stock_", "adopted_", "change_"))}


@pytest.mark.parametrize("point", range(POINTS))
def test_a_killed_removal_of_the_old_tables_can_be_finished(written, held, clone, lengths, point):
    url = clone(written)
    run(_drop_stock, url, at(point, lengths[_drop_stock]))
    record = migration.find_database(url).record
    assert state(url) == "ours"
    assert compare_content(held, ours(url)) == {}
    if record is None:
        with pytest.raises(Conflict, match="removed already"):
            drop_stock(url)
    else:
        if record.stage is AdoptionStage.DROPPING:
            with pytest.raises(Conflict, match="'placement-manage db drop-stock' goes on"):
                abandon_adoption(url, OWNER, AbandonWay.CARRY_BACK)
            assert migration.find_database(url).record == record
        drop_stock(url)
    assert not {name for name in contents(url) if name.startswith("stock_")}
    assert migration.find_database(url).record is None
    assert compare_content(held, ours(url)) == {}
