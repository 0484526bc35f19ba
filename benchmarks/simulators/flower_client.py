"""The client of the Flower simulation: a module of its own, so that Ray's actors import it once and keep its caches."""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch import Tensor, nn

from benchmarks.loops import Job, initial_model, plain_epoch, prepared_data

app = ClientApp()


@lru_cache(maxsize=1)
def prepared(folder: str, job_text: str) -> tuple[Job, nn.Module, Tensor, Tensor]:
    """The job, a model and the data of all devices, once for each actor."""
    torch.set_num_threads(1)
    job = Job(**json.loads(job_text))
    return job, initial_model(Path(folder), job), *prepared_data(Path(folder), job)


@app.train()  # type: ignore[untyped-decorator, unused-ignore]
def train(message: Message, context: Context) -> Message:
    """Train one device's model; without epochs, send back what was received."""
    config = message.content["config"]
    job, model, x, y = prepared(str(config["folder"]), str(config["job"]))
    state, n_steps = message.content["arrays"].to_torch_state_dict(), 0
    if job.epochs:
        model.load_state_dict(state)
        own = job.samples_of(int(context.node_config["partition-id"]))
        n_steps = sum(plain_epoch(model, x[own], y[own], job.batch_size) for _ in range(job.epochs))
        state = model.state_dict()
    figures = MetricRecord({"num-examples": job.n_samples, "steps": n_steps})
    return Message(RecordDict({"arrays": ArrayRecord(state), "metrics": figures}), reply_to=message)
