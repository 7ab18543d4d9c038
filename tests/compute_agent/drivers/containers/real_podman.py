"""A real Podman with storage of its own in a folder, and an image made of a program of this host.

The containers have no network, and no limits apart from those of the agent. A host may have its controllers
of control groups in hierarchies of version 1. The service then runs in a mount namespace, in which
``/sys/fs/cgroup`` is the hierarchy of version 2 with the controllers that are left.

The infra container of a pod cannot be privileged, so a program in place of crun lets it use all devices:
rules for devices need CAP_SYS_RESOURCE.
"""

import contextlib
import os
import re
import shutil
import subprocess
import sys
import tarfile
import time
from pathlib import Path

from compute_agent.drivers.cgroup import GuestCgroup
from compute_agent.drivers.foreign.editor import HostFolders
from tests.waits import wait_for

GUEST = {"compute-agent.guest": "true"}
IMAGE_LABELS = {"compute-agent.class": "BE"}

_CONFIG = """\
[containers]
default_ulimits = ["nofile=1024:1024", "nproc=1024:1024"]
pids_limit = 0
"""

_RUNTIME = f"""\
#!{sys.executable}
import json, os, pathlib, sys
if "--bundle" in sys.argv:
    path = pathlib.Path(sys.argv[sys.argv.index("--bundle") + 1]) / "config.json"
    document = json.loads(path.read_text())
    document["linux"]["resources"]["devices"] = [{{"allow": True, "access": "rwm"}}]
    path.write_text(json.dumps(document))
os.execvp("crun", ["crun", *sys.argv[1:]])
"""

# The tests may run without CAP_SYS_RESOURCE and without the controller pids.
_LIMITS = ("--privileged", "--pids-limit=0", "--stop-signal=KILL")
_LIMITS += ("--ulimit=nofile=1024:1024", "--ulimit=nproc=1024:1024")
_SLEEP = ("sleep:test", "/bin/sleep", "600")

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
            "runtime": folder / "runtime",
        }
        options["runtime"].write_text(_RUNTIME)
        options["runtime"].chmod(0o755)
        (folder / "containers.conf").write_text(_CONFIG)
        command = ["podman", *(f"--{name}={value}" for name, value in options.items())]
        command += ["system", "service", "--time=0", f"unix://{self.path}"]
        if self.groups != _UNIFIED[0]:
            script = 'mount --make-rprivate / && mount -t cgroup2 none /sys/fs/cgroup && exec "$@"'
            command = ["unshare", "--mount", "sh", "-c", script, "sh", *command]
        self._stops = []
        self._log = (folder / "podman.log").open("wb")
        self._service = subprocess.Popen(
            command,
            stdout=self._log,
            stderr=subprocess.STDOUT,
            env=os.environ | {"CONTAINERS_CONF": str(folder / "containers.conf")},
        )
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

    def start(self, name, labels=GUEST, slow_stop=False):
        """Start a container.

        :param slow_stop: whether a stop takes as long as it may: the first process ignores SIGTERM.
        """
        return self.run(
            "run",
            "--detach",
            f"--name={name}",
            *(f"--label={key}={text}" for key, text in labels.items()),
            f"--cgroup-parent={self._parent}",
            *("--network=none", *_LIMITS, *(["--stop-signal=TERM"] if slow_stop else []), *_SLEEP),
        )

    def start_pod(self, name, labels=GUEST):
        """Start a pod with its infra container and a container."""
        key = self.run(
            *("pod", "create", f"--name={name}", f"--cgroup-parent={self._parent}", "--network=none"),
            *(f"--label={key}={text}" for key, text in labels.items()),
            *("--infra-image=sleep:test", "--infra-command=/bin/sleep 600", "--share=uts"),
        )
        # Podman 4.3 forbids all devices in this group if it has to make it without systemd.
        folder = self.groups / self._parent.strip("/") / key
        folder.rmdir()
        folder.mkdir()
        self.join_pod(name, f"{name}-1", {})
        return key

    def join_pod(self, pod, name, labels=GUEST):
        """Start a container in a pod."""
        settings = (f"--label={key}={text}" for key, text in labels.items())
        return self.run("run", "--detach", f"--pod={pod}", f"--name={name}", *settings, *_LIMITS, *_SLEEP)

    def stop_pod(self, name):
        self.run("pod", "stop", "--time=1", name)

    def stop(self, name):
        self.run("stop", "--time=1", name)

    def pause(self, name):
        self.run("pause", name)

    def begin_stop(self, name):
        """Begin to stop a container that does not end by itself."""
        self._stops.append(
            subprocess.Popen(["podman", f"--url=unix://{self.path}", "stop", "--time=90", name])
        )
        wait_for(lambda: self.run("inspect", "--format={{.State.Status}}", name) == "stopping")

    def restart(self, name):
        self.run("restart", "--time=1", name)

    def pids(self, name):
        return [int(self.run("inspect", "--format={{.State.Pid}}", name))]

    def is_running(self, name):
        return self.run("inspect", "--format={{.State.Running}}", name) == "true"

    def remove_all(self):
        self.run("pod", "rm", "--all", "--force", "--time=0")
        self.run("rm", "--all", "--force", "--time=0")

    def close(self):
        if self.path.exists():
            with contextlib.suppress(AssertionError, subprocess.SubprocessError):
                self.remove_all()
        self._service.terminate()
        self._service.wait(10)
        for stop in self._stops:
            stop.wait(10)
        self._log.close()
        GuestCgroup(self.groups / self._parent.lstrip("/")).remove()
