"""A libvirtd for tests, with real QEMU guests (domains of type ``qemu``, so that no KVM is needed).

As root, it is a system daemon with folders, mounts and a network of its own. As another user, it is a session
daemon below a folder of its own. Nothing of the system is touched, except for groups of the guests if cgroup
v1 has the controllers cpu and cpuset. Guests survive their libvirtd; stop() ends them. Each libvirtd claims
to be on a machine of its own, so that guests can migrate from one to another.
"""

import contextlib
import importlib.util
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from pathlib import Path
from xml.sax.saxutils import escape

from compute_agent.drivers import procfs
from tests.waits import wait_for

SECONDS = 60
EMULATOR = shutil.which("qemu-system-x86_64")
LIBVIRTD = shutil.which("libvirtd", path=f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin")
CGROUPS = Path("/sys/fs/cgroup")
CONTROLLERS = ("cpu", "cpuset")
CGROUP_CONTROLLERS = tuple(CGROUPS / name for name in CONTROLLERS)

# What the system daemon has to itself, as folders below its own one.
FOLDERS = ("/run", "/etc/libvirt", "/var/lib/libvirt", "/var/cache/libvirt", "/var/log/libvirt")

# Neither firewall nor bridges of the host are seen in a network namespace; a unified hierarchy beside
# version 1 has no controllers and confuses libvirt; without version 1 it shall see no cgroups at all.
SYSTEM_SCRIPT = """
set -e
[ -z "$1" ] || hostname "$1"
[ -z "$2" ] || ip link set lo up
shift 2
mount --make-rprivate /
while [ "$1" != -- ]; do mkdir -p "$1"; mount --bind "$2" "$1"; shift 2; done
shift
if [ -d /sys/fs/cgroup/cpuset ]
then ! mountpoint -q /sys/fs/cgroup/unified || umount /sys/fs/cgroup/unified
else mount -t tmpfs none /sys/fs/cgroup
fi
exec "$@"
"""

DAEMON_CONF = """
auth_unix_rw = "none"
auth_unix_ro = "none"
host_uuid = "{host_uuid}"
log_outputs = "3:stderr"
"""

QEMU_CONF = """
security_driver = "none"
stdio_handler = "file"
"""

SYSTEM_QEMU_CONF = """
user = "{user}"
group = "root"
security_default_confined = {confined}
namespaces = []
cgroup_controllers = [ {controllers} ]
"""

DOMAIN = """
<domain type='qemu'>
  <name>{name}</name>
  <uuid>{uuid}</uuid>
  <metadata>{metadata}</metadata>
  <memory unit='MiB'>32</memory>
  <vcpu>{vcpus}</vcpu>
  <iothreads>1</iothreads>
  <os><type arch='x86_64' machine='pc'>hvm</type></os>{label}
  <on_reboot>destroy</on_reboot>
  <devices>
    <emulator>{emulator}</emulator>
    <controller type='usb' model='none'/>
    <memballoon model='none'/>{disk}
  </devices>
</domain>
"""

DISK = """
    <disk type='file' device='disk'>
      <driver name='qemu' type='raw'/>
      <source file='{path}'/>
      <target dev='hda' bus='ide'/>
    </disk>"""

# cli; jmp $
ENDLESS_LOOP = b"\xfa\xeb\xfe".ljust(510, b"\0") + b"\x55\xaa"

_numbers = itertools.count(1)


class LibvirtMissing(Exception):
    """This machine cannot run a libvirtd. The text names the missing part."""


def find():
    """Check that everything for a libvirtd is installed.

    :raises LibvirtMissing: something is missing.
    """
    if LIBVIRTD is None:
        raise LibvirtMissing("libvirtd is not installed (package libvirt-daemon-system)")
    if EMULATOR is None:
        raise LibvirtMissing("QEMU is not installed (package qemu-system-x86)")
    if importlib.util.find_spec("libvirt") is None:
        raise LibvirtMissing(
            "libvirt-python is not installed (pip install libvirt-python, needs libvirt-dev)"
        )
    if os.geteuid() == 0 and subprocess.run(["unshare", "-m", "-n", "true"], check=False).returncode:
        raise LibvirtMissing("root may not make namespaces here")


class Libvirtd:
    """The daemon, and its guests as their users control them, for instance with virsh. The agent is not
    involved.
    """

    def __init__(
        self, user="root", default_confined=True, controllers=CONTROLLERS, hostname="", network=None
    ):
        """``user`` runs the guests of a system daemon; unless ``default_confined`` they get no security
        label.

        ``controllers`` are the controllers of cgroup v1 for which guests get groups, if the machine has all
        of them. ``hostname`` is the name of the host that a system daemon reports. ``network`` is the network
        of another running daemon, which is then shared, so that guests can migrate between both daemons over
        loopback.
        """
        find()
        self._hostname, self._network = hostname, network
        self.folder = Path(tempfile.mkdtemp(prefix="libvirtd-", dir="/tmp"))  # UNIX sockets have short names
        self.is_system = os.geteuid() == 0
        self._groups = [CGROUPS / name for name in controllers]
        self.has_cgroups = self.is_system and all(path.is_dir() for path in self._groups)
        self._pid = 0
        self._connection = None
        (self.folder / "daemon.conf").write_text(
            DAEMON_CONF.format(host_uuid=uuid.uuid4())
            + (f'unix_sock_dir = "{self.folder}"\n' if self.is_system else "")
        )
        for name in (*FOLDERS, "/.config/libvirt"):
            self._own(name).mkdir(parents=True)
        if self.is_system:
            (self._own("/etc/libvirt") / "qemu.conf").write_text(
                QEMU_CONF
                + SYSTEM_QEMU_CONF.format(
                    user=user,
                    confined=int(default_confined),
                    controllers=", ".join(f'"{name}"' for name in controllers),
                )
            )
            self.uri = f"qemu:///system?socket={self.folder}/libvirt-sock"
        else:
            (self._own("/.config/libvirt") / "qemu.conf").write_text(QEMU_CONF)
            self.uri = f"qemu:///session?socket={self._own('/run')}/libvirt/libvirt-sock"

        self._keeper = self._start_keeper()

    @property
    def hooks(self):
        """The folder in which a system daemon looks for hooks when it starts."""
        return self._own("/etc/libvirt/hooks")

    # The daemon

    def start(self):
        """Start the daemon and wait until it answers."""
        command = [LIBVIRTD, "-f", self.folder / "daemon.conf", "-p", self.folder / "daemon.pid"]
        if self.is_system:
            pairs = (word for name in FOLDERS for word in (name, self._own(name)))
            script = [SYSTEM_SCRIPT, "libvirtd", self._hostname, "up" if self._hostname else "", *pairs, "--"]
            command = [*self._namespaces(), "sh", "-c", *script, *command]
        self._keeper.stdin.write(json.dumps(list(map(str, command))) + "\n")
        self._keeper.stdin.flush()
        self._pid = int(self._keeper.stdout.readline())

        def connects():
            assert procfs.identify_process(self._pid), self.log()
            return self._connects()

        wait_for(connects, "libvirtd answers", evidence=self.log)

    def kill(self):
        """End the daemon without warning. Its guests keep running."""
        self._disconnect()
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._pid, signal.SIGKILL)
        while procfs.identify_process(self._pid):
            time.sleep(0.01)

    @contextlib.contextmanager
    def hanging(self):
        """Let the daemon accept calls and answer none, until the context ends. Its guests keep running."""
        self._disconnect()
        os.kill(self._pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(self._pid, signal.SIGCONT)

    def stop(self):
        """End the daemon and its guests, and remove everything that they have made."""
        self._disconnect()
        self._keeper.communicate(timeout=SECONDS)
        shutil.rmtree(self.folder, ignore_errors=True)
        for path in self._groups if self.has_cgroups else ():
            for folder in sorted(path.glob(f"machine/qemu-*{self.folder.name}*/**/"), reverse=True):
                with contextlib.suppress(OSError):
                    folder.rmdir()
            with contextlib.suppress(OSError):
                (path / "machine").rmdir()

    def log(self):
        """The output of the daemon."""
        return (self.folder / "log").read_text()

    # Guests

    def xml(self, guest_uuid=None, vcpus=2, metadata="", name=None, busy=False, label=""):
        """The definition of a small guest that has nothing to boot. With ``busy``, the guest boots an endless
        loop.

        ``label`` is the element <seclabel>; without it the definition has no such element.
        """
        guest_uuid = guest_uuid or str(uuid.uuid4())
        name = name or f"{self.folder.name}-{next(_numbers)}"
        disk = ""
        if busy:
            path = self.folder / f"{guest_uuid}.img"
            path.write_bytes(ENDLESS_LOOP)
            disk = DISK.format(path=escape(str(path)))
        return DOMAIN.format(
            name=escape(name),
            uuid=guest_uuid,
            vcpus=vcpus,
            metadata=metadata,
            emulator=EMULATOR,
            disk=disk,
            label=label,
        )

    def run(self, guest_uuid=None, persistent=False, **options):
        """Start a guest and return its libvirt domain."""
        xml = self.xml(guest_uuid, **options)
        if not persistent:
            return self.connection.createXML(xml)
        domain = self.connection.defineXML(xml)
        domain.create()
        return domain

    def end_guests(self):
        """Destroy all guests and remove their definitions."""
        for domain in self.connection.listAllDomains():
            with contextlib.suppress(self.libvirt.libvirtError):
                domain.destroy()
            with contextlib.suppress(self.libvirt.libvirtError):
                domain.undefine()

    def process(self, domain):
        """The process id of a guest's QEMU, from libvirt's own record."""
        run = self._own("/run") / "libvirt/qemu" / ("" if self.is_system else "run")
        return int((run / f"{domain.name()}.pid").read_text())

    @property
    def connection(self):
        """A connection to the daemon that only the test uses."""
        assert self._connects()
        return self._connection

    @property
    def libvirt(self):
        """The module libvirt-python, which is not installed on every machine."""
        import libvirt

        return libvirt

    def _connects(self):
        if self._connection is None:
            self.libvirt.registerErrorHandler(lambda context, error: None, None)
            with contextlib.suppress(self.libvirt.libvirtError):
                self._connection = self.libvirt.open(self.uri)
        return self._connection is not None

    def _disconnect(self):
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(self.libvirt.libvirtError):
                connection.close()

    def _namespaces(self):
        """The beginning of a command that runs in its own mount namespace and network, and with its own
        hostname if given.
        """
        own = ["unshare", "-m", *(["-u"] if self._hostname else [])]
        if self._network is None:
            return [*own, "-n"]
        return ["nsenter", f"--net=/proc/{self._network._pid}/ns/net", *own]

    def _start_keeper(self):
        environment = dict(os.environ)
        if not self.is_system:
            environment |= {
                "XDG_RUNTIME_DIR": str(self._own("/run")),
                "HOME": str(self._own("/")),
            }
            for name in ("XDG_CONFIG_HOME", "XDG_CACHE_HOME", "XDG_DATA_HOME"):
                environment.pop(name, None)
        with open(self.folder / "log", "ab") as log:
            return subprocess.Popen(
                [sys.executable, "-S", "-E", Path(__file__).with_name("keeper.py")],
                env=environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )

    def _own(self, name):
        return self.folder / "root" / name.lstrip("/")


def thread_cpus(pid):
    """The CPUs on which each thread may run, as text, by name of the thread, from /proc/PID/task/*/status."""
    found = {}
    for tid in procfs.thread_ids(pid):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it ended just now
            lines = Path(f"/proc/{pid}/task/{tid}/status").read_text().splitlines()
            fields = dict(line.split(":\t", 1) for line in lines if ":\t" in line)
            found.setdefault(fields["Name"], set()).add(fields["Cpus_allowed_list"])
    return found
