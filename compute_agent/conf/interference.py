"""Limits on guests that disturb others: a section ``[interference:NAME]`` for each signal."""

from typing import Final

from oslo_config import cfg

INTERFERENCE: Final = "interference:"

OPTS: Final = [
    cfg.StrOpt(
        "signal",
        choices=[
            ("run_delay", "share of the needed CPU time that the guest waits; suspects get a CPU quota"),
            ("cpu_pressure", "CPU pressure of the guest's cgroup; suspects get a CPU quota"),
            ("io_pressure", "I/O pressure of the guest's cgroup; suspects get less block I/O"),
            ("cpi", "CPU cycles that the guest needs for each instruction; suspects get a CPU quota"),
            (
                "memory_bandwidth",
                "CPU time that the guest needs for each byte of memory traffic; suspects"
                " get less memory bandwidth",
            ),
            (
                "llc_occupancy",
                "bytes of memory traffic of the guest for each second of CPU time; suspects"
                " get fewer cache ways",
            ),
        ],
        help="Signal that shows whether a guest is disturbed. The agent compares the signal with the usual"
        " value of the guest.",
    ),
    cfg.StrOpt(
        "mode",
        default="preview",
        choices=[
            ("preview", "the agent only logs, records and counts the guests that it would limit"),
            ("act", "the agent limits the suspect, and checks whether the limit helps"),
        ],
        help="Whether the agent limits suspects. A suspect is a guest that probably disturbs another guest.",
    ),
    cfg.ListOpt(
        "victims",
        default=[],
        help="Classes of guests that the agent protects. If the list is empty, the agent protects guests of"
        " all classes.",
    ),
    cfg.ListOpt(
        "consenting",
        default=[],
        help="Classes of guests that the agent is allowed to limit to protect another guest of the same"
        " class. The agent limits guests of other classes only to protect a guest of a higher class. The"
        " agent never limits a guest above [qos] highest_class.",
    ),
    cfg.IntOpt(
        "escalate_after",
        default=3,
        min=1,
        help="Number of times in a day after which the agent calls escalate_command. The agent counts how"
        " often a guest disturbs the same other guest.",
    ),
    cfg.StrOpt(
        "escalate_command",
        help="Program that the agent calls if a guest repeatedly disturbs another guest (see escalate_after)."
        " For example, the program migrates the guest that disturbs. The last argument of the program is the"
        " uuid of the guest that disturbs. The agent calls the program at most once a day for the same two"
        " guests, and ends it after ten minutes. Blanks separate arguments, and quotes work as in a shell,"
        " but no shell is started. The program gets PATH, HOME and similar environment variables of the"
        " agent, but no OS_* variables.",
    ),
]

SECTIONS: Final = {f"{INTERFERENCE}NAME": OPTS}
