"""Classes: the settings of sections and annotations for guests, as frozen dataclasses.

A guest names a class of guests, ``[qos_class:NAME]``. The class has the rank by which guests give way, shares
of caches, bandwidth and memory, and the class of dedicated CPUs. Classes of CPUs, pools of CPUs and classes
of block I/O have sections of their own. An annotation of one guest takes precedence over its class.
Controllers, inventories, policies and throttling read these. Nothing here acts.
"""
