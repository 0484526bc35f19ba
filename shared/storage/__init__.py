"""Storage of a tier: small values in Redis, tensors in files, states by version."""
