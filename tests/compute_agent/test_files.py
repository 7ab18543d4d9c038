"""Tests of the agent's files: no other user can change them, and damaged files are renamed."""

import os
import subprocess
import sys

import pytest

from compute_agent import files
from compute_agent.files import UnsafeFileError, check_folder, open_own, put_aside, read_own, secure_folder
from compute_agent.inventory import host_identity

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
ANOTHER = 65534


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "above" / "state"


def test_a_folder_is_made_and_is_the_agents_alone(folder):
    secure_folder(folder)
    assert folder.stat().st_mode & 0o7777 == 0o750
    secure_folder(folder)


@pytest.mark.parametrize("mode", [0o770, 0o757, 0o1777])
def test_a_folder_in_which_others_may_write_is_refused(folder, mode):
    secure_folder(folder)
    folder.chmod(mode)
    with pytest.raises(UnsafeFileError, match=rf"{folder} \(mode {mode:04o}\).*chmod go-w {folder}"):
        check_folder(folder)


@pytest.mark.parametrize("mode", [0o1777, 0o775, 0o755])
def test_a_shared_parent_folder_is_allowed_if_others_cannot_rename_its_entries(folder, mode):
    secure_folder(folder)
    folder.parent.chmod(mode)
    check_folder(folder)
    folder.parent.chmod(0o777)
    with pytest.raises(UnsafeFileError, match=f"chmod o-w {folder.parent}"):
        check_folder(folder)


@as_root
@pytest.mark.parametrize("above", [False, True])
def test_a_folder_of_another_user_is_refused(folder, above):
    secure_folder(folder)
    part = folder.parent if above else folder
    os.chown(part, ANOTHER, -1)
    with pytest.raises(UnsafeFileError, match=f"{part} belongs to user {ANOTHER}"):
        check_folder(folder)


def test_a_folder_behind_a_symbolic_link_is_judged_where_it_is(folder, tmp_path):
    secure_folder(folder)
    link = tmp_path / "link"
    link.symlink_to(folder)
    check_folder(link)
    folder.chmod(0o777)
    with pytest.raises(UnsafeFileError):
        check_folder(link)


@as_root
def test_a_symbolic_link_of_another_user_is_refused_wherever_it_is_on_the_way(folder, tmp_path):
    secure_folder(folder)
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o1777)  # as /tmp
    (shared / "link").symlink_to(folder.parent)
    (tmp_path / "other").symlink_to(shared / "link")
    for path in (shared / "link" / "state", tmp_path / "other" / "state"):
        check_folder(path)
    os.chown(shared / "link", ANOTHER, -1, follow_symlinks=False)
    for path in (shared / "link" / "state", tmp_path / "other" / "state"):
        with pytest.raises(
            UnsafeFileError, match=f"{shared}/link is a symbolic link that belongs to user {ANOTHER}"
        ):
            check_folder(path)


def test_a_symbolic_link_that_any_user_can_replace_is_refused(folder, tmp_path):
    secure_folder(folder)
    shared = tmp_path / "shared"
    shared.mkdir()
    (shared / "link").symlink_to(folder)
    check_folder(shared / "link")
    shared.chmod(0o777)
    with pytest.raises(UnsafeFileError, match=f"chmod o-w {shared}"):
        check_folder(shared / "link")


class TestOneFile:
    """The agent reads a file only if no other user could have written it."""

    @pytest.fixture
    def path(self, tmp_path):
        path = tmp_path / "file"
        path.write_bytes(b"content")
        return path

    def test_a_file_of_our_own_is_read(self, path):
        assert read_own(path) == b"content"

    def test_no_symbolic_link_is_followed(self, path, tmp_path):
        link = tmp_path / "link"
        link.symlink_to(path)
        for flags in (os.O_RDONLY, os.O_WRONLY | os.O_APPEND | os.O_CREAT, os.O_RDWR | os.O_CREAT):
            with pytest.raises(UnsafeFileError, match=f"{link} is a symbolic link"):
                open_own(link, flags)
        assert path.read_bytes() == b"content"

    @pytest.mark.parametrize("flags", [os.O_RDONLY, os.O_WRONLY, os.O_RDWR])
    def test_a_fifo_is_neither_used_nor_waited_for(self, tmp_path, flags):
        os.mkfifo(tmp_path / "fifo")
        with pytest.raises(UnsafeFileError, match="not a regular file"):
            open_own(tmp_path / "fifo", flags)

    def test_a_folder_is_no_file(self, tmp_path):
        with pytest.raises(UnsafeFileError, match="not a regular file"):
            read_own(tmp_path)

    def test_a_file_that_any_user_may_write_is_refused(self, path):
        path.chmod(0o666)
        with pytest.raises(UnsafeFileError, match="0666"):
            read_own(path)

    @as_root
    def test_a_file_of_another_user_is_refused(self, path):
        os.chown(path, ANOTHER, -1)
        with pytest.raises(UnsafeFileError, match=f"belongs to user {ANOTHER}"):
            read_own(path)

    def test_a_file_without_end_does_not_fill_the_memory(self, path, monkeypatch):
        monkeypatch.setattr(files, "MAX_BYTES", 1000)
        os.truncate(path, 1001)
        with pytest.raises(OSError, match="larger than 1000 bytes"):
            read_own(path)

    def test_no_descriptor_is_left_open_when_a_file_is_refused(self, path):
        path.chmod(0o666)
        before = os.listdir("/proc/self/fd")
        for _ in range(3):
            with pytest.raises(UnsafeFileError):
                read_own(path)
        assert os.listdir("/proc/self/fd") == before


def child(code, *arguments):
    """Run Python code in a child process; return its exit status and output."""
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False
    )
    return done.returncode, done.stdout + done.stderr


def test_a_write_that_has_no_room_names_the_file(tmp_path):
    code = (
        "import resource, sys; from pathlib import Path; from compute_agent.files import write_durably\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (10, 10))\n"
        "try: write_durably(Path(sys.argv[1]), b'x' * 100)\n"
        "except OSError as error: print(error)"
    )
    status, said = child(code, str(tmp_path / "state.json"))
    assert (status, said) == (0, f"[Errno 27] File too large: '{tmp_path / 'state.json'}'\n")
    assert os.listdir(tmp_path) == []


def test_temporary_files_of_a_killed_write_are_removed(tmp_path):
    code = (
        "import os, sys; from pathlib import Path; from compute_agent.files import write_durably\n"
        "os.fsync = lambda descriptor: os.kill(os.getpid(), 9)\n"
        "write_durably(Path(sys.argv[1]), b'x' * 100)"
    )
    assert child(code, str(tmp_path / "state.json"))[0] == -9
    (left,) = os.listdir(tmp_path)
    others = [".hidden", ".state.json.swp", "state.json.abcdefgh", f"{left}~", ".state.json.ABCDEFGH"]
    for name in others:
        (tmp_path / name).write_text("x")
    (tmp_path / ".state.json.abcdefgh").mkdir()
    files.remove_leftovers(tmp_path)
    assert set(os.listdir(tmp_path)) == {*others, ".state.json.abcdefgh"}
    files.remove_leftovers(tmp_path / "absent")


def test_the_last_files_that_cannot_be_used_are_kept(tmp_path):
    path, other = tmp_path / "state.json", tmp_path / "state.json2.damaged-1"
    other.write_text("not one of these")
    kept = []
    for number in range(files.MAX_ASIDE + 2):
        path.write_text(str(number))
        kept.append(put_aside(path))
        assert not path.exists()
    assert set(os.listdir(tmp_path)) == {other.name, *(aside.name for aside in kept[2:])}
    assert [aside.read_text() for aside in kept[2:]] == [str(n) for n in range(2, files.MAX_ASIDE + 2)]


@pytest.mark.parametrize("name", [host_identity.UUID_FILE, f"{host_identity.UUID_FILE}.lock"])
def test_the_uuid_of_the_provider_is_not_read_through_a_symbolic_link(tmp_path, name):
    target = tmp_path / "elsewhere"
    target.write_text("3f1ba1a5-5bd1-4a8f-a4e8-2d1e0d7ac33e\n")
    folder = tmp_path / "state"
    secure_folder(folder)
    (folder / name).symlink_to(target)
    with pytest.raises(UnsafeFileError, match=f"{name} is a symbolic link"):
        host_identity.load_or_create(folder)
