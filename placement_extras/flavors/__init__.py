"""Flavors: Nova's request to Placement for a guest of a flavor that boots an image.

Nouns
    A *flavor* is the size of a guest with its *extra specs*; an *image* has *properties*. A flavor and an
    image spell one feature differently (``hw:cpu_policy`` and ``hw_cpu_policy``), and each feature has a rule
    that decides which of the two counts. Flavor and image together are a *guest*. The *translation* of a
    guest is a request for allocation candidates. An impossible guest is *refused*: the flavor and the image
    contradict each other or themselves.

Modules
    Module ``flavor`` has the nouns as they arrive; ``guest`` joins flavor and image. The modules ``pinning``
    and ``memory`` decide about CPUs, memory and NUMA nodes, and refuse. The traits that a guest needs come
    from ``features``, amounts and traits by suffix from ``groups``. If the operator wants it, ``affinity``
    asks for CPUs, memory and devices of one NUMA node, which Nova cannot request. Module ``spelling`` has the
    known names and warns of others. The request comes from ``translation``; ``form`` and ``options`` connect
    it to the API and the configuration.

A worked example
    vcpus 4, ram 2048, disk 10, swap 1500, with ``hw:cpu_policy=dedicated``, ``hw:cpu_thread_policy=isolate``
    and ``resources_GPU:VGPU=1``; it boots from an image. The CPUs are dedicated, so the request has 4 PCPU,
    on a host without hyperthreading. The disk is 10 GB and 2 GB of swap, which is rounded up:
    ``resources=PCPU:4,MEMORY_MB:2048,DISK_GB:12&required=!HW_CPU_HYPERTHREADING&resources_GPU=VGPU:1`` and
    ``root_required=!COMPUTE_STATUS_DISABLED``.

Invariants
    - Without rules of our own, Nova 34.0.0 is the judge: it sends the same query, or refuses the guest, too
      (``tests/nova/test_flavors.py``). A query that Placement would refuse is refused here at once.
      Unlike Nova, this service also requests its own resource classes. Texts that Nova drops because it does
      not understand them are dropped here, too, with a warning.
    - A translation depends on the flavor and the rules alone, so it is kept: equal flavors share one object.
"""
