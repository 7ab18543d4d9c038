"""Kinds of memory, as far as guests can ask for them."""

from __future__ import annotations

import enum


class MemoryType(enum.StrEnum):
    """What the memory of a NUMA node is; ``any`` is the wish of a guest that does not mind."""

    ANY = "any"
    DRAM = "dram"
    HBM = "hbm"
    CXL = "cxl"
    PMEM = "pmem"
    GPU = "gpu"
