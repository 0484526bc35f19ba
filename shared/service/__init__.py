"""HTTP without federated learning: servers, clients, tokens, limits, errors."""
