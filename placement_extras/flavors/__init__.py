"""Flavors: what Nova would ask Placement for, for a guest of a flavor that boots an image.

Nouns
    A *flavor* is the size of a guest with its *extra specs*; an *image* has *properties*. Both speak of the
    same things in two spellings (``hw:cpu_policy`` and ``hw_cpu_policy``), and which of them counts is a rule
    for each. What both say together is a *guest*. Its *translation* is a request for allocation candidates.
    A guest that cannot be is *refused*: the flavor and the image contradict each other or themselves.

Who does what
    ``flavor`` and ``properties`` are the nouns as they come in; ``guest`` puts them together. ``pinning``,
    ``numa`` and ``memory`` decide about CPUs, nodes and memory, ``limits`` about what a guest may be beside
    that: they refuse. ``features`` says which traits all that needs, ``groups`` gathers amounts and traits by
    suffix, ``spelling`` knows which names mean something and warns of others, and ``translate`` is the door,
    through which the request comes out.

A worked example
    vcpus 4, ram 2048, disk 10, swap 1500, with ``hw:cpu_policy=dedicated``, ``hw:cpu_thread_policy=isolate``
    and ``resources_GPU:VGPU=1``; it boots from an image. CPUs are dedicated, so that 4 PCPU are asked for, on
    a host without hyperthreading; the disk is 10 GB and 2 GB of swap, which is rounded up:
    ``resources=PCPU:4,MEMORY_MB:2048,DISK_GB:12&required=!HW_CPU_HYPERTHREADING&resources_GPU=VGPU:1`` and
    ``root_required=!COMPUTE_STATUS_DISABLED``.

What always holds
    - Nova 34.0.0 is the judge: it would send the same query, or refuse the guest as well
      (``tests/nova/test_flavors.py``). What it would send and Placement then refuse is refused here at once.
      This service also asks for its own resource classes, which Nova drops. What Nova drops because it does
      not understand it is dropped here, too, with a warning.
    - Nothing is asked of anybody: the same flavor has the same translation, which is the same object.
"""
