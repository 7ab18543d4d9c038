"""Real guests on one CPU, one working and one that begins to burn, and the cost of the watches.

    python -m benchmarks.interference_guests --qemu            # two minutes; needs libvirt with quotas
    python -m benchmarks.interference_guests --cost 100        # CPU time of the daemon with 100 guests

The agent is the real one with libvirt and QEMU. Only its clock for decisions runs ten times as fast, so that
five minutes of learning take thirty seconds (``--speed 1``: real time). Measurements use the real clock.
"""

import argparse
import shutil
import sys
import tempfile
import time
import uuid
from dataclasses import replace
from pathlib import Path

from benchmarks.agent_cost import cpu_seconds
from benchmarks.watermark_guests import BATCH, busy_sector, libvirt_bench, process_bench, wait_for
from compute_agent import conf as agent_conf
from compute_agent.agent import service
from compute_agent.drawing.svg import COLOURS, ChartCurve, ChartPanel, draw_chart
from compute_agent.events.store import FILE, read_events
from compute_agent.loops import triggers
from compute_agent.throttling.interference.cases import CasePhase
from compute_agent.throttling.interference.signals import SIGNALS
from tests.compute_agent.libvirtd import CGROUP_CONTROLLERS
from tests.compute_agent.servers import running

CAPACITY = "[capacity]\nmode = preview\nmemory = true\nsteal = preview\n"
WATCH = "[interference:cpu]\nsignal = run_delay\nmode = act\n"


class FastAgent:
    """An agent in this process with a clock for decisions that runs ``speed`` times as fast."""

    def __init__(self, ini, speed):
        self.speed, self.samples = speed, []
        triggers.INTERVAL = 10.0 / speed
        self.agent = service.HostAgent(lambda: agent_conf.load([], [str(ini)]))
        self.loop = self.agent.parts.interference
        self.loop._clock = self.scaled_clock
        self._read = self.loop._reader.read_guests
        self.loop._reader.read_guests = self.read
        self.agent.start()

    def scaled_clock(self):
        return time.monotonic() * self.speed

    def read(self, views, online, signals, now, caches):
        """Read guests by the real clock, and return the sample with the time of the fast clock."""
        sample = self._read(views, online, signals, time.monotonic(), caches)
        if sample is None:
            return None
        sample = replace(sample, time=now)
        self.samples.append((sample, {view.guest.uuid: dict(view.limits) for view in views}))
        return sample

    def sleep_scaled(self, count):
        """Sleep for a number of seconds of the fast clock."""
        time.sleep(count / self.speed)


def watch_disturbance(bench, libvirtd, speed, svg):
    """Run a guest from calm over disturbed to restored; print the events of the agent, and draw them."""
    server, batch = str(uuid.uuid4()), str(uuid.uuid4())
    fast = FastAgent(bench.folder / "agent.ini", speed)
    try:
        for guest, metadata, millions in ((server, "", 400), (batch, BATCH, 400)):
            xml = libvirtd.xml(
                guest, vcpus=1, metadata=metadata, busy=True, name=("server", "batch")[guest == batch]
            )
            (libvirtd.folder / f"{guest}.img").write_bytes(busy_sector(millions))
            domain = libvirtd.connection.createXML(xml)
            if guest == batch:
                domain.suspend()
        (CGROUP_CONTROLLERS[0] / "machine/cpu.shares").write_text("20480")
        began = time.monotonic()
        wait_for(lambda: len(fast.samples) > 45)
        onset = time.monotonic()
        domain.resume()
        wait_for(lambda: any(one[1].get(batch) for one in fast.samples[-1:]))
        limited = time.monotonic()
        wait_for(lambda: any(case.phase is CasePhase.HOLD for case in fast.loop._trigger.state.cases))
        fast.sleep_scaled(120)
        domain.suspend()
        wait_for(lambda: not fast.loop._trigger.state.cases)
        ended = time.monotonic()
        fast.sleep_scaled(60)
    finally:
        fast.agent.stop()
        libvirtd.end_guests()
    print(
        f"begun at {speed * (onset - began):.0f} s, limited at {speed * (limited - began):.0f} s,"
        f" all given back at {speed * (ended - began):.0f} s\n"
    )
    for event in read_events(bench.folder / "state" / FILE):
        if event.kind in ("verdict", "throttle_down", "throttle_up"):
            when = speed * (event.time - time.time() + time.monotonic() - began)
            print(f"{when:6.0f} s  {event.text}")
    if svg:
        svg.write_text(_draw_guests(fast.samples, server, batch))


def _draw_guests(samples, server, batch):
    first = samples[0][0].time
    waits, uses, limits = [], [], []
    for sample, has in samples:
        when = sample.time - first
        if (one := sample.readings.get(server)) and one.delay is not None and one.cpu:
            waits.append((when, 100 * one.delay / (one.cpu + one.delay)))
        if (one := sample.readings.get(batch)) and one.cpu is not None:
            uses.append((when, one.cpu))
            limits.append((when, min([1.0, *has.get(batch, {}).values()])))
    return draw_chart(
        "Two QEMU guests on one CPU",
        [
            ChartPanel(
                "Server waits for its CPU (% of the time it wants to run)",
                [ChartCurve("waits", COLOURS[0], waits)],
            ),
            ChartPanel(
                "Batch job (cores)",
                [ChartCurve("uses", COLOURS[1], uses), ChartCurve("may use", COLOURS[2], limits)],
            ),
        ],
        0.0,
        samples[-1][0].time - first,
        25.0,
    )


def measure_signals(bench, guests, seconds):
    """Print the agent's CPU time in percent of a core, for five configurations.

    These are: no watch, one watch, [capacity] as well, all signals as well, and no watch again. Each guest
    has four processes.
    """
    for _ in range(guests):
        bench.ask_agent(
            "guest.run",
            command=["sh", "-c", "sleep 3600 & sleep 3600 & sleep 3600 & wait"],
            qos_class="BATCH",
        )
    pid, found = bench.agent.process.pid, []
    every = "".join(f"[interference:{name}]\nsignal = {name}\n" for name in SIGNALS)
    for more in ("", WATCH, WATCH + CAPACITY, every + CAPACITY, ""):
        bench.write_config(more)
        bench.ask_agent("status")
        bench.agent.process.send_signal(1)
        time.sleep(15)
        before = cpu_seconds(pid)
        time.sleep(seconds)
        found.append(100 * (cpu_seconds(pid) - before) / seconds)
    print("| guests | nothing, % of a core | run_delay | and capacity | all signals | nothing again |")
    print("| ---: | ---: | ---: | ---: | ---: | ---: |")
    print(f"| {guests} | {' | '.join(f'{one:.2f}' for one in found)} |")


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.interference_guests",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--qemu", action="store_true")
    parser.add_argument("--speed", type=float, default=10.0)
    parser.add_argument("--step", type=int, default=20, help="[qos] step")
    parser.add_argument("--svg", type=Path, metavar="FILE", help="draw the events to this file")
    parser.add_argument("--seconds", type=int, default=60, help="length of each measurement of the cost")
    parser.add_argument("--cost", type=int, nargs="*", default=[], metavar="GUESTS")
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="interference-guests-"))
    try:
        with running("ours", folder) as url:
            if arguments.qemu:
                _run_qemu(folder, url, arguments)
            for guests in arguments.cost:
                with process_bench(folder / f"cost-{guests}", url) as bench:
                    measure_signals(bench, guests, arguments.seconds)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return 0


def _run_qemu(folder, url, arguments):
    with libvirt_bench(folder, url) as (bench, libvirtd):
        bench.write_config(f"{WATCH}[qos]\nstep = {arguments.step}\n")
        ini = bench.folder / "agent.ini"
        ini.write_text(ini.read_text().replace("cpu_shared_set = 0-1", "cpu_shared_set = 1"))
        watch_disturbance(bench, libvirtd, arguments.speed, arguments.svg)


if __name__ == "__main__":
    sys.exit(main())
