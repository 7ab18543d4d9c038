"""Tests of warnings and refusals by `config check` and at the agent's start, apart from those about
CPU sets.
"""

import errno
import json
import os
import re
import shutil
import socket
import subprocess
from pathlib import Path
from unittest.mock import Mock

import pytest

from compute_agent.agent.configured_host import build_host_state
from compute_agent.agent.host_access import make_state_folder
from compute_agent.conf import load
from compute_agent.files import secure_folder
from compute_agent.model.messages import ConfigError
from tests.compute_agent.cmd.agents import MAIN, run_here
from tests.compute_agent.resctrl import fake

WATERMARKS = {
    "watermark:bandwidth": "metric = memory_bandwidth\nthrottle_down = 10G\nthrottle_up = 9G",
    "watermark:cache": "metric = llc_occupancy\nthrottle_down = 10M\nthrottle_up = 9M",
    "watermark:waiting": "metric = io_pressure\nthrottle_down = 50%\nthrottle_up = 40%",
    "watermark:cpu": "metric = cpu_usage\nthrottle_down = 80%\nthrottle_up = 70%\nevict = 90%",
    "watermark:memory": "metric = memory_usage\nevict = 90%",
}


def check(ini):
    """Run ``config check``; return its exit status and its findings."""
    done = run_here(ini, "config", "check", "-f", "json")
    assert "Traceback" not in done.stderr
    return done.returncode, json.loads(done.stdout)


def about(texts, section):
    """The texts of the findings about one section."""
    return [text for text in texts if text.startswith(f"[{section}]")]


def write_group(folder, controllers="cpuset cpu"):
    """Write the files of a delegated group into a folder."""
    folder.mkdir()
    (folder / "cgroup.controllers").write_text(f"{controllers}\n")
    (folder / "cgroup.procs").touch()


@pytest.fixture
def captured(two_nodes):
    """The files of a host that has a pressure file for each resource, and no resctrl."""
    (two_nodes / "proc/pressure").mkdir()
    for resource in ("cpu", "memory", "io"):
        (two_nodes / "proc/pressure" / resource).write_text(
            "some avg10=0.00 avg60=0.00 avg300=0.00 total=0\n"
        )
    return two_nodes


def test_a_section_that_does_not_exist_fails_the_check_although_the_agent_starts(configure):
    done = run_here(configure("cpu_shared_set = 1", compte="cpu_dedicated_set = 0"), "config", "check")
    assert done.returncode == 3
    assert "[compte]: there is no such section" in done.stderr
    assert run_here(configure("cpu_shared_set = 1"), "config", "check").returncode == 0


@pytest.mark.parametrize(("is_there", "token"), [(False, "admin"), (True, "nobody")])
def test_a_placement_that_cannot_be_asked_fails_the_check(configure, live_placement, is_there, token):
    """The address of Placement is wrong, or the token is wrong."""
    with socket.create_server(("127.0.0.1", 0)) as holder:
        closed = f"http://127.0.0.1:{holder.getsockname()[1]}"
    endpoint = live_placement.url if is_there else closed
    placement = f"auth_type = admin_token\nendpoint = {endpoint}\ntoken = {token}\nconnect_retries = 0"
    done = run_here(configure("cpu_shared_set = 1", placement=placement), "config", "check", "-f", "json")
    assert done.returncode == 3
    assert "Placement cannot be asked: " in done.stderr
    (warning,) = json.loads(done.stdout)["warnings"]
    assert warning in done.stderr


def test_shared_cpus_in_isolcpus_and_tuned_are_warnings(configure, two_nodes):
    (two_nodes / "sys/devices/system/cpu/isolated").write_text("1\n")
    (two_nodes / "proc/77").mkdir(parents=True)
    (two_nodes / "proc/77/comm").write_text("tuned\n")
    ini = configure("cpu_dedicated_set = 0\ncpu_shared_set = 1", **{"qos_class:LSR": "isolation = quiet"})
    status, found = check(ini)
    assert status == 0
    assert [text.split(":")[0] for text in found["warnings"]] == [
        "TuneD runs and may write the masks that the agent keeps off quiet CPUs",
        "shared CPU 1 in isolcpus of the boot line",
    ]
    assert build_host_state(load(["--config-file", str(ini)])).warnings == tuple(found["warnings"][1:])


def test_an_option_that_does_not_exist_is_a_warning(configure):
    status, found = check(configure("cpu_dedicate_set = 0\ncpu_shared_set = 1"))
    assert (status, found["dedicated_cpus"]) == (3, "")
    assert found["warnings"] == [
        "[compute] cpu_dedicate_set: there is no such option; did you mean cpu_dedicated_set?"
    ]


@pytest.mark.parametrize(
    ("section", "line", "reason"),
    [
        ("watermark:x", "mode = act", "metric: the option is missing; choose one of "),
        ("watermark:x", "", "metric: the option is missing; choose one of "),
        ("qos_class:GOLD", "", "rank: a class with a name other than BE, LS or LSR needs a rank"),
        ("interference:x", "mode = preview", "signal: the option is missing; choose one of "),
        ("cpu_pool:e", "", "a pool has either cpus, such as 4-7, or a number of dedicated_cpus"),
        ("cpu_pool:name", "shared_cpus = 0", "a pool has either cpus, such as 4-7, or a number of"),
    ],
)
def test_a_section_that_is_written_is_one_although_all_its_values_are_defaults(
    configure, section, line, reason
):
    ini = configure("cpu_dedicated_set = 0\ncpu_shared_set = 1", **{section: line})
    done = run_here(ini, "config", "check", "-f", "json")
    assert done.returncode == 1
    assert re.search(rf"\[{section}\]:? {reason}", done.stdout + done.stderr)


def test_an_empty_class_is_one_that_limits_nothing_and_sections_of_the_sample_are_none(configure):
    kinds = ("watermark", "qos_class", "interference", "blockio_class", "cpu_class", "cpu_pool")
    written = {f"{kind}:name": "" for kind in kinds} | {"blockio_class:plain": "", "cpu_class:plain": ""}
    named = {"qos_class:LSR": "cpu_class = plain"}
    sets = "cpu_dedicated_set = 0\ncpu_shared_set = 1"
    status, found = check(configure(sets, **written, **named))
    assert (status, found["refusals"]) == (0, [])
    done = run_here(configure(sets, **named), "config", "check")
    assert done.returncode == 1
    assert "there is no section [cpu_class:plain]" in done.stderr


def test_pools_are_checked_and_their_inventories_shown(configure):
    sets = "cpu_dedicated_set = 0\ncpu_shared_set = 1"
    status, found = check(configure(sets, **{"cpu_pool:a": "cpus = 0"}))
    assert (status, found["refusals"]) == (0, [])
    providers = {row["provider"] for row in found["inventories"] if row["resource_class"] == "PCPU"}
    assert [name for name in providers if name.endswith("_a")] == list(providers) != []
    status, found = check(configure(sets, **{"cpu_pool:a": "cpus = 7"}))
    assert status == 1
    assert about(found["refusals"], "cpu_pool:a") != []


def test_a_pool_beside_nova_compute_has_no_effect_and_is_not_refused(configure):
    sets = "provider_tree = beside\ncpu_dedicated_set = 0\ncpu_shared_set = 1"
    status, found = check(configure(sets, **{"cpu_pool:a": "dedicated_cpus = 99"}))
    assert (status, found["refusals"]) == (0, [])
    assert about(found["warnings"], "cpu_pool:a")[0].startswith("[cpu_pool:a] has no effect beside nova")


def test_a_dedicated_cpu_that_is_offline_is_warned_of(configure, two_nodes):
    (two_nodes / "sys/devices/system/cpu/online").write_text("1\n")
    (two_nodes / "sys/devices/system/cpu/offline").write_text("0\n")
    _, found = check(configure("cpu_dedicated_set = 0\ncpu_shared_set = 1"))
    assert any("CPU 0 is offline" in text for text in found["warnings"])


def test_a_dedicated_cpu_that_nova_took_offline_counts_once_it_was_seen(configure, two_nodes):
    ini = configure("provider_tree = beside\ncpu_dedicated_set = 0\ncpu_shared_set = 1")
    online = two_nodes / "sys/devices/system/cpu/online"
    online.write_text("1\n")
    _, found = check(ini)
    assert found["dedicated_cpus"] == ""
    assert any("CPU 0 is offline, and left out until online" in text for text in found["warnings"])
    online.write_text("0-1\n")
    conf = load(config_files=[str(ini)])
    secure_folder(Path(conf.state_path))
    build_host_state(conf)
    online.write_text("1\n")
    status, found = check(ini)
    assert (status, found["dedicated_cpus"]) == (0, "0")
    assert about(found["warnings"], "offline") == []
    shown = json.loads(run_here(ini, "topology", "show", "-f", "json").stdout)
    assert (shown["online_cpus"], shown["parked_cpus"]) == ("1", "0")
    assert [core["cpus"] for core in shown["cores"]] == ["0", "1"]
    assert "Parked CPUs (offline, and counted as present): 0" in run_here(ini, "topology", "show").stdout


def test_the_agent_warns_of_the_same_at_its_start_in_status_and_when_the_file_changes(agent, write_ini):
    told = "[compute] cpu_dedicate_set: there is no such option; did you mean cpu_dedicated_set?"
    lines = "cpu_dedicated_set = 0\ncpu_shared_set = 1\nresource_provider_name = testhost"
    write_ini(compute=f"{lines}\ncpu_dedicate_set = 0")
    agent.start()
    assert agent.log().count(told) == 1
    assert told in agent.status()["warnings"]
    write_ini(compute=f"{lines}\ncpu_shared_sets = 1")
    agent.wait_for(lambda: "[compute] cpu_shared_sets" in str(agent.status()["warnings"]))
    assert told not in agent.status()["warnings"]
    assert "[compute] cpu_shared_sets: there is no such option; did you mean cpu_shared_set?" in agent.log()


@pytest.fixture
def threads_24_apart(tmp_path):
    """The files of a host with 48 CPUs on two nodes, on which CPUs n and n+24 are siblings."""
    root = tmp_path / "host"
    cpu, node = "sys/devices/system/cpu", "sys/devices/system/node"
    files = {f"{cpu}/online": "0-47", f"{cpu}/present": "0-47", "proc/meminfo": "MemTotal: 16777216 kB"}
    for number in range(48):
        core = number % 24
        files |= {
            f"{cpu}/cpu{number}/topology/core_cpus_list": f"{core},{core + 24}",
            f"{cpu}/cpu{number}/topology/package_cpus_list": ("0-11,24-35", "12-23,36-47")[core // 12],
            f"{cpu}/cpu{number}/topology/physical_package_id": str(core // 12),
            f"{cpu}/cpu{number}/topology/core_id": str(core),
        }
    for number, cpus in enumerate(("0-11,24-35", "12-23,36-47")):
        files |= {
            f"{node}/node{number}/cpulist": cpus,
            f"{node}/node{number}/meminfo": f"Node {number} MemTotal: 8388608 kB",
            f"{node}/node{number}/distance": ("10 20", "20 10")[number],
        }
    for path, content in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(content + "\n")
    return root


def test_sets_that_split_cores_are_warned_of_with_better_ones_which_cause_no_warning(
    threads_24_apart, write_ini
):
    def warnings(dedicated, shared):
        sets = f"cpu_dedicated_set = {dedicated}\ncpu_shared_set = {shared}"
        ini = write_ini(
            compute=f"resource_provider_name = testhost\n{sets}", host=f"root = {threads_24_apart}"
        )
        status, found = check(ini)
        assert (status, found["refusals"]) == (0, [])
        return about(found["warnings"], "compute")

    (told,) = warnings("2-17", "18-47")
    assert "split 16 cores, such as that of CPUs 2,26" in told
    better = re.search(r"cpu_dedicated_set = (\S+) and cpu_shared_set = (\S+) split none", told)
    assert warnings(*better.groups()) == []


def test_without_a_section_for_placement_there_is_no_way_to_it(configure):
    ini = configure("cpu_shared_set = 1", placement="")
    status, found = check(ini)
    assert (status, found["files"]) == (3, [str(ini)])
    (warning,) = found["warnings"]
    assert warning.startswith("[placement] auth_type is not set: the agent cannot reach Placement")


def test_a_check_without_any_file_says_so(tmp_path, monkeypatch):
    monkeypatch.setenv("OS_DEFAULT__STATE_PATH", str(tmp_path / "state"))
    monkeypatch.setattr("oslo_config.cfg.find_config_files", lambda project: [])
    monkeypatch.setattr("oslo_config.cfg.find_config_dirs", lambda project: [])
    status, found = check(None)
    assert (status, found["files"]) == (3, [])
    missing = "No configuration file was read, because there is no /etc/compute-agent/compute-agent.conf: "
    assert [text for text in found["warnings"] if text.startswith(missing)] != []


def test_an_authentication_plugin_that_does_not_exist_is_refused(configure):
    ini = configure("cpu_shared_set = 1", placement="auth_type = passwort\nauth_url = http://127.0.0.1:1")
    status, found = check(ini)
    assert status == 1
    (refusal,) = found["refusals"]
    assert refusal.startswith("[placement] auth_type = passwort: there is no such plugin; there are ")
    assert ", password, " in refusal


def test_options_that_the_plugin_misses_are_named(configure):
    status, found = check(configure("cpu_shared_set = 1", placement="auth_type = password"))
    assert status == 1
    assert "auth_url" in found["refusals"][0]


def test_a_driver_that_is_named_twice_is_refused(configure):
    status, found = check(configure("cpu_shared_set = 1", guests="drivers = process, libvirt, process"))
    assert status == 1
    assert about(found["refusals"], "guests") == [
        "[guests] drivers names process twice: remove one of the two"
    ]


def test_a_root_of_process_guests_that_cannot_be_used_is_a_warning(configure, tmp_path):
    def warnings(root, drivers="process"):
        ini = configure("cpu_shared_set = 1", cgroup=f"root = {root}", guests=f"drivers = {drivers}")
        return check(ini)[1]["warnings"]

    write_group(tmp_path / "group")
    write_group(tmp_path / "poor", "cpuset")
    assert warnings(tmp_path / "group") == []
    (absent,), (poor,) = warnings(tmp_path / "none"), warnings(tmp_path / "poor")
    faults = "is not a group of cgroup v2 that the agent can use", "does not have the controller cpu"
    for warning, folder, fault in zip((absent, poor), ("none", "poor"), faults, strict=True):
        assert warning.startswith(f"[cgroup] root = {tmp_path}/{folder} {fault}")
        assert "process guests have no weights and no CPU limits" in warning
    assert warnings(tmp_path / "none", "libvirt") == []
    assert warnings("") == []


class TestWatermarks:
    """Watermarks that this host cannot enforce are reported."""

    def test_lines_that_this_host_cannot_keep_are_reported_with_the_reason(self, configure, captured):
        ini = configure("cpu_shared_set = 1", guests="drivers = process", **WATERMARKS)
        status, found = check(ini)
        assert (status, len(found["watermarks"])) == (0, 5)
        without_resctrl = "the agent never acts, because resctrl is not mounted, or does not measure it"
        without_groups = (
            "throttle_down: no guest is throttled, because process guests without groups of their own"
            " cannot be"
            " limited: [cgroup] root is not set"
        )
        assert found["warnings"] == [
            f"[watermark:bandwidth] metric = memory_bandwidth: {without_resctrl} (see [resctrl] mount)",
            f"[watermark:cache] metric = llc_occupancy: {without_resctrl} (see [resctrl] mount)",
            f"[watermark:cpu] {without_groups}",
            f"[watermark:waiting] {without_groups}",
        ]

    def test_lines_that_need_missing_pressure_files_are_reported(self, configure, two_nodes):
        found = check(configure("cpu_shared_set = 1", **WATERMARKS))[1]
        (warning,) = about(found["warnings"], "watermark:waiting")
        assert warning.startswith(
            "[watermark:waiting] metric = io_pressure: the agent never acts, because the kernel reports no"
            " pressures"
            f" ({two_nodes}/proc/pressure/io: No such file or directory)"
        )

    def test_lines_that_this_host_can_keep_cause_no_warning(self, configure, captured, tmp_path, monkeypatch):
        fake.FakeResctrl.of(fake.INTEL, captured / "sys/fs/resctrl")
        (captured / "proc/mounts").write_text("resctrl /sys/fs/resctrl resctrl rw 0 0\n")
        write_group(tmp_path / "group")
        sections = WATERMARKS | {"guests": "drivers = process"}
        ini = configure("cpu_shared_set = 1", cgroup=f"root = {tmp_path}/group", **sections)
        assert check(ini)[1]["warnings"] == []
        ini = configure(
            "cpu_shared_set = 1",
            cgroup=f"root = {tmp_path}/none",
            monitoring="interval = 0",
            **sections,
        )
        warnings = check(ini)[1]["warnings"]
        assert "[monitoring] interval is 0" in about(warnings, "watermark:cache")[0]
        assert f"[cgroup] root = {tmp_path}/none is not a group" in about(warnings, "watermark:cpu")[0]

    def test_lines_that_need_groups_cause_no_warning_for_guests_of_libvirt(self, configure, captured):
        ini = configure("cpu_shared_set = 1", guests="drivers = libvirt", **WATERMARKS)
        assert about(check(ini)[1]["warnings"], "watermark:cpu") == []


class TestInterference:
    """Sections of interference that have no effect on this host are reported."""

    def test_sections_without_effect_on_this_host_are_reported_with_the_reason(
        self, configure, captured, monkeypatch
    ):
        monkeypatch.setattr(
            "compute_agent.host.cycles.open_event", Mock(side_effect=OSError(errno.ENOENT, "none"))
        )
        sections = {
            "interference:bandwidth": "signal = memory_bandwidth",
            "interference:cache": "signal = llc_occupancy",
            "interference:cycles": "signal = cpi",
            "interference:waiting": "signal = run_delay\nmode = act\nescalate_command = nosuch {guest}",
        }
        ini = configure("cpu_shared_set = 1", guests="drivers = process", **sections)
        status, found = check(ini)
        never = "no guest is ever limited for it, because"
        without_resctrl = "resctrl is not mounted, or does not measure it (see [resctrl] mount)"
        assert status == 0
        assert found["warnings"] == [
            f"[interference:bandwidth] signal = memory_bandwidth: {never} {without_resctrl}",
            f"[interference:cache] signal = llc_occupancy: {never} {without_resctrl}",
            f"[interference:cycles] signal = cpi: {never} this host has no hardware counters, like most"
            " virtual machines ([Errno 2] none)",
            "[interference:waiting] escalate_command: it will fail, because there is no program nosuch on"
            " PATH:"
            " give its whole path",
            "[interference:waiting] mode = act: no guest is limited, because process guests without groups of"
            " their own cannot be limited: [cgroup] root is not set",
        ]

    def test_sections_with_effect_on_this_host_cause_no_warning(self, configure, captured):
        waiting = "signal = cpu_pressure\nmode = act\nescalate_command = /bin/true --now"
        ini = configure("cpu_shared_set = 1", guests="drivers = libvirt", **{"interference:waiting": waiting})
        assert about(check(ini)[1]["warnings"], "interference:waiting") == []

    def test_an_eviction_command_that_cannot_run_is_warned_of(self, configure, tmp_path):
        (tmp_path / "evict").write_text("#!/bin/sh\n")
        found = check(configure("cpu_shared_set = 1", qos=f"evict_command = {tmp_path}/evict --now"))[1]
        assert about(found["warnings"], "qos") == [
            f"[qos] evict_command: it will fail, because {tmp_path}/evict is not an executable program"
        ]


class TestStateFolder:
    """Problems with the state folder of the agent are reported."""

    @pytest.fixture
    def ini(self, configure):
        return lambda path: configure("cpu_shared_set = 1", DEFAULT=f"state_path = {path}")

    @pytest.mark.parametrize("path", ["{}/file/state", "/proc/state", "/sys/state"])
    def test_a_state_folder_that_cannot_exist_is_refused(self, ini, tmp_path, path):
        (tmp_path / "file").touch()
        path = path.format(tmp_path)
        status, found = check(ini(path))
        assert status == 1
        (refusal,) = found["refusals"]
        assert refusal.startswith(f"[DEFAULT] state_path = {path}: ")
        assert refusal.endswith("; the agent needs a folder there that it can write to")
        with pytest.raises(ConfigError):
            make_state_folder(load(config_files=[str(ini(path))]))

    def test_a_check_leaves_nothing_in_the_state_folder(self, ini, tmp_path):
        (tmp_path / "state").mkdir()
        assert check(ini(tmp_path / "state"))[0] == 0
        assert list((tmp_path / "state").iterdir()) == []

    def test_a_state_folder_that_the_agent_would_refuse_is_refused(self, ini, tmp_path):
        (tmp_path / "state").mkdir()
        (tmp_path / "state").chmod(0o777)
        status, found = check(ini(tmp_path / "state"))
        assert status == 1
        (refusal,) = found["refusals"]
        assert refusal.startswith(f"[DEFAULT] state_path = {tmp_path}/state: {tmp_path}/state (mode 0777)")

    @pytest.mark.skipif(
        os.geteuid() != 0 or not shutil.which("setpriv"), reason="only root can do away with its own rights"
    )
    def test_a_state_folder_that_this_user_cannot_write_to_is_warned_of(self, ini, tmp_path):
        above = tmp_path / "above"
        above.mkdir(mode=0o555)
        unable = ["setpriv", "--bounding-set=-dac_override"]
        command = [*unable, *MAIN, "--config-file", ini(above / "state"), "config", "check", "-f", "json"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
        assert json.loads(done.stdout)["warnings"] == [
            f"[DEFAULT] state_path = {above}/state: user 0 cannot write to {above}; the agent needs a folder"
            " there that it can write to"
        ]


@pytest.mark.parametrize(
    ("sections", "refusal"),
    [
        ({"policy": "name = follow\nrebalance = true"}, "[policy] rebalance = true moves guests"),
        (
            {"policy": "name = follow", "guests": "unplaced = refuse"},
            "[guests] unplaced = refuse stops guests",
        ),
    ],
)
def test_options_that_contradict_a_following_policy_are_refused(write_ini, sections, refusal):
    status, found = check(write_ini(**sections))
    assert status == 1
    assert [text.partition(refusal)[:2] for text in found["refusals"]] == [("", refusal)]


def test_an_option_that_has_no_effect_when_the_agent_follows_is_a_warning(write_ini):
    status, found = check(write_ini(policy="name = follow", guests="unallocated = ignore"))
    assert (status, found["policy"]) == (0, "follow")
    assert len(about(found["warnings"], "guests")) == 1


@pytest.mark.parametrize(
    ("policy", "guests", "named"),
    [
        ("rebalance = true", "", ["[policy] rebalance = true"]),
        ("", "unplaced = refuse", ["[guests] unplaced = refuse"]),
        (
            "rebalance = true",
            "unplaced = refuse",
            ["[policy] rebalance = true", "[guests] unplaced = refuse"],
        ),
        ("name = static\nrebalance = true", "unplaced = refuse", []),
        ("", "", []),
    ],
)
def test_a_warning_beside_nova_compute_names_only_an_option_that_is_set(
    write_ini, two_nodes, policy, guests, named
):
    compute = "resource_provider_name = testhost\ncpu_shared_set = 1\nprovider_tree = beside"
    ini = write_ini(compute=compute, host=f"root = {two_nodes}", policy=policy, guests=guests)
    status, found = check(ini)
    warnings = [text for text in found["warnings"] if "Nova chooses the CPUs of guests" in text]
    assert status == 0
    assert [text.partition(" has no effect")[0] for text in warnings] == named


def test_stolen_time_beside_nova_compute_has_no_effect(configure):
    ini = configure("cpu_shared_set = 1\nprovider_tree = beside", capacity="steal = act")
    assert any(
        text.startswith("[capacity] steal = act has no effect beside nova")
        for text in check(ini)[1]["warnings"]
    )


def test_a_collector_that_is_not_installed_is_refused(configure):
    status, found = check(configure("cpu_shared_set = 1", capacity="collectors = wat"))
    assert status == 1
    assert "[capacity] collectors: no installed package has a collector wat" in found["refusals"][0]


@pytest.mark.parametrize(("policy", "warned"), [("static", True), ("follow", False)])
def test_moved_emulator_threads_are_for_hosts_where_another_program_pins(configure, policy, warned):
    status, found = check(configure("cpu_shared_set = 1", policy=policy, isolation="emulator = move"))
    text = f"[isolation] emulator = move has no effect with [policy] name = {policy}"
    assert status == 0
    assert [one.startswith(text) for one in about(found["warnings"], "isolation")] == [True] * warned
