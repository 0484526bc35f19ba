"""How long a test waits for what must happen."""

HANG_S = 500.0
"""Seconds after which a wait fails: less than a test's own limit (`timeout` in pyproject.toml), so that the wait can
say what it waited for, and enough for a machine whose cores are shared by several suites. It finds hangs only."""
