"""Databases that the process of the tests has open, and the tests that opened them.

A connection that a test leaves open is closed at some later time, by a garbage collection within another
test. If its database is gone by then, SQLAlchemy logs an error with a traceback. Python 3.11 parses source
lines to format a traceback. If this happens within ``ast.parse``, the outer parse fails with SystemError:
its count of nested nodes is shared. Hypothesis parses modules of tests while it draws examples, and then
reports "Inconsistent data generation".

So each test closes the databases that it opens. Services that run in the process are closed here. A
connection of any other engine fails the test or module that made the engine.
"""

import sqlite3
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Self
from weakref import WeakKeyDictionary

import pytest
import sqlalchemy as sa

from placement.db.database import ServiceDatabase
from tests.waits import wait_for

_TESTS: Final = str(Path(__file__).parent)
_SECONDS: Final = 10.0
"""Maximum seconds until a thread that has ended its work returns its connection."""


@dataclass
class _MadeEngine:
    """An engine, the line of a test that led to it, and its connections since then."""

    engine: sa.Engine
    line: str
    connections: list[Any] = field(default_factory=list)

    def open_connections(self) -> list[Any]:
        return [each for each in self.connections if _is_open(each)]


@dataclass
class _Scope:
    """Engines and services that were made during one test, one module, or outside of tests and modules."""

    engines: list[_MadeEngine] = field(default_factory=list)
    services: list[ServiceDatabase] = field(default_factory=list)

    def left_open(self) -> list[_MadeEngine]:
        return [each for each in self.engines if each.open_connections()]


class OpenDatabases:
    """Notes each engine that is made, in the innermost of nested scopes."""

    def __init__(self) -> None:
        self._scopes = [_Scope()]
        # a service may live longer than its scope, if something of an outer scope uses it
        self._engines: WeakKeyDictionary[ServiceDatabase, list[_MadeEngine]] = WeakKeyDictionary()

    @classmethod
    @contextmanager
    def watched(cls) -> Iterator[Self]:
        """Note all engines and services that are made within this context."""
        made = cls()
        create_engine, initialise = sa.create_engine, ServiceDatabase.__init__

        def create_noted(*args: Any, **options: Any) -> sa.Engine:
            engine = create_engine(*args, **options)
            made._note_engine(engine)
            return engine

        def initialise_noted(database: ServiceDatabase, *args: Any, **options: Any) -> None:
            scope = made._scopes[-1]
            before = len(scope.engines)
            initialise(database, *args, **options)
            scope.services.append(database)
            made._engines[database] = scope.engines[before:]

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sa, "create_engine", create_noted)
            patch.setattr(ServiceDatabase, "__init__", initialise_noted)
            with made.scope():
                yield made

    @contextmanager
    def scope(self) -> Iterator[None]:
        """Close the services that were made within this context at its end.

        :raises AssertionError: an engine that was made within has an open connection.
        """
        self._scopes.append(_Scope())
        try:
            yield
        finally:
            scope = self._scopes.pop()
            for database in scope.services:
                self._close(database)
        if not scope.left_open():
            return
        with suppress(AssertionError):
            wait_for(lambda: not scope.left_open(), seconds=_SECONDS)
        left = [
            f"{each.engine.url!r}, made at {each.line}: {len(each.open_connections())}"
            for each in scope.left_open()
        ]
        for each in scope.left_open():
            each.engine.dispose()
        assert not left, "connections are open; close them, and dispose of their engines:\n" + "\n".join(left)

    def close_services(self, url: str) -> None:
        """Close the services on a database that is about to be dropped."""
        for database in list(self._engines):
            if database.url == url:
                self._close(database)

    def _close(self, database: ServiceDatabase) -> None:
        database.close()
        # threads that have not ended keep connections which their service cannot reach
        for each in self._engines[database]:
            for connection in each.open_connections():
                with suppress(Exception):  # another thread has closed it, or its server is gone
                    connection.close()
            each.connections.clear()

    def open_connections(self) -> list[Any]:
        """Return the connections that are open now, in all scopes."""
        return [one for scope in self._scopes for made in scope.engines for one in made.open_connections()]

    def _note_engine(self, engine: sa.Engine) -> None:
        made = _MadeEngine(engine, _line_of_test())
        self._scopes[-1].engines.append(made)
        sa.event.listen(engine, "connect", lambda connection, record: made.connections.append(connection))


def _line_of_test() -> str:
    """The innermost line of a test that is being executed."""
    frame = sys._getframe(1)
    while frame.f_back is not None:
        name = frame.f_code.co_filename
        if name.startswith(_TESTS) and name != __file__:
            break
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


def _is_open(connection: Any) -> bool:
    """Whether nothing in this process has closed the connection; its server may be gone."""
    if isinstance(connection, sqlite3.Connection):
        try:
            connection.cursor()
        except sqlite3.ProgrammingError:
            return False
        return True
    closed = getattr(connection, "closed", None)  # psycopg; PyMySQL has "open"
    return bool(connection.open) if closed is None else not closed
