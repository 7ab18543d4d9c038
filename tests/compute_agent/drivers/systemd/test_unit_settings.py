"""The section ``[X-ComputeAgent]`` of unit files and drop-ins."""

import contextlib
import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compute_agent.drivers.foreign.declared import BadDeclarationError, DeclaredSettings, made_uuid
from compute_agent.drivers.systemd.unit_table import (
    KEYS,
    parse_section,
    read_settings,
    section_lines,
)
from compute_agent.model.guest_settings import SETTING_NAMES, GuestSettings, ThreadPolicy

UNIT = """\
[Unit]
Description=Vcpus=9

[Service]
ExecStart=/usr/bin/switch \\
    --Class=gold

[X-ComputeAgent]
# a comment
Vcpus=4
Class = gold
"""


@pytest.fixture
def write(tmp_path):
    def write(*texts):
        paths = [tmp_path / f"{number}.conf" for number in range(len(texts))]
        for path, text in zip(paths, texts, strict=True):
            path.write_text(text)
            path.chmod(0o644)
        return paths

    return write


def test_only_the_section_of_the_agent_is_read():
    assert section_lines(UNIT) == [("Vcpus", "4"), ("Class", "gold")]


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("[Service]\nVcpus=1\n", None),
        ("[X-ComputeAgent]\n", []),
        ("[X-ComputeAgent]", []),
        ("; [X-ComputeAgent]\n", None),
        ("[X-ComputeAgent]\nVcpus=1\n[Unit]\nVcpus=2\n[X-ComputeAgent]\nPriority=3\n", "13"),
        (
            "[X-ComputeAgent]\nResctrl=l3:0=50%; \\\n# between\n  l3:1=20%\n",
            [("Resctrl", "l3:0=50%;  l3:1=20%")],
        ),
        ("[X-ComputeAgent]\nVcpus=2\\", [("Vcpus", "2")]),
        ("[X-ComputeAgent]\nnonsense\n", [("nonsense", "")]),
    ],
)
def test_the_syntax_is_that_of_systemd(text, lines):
    found = section_lines(text)
    assert ("".join(value for _, value in found) if isinstance(lines, str) else found) == lines


def test_each_setting_of_guests_has_a_key():
    assert sorted(KEYS.values()) == sorted(SETTING_NAMES)
    assert {"Class", "Priority", "Resctrl", "BlockioClass", "CpuClass", "ThreadPolicy"} <= KEYS.keys()


def test_settings_are_parsed_and_the_last_assignment_applies():
    lines = [("Vcpus", "2"), ("Class", "silver"), ("ThreadPolicy", "isolate"), ("Vcpus", "4")]
    found = parse_section(lines)
    assert found.declared == {"qos_class": "silver", "thread_policy": ThreadPolicy.ISOLATE}
    assert found.guest_settings == GuestSettings(4, ThreadPolicy.ISOLATE, qos_class="silver")
    assert found.problems == ()


def test_an_empty_assignment_means_the_default():
    assert (
        parse_section([("Vcpus", "4"), ("Class", "gold"), ("Vcpus", ""), ("Class", "")]) == DeclaredSettings()
    )


def test_lines_without_effect_are_named():
    found = parse_section([("Colour", "red"), ("Priority", "high"), ("Class", "gold")])
    assert found.declared == {"qos_class": "gold"}
    assert found.problems[0] == "[X-ComputeAgent] Colour is not a setting of guests"
    assert found.problems[1].startswith("[X-ComputeAgent] Priority=high has no effect: a whole number")


def test_many_lines_without_effect_make_no_long_message():
    found = parse_section([(f"X{number}\x1b", "\n") for number in range(1000)])
    assert len(found.problems) == 21
    assert found.problems[-1] == "980 more have no effect"
    assert all(text.isprintable() for text in found.problems)


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("Guest", "yes"),
        ("Guest", "x" * 5000),
        ("Vcpus", "0"),
        ("Vcpus", "-1"),
        ("Vcpus", "4097"),
        ("Vcpus", "two"),
        ("Vcpus", "٤"),
        ("Vcpus", "9" * 5000),
        ("Uuid", "db"),
        ("Uuid", "x" * 5000),
    ],
)
def test_a_value_that_a_guest_cannot_be_without_is_refused(key, text):
    with pytest.raises(BadDeclarationError, match=rf"^{key}=") as caught:
        parse_section([(key, text)])
    assert len(str(caught.value)) < 1200


def test_a_uuid_may_have_any_spelling():
    found = uuid.uuid4()
    assert parse_section([("Uuid", f"{{{str(found).upper()}}}")]).guest_uuid == str(found)


def test_a_made_uuid_depends_on_host_and_service_and_stays():
    names = [(host, unit) for host in ("a", "b") for unit in ("c.service", "d.service")]
    assert len({made_uuid(*each) for each in names}) == 4
    assert uuid.UUID(made_uuid("a", "c.service")).version == 5


def test_drop_ins_override_the_unit_file(write):
    found = read_settings(write(UNIT, "[X-ComputeAgent]\nClass=silver\n", "[Service]\nNice=1\n"))
    assert (found.vcpus, found.declared) == (4, {"qos_class": "silver"})


def test_a_drop_in_alone_makes_a_service_a_guest(write):
    assert read_settings(write("[Service]\n", "[X-ComputeAgent]\n")) == DeclaredSettings()
    assert read_settings(write("[Service]\n", "[Service]\n")) is None


def test_a_service_that_an_option_names_is_a_guest_without_a_section(write):
    assert read_settings(write("[Service]\n"), is_chosen=True) == DeclaredSettings()
    assert read_settings([], is_chosen=True) == DeclaredSettings()


@pytest.mark.parametrize("is_chosen", [False, True])
@pytest.mark.parametrize(
    ("text", "is_guest"), [("false", False), ("False", False), ("true", True), ("", True)]
)
def test_a_section_can_say_whether_its_service_is_a_guest(write, text, is_guest, is_chosen):
    found = read_settings(write(UNIT, f"[X-ComputeAgent]\nGuest={text}\n"), is_chosen)
    assert (found is not None) == is_guest
    assert found is None or (found.vcpus, found.problems) == (4, ())


def test_a_service_that_says_that_it_is_no_guest_has_no_wrong_settings():
    assert parse_section([("Vcpus", "none"), ("Guest", "false")]) is None


def test_missing_files_and_those_that_are_no_files_are_left_out(write, tmp_path):
    paths = write(UNIT)
    assert read_settings([tmp_path / "none", tmp_path, *paths]).vcpus == 4
    assert read_settings([tmp_path / "none"]) is None


def test_a_huge_file_is_left_out(write):
    assert read_settings(write("[X-ComputeAgent]\n" + "#\n" * (1 << 20))) is None


def test_a_file_that_others_can_change_is_refused_with_a_reason(write):
    paths = write(UNIT, "[X-ComputeAgent]\n")
    paths[1].chmod(0o666)
    with pytest.raises(BadDeclarationError, match=r"not trusted: .*1\.conf.*chmod go-w"):
        read_settings(paths)


def test_a_file_without_the_section_need_not_be_trusted(write):
    paths = write(UNIT, "[Service]\n")
    paths[1].chmod(0o666)
    assert read_settings(paths).vcpus == 4


def test_a_link_in_a_folder_of_others_is_refused(write, tmp_path):
    (target,) = write(UNIT)
    folder = tmp_path / "open"
    folder.mkdir()
    folder.chmod(0o777)
    link = folder / "db.service"
    link.symlink_to(target)
    with pytest.raises(BadDeclarationError, match="not trusted"):
        read_settings([link])


@given(st.text())
def test_any_text_is_parsed_or_refused_with_a_printable_reason(text):
    lines = section_lines(f"[X-ComputeAgent]\n{text}")
    with contextlib.suppress(BadDeclarationError):
        assert all(problem.isprintable() for problem in parse_section(lines).problems)
