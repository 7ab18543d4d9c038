"""Starts programs for tests, and ends all processes that these programs leave behind.

The program is the parent of all these processes. Each line of its standard input is a command as a JSON list,
and the answer is the process id. Processes that end are reaped at once: libvirtd waits for this, and process
1 of a container may not do it. At the end of the standard input, the program kills all children; the input
also ends if the caller dies. SIGTERM alone ends nothing.
"""

import ctypes
import json
import os
import signal
import sys
import threading
import time

PR_SET_CHILD_SUBREAPER = 36


def reap():
    while True:
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            time.sleep(0.02)


def children():
    for tid in os.listdir("/proc/self/task"):
        with open(f"/proc/self/task/{tid}/children") as file:
            yield from map(int, file.read().split())


def main():
    # Sent to a whole group of processes, it would end this one before the children; a handler is not theirs.
    signal.signal(signal.SIGTERM, lambda *_: None)
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    threading.Thread(target=reap, daemon=True).start()
    to_log = [(os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0), (os.POSIX_SPAWN_DUP2, 2, 1)]
    for line in sys.stdin:
        command = json.loads(line)
        print(os.posix_spawnp(command[0], command, os.environ, file_actions=to_log), flush=True)
    while left := list(children()):
        for pid in left:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        time.sleep(0.02)


if __name__ == "__main__":
    main()
