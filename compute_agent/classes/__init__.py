"""Classes: what sections and annotations ask for guests, as frozen dataclasses that others act on.

A guest names a class of guests, ``[qos_class:NAME]``: who gives way first, its share of caches, bandwidth and
memory, and the class of its dedicated CPUs. Classes of CPUs, pools of CPUs and classes of block I/O have
sections of their own. An annotation of one guest goes before its class. Controllers, inventories, policies
and throttling all read these; nothing here acts, and nothing here knows how they act.
"""
