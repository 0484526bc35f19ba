"""`vibration`: generated spectra of machines whose bearings wear, as an accelerometer on their housing gives them.

A signal of 40 ms is the sum of

- the shaft's unbalance, a sine of the speed of rotation, and its second harmonic; the load decides its amplitude;
- the meshing of the gears, a sine of the number of teeth times the speed;
- the bearing's fault: once for each ball that passes it, a resonance of the housing is struck and decays;
- noise.

The wear, from 0 (new) to 1 (to be replaced), shows in the resonance alone (R. Randall, J. Antoni: Rolling element
bearing diagnostics - a tutorial. Mechanical Systems and Signal Processing 25(2), 2011): its amplitude is the wear times
a gain. The gain belongs to the machine's type and nothing else in a signal tells it, so that one amplitude is another
wear for each of the four types: a model for all machines cannot tell it, but one for the machines of a type can.

A sample is the amplitude spectrum of a signal, its target the wear. A machine is a group; its type is its number
modulo 4. Machines of one type differ a little in speed and gain.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

VERSION = 1
"""To be raised whenever the arrays change."""
POINTS, RATE = 256, 6400.0
"""Points of a signal, and points a second (Hz): lines of a spectrum are 25 Hz apart."""
MACHINES, TRAINING, TESTS = 20, 40, 20
"""Machines, and each one's samples for training and for tests."""
GAINS = (4.0, 2.0, 1.33, 1.0)
"""Amplitude of a struck resonance where the bearing is to be replaced, in g, by type."""
SPEED, TEETH, BALLS, RESONANCE, DECAY = 60.0, 11, 3.6, 2000.0, 900.0
"""Turns a second, teeth of the wheel, balls that pass the fault in a turn, the resonance in Hz and its decay in 1/s."""

Floats = npt.NDArray[np.float64]


def vibration(_: Path) -> dict[str, npt.NDArray[Any]]:
    """Returns spectra (n, 1, lines) in g, wears (n,) and machines (n,): one machine's samples after another's."""
    found: dict[str, list[npt.NDArray[Any]]] = {}
    for machine in range(MACHINES):
        rng = np.random.default_rng((VERSION, machine))
        speed, gain = SPEED * rng.uniform(0.97, 1.03), GAINS[machine % len(GAINS)] * rng.uniform(0.95, 1.05)
        for part, n in (("train", TRAINING), ("test", TESTS)):
            wear = rng.uniform(0, 1, n)
            signals = vibrations(speed, gain * wear, rng)
            found.setdefault(f"{part}_x", []).append(spectra(signals)[:, None].astype(np.float32))
            found.setdefault(f"{part}_y", []).append(wear.astype(np.float32))
            found.setdefault(f"{part}_group", []).append(np.full(n, machine))
    arrays = {key: np.concatenate(own) for key, own in found.items()}
    return arrays | {"mean": np.zeros(1), "std": arrays["train_x"].std().reshape(1)}


def vibrations(speed: float, struck_g: Floats, rng: np.random.Generator) -> Floats:
    """Returns signals in g, (n, points), each begun at an instant of its own.

    Args:
        speed: turns a second.
        struck_g: amplitude of the struck resonance in each signal, (n,).
        rng: draws instants, loads and noise.
    """
    t = np.arange(POINTS) / RATE + rng.uniform(0, 1, (len(struck_g), 1))
    load = rng.uniform(0.5, 1.5, (len(struck_g), 1))
    turns = speed * t
    shaft = load * (np.sin(2 * np.pi * turns) + 0.3 * np.sin(4 * np.pi * turns + 1))
    gears = 0.4 * load * np.sin(2 * np.pi * TEETH * turns)
    since = (turns * BALLS) % 1 / (speed * BALLS)  # seconds since the last ball passed
    fault = np.exp(-DECAY * since) * np.sin(2 * np.pi * RESONANCE * since)
    signals: Floats = shaft + gears + struck_g[:, None] * fault + 0.1 * rng.standard_normal(t.shape)
    return signals


def spectra(signals: Floats) -> Floats:
    """Returns the amplitudes of signals by frequency, without the mean: (n, points) to (n, points / 2)."""
    amplitudes: Floats = np.abs(np.fft.rfft(signals * np.hanning(POINTS), axis=-1))[:, 1:] / (POINTS / 4)
    return amplitudes
