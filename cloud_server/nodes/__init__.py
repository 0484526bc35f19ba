"""The connected edges and agents: registration, liveness, the fleet, twins."""
