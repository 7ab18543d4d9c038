"""Answers of the engine, and the group of a container."""

import contextlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compute_agent.drivers.containers.container_state import (
    ContainerRun,
    ContainerState,
    PodRun,
    PodState,
    changed_key,
    own_group,
    parse_container,
    parse_image_labels,
    parse_list,
    parse_pod,
    parse_run,
)
from compute_agent.drivers.procfs import ProcessIdentity, boot_id

KEY, IMAGE = "ab" * 32, "sha256:" + "1" * 64
DOCUMENT = {
    "Id": KEY,
    "Name": "/db",
    "Image": IMAGE,
    "State": {"Running": True, "Pid": 7},
    "Config": {"Labels": {"a": "b"}},
}
json_values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.text(max_size=5)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.sampled_from(["Id", "State", "Pid", "Config", "Labels", "x"]), inner, max_size=3),
    ),
    max_leaves=8,
)


def test_a_container_that_runs():
    assert parse_container(DOCUMENT) == ContainerState(KEY, "db", 7, IMAGE, {"a": "b"})


@pytest.mark.parametrize(("status", "pid"), [("exited", 0), ("paused", 7), ("stopping", 7), ([], 0)])
def test_a_container_of_podman_has_processes_until_its_stop_is_complete(status, pid):
    assert parse_container({**DOCUMENT, "State": {"Running": False, "Pid": 7, "Status": status}}).pid == pid


def test_a_container_that_does_not_run_has_no_process():
    assert parse_container({**DOCUMENT, "State": {"Running": False, "Pid": 7}}).pid == 0


def test_a_container_may_have_no_image_and_no_labels():
    found = parse_container({**DOCUMENT, "Image": "", "Config": {"Labels": None}})
    assert (found.image, found.labels) == ("", {})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("Id", "db"),
        ("Id", None),
        ("Name", "/../db"),
        ("Name", "/a\nb"),
        ("Name", "/"),
        ("Image", "sha256:x"),
        ("State", {"Running": 1, "Pid": 7}),
        ("State", {"Running": True, "Pid": -7}),
        ("State", {"Running": True, "Pid": True}),
        ("State", {"Running": True}),
        ("Config", []),
        ("Config", {"Labels": {"a": 1}}),
        ("Config", {"Labels": ["a"]}),
    ],
)
def test_a_part_of_another_form_is_refused(name, value):
    with pytest.raises(ValueError, match=r".+") as caught:
        parse_container({**DOCUMENT, name: value})
    assert str(caught.value).isprintable()


def test_a_list_has_ids_images_and_labels():
    row = {"Id": KEY, "ImageID": IMAGE, "Labels": {"a": "b"}, "State": "running"}
    assert parse_list([row]) == [ContainerState(KEY, image=IMAGE, labels={"a": "b"})]


@given(json_values)
def test_any_document_is_an_answer_or_refused(document):
    for parse in (parse_container, parse_list, parse_image_labels, parse_pod):
        with contextlib.suppress(ValueError):
            parse(document)
    with contextlib.suppress(ValueError):
        changed_key(json.dumps(document).encode())


@pytest.mark.parametrize(
    ("event", "key"),
    [
        ({"Type": "container", "Action": "start", "Actor": {"ID": KEY}}, KEY),
        ({"Type": "container", "Action": "die", "Actor": {"ID": KEY}}, KEY),
        ({"Type": "container", "Action": "exec_create: sh", "Actor": {"ID": KEY}}, None),
        ({"Type": "image", "Action": "remove", "Actor": {"ID": "x"}}, None),
    ],
)
def test_events_of_starts_and_ends_name_the_container(event, key):
    assert changed_key(json.dumps(event).encode()) == key


@pytest.mark.parametrize(
    "line", [b"{", b"[]", b"[" * 100_000, b'{"Type":"container","Action":"start"}', b"\xff"]
)
def test_a_line_that_is_no_event_is_refused(line):
    with pytest.raises(ValueError, match=r".+"):
        changed_key(line)


@pytest.mark.parametrize(
    ("path", "group"),
    [
        (f"/machine.slice/libpod-{KEY}.scope/container", f"/machine.slice/libpod-{KEY}.scope"),
        (f"/system.slice/docker-{KEY}.scope", f"/system.slice/docker-{KEY}.scope"),
        (f"/docker/{KEY}/init.scope", f"/docker/{KEY}"),
        (f"/system.slice/db.service/libpod-payload-{KEY}", f"/system.slice/db.service/libpod-payload-{KEY}"),
        (f"/docker/{KEY}/x/{KEY}", f"/docker/{KEY}"),
        ("/system.slice/db.service", ""),
        (f"/../docker-{KEY}.scope", ""),
        (f"docker-{KEY}.scope", ""),
        (
            f"/machine.slice/machine-libpod_pod_{KEY}.slice/x",
            f"/machine.slice/machine-libpod_pod_{KEY}.slice",
        ),
        ("", ""),
        ("/", ""),
    ],
)
def test_the_group_of_a_container_is_the_upper_one_with_its_id(path, group):
    assert own_group(path, KEY) == group


def test_a_run_is_the_same_after_it_was_kept():
    run = ContainerRun(ProcessIdentity(7, 1234, boot_id()), KEY)
    assert parse_run(str(run)) == run


def test_the_run_of_a_pod_is_the_same_after_it_was_kept():
    run = PodRun(KEY, f"/machine.slice/machine-libpod_pod_{KEY}.slice")
    assert parse_run(str(run)) == run


def test_a_container_of_a_pod_and_its_pod():
    own = {**DOCUMENT, "Name": "db", "Image": "1" * 64, "Pod": KEY, "IsInfra": True}
    found = parse_container(own)
    assert (found.name, found.pod, found.is_infra) == ("db", KEY, True)
    rows = [{"Id": KEY, "State": "running"}, {"Id": "cd" * 32, "State": "exited"}]
    rows += [{"Id": "ef" * 32, "State": "paused"}]
    assert parse_pod({"Id": KEY, "Name": "web", "Labels": {"a": "b"}, "Containers": rows}) == PodState(
        "web", {"a": "b"}, (KEY, "ef" * 32)
    )


@pytest.mark.parametrize(
    "text", [f"pod {KEY} /x", f"pod {KEY} /../{KEY}", "", "7 1234", f"7 1234 {KEY}x", f"-7 1234 {KEY}"]
)
def test_a_text_that_is_no_run_is_refused(text):
    with pytest.raises(ValueError, match="is not the run of a container"):
        parse_run(text)
