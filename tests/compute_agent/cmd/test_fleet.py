"""Tests of the commands for a fleet: make a key, sign settings, show the source of an option."""

import errno
import json
import os
import stat

import pytest

from compute_agent.fleet import signature
from tests.compute_agent.cmd.agents import run_here
from tests.compute_agent.fleet.fleets import KEY, FleetHost, signed


@pytest.fixture
def run():
    def run(*arguments, fails=False):
        done = run_here(None, *arguments, *(() if fails else ("-f", "json")))
        assert done.returncode == (1 if fails else 0), done.stderr
        return done.stderr if fails else json.loads(done.stdout)

    return run


@pytest.fixture
def key(tmp_path):
    path = tmp_path / "key.pem"
    path.write_bytes(KEY)
    return path


@pytest.fixture
def settings(tmp_path):
    path = tmp_path / "settings.ini"
    path.write_text("[DEFAULT]\ncpu_allocation_ratio = 4\n")
    return path


def test_a_key_is_made_once_and_for_its_owner_alone(run, tmp_path):
    path = tmp_path / "new.pem"
    made = run("fleet", "key", path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert run("fleet", "key", path) == made
    assert signature.public_key(path.read_bytes()) == made["public_key"]


def test_a_key_for_which_the_disk_has_no_room_is_not_there(run, tmp_path, monkeypatch):
    def full(descriptor, mode):
        os.close(descriptor)
        raise OSError(errno.ENOSPC, "disk full")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fdopen", full)
        assert "disk full" in run("fleet", "key", tmp_path / "new.pem", fails=True)
    assert run("fleet", "key", tmp_path / "new.pem")["public_key"]


def test_generations_go_up_by_themselves(run, tmp_path, key, settings):
    sign = ("fleet", "sign", settings, "--key", key, "--group", "edge", "--to", tmp_path)
    assert [run(*sign)["generation"] for _ in range(3)] == [1, 2, 3]
    assert run(*sign, "--generation", 7)["generation"] == 7
    assert run(*sign, "--days", 1)["expires"]
    public = signature.public_key(KEY)
    shown = run("fleet", "show", tmp_path / "edge.conf", "--public-key", public)
    assert (shown["group"], shown["generation"]) == ("edge", 8)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[DEFAULT]\ncpu_allocation_ratoi = 4\n", "did you mean cpu_allocation_ratio"),
        ("[DEFAULT]\ncpu_allocation_ratio = many\n", "cpu_allocation_ratio"),
        ("[daemon]\nhttp_address = ::\n", "where the agent listens"),
        ("nonsense\n", "nonsense"),
    ],
)
def test_settings_that_hosts_would_refuse_are_not_signed(run, tmp_path, key, settings, text, words):
    settings.write_text(text)
    assert words in run(
        *("fleet", "sign", settings, "--key", key, "--group", "edge", "--to", tmp_path), fails=True
    )
    assert not (tmp_path / "edge.conf").exists()


def test_settings_that_another_key_signed_have_no_next_generation(run, tmp_path, key, settings):
    (tmp_path / "edge.conf").write_bytes(signed(5, key=signature.new_key()))
    sign = ("fleet", "sign", settings, "--key", key, "--group", "edge", "--to", tmp_path)
    assert "give --generation" in run(*sign, fails=True)
    assert "none of" in run(
        "fleet", "show", tmp_path / "edge.conf", "--public-key", signature.public_key(KEY), fails=True
    )


@pytest.mark.parametrize(
    "wrong", ["", "nonsense", "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n"]
)
def test_a_file_that_is_no_key_is_refused(run, tmp_path, key, settings, wrong):
    key.write_text(wrong)
    assert "private key" in run(
        *("fleet", "sign", settings, "--key", key, "--group", "edge", "--to", tmp_path), fails=True
    )


def test_the_origin_of_an_option_names_the_revision(run, tmp_path):
    host = FleetHost(tmp_path)
    host.write("ram_allocation_ratio = 2")
    host.offer(signed(7, "[DEFAULT]\ncpu_allocation_ratio = 4\nram_allocation_ratio = 3\n"))
    host.follow()
    rows = run("--config-file", host.ini, "config", "show", "--origin")
    origins = {row["option"]: (row["value"], row["origin"]) for row in rows}
    assert origins["cpu_allocation_ratio"] == ("4.0", f"fleet edge generation 7 ({host.state}/fleet.conf)")
    assert origins["ram_allocation_ratio"] == ("2.0", str(host.ini))
