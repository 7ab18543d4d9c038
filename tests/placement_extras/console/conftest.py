"""Fixtures: a service with a console, on the hosts of :mod:`tests.placement_extras.console.world`."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from werkzeug.test import Client

from tests import browser
from tests.placement.running import Admin, application
from tests.placement_extras.console import browsing, world


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory, migrated_file: Path) -> Any:
    """The service without authentication, with a console."""
    file = tmp_path_factory.mktemp("console") / "placement.sqlite"
    shutil.copy(migrated_file, file)
    made = application(f"sqlite:///{file}", console={"enabled": True})
    world.make(Admin(made))
    return made


@pytest.fixture(scope="module")
def client(app: Any) -> Client:
    """A function that requests pages without a browser."""
    return Client(app)


@pytest.fixture
def tell(app: Any) -> Iterator[Callable[[str, dict[str, str | float]], None]]:
    """A function that writes the attributes of a host, as its agent does, until the end of the test."""
    admin, names = Admin(app), set[str]()

    def write(name: str, attributes: dict[str, str | float]) -> None:
        names.add(name)
        world.follow(admin, name, attributes)

    yield write
    for name in names:
        world.follow(admin, name, {})


@pytest.fixture(scope="module")
def base(app: Any) -> Iterator[str]:
    """The address of the console, for a browser."""
    with browsing.served(app) as address:
        yield address


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    """The browser Chromium, without a window."""
    with browser.chromium() as opened:
        yield opened
