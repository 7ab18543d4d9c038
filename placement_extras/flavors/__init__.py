"""Translates a flavor and an image to the request that Nova would send to Placement for such a guest.

Nouns
    A *flavor* has the size of a guest and *extra specs*; an *image* has *properties*. A feature has different
    names in a flavor and in an image (``hw:cpu_policy`` and ``hw_cpu_policy``). If flavor and image have
    different values for a feature, a rule for this feature decides which value counts. A flavor and an image
    together are a *guest*. The *translation* of a guest is a request for allocation candidates. A guest is
    *refused* if the flavor and the image contradict each other, or if one of them contradicts itself.

Modules
    ``flavor`` has the classes for flavors and images; ``guest`` combines a flavor and an image. ``pinning``
    and ``memory`` read the requirements for CPUs, memory and NUMA nodes, and refuse impossible guests.
    ``groups`` builds the groups of the request, each with its suffix, amounts and traits. ``spelling`` has
    all known names of extra specs and properties, and warns of unknown names. ``translation`` makes the
    request, with the traits that a guest needs. If the option ``numa_affinity`` is set, it requests CPUs,
    memory and devices of one NUMA node. Nova cannot make such a request. ``form`` reads flavors in requests
    to the API, and ``options`` has the options of the configuration.

A worked example
    A flavor has vcpus 4, ram 2048, disk 10 and swap 1500. Its extra specs are ``hw:cpu_policy=dedicated``,
    ``hw:cpu_thread_policy=isolate`` and ``resources_GPU:VGPU=1``. The guest boots from an image. Its CPUs are
    dedicated, so the request has 4 PCPU. The thread policy excludes hosts with hyperthreading. The swap of
    1500 MiB is rounded up to 2 GB, so the request has 12 GB of disk. The query is:
    ``resources=PCPU:4,MEMORY_MB:2048,DISK_GB:12&required=!HW_CPU_HYPERTHREADING&resources_GPU=VGPU:1`` and
    ``root_required=!COMPUTE_STATUS_DISABLED``.

Invariants
    - A function that reads a guest raises ``InvalidRequest`` if flavor and image contradict each other, or if
      one of them contradicts itself.
    - With default options, a translation is the first query that Nova 34.0.0 sends for the guest. This
      package refuses each guest that Nova refuses (``tests/nova/test_flavors.py``), and each guest with a
      query that Placement would refuse. Unlike Nova, this package also requests the service's own resource
      classes. Extra specs and properties that Nova ignores are also ignored here, with a warning.
    - A translation depends only on the guest and the options. So translations are cached, and equal guests
      share one object.
"""
