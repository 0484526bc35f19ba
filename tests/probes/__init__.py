"""Small algorithms that test the hooks, one for each feature that papers need; STRATA_PLUGINS=tests.probes."""
