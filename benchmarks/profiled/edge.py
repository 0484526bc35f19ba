"""`python -m benchmarks.profiled.edge`: the tier, timed."""

from benchmarks.profiled.stages import run_timed

if __name__ == "__main__":
    run_timed("edge_server")
