"""What an edge keeps of its runs."""

from __future__ import annotations

import logging
from typing import TypeVar

from shared.core.records import canonical
from shared.federation.messages import EdgePlacement
from shared.wire import codec

log = logging.getLogger(__name__)
T = TypeVar("T")
MOST_SIGHTINGS = 2000


def placement_digest(seating: EdgePlacement) -> str:
    """The digest that stands in a round's order."""
    return codec.digest_of(canonical(seating).encode())
