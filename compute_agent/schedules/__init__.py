"""Schedules of guests' threads: realtime priority, and cookies of core scheduling.

Nouns: a *schedule* is the scheduling policy of a thread with its priority (sched(7)). A *cookie* is a number
that the kernel gives to threads: threads with different cookies never run on hardware threads of one core at
the same time (Documentation/admin-guide/hw-vuln/core-scheduling.rst). A *group* consists of the guests that
share a cookie: one guest, or all guests of a class.

Example: guests A and B of a class with ``core_scheduling = guest`` hold CPUs 2 and 6, the threads of one
core. While A runs on CPU 2, CPU 6 is idle or runs the kernel, and never runs B.

The module :mod:`realtime` chooses threads and their schedules, and sets these schedules. The module
:mod:`cookies` decides on cookies with a pure function, and gives cookies to threads. The module
:mod:`run_notes` stores notes of the guests with a priority or a cookie from the agent.

Invariants. A guest is noted on disk before its first priority or cookie. The agent never changes schedules
and cookies of other programs. A schedule or cookie counts as set by another program if its guest has no note.
A realtime schedule without the flag SCHED_RESET_ON_FORK also counts as set by another program. Two groups
have different cookies.
"""
