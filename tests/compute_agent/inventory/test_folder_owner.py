"""Tests of the file that says to which host a state folder belongs."""

import logging
import os
from pathlib import Path

import pytest

from compute_agent.inventory.host_identity import (
    HOST_FILE,
    HostIdentity,
    IdentityError,
    check_owner,
    keep_owner,
    read_identity,
)

ONE, OTHER = "1" * 32, "2" * 32


def make_host(root: Path, name: str = "", machine: str = "") -> HostIdentity:
    """The identity of a host with these files in ``/etc``; an empty text means that there is no file."""
    (root / "etc").mkdir(parents=True, exist_ok=True)
    for file, text in (("hostname", name), ("machine-id", machine)):
        path = root / "etc" / file
        path.unlink(missing_ok=True)
        if text:
            path.write_text(f"{text}\n")
    return read_identity(root)


@pytest.mark.parametrize(
    ("kept", "present", "is_refused"),
    [
        (("a", ONE), ("a", ONE), False),
        (("a", ONE), ("A", ONE), False),
        (("a", ONE), ("# a comment\na", ONE), False),
        # A copy on another host, or on one that was made from the same image
        (("a", ONE), ("b", OTHER), True),
        (("a", ONE), ("b", ONE), True),
        (("a.example", ONE), ("a.example.org", ONE), True),
        # A replaced host with the same name, or one that gets a machine id at each boot
        (("a", ONE), ("a", OTHER), False),
        # One of the names is unknown
        (("localhost", ONE), ("a", OTHER), True),
        (("a", ONE), ("localhost.localdomain", ONE), False),
        (("", ONE), ("", OTHER), True),
        (("", ONE), ("a", ""), False),
        (("a", "uninitialized"), ("", ONE), False),
        (("", ""), ("a", ONE), False),
    ],
)
def test_another_host_is_refused(tmp_path: Path, kept, present, is_refused: bool) -> None:
    folder = tmp_path / "state"
    folder.mkdir()
    keep_owner(folder, make_host(tmp_path, *kept))
    before = [path.read_bytes() for path in folder.iterdir()]
    other = make_host(tmp_path, *present)
    if is_refused:
        for action in (keep_owner, check_owner):
            with pytest.raises(IdentityError, match="belongs to the host"):
                action(folder, other)
        assert [path.read_bytes() for path in folder.iterdir()] == before
    else:
        keep_owner(folder, other)


def test_the_refusal_says_what_to_do_in_each_case(tmp_path: Path) -> None:
    keep_owner(tmp_path, HostIdentity("a", ONE))
    with pytest.raises(IdentityError) as refused:
        check_owner(tmp_path, HostIdentity("b", OTHER))
    text = str(refused.value)
    assert f"[DEFAULT] state_path = {tmp_path} belongs to the host a, but this is the host b" in text
    assert "empty it" in text
    assert f"remove {tmp_path / HOST_FILE}" in text
    (tmp_path / HOST_FILE).unlink()
    keep_owner(tmp_path, HostIdentity("b", OTHER))
    with pytest.raises(IdentityError):
        check_owner(tmp_path, HostIdentity("a", ONE))


def test_facts_that_become_known_later_are_added(tmp_path: Path) -> None:
    keep_owner(tmp_path, HostIdentity())
    assert not (tmp_path / HOST_FILE).exists()
    keep_owner(tmp_path, HostIdentity("", ONE))
    keep_owner(tmp_path, HostIdentity("a", ""))
    assert check_owner(tmp_path, HostIdentity()) == HostIdentity("a", ONE)
    # A replaced machine with the same name is the host from now on.
    keep_owner(tmp_path, HostIdentity("a", OTHER))
    assert check_owner(tmp_path, HostIdentity()) == HostIdentity("a", OTHER)


@pytest.mark.parametrize(
    "content", [b"", b"a\n", b"\xff", b'{"version": 1}', b'{"version": 1, "host": {"name": 7}}']
)
def test_a_damaged_file_is_refused_and_left_alone(tmp_path: Path, content: bytes) -> None:
    (tmp_path / HOST_FILE).write_bytes(content)
    with pytest.raises(IdentityError, match=HOST_FILE):
        keep_owner(tmp_path, HostIdentity("a", ONE))
    assert (tmp_path / HOST_FILE).read_bytes() == content


def test_a_full_disk_does_not_keep_the_agent_from_starting(tmp_path: Path, monkeypatch, caplog) -> None:
    def fail(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch, caplog.at_level(logging.WARNING):
        patch.setattr(os, "fsync", fail)
        keep_owner(tmp_path, HostIdentity("a", ONE))
    assert "No space left" in caplog.text
    assert list(tmp_path.iterdir()) == []
    keep_owner(tmp_path, HostIdentity("a", ONE))
    assert check_owner(tmp_path, HostIdentity()) == HostIdentity("a", ONE)


def test_the_machine_id_is_not_saved(tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    keep_owner(tmp_path / "state", make_host(tmp_path, "a", ONE))
    assert ONE not in (tmp_path / "state" / HOST_FILE).read_text()


def test_a_name_that_is_no_text_of_one_line_does_no_harm(tmp_path: Path) -> None:
    host = make_host(tmp_path, f"\x1b[31m{'x' * 5000}", ONE)
    keep_owner(tmp_path, host)
    check_owner(tmp_path, host)
    with pytest.raises(IdentityError) as refused:
        check_owner(tmp_path, HostIdentity("b", ONE))
    assert str(refused.value).isprintable()
    assert len(str(refused.value)) < 1000
