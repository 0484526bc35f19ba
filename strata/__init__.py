"""The user's side: `strata.hooks` for algorithms of one's own, and the `strata` command, which starts a local topology
of processes and is a client of the public REST API.

Modules that load torch (all that know the API's records) are imported inside the commands that need them, so that
`strata --help` answers at once.
"""
