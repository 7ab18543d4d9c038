"""Tests of the name by which the agent looks for nova-compute's root provider: libvirt's name of the host."""

from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import Mock

import pytest

from compute_agent import conf as agent_conf
from compute_agent.loops.root_watch import RootWatch
from compute_agent.report.client import ProviderRecord
from compute_agent.report.root_provider import NovaRoot, RootMissingError

OWN, NOVAS = "own", "novas"
ROOT = ProviderRecord(NOVAS, "compute-7", 1, None)


class WatchedHost:
    """A host with different names according to its hypervisor and its kernel."""

    def __init__(self, ini: object, last: NovaRoot | None = None, *records: ProviderRecord) -> None:
        self.name = ""
        self.kept: list[NovaRoot | None] = []
        self._records = records
        options = agent_conf.load([], [str(ini)])
        self.watch = RootWatch(options, OWN, last, last is not None, self.kept.append)
        self.watch.use_hypervisor(lambda: self.name)

    def follow_root(self) -> None:
        """Look for the root provider once, as before a report."""
        client = Mock()
        client.provider_record.side_effect = lambda name: next(
            (one for one in self._records if one.name == name), None
        )
        client.providers_in_tree.side_effect = lambda uuid: [one for one in self._records if one.uuid == uuid]
        client.get_traits.return_value = frozenset({"COMPUTE_VOLUME_ATTACH"}), 1
        reporter = Mock()
        reporter.root_traits.return_value = None
        root = SimpleNamespace(uuid=OWN, name="own")
        self.watch.follow_root(
            client,
            reporter,
            cast(Any, SimpleNamespace(tree=SimpleNamespace(root=root, beside=False), root_known=False)),
        )


@pytest.fixture
def ini(tmp_path: Any) -> Any:
    path = tmp_path / "agent.ini"
    path.write_text(f"[DEFAULT]\nstate_path = {tmp_path}\n")
    return path


def test_novas_root_is_found_by_the_name_that_libvirt_tells(ini: Any) -> None:
    host = WatchedHost(ini, None, ROOT)
    host.name = "compute-7"
    host.follow_root()
    assert host.watch.owner.novas == NovaRoot(NOVAS, "compute-7")
    assert host.kept == [NovaRoot(NOVAS, "compute-7")]


def test_the_owner_is_not_decided_before_libvirt_has_told_it(ini: Any) -> None:
    host = WatchedHost(ini, None, ROOT)
    with pytest.raises(RootMissingError, match="waiting for libvirtd"):
        host.follow_root()
    assert not host.watch.owner.known
    host.name = "compute-7"
    host.follow_root()
    assert host.watch.owner.beside


def test_a_known_root_is_found_without_libvirt(ini: Any) -> None:
    host = WatchedHost(ini, NovaRoot(NOVAS, "compute-7"), ROOT)
    host.follow_root()
    assert host.watch.owner.novas == NovaRoot(NOVAS, "compute-7")


def test_the_option_goes_before_libvirt(ini: Any) -> None:
    ini.write_text(ini.read_text() + "[compute]\nresource_provider_name = compute-7\n")
    host = WatchedHost(ini, None, ROOT)
    host.name = "other"
    host.follow_root()
    assert host.watch.owner.novas == NovaRoot(NOVAS, "compute-7")


def test_an_agent_without_nova_has_a_root_of_its_own(ini: Any) -> None:
    host = WatchedHost(ini)
    host.name = "compute-7"
    host.follow_root()
    assert (host.watch.owner.known, host.watch.owner.beside) == (True, False)
