"""`python -m benchmarks.simulators.by_flower FD FOLDER JOB` runs FedAvg in Flower's simulation, a round on demand.

As fast as we could make it on two cores: an actor of one CPU and one torch thread for each core, the data in each
actor's memory, the model built once, no evaluation; the server looks for replies every 10 ms, not every 100.

Flower: Beutel et al., arXiv:2007.14390; https://flower.ai/docs/framework/how-to-run-simulations.html
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Context, Message
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation

from benchmarks.loops import Work, initial_model
from benchmarks.simulators.flower_client import app as client
from benchmarks.simulators.served import EndOfRounds, Rounds, opened

NEVER = 1_000_000
LOOK_S = 0.01
BACKEND = {
    "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
    "init_args": {"num_cpus": 2, "include_dashboard": False, "_temp_dir": os.environ.get("BENCH_SHORT")},
}


class OnDemand(FedAvg):  # type: ignore[misc, unused-ignore]
    """FedAvg that waits before each round until it is wanted, and counts the work of its clients."""

    def __init__(self, rounds: Rounds, n_devices: int) -> None:
        super().__init__(fraction_evaluate=0.0, min_available_nodes=n_devices)
        self._rounds = rounds

    def configure_train(self, server_round: int, arrays: Any, config: Any, grid: Any) -> Iterable[Message]:
        """As FedAvg, once the round is wanted."""
        self._rounds.next()
        found: Iterable[Message] = super().configure_train(server_round, arrays, config, grid)
        return found

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> tuple[Any, Any]:
        """As FedAvg."""
        replies = list(replies)
        figures = [reply.content["metrics"] for reply in replies if not reply.has_error()]
        n_samples = sum(int(each["num-examples"]) for each in figures)
        self._rounds.did(Work(len(figures), n_samples, sum(int(each["steps"]) for each in figures)))
        arrays, metrics = super().aggregate_train(server_round, replies)
        return arrays, metrics


def main() -> None:
    """Run the simulation until the pipe is closed."""
    rounds, folder, job = opened()
    server = ServerApp()

    @server.main()  # type: ignore[untyped-decorator, unused-ignore]
    def serve(grid: Grid, context: Context) -> None:
        grid.pull_interval = LOOK_S
        config = ConfigRecord({"folder": str(folder), "job": json.dumps(asdict(job))})
        first = ArrayRecord(initial_model(folder, job).state_dict())
        with suppress(EndOfRounds):
            OnDemand(rounds, job.n_devices).start(grid, first, num_rounds=NEVER, train_config=config)

    run_simulation(server, client, num_supernodes=job.n_devices, backend_config=BACKEND)


if __name__ == "__main__":
    main()
