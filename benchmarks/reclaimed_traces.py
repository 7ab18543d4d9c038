"""CPU use of the guests of many hosts: daily waves, noise, bursts with heavy tails, starts and ends.

A sample is the largest minute of 5. The use is not based on measurements. It is meant to be worse than most
real hosts in properties that an estimate cannot know. Examples are bursts to all CPUs of a guest on hosts
with few guests.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass
from operator import add

DAY = 288
"""Samples in a day."""


@dataclass(frozen=True)
class GuestTrace:
    uuid: str
    entitlement: float
    begin: int
    samples: list[float]

    @property
    def end_sample(self) -> int:
        return self.begin + len(self.samples)


@dataclass(frozen=True)
class HostTrace:
    capacity: int
    guests: tuple[GuestTrace, ...]
    system: list[float]
    total: list[float]


def noise_table(rng: random.Random, length: int = 1 << 17) -> list[float]:
    """Return noise with a memory of half an hour and a standard deviation of 1."""
    value, table = 0.0, []
    for _ in range(length):
        value = 0.85 * value + 0.527 * rng.gauss(0.0, 1.0)
        table.append(value)
    return table


def make_host(rng: random.Random, noise: list[float], days: int) -> HostTrace:
    capacity = rng.choice((16, 32, 32, 48, 64))
    length = days * DAY
    peak_hour, guests, promised = rng.uniform(9, 21), [], 0.0
    while promised < capacity * rng.uniform(0.8, 1.4):
        vcpus = rng.choice((1, 2, 2, 4, 4, 8))
        promised += vcpus
        guests += _successive_guests(rng, noise, f"g{len(guests)}", vcpus, peak_hour, length)
    system = _add_noise(rng, noise, [0.25] * length, 0.05, 1.0)
    total = list(system)
    for guest in guests:
        total[guest.begin : guest.end_sample] = map(add, total[guest.begin : guest.end_sample], guest.samples)
    return HostTrace(capacity, tuple(guests), system, [min(capacity, used) for used in total])


def _successive_guests(
    rng: random.Random, noise: list[float], name: str, vcpus: int, peak_hour: float, length: int
) -> Iterator[GuestTrace]:
    """Yield the guests of one place on a host, one after the other. Half of them stay until the end."""
    begin, count = 0, 0
    while begin < length:
        end = length if rng.random() < 0.5 else min(length, begin + int(rng.expovariate(1 / (4 * DAY))) + 12)
        samples = _random_use(rng, noise, vcpus, peak_hour, begin, end)
        yield GuestTrace(f"{name}-{count}", float(vcpus), begin, samples)
        begin, count = end + rng.randrange(DAY // 4), count + 1


def _random_use(
    rng: random.Random, noise: list[float], vcpus: int, peak_hour: float, begin: int, end: int
) -> list[float]:
    mean = vcpus * min(0.8, rng.lognormvariate(-1.9, 0.7))
    swing = mean * rng.uniform(0.0, 0.7)
    phase = 2 * math.pi * ((peak_hour + rng.gauss(0, 1.5)) / 24)
    day = [mean + swing * math.cos(2 * math.pi * n / DAY - phase) for n in range(DAY)]
    base = [day[n % DAY] for n in range(begin, end)]
    used = _add_noise(rng, noise, base, mean * rng.uniform(0.05, 0.25), float(vcpus))
    at = rng.expovariate(1 / DAY) * 2 / 3
    # one or two bursts a day, an hour long, mostly to twice the use, sometimes to all CPUs
    while at < len(used):
        height = mean * rng.paretovariate(1.5)
        last = min(len(used), int(at) + 1 + int(rng.expovariate(1 / 10)))
        for n in range(int(at), last):
            used[n] = min(float(vcpus), used[n] + height)
        at = last + rng.expovariate(1 / DAY) * 2 / 3
    return used


def _add_noise(
    rng: random.Random, noise: list[float], base: list[float], deviation: float, most: float
) -> list[float]:
    start = rng.randrange(len(noise) - len(base))
    return [
        min(most, max(0.0, value + deviation * one))
        for value, one in zip(base, noise[start : start + len(base)], strict=True)
    ]
