"""Derives the provider tree of a host from its topology and the operator's ini file.

``derive.py`` makes the providers of CPUs, memory and caches. The providers of PCI devices are added
afterwards: ``device_spec.py`` selects the devices, ``device_providers.py`` and ``device_sets.py`` place them
in the tree. Then ``provider_files.py`` adds what operators have written in their files.
"""
