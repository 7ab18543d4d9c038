"""The nouns of the agent that several rooms share. This room imports no other.

Modules
    - ``guest``: a guest with its identity, demands, allocation and assignment of CPUs
    - ``guest_settings``: the settings of a guest beside amounts, and the sources of these
    - ``cpuset``: sets of CPUs as text, the purposes of a host's CPUs, classes and pools of CPUs
    - ``resource``: resource classes, block I/O, shares of memory, and controls of throttling
    - ``messages``: errors that cross rooms, and how messages show names and foreign text

All of them are frozen values: threads pass them on without locks. Each room may import them.
"""
