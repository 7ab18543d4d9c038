"""A real Podman with storage of its own in a folder, and an image made of a program of this host.

The containers have no network, and no limits apart from those of the agent. A host may have its controllers
of control groups in hierarchies of version 1. The service then runs in a mount namespace, in which
``/sys/fs/cgroup`` is the hierarchy of version 2 with the controllers that are left.
"""

import contextlib
import os
import re
import shutil
import subprocess
import tarfile
import time
from pathlib import Path

from compute_agent.drivers import procfs
from compute_agent.drivers.cgroup import GuestCgroup
from compute_agent.drivers.foreign.editor import HostFolders
from tests.waits import wait_for

GUEST = {"compute-agent.guest": "true"}
IMAGE_LABELS = {"compute-agent.class": "BE"}

_UNIFIED = (Path("/sys/fs/cgroup"), Path("/sys/fs/cgroup/unified"))


def missing_reason():
    """The reason why Podman cannot run containers here; empty if it may be able to."""
    if shutil.which("podman") is None:
        return "needs podman (tests/install-packages.sh installs it)"
    if os.geteuid() != 0:
        return "needs root"
    if not any((folder / "cgroup.controllers").exists() for folder in _UNIFIED):
        return "needs control groups of version 2"
    return ""


def pack_sleep(archive):
    """Write an archive with the program `sleep` of this host, which is enough for an image."""
    program = Path(shutil.which("sleep")).resolve()
    linked = subprocess.run(["ldd", program], check=True, capture_output=True, text=True, timeout=60).stdout
    with tarfile.open(archive, "w") as tar:
        tar.add(program, "bin/sleep")
        for library in re.findall(r"(/\S+) \(0x", linked):
            tar.add(os.path.realpath(library), library.lstrip("/"))


class RealPodman:
    """Podman's service and its containers."""

    group_path = staticmethod(procfs.cgroup_path)

    def __init__(self, folder):
        self.path = folder / "podman.sock"
        self.groups = next(one for one in _UNIFIED if (one / "cgroup.controllers").exists())
        self.folders = HostFolders(Path("/"), self.groups)
        self._parent = f"/compute-agent-{os.getpid()}-{time.monotonic_ns()}"
        options = {
            "root": folder / "root",
            "runroot": folder / "run",
            "tmpdir": folder / "tmp",
            "cgroup-manager": "cgroupfs",
            "storage-driver": "vfs",
            "events-backend": "file",
        }
        command = ["podman", *(f"--{name}={value}" for name, value in options.items())]
        command += ["system", "service", "--time=0", f"unix://{self.path}"]
        if self.groups != _UNIFIED[0]:
            script = 'mount --make-rprivate / && mount -t cgroup2 none /sys/fs/cgroup && exec "$@"'
            command = ["unshare", "--mount", "sh", "-c", script, "sh", *command]
        self._log = (folder / "podman.log").open("wb")
        self._service = subprocess.Popen(command, stdout=self._log, stderr=subprocess.STDOUT)
        try:
            wait_for(self.path.exists)
            self._import_image(folder)
        except BaseException:
            self.close()
            raise

    def _import_image(self, folder):
        archive = folder / "image.tar"
        pack_sleep(archive)
        changes = [f"--change=LABEL {key}={text}" for key, text in IMAGE_LABELS.items()]
        self.run("import", *changes, str(archive), "sleep:test")

    def run(self, *arguments):
        """A command of Podman, as a client of the service."""
        done = subprocess.run(
            ["podman", f"--url=unix://{self.path}", *arguments],
            check=False,
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def start(self, name, labels=GUEST):
        return self.run(
            "run",
            "--detach",
            f"--name={name}",
            *(f"--label={key}={text}" for key, text in labels.items()),
            f"--cgroup-parent={self._parent}",
            # The tests may run without CAP_SYS_RESOURCE and without the controller pids.
            *("--network=none", "--privileged", "--pids-limit=0", "--stop-signal=KILL"),
            *("--ulimit=nofile=1024:1024", "--ulimit=nproc=1024:1024", "sleep:test", "/bin/sleep", "600"),
        )

    def stop(self, name):
        self.run("stop", "--time=1", name)

    def restart(self, name):
        self.run("restart", "--time=1", name)

    def pids(self, name):
        return [int(self.run("inspect", "--format={{.State.Pid}}", name))]

    def is_running(self, name):
        return self.run("inspect", "--format={{.State.Running}}", name) == "true"

    def remove_all(self):
        self.run("rm", "--all", "--force", "--time=0")

    def close(self):
        if self.path.exists():
            with contextlib.suppress(AssertionError, subprocess.SubprocessError):
                self.remove_all()
        self._service.terminate()
        self._service.wait(10)
        self._log.close()
        GuestCgroup(self.groups / self._parent.lstrip("/")).remove()
