"""The algorithms, one file for each paper. `shared.federation.registry` loads them by module name."""
