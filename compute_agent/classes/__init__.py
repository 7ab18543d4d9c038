"""Classes of guests, of CPUs and of block I/O: sections of the configuration, read into frozen dataclasses.

Each guest has one class of guests, ``[qos_class:NAME]``. The class has a rank, which decides which guests are
limited first. A class also has shares of caches, bandwidth, memory and CPU time, and the class of the guest's
dedicated CPUs. Classes of CPUs, pools of CPUs and classes of block I/O have sections of their own. An
annotation of one guest takes precedence over its class. Controllers, inventories, policies and throttling
read these values.

A function that reads the configuration raises ConfigError if an option is wrong; the text names section and
option.
"""
