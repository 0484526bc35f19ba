"""StrataFL on a Slurm cluster: jobs for the core (Redis and the cloud), edges and agents, and what they share.

`options` says what a user asks for, `deployment` is the folder on the shared disk by which the jobs find each other.
`scripts` writes the jobs, `commands` talks to Slurm, `queue` reads what `squeue` prints. `check_job`, `core_job` and
`node_job` are the programs of the jobs, `fleet` starts and stops them as the cloud asks, `up` starts and ends them all.
"""
