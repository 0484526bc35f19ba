"""Five algorithms of a few lines, one for each need of the papers; found with STRATA_ALGORITHMS=tests.probes."""
