"""A forked process of a program behaves like one that was started."""

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.nursery import Nursery, NurseryProcess


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    with Nursery("json.tool") as made:
        yield made


def launch(nursery: Nursery, folder: Path, *arguments: object) -> NurseryProcess:
    with (folder / "out").open("ab") as out, (folder / "err").open("ab") as err:
        return nursery.start(arguments, out, err)


def test_a_forked_process_has_its_own_arguments_and_folder(
    nursery: Nursery, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("in").write_text('{"a": 1}')
    assert launch(nursery, tmp_path, "in", "--indent", 1).wait(60) == 0
    assert (tmp_path / "out").read_text() == '{\n "a": 1\n}\n'
    assert (tmp_path / "err").read_text() == ""


def test_the_exit_status_is_that_of_the_program(nursery: Nursery, tmp_path: Path) -> None:
    assert launch(nursery, tmp_path, "--wrong").wait(60) == 2
    assert "unrecognized arguments: --wrong" in (tmp_path / "err").read_text()


def test_a_forked_process_is_killed_like_a_child(nursery: Nursery, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")  # reading it waits for a writer
    process = launch(nursery, tmp_path, tmp_path / "pipe")
    assert process.poll() is None
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.01)
    process.kill()
    assert process.wait(60) == -signal.SIGKILL
    process.terminate()
    assert process.poll() == -signal.SIGKILL


def test_several_processes_run_at_once(nursery: Nursery, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    first, second = (launch(nursery, tmp_path, tmp_path / "pipe") for _ in range(2))
    first.terminate()
    assert first.wait(60) == -signal.SIGTERM
    assert second.poll() is None
    second.terminate()
    assert second.wait(60) == -signal.SIGTERM
