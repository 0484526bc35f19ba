"""What the model of a run depends on besides its spec, as it was when the run began and after each accepted change."""

from __future__ import annotations

from pydantic import Field

from shared.core.bounds import Count
from shared.core.records import Record
from shared.core.versions import differing

_DIGEST_CHARS = 12
"""The part of a digest that a message shows."""


class Provenance(Record):
    """What must be equal for a resumed run to give the same model bit for bit.

    Attributes:
        data_digest: SHA-256 of the data set's arrays.
        population_digest: SHA-256 of the devices, their data and profiles.
        versions: of Python and of the packages that compute.
        cpu: model and instruction set of the cloud's CPU.
        gpu: with `device: cuda`, the cloud's GPU and its CUDA version.
        plugins: SHA-256 of each plug-in package that the spec uses.
    """

    data_digest: str
    population_digest: str
    versions: dict[str, str]
    cpu: str
    gpu: str | None = None
    plugins: dict[str, str] = Field(default_factory=dict, exclude_if=lambda plugins: not plugins)

    def differences(self, now: Provenance) -> tuple[str, ...]:
        """Returns what differs in data, code and packages, each as `name: value then, value now`."""
        before, after = (
            {
                "data (sha256)": each.data_digest,
                "devices and their data (sha256)": each.population_digest,
                **{f"plug-in {name} (sha256)": digest for name, digest in each.plugins.items()},
            }
            for each in (self, now)
        )
        digests = {
            name: (old[:_DIGEST_CHARS], new[:_DIGEST_CHARS]) for name, (old, new) in differing(before, after).items()
        }
        return _worded(digests | differing(self.versions, now.versions))

    def machine_differences(self, now: Provenance) -> tuple[str, ...]:
        """Returns what differs in the machine; another one may give other bits, and does not keep a run from going on.

        The form is that of `differences`.
        """
        before, after = ({"CPU": each.cpu, "GPU": each.gpu or "none"} for each in (self, now))
        return _worded(differing(before, after))


def _worded(pairs: dict[str, tuple[str, str]]) -> tuple[str, ...]:
    return tuple(f"{name}: {before} then, {now} now" for name, (before, now) in pairs.items())


class ProvenanceChange(Record):
    """A change with which a run went on.

    Attributes:
        after_round: the last round before it.
        at: when the run was resumed, ISO 8601.
        differences: what differs from before, as `Provenance.differences` words it.
        provenance: what holds from then on.
    """

    after_round: Count
    at: str
    differences: tuple[str, ...]
    provenance: Provenance
