"""Noise: interruptions of guests by other work on their dedicated CPUs.

Nouns: a *cause* is one source of interruptions, such as ``interrupt 30 (eth0)`` or ``softirq NET_RX``. The
*tick* is the timer interrupt, which no setting at run time removes. *Run delay* is the time in which a ready
thread waited for its CPU. A *reading* has counters since boot; two readings give a rate.

Example: in 10 s CPU 2 has 2,500 ticks, 40 interrupts of eth0 and 40 softirqs NET_RX. The thread of the guest
CPU there was interrupted 3 times and waited 1.2 ms. The noise of CPU 2 is 4 interrupts and 4 softirqs a
second, 0.3 involuntary switches and 120 us of run delay a second.

The module :mod:`counters` reads counters, and compares two readings by pure functions. The module
:mod:`osnoise` runs the tracer of the kernel on CPUs that no guest holds.
"""
