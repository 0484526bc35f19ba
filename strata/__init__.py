"""The user's side: the `strata` command, a client of the public REST API, and the launcher of local topologies.

Modules that load torch (all that know the API's records) are imported inside the commands that need them, so that
`strata --help` answers at once.
"""
