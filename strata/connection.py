"""Which cloud to use: the one that the user named, else that of a running `strata up`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from shared.core.errors import NotFound
from strata.launcher import home

if TYPE_CHECKING:
    from strata.api.client import Client


def named_url(url: str | None) -> str | None:
    """The cloud that the user named, here or by STRATA_URL."""
    return url or os.environ.get("STRATA_URL") or None


def known_url(url: str | None) -> str | None:
    """The cloud that the user named, else the one of a running `strata up`."""
    named = named_url(url)
    if named:
        return named
    running = home.running()
    return running.url if running else None


def note_of_another(url: str | None) -> str:
    """A sentence, if the running `strata up` that would be used is another user's, or one may be hidden; else empty."""
    return "" if named_url(url) else home.of_another()


def connect(url: str | None, *, token: str | None = None, authority: Path | None = None) -> Client:
    """A client of the cloud that the user named, else of a running `strata up`.

    Args:
        url: address of the cloud.
        token: the API token; None means STRATA_API_TOKEN or the content of STRATA_API_TOKEN_FILE.
        authority: a file with the certificate of the authority that signs the cloud's; None means that of the running
            `strata up`, else STRATA_CA_FILE, else the authorities that this machine trusts.

    Raises:
        NotFound: no cloud was named and none runs here.
    """
    from strata.api.client import Client

    found, running = known_url(url), home.running()
    if found is None:
        hidden = home.of_another()
        raise NotFound(
            "no cloud found: start one with `strata up`, or give its address with --url or STRATA_URL"
            f"{hidden and f' ({hidden})'}"
        )
    if authority is None and running is not None and running.url == found and running.authority:
        authority = Path(running.authority)
    return Client(found, token=token, authority=authority)
