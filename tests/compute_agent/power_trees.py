"""Fake files of cpufreq, cpuidle and intel_uncore_frequency, as on two real machines, with the kernel's
reactions to writes.

:func:`xeon`: two packages of an Intel Xeon Gold 6338 (intel_pstate, active, with hardware P-states): a policy
for each CPU. :func:`epyc`: an AMD EPYC 7702 under acpi-cpufreq: CPUs that the firmware has coordinated share
one policy.
"""

import errno

from compute_agent.controllers.cpu_class import KernelFiles
from compute_agent.model import cpuset

CPUS = "sys/devices/system/cpu"


def xeon(root, cpus=8):
    """The files of an Intel Xeon with two packages. The first half of the CPUs is package 0."""
    for cpu in range(cpus):
        policy = {
            "affected_cpus": f"{cpu}",
            "related_cpus": f"{cpu}",
            "base_frequency": "2000000",
            "cpuinfo_max_freq": "3200000",
            "cpuinfo_min_freq": "800000",
            "energy_performance_available_preferences": (
                "default performance balance_performance balance_power power "
            ),
            "energy_performance_preference": "balance_performance",
            "scaling_available_governors": "performance powersave",
            "scaling_driver": "intel_pstate",
            "scaling_governor": "powersave",
            "scaling_max_freq": "3200000",
            "scaling_min_freq": "800000",
        }
        _make(root, f"{CPUS}/cpufreq/policy{cpu}", policy)
        _cpu(root, cpu, cpu // (cpus // 2), ("POLL", "C1", "C1E", "C6"), f"policy{cpu}")
    for package in (0, 1):
        uncore = {
            "initial_max_freq_khz": "2400000",
            "initial_min_freq_khz": "800000",
            "max_freq_khz": "2400000",
            "min_freq_khz": "800000",
        }
        _make(root, f"{CPUS}/intel_uncore_frequency/package_0{package}_die_00", uncore)
    return _host(root, cpus)


def epyc(root, cpus=8, shared=4):
    """The files of an AMD EPYC, in which groups of ``shared`` CPUs have one frequency."""
    for first in range(0, cpus, shared):
        members = " ".join(map(str, range(first, first + shared)))
        policy = {
            "affected_cpus": members,
            "related_cpus": members,
            "cpuinfo_max_freq": "2000000",
            "cpuinfo_min_freq": "1500000",
            "scaling_available_frequencies": "2000000 1800000 1500000 ",
            "scaling_available_governors": "conservative ondemand userspace powersave performance schedutil ",
            "scaling_driver": "acpi-cpufreq",
            "scaling_governor": "schedutil",
            "scaling_max_freq": "2000000",
            "scaling_min_freq": "1500000",
            "scaling_setspeed": "<unsupported>",
        }
        _make(root, f"{CPUS}/cpufreq/policy{first}", policy)
    for cpu in range(cpus):
        _cpu(root, cpu, 0, ("POLL", "C1", "C2"), f"policy{cpu // shared * shared}")
    return _host(root, cpus)


def _cpu(root, cpu, package, states, policy):
    folder = f"{CPUS}/cpu{cpu}"
    _make(root, f"{folder}/topology", {"physical_package_id": str(package), "die_id": "0"})
    for number, name in enumerate(states):
        _make(root, f"{folder}/cpuidle/state{number}", {"name": name, "disable": "0"})
    if cpu:  # the first one cannot be taken offline
        _make(root, folder, {"online": "1"})
    (root / folder / "cpufreq").symlink_to(f"../cpufreq/{policy}")


def _host(root, cpus):
    _make(root, CPUS, {"online": f"0-{cpus - 1}", "present": f"0-{cpus - 1}"})
    _make(root, "proc/sys/kernel/random", {"boot_id": "boot-1"})
    return KernelFiles(root)


def _make(root, folder, files):
    (root / folder).mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (root / folder / name).write_text(f"{text}\n")


class KernelFiles(KernelFiles):
    """Files that check writes as the kernel does, with the same side effects.

    A minimum above the maximum is refused with EINVAL, as before Linux 5.3, or is reduced to the maximum. An
    unknown governor or preference is refused with EINVAL. With the governor performance, intel_pstate sets
    the matching preference, and refuses others with EBUSY.
    """

    def __init__(self, root):
        super().__init__(root)
        self.writes, self.broken, self.clamps, self.ceiling = [], {}, False, None
        self._preferences = {}

    def set(self, path, text):
        """Write a file, as a program other than the agent does."""
        (self.root / path).write_text(f"{text}\n")

    def write(self, path, text):
        folder, _, name = path.rpartition("/")
        assert (self.root / path).is_file()
        if path in self.broken:
            raise OSError(self.broken[path], "broken")
        self.writes.append((path, text))
        if name == "scaling_governor":
            self._must_be_in(text, f"{folder}/scaling_available_governors")
            preference = f"{folder}/energy_performance_preference"
            if self.read(f"{folder}/scaling_driver") == "intel_pstate" and text != self.read(path):
                if text == "performance":
                    self._preferences[folder] = self.read(preference)
                    self.set(preference, "performance")
                else:
                    self.set(preference, self._preferences.pop(folder, "balance_performance"))
        elif name == "energy_performance_preference":
            self._must_be_in(text, f"{folder}/energy_performance_available_preferences")
            if self.read(f"{folder}/scaling_governor") == "performance" != text:
                raise OSError(errno.EBUSY, "busy")
        elif name.startswith(("scaling_min", "min_")):
            text = self._bounded(text, folder, name.replace("min", "max"), max)
        elif name.startswith(("scaling_max", "max_")):
            if self.ceiling:
                text = str(min(int(text), self.ceiling))
            text = self._bounded(text, folder, name.replace("max", "min"), min)
        elif name == "disable":
            assert text in "01"
        elif name == "online":
            self._switch(int(folder.rpartition("/cpu")[2]), text == "1")
        else:
            raise AssertionError(path)
        self.set(path, text)

    def _switch(self, cpu, on):
        """Take a CPU offline or online. The files of an offline CPU are hidden, and come back unchanged."""
        online = cpuset.parse(self.read(f"{CPUS}/online"))
        assert on != (cpu in online)
        self.set(f"{CPUS}/online", cpuset.format(online | {cpu} if on else online - {cpu}))
        hidden = self.root / "hidden" / str(cpu)
        for name in ("topology", "cpuidle", "cpufreq", "cache"):
            there, away = self.root / CPUS / f"cpu{cpu}" / name, hidden / name
            one, other = (away, there) if on else (there, away)
            if one.is_symlink() or one.exists():
                other.parent.mkdir(parents=True, exist_ok=True)
                one.rename(other)
        policy, away = self.root / CPUS / f"cpufreq/policy{cpu}", hidden / f"policy{cpu}"
        if (policy / "related_cpus").is_file() and self.read(
            f"{CPUS}/cpufreq/policy{cpu}/related_cpus"
        ) == str(cpu):
            policy.rename(away)
        elif on and away.exists():
            away.rename(policy)

    def _must_be_in(self, text, path):
        if text not in self.read(path).split():
            raise OSError(errno.EINVAL, "unknown")

    def _bounded(self, text, folder, other, order):
        has = int(self.read(f"{folder}/{other}"))
        if order(int(text), has) == has or self.clamps:
            return str({max: min, min: max}[order](int(text), has))
        raise OSError(errno.EINVAL, "inverted")
