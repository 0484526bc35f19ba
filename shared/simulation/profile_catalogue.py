"""The named profiles of devices and links, with the source of each value (also in `docs/profiles.md`).

A device's compute is given as the floating-point operations a second that it sustains in training; its samples a second
follow from the reference model's FLOPs. A link's latency is one way: half of a published round-trip time.
"""

from __future__ import annotations

from dataclasses import dataclass

from shared.core.validation import check_known
from shared.simulation.profile import REFERENCE_FLOPS, Link, Profile

STANDARD = "standard"
"""The profile of devices and agents that name none."""
AGENT = "agent"
"""Reserved name: each seat has the profile of the agent that hosts it."""


@dataclass(frozen=True)
class LinkEntry:
    """A link and the source of its values."""

    link: Link
    source: str


@dataclass(frozen=True)
class DeviceEntry:
    """A device: its compute, power and link, and the source of these values.

    Attributes:
        flops: floating-point operations a second that it sustains in training.
        watts: its power while training.
    """

    flops: float
    watts: float
    link: str
    source: str

    def profile(self, name: str) -> Profile:
        """Return the device as a profile."""
        figures = {**LINKS[self.link].link.model_dump(exclude={"name"})}
        return Profile(
            name=name, compute_sps=self.flops / REFERENCE_FLOPS, j_per_flop=self.watts / self.flops, **figures
        )


def _nj_per_bit(alpha: float, beta: float, mbps: float) -> float:
    """Return joules a byte from the power model alpha * throughput + beta (mW/Mbps, mW), at a throughput in Mbps."""
    return 8e-9 * (alpha + beta / mbps)


_LINKS: dict[str, tuple[dict[str, float], str]] = {
    "standard": (
        {"up_bps": 20e6, "down_bps": 100e6, "latency_s": 0.02},
        "Round figures of this project, no measurement: the default of devices.",
    ),
    "backhaul": (
        {"up_bps": 100e6, "down_bps": 1e9, "latency_s": 0.01},
        "Round figures of this project, no measurement: the default between edge and cloud.",
    ),
    "ethernet": (
        {"up_bps": 1e9, "down_bps": 1e9, "latency_s": 0.0005},
        "IEEE 802.3ab (1000BASE-T), its nominal rate. Latency: estimate for a switched local network.",
    ),
    "fibre": (
        {"up_bps": 1e9, "down_bps": 1e9, "latency_s": 0.002},
        "IEEE 802.3ah (1000BASE-BX10, point to point over 10 km), its nominal rate. Latency: estimate; 10 km of glass "
        "take 0.05 ms, the rest is equipment.",
    ),
    "dsl": (
        {"up_bps": 1.4e6, "down_bps": 24e6, "latency_s": 0.015, "jitter_s": 0.002},
        "ITU-T G.992.5 (ADSL2+), its highest rates. Latency and jitter: estimates for an interleaved line.",
    ),
    "wifi": (
        {
            "up_bps": 45.74e6,
            "down_bps": 85.73e6,
            "latency_s": 0.0105,
            "jitter_s": 0.003,
            "j_per_byte_up": 8e-9 * 283.17,
            "j_per_byte_down": 8e-9 * 137.01,
        },
        "Ookla Speedtest Global Index, September 2020, world mean of fixed broadband (85.73 and 45.74 Mbps, 21 ms): "
        "the connection behind a home's Wi-Fi. Energy: Huang et al. (MobiSys 2012), the slope of their Wi-Fi model, "
        "283.17 and 137.01 mW/Mbps, measured at far lower rates: an upper bound. Jitter: estimate.",
    ),
    "lte": (
        {
            "up_bps": 6e6,
            "down_bps": 13e6,
            "latency_s": 0.035,
            "jitter_s": 0.01,
            "j_per_byte_up": _nj_per_bit(438.39, 1288.04, 6),
            "j_per_byte_down": _nj_per_bit(51.97, 1288.04, 13),
        },
        "Huang et al. (MobiSys 2012): medians of 13 and 6 Mbps, round trip of some 70 ms; energy by their LTE model, "
        "438.39 (up) and 51.97 (down) mW/Mbps and 1288.04 mW, at these rates, without the tail. Jitter: estimate.",
    ),
    "mobile_5g": (
        {
            "up_bps": 21.08e6,
            "down_bps": 166.13e6,
            "latency_s": 0.015,
            "jitter_s": 0.005,
            "j_per_byte_up": _nj_per_bit(438.39, 1288.04, 21.08),
            "j_per_byte_down": _nj_per_bit(51.97, 1288.04, 166.13),
        },
        "Ookla, Growing and Slowing: The State of 5G Worldwide in 2021: medians of the third quarter, 166.13 and 21.08 "
        "Mbps. Latency, jitter: estimates. Energy: estimate, the LTE model of Huang et al. at these rates.",
    ),
}

LINKS: dict[str, LinkEntry] = {
    name: LinkEntry(Link.model_validate({"name": name, **figures}), source)
    for name, (figures, source) in _LINKS.items()
}

DEVICES: dict[str, DeviceEntry] = {
    "phone_low": DeviceEntry(
        5e9,
        2.0,
        "lte",
        "Estimate: a third of the lowest rate that Das et al. (below) measured on flagship phones; 2 W is a guess at "
        "the power of a phone with eight small cores.",
    ),
    "phone_high": DeviceEntry(
        30e9,
        5.0,
        "wifi",
        "Das et al., Enabling On-Device Smartphone GPU based Training: Lessons Learned (arXiv 2202.10100): 15 to 30 "
        "GFLOP/s on the CPUs of Snapdragon 8 phones; the upper end. Power: estimate.",
    ),
    "raspberry_pi": DeviceEntry(
        8e9,
        6.4,
        "wifi",
        "Raspberry Pi 4B: some 8 GFLOP/s in High Performance Linpack (Feiereisen, Benchmarking the Raspberry Pi 4 with "
        "Raspberry Pi OS64, 2022), double precision and dense, taken for training in single precision. Power: 1280 mA "
        "at 5 V with all cores busy (pidramble.com, Power Consumption Benchmarks).",
    ),
    "jetson": DeviceEntry(
        47e9,
        10.0,
        "ethernet",
        "NVIDIA Jetson Nano: 472 GFLOP/s in half precision by its data sheet, 236 in single (128 cores, 2 operations, "
        "921 MHz); a fifth of that, sustained in training, is an estimate. Power: the data sheet's 10 W mode.",
    ),
    "gateway": DeviceEntry(
        5e9,
        6.0,
        "dsl",
        "A gateway with an Intel Atom E3825 (2 cores, 1.33 GHz, 6 W by its data sheet): 8 operations a cycle give a "
        "peak of 21 GFLOP/s; a quarter of that is an estimate. The link's energy is not counted.",
    ),
    "edge_server": DeviceEntry(
        134e9,
        45.0,
        "fibre",
        "A small server with an Intel Xeon D-1541 (8 cores, 2.1 GHz, 45 W by its data sheet): 32 operations a cycle "
        "(AVX2) give a peak of 538 GFLOP/s; a quarter of that is an estimate. The link's energy is not counted.",
    ),
}

PROFILES: dict[str, Profile] = {"standard": Profile(), **{name: entry.profile(name) for name, entry in DEVICES.items()}}
"""Devices by name. The default, `standard`, has round values chosen for this project, not measured ones."""


def known_profile(name: str) -> str:
    """Return the name of a profile, if the catalogue has it; a validator of fields.

    Raises:
        ValueError: naming the nearest one.
    """
    check_known("profile", name, PROFILES)
    return name
