"""Tests of the locks that prevent two agents from managing the same guests."""

import os
import stat
from pathlib import Path

import pytest

from compute_agent.drivers import factory
from compute_agent.drivers.factory import DriverLock, cgroup_lock, libvirt_lock, lock_path
from compute_agent.model.messages import DriverError


@pytest.fixture
def sockets(tmp_path):
    """The UNIX sockets of a libvirtd."""
    folder = tmp_path / "run" / "libvirt"
    folder.mkdir(parents=True)
    return (folder / "libvirt-sock",)


@pytest.fixture
def lock(load, tmp_path, request):
    """A function that makes locks on some sockets. The locks end with the test."""

    def lock(sockets, holder, locks="locks"):
        made = libvirt_lock(load(f"[DEFAULT]\nlock_path = {tmp_path / locks}\n"), sockets, holder)
        request.addfinalizer(made.release)
        return made

    return lock


def test_the_second_agent_is_refused_with_the_name_of_the_first_and_a_remedy(lock, sockets):
    first, second = lock(sockets, "pid 1, agent of a"), lock(sockets, "pid 2, agent of b")
    first.check_locks()
    first.check_locks()
    words = (
        r"another agent \(pid 1, agent of a\) already manages the domains of qemu:///system: stop one"
        r" of the two,"
    )
    with pytest.raises(DriverError, match=words + r" or give this one another \[libvirt\] uri"):
        second.check_locks()
    first.release()
    second.check_locks()
    with pytest.raises(DriverError, match="agent of b"):
        first.check_locks()


def test_agents_without_a_common_folder_meet_at_the_socket(lock, sockets):
    first, second = lock(sockets, "first", "of a container"), lock(sockets, "second")
    first.check_locks()
    with pytest.raises(DriverError, match=r"another agent \(first\)"):
        second.check_locks()
    mark = sockets[0].with_name("compute-agent.lock")
    assert stat.S_IMODE(mark.stat().st_mode) == 0o600  # other users cannot lock it


@pytest.mark.parametrize("why", ["absent", "others may write there"])
def test_without_a_folder_at_the_socket_the_common_one_does(lock, sockets, why):
    if why == "absent":
        sockets[0].parent.rmdir()
    else:
        sockets[0].parent.chmod(0o777)
    first, second = lock(sockets, "first"), lock(sockets, "second")
    first.check_locks()
    with pytest.raises(DriverError, match="first"):
        second.check_locks()
    assert not sockets[0].with_name("compute-agent.lock").exists()


def test_the_folder_at_the_socket_is_used_as_soon_as_it_is_there(lock, sockets):
    sockets[0].parent.rmdir()
    first, second = lock(sockets, "first", "of a container"), lock(sockets, "second")
    first.check_locks()
    second.check_locks()
    sockets[0].parent.mkdir()
    second.check_locks()
    with pytest.raises(DriverError, match="second"):
        first.check_locks()


def test_removed_locks_are_taken_again(lock, sockets, tmp_path):
    first, second = lock(sockets, "first"), lock(sockets, "second")
    first.check_locks()
    for path in (*(tmp_path / "locks").iterdir(), sockets[0].with_name("compute-agent.lock")):
        path.unlink()
    first.check_locks()
    with pytest.raises(DriverError, match="first"):
        second.check_locks()


def test_daemons_of_different_folders_do_not_exclude_each_other(lock, sockets, tmp_path):
    (tmp_path / "other").mkdir()
    lock(sockets, "first").check_locks()
    lock((tmp_path / "other" / "libvirt-sock",), "second").check_locks()
    lock((), "third, of a uri that leads elsewhere").check_locks()


def test_two_names_of_a_path_are_one_lock(lock, sockets, tmp_path):
    (tmp_path / "var").symlink_to(tmp_path / "run")
    lock(sockets, "first").check_locks()
    with pytest.raises(DriverError, match="first"):
        lock((tmp_path / "var" / "libvirt" / "libvirt-sock",), "second").check_locks()


def test_groups_below_one_root_are_one_agents(load, tmp_path):
    conf = load(f"[DEFAULT]\nlock_path = {tmp_path / 'locks'}\n[cgroup]\nroot = {tmp_path}\n")
    first, second = cgroup_lock(conf, "first"), cgroup_lock(conf, "second")
    first.check_locks()
    with pytest.raises(
        DriverError, match=rf"\(first\) already manages the guests below {tmp_path}: .*\[cgroup\]"
    ):
        second.check_locks()
    first.release()


def test_locks_that_cannot_be_created_are_an_error_with_the_option(load, sockets, tmp_path):
    (tmp_path / "locks").write_text("no folder")
    lock = libvirt_lock(load(f"[DEFAULT]\nlock_path = {tmp_path / 'locks'}\n"), sockets, "me")
    with pytest.raises(DriverError, match=r"set \[DEFAULT\] lock_path"):
        lock.check_locks()


def test_a_lock_without_claims_always_succeeds():
    DriverLock("me").check_locks()


@pytest.mark.parametrize(
    ("user", "runtime", "folder"),
    [
        (0, "/run/user/0", "/run/compute-agent"),
        (7, "/run/user/7", "/run/user/7/compute-agent"),
        (7, None, "/tmp/compute-agent-7"),
    ],
)
def test_all_agents_of_a_user_have_one_common_folder(load, monkeypatch, user, runtime, folder):
    monkeypatch.setattr(factory.os, "geteuid", lambda: user)
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    if runtime:
        monkeypatch.setenv("XDG_RUNTIME_DIR", runtime)
    assert lock_path(load()) == Path(folder)
    assert lock_path(load("[DEFAULT]\nlock_path = /srv/locks\n")) == Path("/srv/locks")


def test_a_released_claim_leaves_no_descriptor(lock, sockets):
    before = os.listdir("/proc/self/fd")
    made = lock(sockets, "me")
    made.check_locks()
    made.release()
    assert os.listdir("/proc/self/fd") == before
