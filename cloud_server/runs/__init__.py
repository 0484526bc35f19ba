"""Runs: which one executes, its rounds, and what is kept of them."""
