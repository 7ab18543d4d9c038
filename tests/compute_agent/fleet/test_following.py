"""Tests of adopting revisions of a fleet's settings: only a valid, signed revision changes a host."""

import os
import subprocess
from contextlib import suppress
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compute_agent.classes.guest_classes import parse_classes
from compute_agent.files import LockedError
from compute_agent.fleet import configuration, signature
from compute_agent.fleet.configuration import starting_with_fleet
from compute_agent.fleet.revision import MAX_BYTES, FleetError, FleetRevision, refusal_reason
from compute_agent.model.messages import ConfigError
from tests.compute_agent.fleet.fleets import KEY, PUBLIC, FleetHost, signed


@pytest.fixture
def host(tmp_path):
    return FleetHost(tmp_path)


def ratio_of(number: float) -> str:
    return f"[DEFAULT]\ncpu_allocation_ratio = {number}\n"


def test_a_revision_is_adopted_once_and_survives_without_its_source(host):
    assert host.ratio is None
    host.offer(signed(7))
    taken = host.follow()
    assert (str(taken), host.ratio) == ("edge generation 7", 4.0)
    assert host.follow() is None
    (host.source / "edge.conf").unlink()
    with pytest.raises(FleetError, match="cannot be read"):
        host.follow()
    assert host.ratio == 4.0


def test_the_files_of_the_host_overrule_its_fleet(host):
    host.write("cpu_allocation_ratio = 2")
    host.offer(signed(1, "[DEFAULT]\ncpu_allocation_ratio = 4\nram_allocation_ratio = 3\n"))
    host.follow()
    assert (host.conf().cpu_allocation_ratio, host.conf().ram_allocation_ratio) == (2.0, 3.0)


def test_an_older_generation_and_another_content_of_the_same_are_refused(host):
    host.offer(signed(7))
    host.follow()
    for content, words in (
        (signed(6, ratio_of(9)), "its generation is 6, and 7 was here before"),
        (signed(7, ratio_of(9)), "another revision was here before as generation 7"),
    ):
        host.offer(content)
        with pytest.raises(FleetError, match=words):
            host.follow()
        assert host.ratio == 4.0
    host.offer(signed(8, ratio_of(9)))
    host.follow()
    assert host.ratio == 9.0


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ("[DEFAULT]\ncpu_allocation_ratoi = 4\n", "did you mean cpu_allocation_ratio"),
        ("[DEFAULT]\ncpu_allocation_ratio = many\n", "cpu_allocation_ratio: "),
        ("[qos]\ninterval = 5\ninterval_of_nothing = 1\n", "interval_of_nothing"),
        ("[watermark:memory]\nmetric = nothing\n[nonsense]\na = 1\n", "no such section"),
        ("cpu_allocation_ratio = 4\n[broken\n", "parse"),
        ("[DEFAULT]\nstate_path = /tmp\n", r"\[DEFAULT\] state_path: a revision may not have it"),
        ("[DEFAULT]\nlog_file = /etc/passwd\n", "log_file: a revision may not have it"),
        ("[fleet]\npublic_keys = x\n", r"\[fleet\] public_keys: a revision may not have it"),
        ("[Placement]\npassword = x\n", "a revision may not have it"),
        ("[qos]\nevict_command = /bin/sh\n", r"a revision may not have it \(a program\)"),
        ("[DEFAULT]\ndebug = $cpu_allocation_ratio\n", "debug"),
        ("[events]\nmax_mb = 1\nmax_events = ${max_mb}\n", "may not refer to other options"),
        ("[events]\nmax_mb = ${placement.password}\n", "may not refer to other options"),
        ("[interference:a]\nescalate_command = /bin/sh\n", r"a revision may not have it \(a program\)"),
        ("[guest:web]\npriority = 1\n", "has to be the uuid of a guest"),
        ("[DEFAULT]\nconfig_dir = /tmp\n", "config_dir: a revision may not have it"),
    ],
)
def test_a_bad_revision_is_refused_as_a_whole_and_its_mending_needs_another_generation(host, settings, words):
    host.offer(signed(1))
    host.follow()
    host.offer(signed(2, settings + "\n"))
    for _ in range(2):
        with pytest.raises(FleetError, match=words):
            host.follow()
    assert host.ratio == 4.0
    host.offer(signed(2, ratio_of(9)))
    with pytest.raises(FleetError, match="another revision was here before"):
        host.follow()
    host.offer(signed(3, ratio_of(9)))
    host.follow()
    assert host.ratio == 9.0


def test_an_empty_section_of_a_revision_is_one(host):
    host.offer(signed(1, "[qos_class:GOLD]\n"))
    with pytest.raises(
        FleetError, match=r"\[qos_class:GOLD\] rank: a class with a name other than .* needs a rank"
    ):
        host.follow(parse_classes)
    assert host.ratio is None


def test_a_revision_that_does_not_fit_the_host_is_refused_until_it_fits(host):
    def cannot(options):
        raise ConfigError(f"no CPU is like {options.cpu_allocation_ratio}")

    host.offer(signed(1))
    with pytest.raises(FleetError, match=r"edge generation 1 is refused: no CPU is like 4\.0"):
        host.follow(cannot)
    assert host.ratio is None
    host.follow()
    assert host.ratio == 4.0


def test_a_revision_of_another_group_or_key_is_refused(host):
    host.offer(signed(1, group="core"))
    with pytest.raises(FleetError, match="it is of the group core"):
        host.follow()
    host.offer(signed(1, key=signature.new_key()))
    with pytest.raises(FleetError, match="none of"):
        host.follow()
    assert list(host.state.iterdir()) == []


def test_an_expired_revision_is_refused_and_an_adopted_one_stays_with_a_report(host):
    now = datetime.now(UTC)
    host.offer(signed(1, expires=now - timedelta(seconds=2)))
    with pytest.raises(FleetError, match="it expired at"):
        host.follow()
    host.offer(signed(1, expires=now + timedelta(days=1)))
    host.follow()
    assert host.ratio == 4.0


@given(st.data())
def test_generations_never_go_down_and_have_one_content_each(data):
    """A model that remembers all revisions checks the host."""
    now = datetime.now(UTC)
    known: list[FleetRevision] = []
    for _ in range(data.draw(st.integers(1, 8))):
        generation = data.draw(st.integers(1, 4))
        offered = FleetRevision("edge", generation, None, data.draw(st.sampled_from("ab")))
        reason = refusal_reason(offered, "edge", known[-1:], now)
        top = max((each.generation for each in known), default=0)
        good = generation > top or (generation == top and offered in known)
        assert (not reason) == good
        if good:
            known.append(offered)


def test_every_byte_of_a_revision_is_signed():
    content = signed(1)
    others = [
        content[:place] + bytes([each ^ 1]) + content[place + 1 :] for place, each in enumerate(content)
    ]
    for other in (*others, b"", content[:-1], content + b"\n", content * 2, b"\0" * 100):
        with pytest.raises(FleetError):
            signature.read(other, [PUBLIC])


def test_a_source_may_be_a_link_to_a_file_and_nothing_that_hangs_or_never_ends(host):
    real = host.folder / "real.conf"
    real.write_bytes(signed(1))
    (host.source / "edge.conf").symlink_to(real)
    host.follow()
    assert host.ratio == 4.0
    for make in (
        lambda path: os.mkfifo(path),
        lambda path: path.symlink_to("/dev/zero"),
        lambda path: path.symlink_to("edge.conf"),
        lambda path: path.mkdir(),
    ):
        there = host.source / "edge.conf"
        there.rmdir() if there.is_dir() and not there.is_symlink() else there.unlink()
        make(there)
        with pytest.raises(FleetError, match="cannot be read"):
            host.follow()
    (host.source / "edge.conf").rmdir()
    with (host.source / "edge.conf").open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(FleetError, match=f"larger than {MAX_BYTES}"):
        host.follow()


def test_a_disk_that_is_full_leaves_all_as_it_was(host, monkeypatch):
    host.offer(signed(1))
    host.follow()
    host.offer(signed(2, ratio_of(9)))

    def full(*args):
        raise OSError(28, "No space left on device")

    for module, name in ((configuration, "write_durably"), (configuration.os, "replace")):
        with monkeypatch.context() as patch:
            patch.setattr(module, name, full)
            with pytest.raises(FleetError, match="No space left"):
                host.follow()
        assert host.ratio == 4.0
    host.follow()
    assert host.ratio == 9.0


def start(host, check=lambda options: None, fails=None):
    with suppress(OSError, LockedError), starting_with_fleet(host.own_conf(), check, (LockedError,)):
        if fails is not None:
            raise fails("it did not start")


def test_a_kept_revision_counts_only_if_it_is_signed_and_owned_by_the_agent(host):
    host.offer(signed(3))
    host.follow()
    path = host.state / configuration.KEPT_FILE
    path.write_bytes(path.read_bytes().replace(b"= 4\n", b"= 8\n"))
    with pytest.raises(ConfigError, match="has signed this content"):
        host.conf()
    start(host)
    assert host.ratio == 4.0
    path.rename(host.folder / "elsewhere")
    path.symlink_to(host.folder / "elsewhere")
    with pytest.raises(ConfigError, match="symbolic link"):
        host.conf()


def test_a_host_starts_with_what_its_source_has_if_it_keeps_nothing_that_fits(host, caplog):
    start(host)
    assert "The source has no usable settings of the fleet" in caplog.text
    host.offer(signed(1))
    start(host)
    assert host.ratio == 4.0
    host.offer(signed(2, ratio_of(9)))
    start(host)
    assert host.ratio == 4.0  # the stored revision fits, so the start does not read the source

    def only_nine(options):
        if options.cpu_allocation_ratio != 9:
            raise ConfigError("it does not fit")

    start(host, only_nine)
    assert host.ratio == 9.0


def test_settings_with_which_an_agent_did_not_start_are_replaced_before_it_starts_again(host, caplog):
    host.offer(signed(1))
    start(host)
    start(host, fails=LockedError)
    start(host)
    assert "last start failed" not in caplog.text
    start(host, fails=OSError)
    start(host)
    assert "last start failed" in caplog.text
    assert host.ratio == 4.0  # the source has no other revision
    start(host, fails=OSError)
    host.offer(signed(2, ratio_of(9)))
    start(host)
    assert host.ratio == 9.0
    host.offer(signed(3, ratio_of(5)))
    start(host)
    assert host.ratio == 9.0


def test_keys_take_each_others_place_while_both_are_believed(host):
    other = signature.new_key()
    host.offer(signed(1))
    host.follow()
    host.write(public_key=f"{signature.public_key(KEY)}, {signature.public_key(other)}")
    host.offer(signed(2, ratio_of(9), key=other))
    host.follow()
    host.write(public_key=signature.public_key(other))
    assert host.ratio == 9.0


def test_a_host_that_changes_its_group_has_the_settings_of_the_former_one_until_there_are_others(host):
    host.offer(signed(7))
    host.follow()
    host.write(group="core")
    assert host.ratio == 4.0
    host.offer(signed(1, ratio_of(9), group="core"), "core")
    host.follow()
    assert host.ratio == 9.0


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ("group = edge\n", "needs .fleet. source"),
        ("group = edge\nsource = /srv\n", "needs .fleet. public_keys"),
        ("group = edge\nsource = srv\npublic_keys = x\n", "absolute path"),
        ("group = edge\nsource = http://a/b\npublic_keys = x\n", "https://HOST"),
        ("group = edge\nsource = https://u:p@a/b\npublic_keys = x\n", "https://HOST"),
        ("group = edge\nsource = https://a:x/b\npublic_keys = x\n", "source"),
    ],
)
def test_missing_and_wrong_options_of_the_section_are_named(host, lines, words):
    host.ini.write_text(f"[DEFAULT]\nstate_path = {host.state}\n[fleet]\n{lines}")
    with pytest.raises(ConfigError, match=words):
        host.conf()


def test_a_key_that_is_none_is_said_to_be_none(host):
    host.write(public_key="x")
    host.offer(signed(1))
    with pytest.raises(FleetError, match="not a public key"):
        host.follow()


def test_other_programs_can_check_a_signature(tmp_path):
    """The check uses openssl. The signature covers the purpose and everything after the first line."""
    content = signed(1)
    first, _, rest = content.partition(b"\n")
    (tmp_path / "signed").write_bytes(b"compute-agent fleet revision 1\n" + rest)
    (tmp_path / "key.pem").write_bytes(KEY)
    subprocess.run(
        ["openssl", "base64", "-d", "-A", "-out", tmp_path / "signature"],
        input=first.rpartition(b" ")[2],
        check=True,
    )
    verify = ["openssl", "pkeyutl", "-verify", "-rawin", "-inkey", "key.pem", "-in", "signed"]
    done = subprocess.run(
        [*verify, "-sigfile", "signature"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert "Verified Successfully" in done.stdout
