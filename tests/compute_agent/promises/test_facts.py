"""Tests of reading facts for promises from files of kernels. Files may be missing, and processes may end
meanwhile.
"""

import os
import subprocess
import sys
from pathlib import Path

from compute_agent.promises import facts
from compute_agent.promises.facts import TaskReader, read_node_memory


def put(root, path, text):
    file = root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


def add_task(root, pid, tid, name, cpus):
    put(
        root,
        f"proc/{pid}/task/{tid}/status",
        f"Name:\t{name}\nCpus_allowed:\tff\nCpus_allowed_list:\t{cpus}\n",
    )


def listed(root, cpus, guests=()):
    return [(one.tid, one.name) for one in TaskReader(root).list_tasks(frozenset(cpus), guests)]


def test_processes_of_the_host_are_listed_by_what_each_thread_may_use(tmp_path):
    put(tmp_path, "proc/2/task/2/children", "3 4\n")
    add_task(tmp_path, 3, 3, "kworker/2:0", "2")
    add_task(tmp_path, 1, 1, "systemd", "0-1")
    add_task(tmp_path, 50, 50, "cron", "0-7")
    add_task(tmp_path, 50, 51, "cron", "0")
    add_task(tmp_path, 60, 60, "qemu", "2")
    add_task(tmp_path, 70, 70, "bad\x1b[31m", "x")
    add_task(tmp_path, 80, 80, "odd\x1b[31m", "2")
    (tmp_path / "proc/90/task/90").mkdir(parents=True)
    found = listed(tmp_path, {2, 3}, {60})
    assert found[0] == (50, "cron")
    assert [tid for tid, _ in found] == [50, 80]
    assert found[1][1].isprintable()
    assert listed(tmp_path, ()) == []


def test_the_list_has_an_end(tmp_path, monkeypatch):
    monkeypatch.setattr(facts, "MAX_TASKS", 3)
    for pid in range(100, 110):
        add_task(tmp_path, pid, pid, "cron", "2")
    assert len(listed(tmp_path, {2})) == 3


def test_this_machine_shows_its_own_processes():
    cpus = os.sched_getaffinity(0)
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        tasks = {task.tid: task for task in TaskReader(Path("/")).list_tasks(cpus, {os.getpid()})}
        assert tasks[child.pid].cpus == cpus
        assert os.getpid() not in tasks
    finally:
        child.kill()
        child.communicate()


def test_memory_by_node_has_huge_pages_and_no_page_cache(tmp_path):
    stat = "anon N0=1000 N1=20\nfile N0=9999 N1=9999\nshmem N0=0 N1=300\nanon_thp N0=1000 N1=0\n"
    put(tmp_path, "memory.numa_stat", stat)
    put(tmp_path, "hugetlb.2MB.numa_stat", "total=2097152 N0=2097152 N1=0\n")
    put(tmp_path, "hugetlb.2MB.current", "2097152\n")
    assert read_node_memory(str(tmp_path)) == {0: 1000 + 2097152, 1: 320}
    assert read_node_memory(str(tmp_path / "none")) == {}
    assert read_node_memory("") == {}
