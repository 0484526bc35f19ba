"""What the program of a job needs of its node: an address that other nodes reach, its signals, its environment."""

from __future__ import annotations

import contextlib
import ipaddress
import os
import signal
import socket
import sys
from collections.abc import Iterator
from types import FrameType

from shared.core.addresses import is_loopback
from shared.core.errors import BadInput, StrataError
from shared.core.os_errors import SystemRefused
from shared.runtime.streams import open_standard
from strata.launcher import environment
from strata.slurm.commands import Slurm
from strata.slurm.deployment import API_TOKEN, REDIS_PASSWORD, TIER_TOKEN, Deployment


class Signals:
    """The signals of Slurm, noted when they arrive.

    Attributes:
        near_end: the job's time limit is near (SIGUSR1, which the script asks for).
        ended: the job is to end: it was cancelled or pre-empted, or its time is over.
    """

    def __init__(self) -> None:
        self.near_end = self.ended = False

    def heed(self) -> None:
        """Note signals from now on."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._end)
        signal.signal(signal.SIGUSR1, self._near)

    def _end(self, number: int, frame: FrameType | None) -> None:
        self.ended = True

    def _near(self, number: int, frame: FrameType | None) -> None:
        self.near_end = True


def say(text: str) -> None:
    """Print a line into the job's log."""
    print(text, flush=True)


@contextlib.contextmanager
def told() -> Iterator[None]:
    """End the program with one line and exit status 1 after an error of ours or of the system."""
    open_standard()
    try:
        yield
    except (StrataError, OSError) as error:
        sys.exit(error.detail if isinstance(error, StrataError) else str(error))


def job_id() -> str:
    """The number of the job; of a task of an array, its own, not the array's."""
    return os.environ.get("SLURM_JOB_ID", "")


def own_address(network: str | None, slurm: Slurm) -> str:
    """The address of this node under which other nodes reach it.

    Args:
        network: in which it is to be; None = that under which Slurm reaches the node, else that of its name.
        slurm: is asked for the node.

    Raises:
        SystemRefused: there is none; the message says what was looked at.
    """
    if network is not None:
        first = str(next(ipaddress.ip_network(network).hosts()))
        found = address_towards(first)
        if ipaddress.ip_address(found) not in ipaddress.ip_network(network):
            raise SystemRefused(f"this node has no address in {network}: towards it, it would use {found}")
        return found
    names = [*_named_by(slurm), socket.gethostname(), socket.getfqdn()]
    for found in (address for name in names for address in _addresses_of(name)):
        if not is_loopback(found) and _is_own(found):
            return found
    looked = ", ".join(dict.fromkeys(names))
    raise SystemRefused(f"none of {looked} is an address of this node that others reach: name the network (--network)")


def address_towards(host: str, port: int = 9) -> str:
    """The address from which this node would call another; nothing is sent.

    Raises:
        SystemRefused: there is no way to it.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((host, port))
            return str(probe.getsockname()[0])
    except OSError as error:
        raise SystemRefused(f"this node has no way to {host}: {error.strerror}") from None


def _named_by(slurm: Slurm) -> list[str]:
    """How Slurm names this node; nothing where it does not say."""
    node = os.environ.get("SLURMD_NODENAME")
    try:
        return [named] if node and (named := slurm.node_address(node)) else []
    except StrataError:
        return []


def _addresses_of(name: str) -> list[str]:
    try:
        return sorted({str(info[4][0]) for info in socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)})
    except OSError:
        return []


def _is_own(address: str) -> bool:
    with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET) as probe:
        try:
            probe.bind((address, 0))
        except OSError:
            return False
    return True


def tier_environment(deployment: Deployment, tier: str, address: str, name: str) -> dict[str, str]:
    """The environment of a tier in a job: secrets are named as files.

    Args:
        deployment: in which it runs.
        tier: `CLOUD`, `EDGE` or `AGENT`.
        address: at which it listens.
        name: of its folder of state.
    """
    own = {f"{tier}_HOST": address, f"{tier}_STATE_DIR": str(deployment.folder / name)}
    files = {"STRATA_TIER_TOKEN_FILE": str(deployment.secret_file(TIER_TOKEN))}
    if tier == "CLOUD":
        files["STRATA_API_TOKEN_FILE"] = str(deployment.secret_file(API_TOKEN))
    if tier != "AGENT":
        files[f"{tier}_REDIS_PASSWORD_FILE"] = str(deployment.secret_file(REDIS_PASSWORD))
    return {**environment.common({**deployment.note.env, **own}, ""), **files}


def check_network(text: str) -> str:
    """A network as it is written, such as `10.1.0.0/16`.

    Raises:
        BadInput: the text is none.
    """
    try:
        return str(ipaddress.ip_network(text))
    except ValueError as error:
        raise BadInput(f"network: {error}", field="network") from None
