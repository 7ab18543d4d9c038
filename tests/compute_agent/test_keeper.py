"""Tests of the keeper, which leaves none of the processes that tests start."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

from compute_agent.drivers import procfs

_KEEPER = Path(__file__).with_name("keeper.py")
_SECONDS = 30


def test_all_children_end_with_the_input_though_the_group_was_told_to_end_before():
    command = [sys.executable, "-S", "-E", _KEEPER]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as keeper:
        pids = []
        for _ in range(2):
            keeper.stdin.write(json.dumps(["sleep", "60"]) + "\n")
            keeper.stdin.flush()
            pids.append(int(keeper.stdout.readline()))
            keeper.send_signal(signal.SIGTERM)
        time.sleep(0.1)
        assert keeper.poll() is None
        assert all(map(procfs.identify_process, pids))
        keeper.stdin.close()
        assert keeper.wait(_SECONDS) == 0
    assert not any(map(procfs.identify_process, pids))
