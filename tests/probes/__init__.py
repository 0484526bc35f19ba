"""Algorithms of a few lines that test the hooks: one for each need of the papers; STRATA_ALGORITHMS=tests.probes."""
