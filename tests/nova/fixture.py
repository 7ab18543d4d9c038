"""The modules of OpenStack Placement's tests that Nova's tests import, with this service behind them."""

import atexit
import shutil
import sys
import tempfile
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import fixtures
from oslo_config.fixture import Config
from wsgi_intercept import interceptor

import placement.conf
from placement.api.middleware import build_application
from placement.conf import opts
from placement.db import migration

_URL: Final = "http://placement.test:8780"


class Database(fixtures.Fixture):  # type: ignore[misc]  # ships no types
    """A database for one test, which several services of the test use in turn."""

    def __init__(self, conf_fixture: Any, set_config: bool = False) -> None:
        super().__init__()
        self._conf_fixture = conf_fixture
        self._set_config = set_config

    def _setUp(self) -> None:  # noqa: N802  # the name that fixtures has
        folder = self.useFixture(fixtures.TempDir()).path
        path = shutil.copyfile(_template(), Path(folder) / "placement.sqlite")
        if self._set_config:
            self._conf_fixture.config(connection=f"sqlite:///{path}", group="placement_database")


class PlacementFixture(fixtures.Fixture):  # type: ignore[misc]  # ships no types
    """The service at :attr:`endpoint`, where `admin` may do everything."""

    def __init__(
        self,
        token: str = "admin",
        conf_fixture: Any = None,
        db: bool = True,
        register_opts: bool = True,
        **other: Any,
    ) -> None:
        super().__init__()
        self.token = token
        self.conf_fixture = conf_fixture
        self.db = db
        self.endpoint = _URL

    def setUp(self) -> None:
        """Serve."""
        super().setUp()
        conf = placement.conf.new_config(config_files=())
        conf.set_override("auth_strategy", "noauth2", "api")
        conf.set_override("connection", self._connection(), "placement_database")
        if self.conf_fixture is None:  # some tests set options of the running service with it
            self.conf_fixture = self.useFixture(Config(conf))
        app = build_application(conf)
        self.useFixture(_Served(app))

    def _connection(self) -> str:
        if not self.db:
            return str(self.conf_fixture.conf.placement_database.connection)
        folder = self.useFixture(fixtures.TempDir()).path
        return f"sqlite:///{shutil.copyfile(_template(), Path(folder) / 'placement.sqlite')}"


class _Served(fixtures.Fixture):  # type: ignore[misc]  # ships no types
    """Sends requests to the URL to the application."""

    def __init__(self, application: Any) -> None:
        super().__init__()
        self._application = application

    def _setUp(self) -> None:  # noqa: N802  # the name that fixtures has
        served = interceptor.RequestsInterceptor(lambda: self._application, url=_URL)
        served.install_intercept()
        self.addCleanup(served.uninstall_intercept)


@cache
def _template() -> str:
    """Create a migrated, empty database once for this process; return its path."""
    folder = tempfile.mkdtemp(prefix="placement-template-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    path = f"{folder}/placement.sqlite"
    migration.upgrade_schema(f"sqlite:///{path}")
    return path


def install() -> None:
    """Make the classes of this module importable from `placement.tests`."""

    _template()  # before each test gets its own temporary folder
    placement.conf.register_opts = opts.register_opts  # type: ignore[attr-defined]  # as OpenStack's has it
    for name in ("tests", "tests.functional", "tests.functional.fixtures"):
        sys.modules[f"placement.{name}"] = ModuleType(f"placement.{name}")
    databases = ModuleType("placement.tests.fixtures")
    databases.Database = Database  # type: ignore[attr-defined]  # modules are made here
    sys.modules[databases.__name__] = databases
    sys.modules["placement.tests"].fixtures = databases  # type: ignore[attr-defined]  # as above
    served = ModuleType("placement.tests.functional.fixtures.placement")
    served.PlacementFixture = PlacementFixture  # type: ignore[attr-defined]  # as above
    sys.modules[served.__name__] = served
    sys.modules["placement.tests.functional.fixtures"].placement = served  # type: ignore[attr-defined]  # as above
