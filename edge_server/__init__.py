"""The edge tier: selects devices, dispatches their visits and aggregates their updates."""
