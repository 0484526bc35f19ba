"""Algorithms of a few lines: one for each need of the papers, and one that counts; STRATA_ALGORITHMS=tests.probes."""
