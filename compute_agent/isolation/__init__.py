"""Isolation of dedicated CPUs: interrupts and the kernel's own work keep off them while a guest asks for it.

Nouns: a *mask* is a file of the kernel with the CPUs that some work may use. Masks are of interrupts and new
interrupts, unbound workqueues, kernel threads, the lockup watchdog, packet steering, and control groups with
processes of the host. A *quiet* CPU is a dedicated one of a guest with the level ``quiet`` or ``alone``. With
``alone`` it is in a *partition* as well: the kernel keeps all other work off. A *sink* is a CPU that the work
may go to. The *original* of a mask is its content without the agent.

Example: CPUs 0-1 are shared, 2-7 dedicated. A guest with level ``quiet`` holds 2-3. The default mask ``ff``
becomes ``3``, an interrupt bound to CPU 2 goes to CPU 0 or 1, and one bound to CPU 5 stays. When the guest
ends, all masks have their originals again, byte for byte.

The module :mod:`facts` reads the masks. The module :mod:`decision` is a pure function of facts, demand and
originals. The module :mod:`control_groups` finds groups of the host and of guests, and :mod:`partitions`
decides about partitions in the same way. The module :mod:`irqbalance` has irqbalance keep off quiet CPUs, and
:mod:`surroundings` finds boot options and other programs that matter to them. The module :mod:`originals`
keeps originals on disk, and :mod:`shell` writes the difference and reads it back.

Invariants. No mask is written before its original is on disk. Masks never touch CPUs that another guest
holds because of the agent. A mask that another program changes has that change as its original from then on.
Masks that touch no quiet CPU are at their originals. The kernel's answer counts, not the return of a write.
"""
