"""Isolation of dedicated CPUs: keeps interrupts and kernel work off the CPUs of guests that demand this.

Nouns: a *mask* is a kernel file with the CPUs that some kind of work may use. There are masks for each
interrupt, for new interrupts, unbound workqueues, kernel threads, the lockup watchdog and packet steering.
The CPU sets of control groups with processes of the host are masks, too. A *quiet* CPU is a dedicated CPU of
a guest with the level ``quiet`` or ``alone``. With ``alone`` the CPU is also in a cpuset *partition*, from
which the kernel keeps all other work. A *sink* is a CPU to which the work can move. The *original* of a mask
is the content that it would have without the agent.

Example: CPUs 0-1 are shared, and CPUs 2-7 are dedicated. A guest with level ``quiet`` holds 2-3. The default
mask ``ff`` becomes ``3``, an interrupt bound to CPU 2 goes to CPU 0 or 1, and an interrupt bound to CPU 5
stays there. When the guest ends, the agent restores the originals of all masks, byte for byte.

The module :mod:`facts` reads the masks. The module :mod:`decision` is a pure function of facts, demand and
originals. The module :mod:`control_groups` finds control groups of the host and of guests. The module
:mod:`partitions` reads and decides partitions in the same way. The module :mod:`irqbalance` makes irqbalance
avoid quiet CPUs, and :mod:`surroundings` finds boot options and programs that affect quiet CPUs. The module
:mod:`originals` keeps originals on disk, and :mod:`shell` writes the masks that differ and reads them back.

*Noise* is the work that still interrupts guests on their dedicated CPUs. A *cause* is one source of
interruptions, such as ``interrupt 30 (eth0)`` or ``softirq NET_RX``. The *tick* is the timer interrupt, which
no setting at run time removes. *Run delay* is the time in which a ready thread waited for its CPU. A
*reading* has counters since boot; two readings give a rate. The module :mod:`noise` reads counters, and
compares two readings by pure functions. The module :mod:`osnoise` runs the tracer of the kernel on CPUs that
no guest holds.

Example: in 10 s CPU 2 has 2,500 ticks, 40 interrupts of eth0 and 40 softirqs NET_RX. The thread of the guest
CPU there was interrupted 3 times and waited 1.2 ms. The noise of CPU 2 is 4 interrupts and 4 softirqs a
second, 0.3 involuntary switches and 120 us of run delay a second.

Invariants. No mask is written before its original is on disk. The agent never moves work to CPUs that a guest
holds. If another program changes a mask, the new content becomes the original. If the original of a mask
contains no quiet CPU, the agent gives the mask its original content. After a write the agent reads the mask
back, because a write without an error can have no effect.
"""
