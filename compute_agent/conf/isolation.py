"""Section ``[isolation]``: the treatment of emulator and helper threads, if another program pins guests."""

from typing import Final

from oslo_config import cfg

MOVE: Final = "move"

OPTS: Final = [
    cfg.StrOpt(
        "emulator",
        default="leave",
        choices=[
            (
                "leave",
                "threads stay where the other program pins them; `compute-agent audit` and `compute-agent"
                " guest verify` list them",
            ),
            (MOVE, "threads go to shared CPUs, if possible of the guest's NUMA nodes"),
        ],
        help="Treatment of helper threads of a guest that run on the guest's dedicated CPUs, if [policy] name"
        " is follow. Helper threads are emulator threads, I/O threads, workers of vhost, and programs such as"
        " swtpm. Nova leaves helper threads on dedicated CPUs, unless cpu_shared_set and"
        " hw:emulator_threads_policy move them. If [policy] name is neither follow nor none, the agent places"
        " helper threads by the guest's setting emulator_policy.",
    ),
]

SECTIONS: Final = {"isolation": OPTS}
