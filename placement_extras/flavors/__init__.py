"""Translates a flavor and an image to the request that Nova would send to Placement for such a guest.

Nouns
    A *flavor* is the size of a guest with its *extra specs*; an *image* has *properties*. A feature has
    different names in a flavor and in an image (``hw:cpu_policy`` and ``hw_cpu_policy``). If both flavor and
    image have a value for a feature, a rule for this feature decides which value counts. A flavor and an
    image together are a *guest*. The *translation* of a guest is a request for allocation candidates. A guest
    is *refused* if the flavor and the image contradict each other, or if one of them contradicts itself.

Modules
    ``flavor`` has the classes for flavors and images; ``guest`` combines a flavor and an image. ``pinning``
    and ``memory`` decide about CPUs, memory and NUMA nodes, and refuse impossible guests. ``features`` finds
    the traits that a guest needs. ``groups`` builds the amounts and traits of each request group (suffix). If
    the option ``numa_affinity`` is set, ``affinity`` asks for CPUs, memory and devices of one NUMA node; Nova
    cannot make such a request. ``spelling`` has all known names and warns of unknown names. ``translation``
    makes the request; ``form`` and ``options`` connect the translation to the API and the configuration.

A worked example
    A flavor has vcpus 4, ram 2048, disk 10 and swap 1500. Its extra specs are ``hw:cpu_policy=dedicated``,
    ``hw:cpu_thread_policy=isolate`` and ``resources_GPU:VGPU=1``. Guests boot from an image. The CPUs are
    dedicated, so the request has 4 PCPU, on a host without hyperthreading. Swap of 1500 MiB is rounded up to
    2 GB, so the request has 12 GB of disk. The query is:
    ``resources=PCPU:4,MEMORY_MB:2048,DISK_GB:12&required=!HW_CPU_HYPERTHREADING&resources_GPU=VGPU:1`` and
    ``root_required=!COMPUTE_STATUS_DISABLED``.

Invariants
    - A function that reads a guest raises ``InvalidRequest`` if flavor and image contradict each other or
      themselves.
    - With default options, a translation is the first query that Nova 34.0.0 sends; if Nova refuses a guest,
    this
      package refuses it, too (``tests/nova/test_flavors.py``). If Placement would refuse the query, this
      package refuses the guest. Unlike Nova, this package also requests the service's own resource classes.
      Extra specs and properties that Nova ignores are also ignored here, with a warning.
    - A translation depends only on the guest and the options. So the result is cached, and equal guests share
      one object.
"""
