"""Requests to nodes that dial out only: the tier above keeps them, and the node takes them by a long poll.

A node behind NAT or a firewall cannot be called. It calls the tier above instead, which hands it the requests that it
has for the node (`desk`, `transport`, `routes`). The node runs each through its own application (`taker`,
`in_process`), so routes, authentication, limits and idempotency are those of a request that came to a port, and sends
the answer back with a request of its own.
"""
