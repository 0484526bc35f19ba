"""The federated-learning core, without HTTP."""
