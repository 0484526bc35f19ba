"""Sweeps: many runs of one spec with different values."""
