"""What a tier remembers: small values in Redis, tensors in files, states by version."""
