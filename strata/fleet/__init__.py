"""The fleet: starts and stops agents until their devices match the number that `PUT /topology` requested.

`reconciler` compares and decides, `plan` chooses the agents to stop and start, `cloud_client` reads the requested
number. The backends alone start and stop agents: `processes` for the launcher, `containers` for Compose,
`stateful_sets` for Kubernetes.
"""
