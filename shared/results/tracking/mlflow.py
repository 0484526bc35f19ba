"""A run at an MLflow tracking server, over its REST API.

The `mlflow` packages are not used: their client blocks a thread and cannot be cancelled, while every wait here is
bounded and ends with the task.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import httpx2

from shared.core.addresses import is_loopback
from shared.core.errors import BadInput, Conflict, Unreachable
from shared.core.proxies import proxy_of
from shared.results.tracking.scalars import Tracked

URI = "MLFLOW_TRACKING_URI"
EXPERIMENT = "stratafl"
"""The default experiment of runs."""
_STATUS = {"completed": "FINISHED", "failed": "FAILED", "stopped": "KILLED"}
_MAX_METRICS, _MAX_PARAMS = 1000, 100
"""Limits of the API for one request."""
_MAX_PARAM_CHARS, _MAX_KEY_CHARS = 6000, 250
_ANSWER_S = 20.0
_ODD = re.compile(r"[^\w\-. :/]", re.ASCII)
_NOT_SENT = (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout)


class MaybeCreated(Unreachable):
    """The server may have created a run, but its answer was lost."""


class MlflowServer:
    """A tracking server; an asynchronous context manager.

    Attributes:
        address: where it is.

    Args:
        uri: its address, http or https.
        transport: what carries the requests, for tests.

    Raises:
        BadInput: the address is not that of a server, or the proxy that the environment names cannot be used.
    """

    def __init__(self, uri: str, transport: httpx2.AsyncBaseTransport | None = None) -> None:
        url, proxy = _url(uri), proxy_of(uri) if transport is None else None
        token, user = os.environ.get("MLFLOW_TRACKING_TOKEN"), os.environ.get("MLFLOW_TRACKING_USERNAME")
        self.address = f"{url.scheme}://{url.netloc.decode()}"  # without a password that the address may hold
        self._http = httpx2.AsyncClient(
            base_url=f"{url}/api/2.0/mlflow",
            headers={"Authorization": f"Bearer {token}"} if token else {},
            auth=(user, os.environ.get("MLFLOW_TRACKING_PASSWORD", "")) if user and not token else None,
            timeout=_ANSWER_S,
            transport=transport,
            proxy=proxy.url if proxy else None,
            verify=httpx2.create_ssl_context(trust_env=not is_loopback(url.host)),
            trust_env=False,
        )

    async def __aenter__(self) -> MlflowServer:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._http.aclose()

    async def write(self, tracked: Tracked, experiment: str = EXPERIMENT, *, may_create: bool = True) -> str:
        """Sends a run's parameters, figures and tags; returns MLflow's id of the run.

        A run that the server already has is updated.

        Args:
            tracked: the run.
            experiment: its name at the server.
            may_create: whether the run may be created there; False after `MaybeCreated`, lest it is there twice.

        Raises:
            MaybeCreated: the server did not answer to the creation of the run.
            Unreachable: the server did not answer in time.
            Conflict: it refused; names its reason.
        """
        run_id = await self._run(await self._experiment(experiment), tracked, may_create)
        tags = [{"key": key, "value": value} for key, value in tracked.tags.items()]
        await self._post("runs/log-batch", {"run_id": run_id, "tags": tags})
        for params in _pieces([_param(*item) for item in tracked.params.items()], _MAX_PARAMS):
            await self._post("runs/log-batch", {"run_id": run_id, "params": params})
        for metrics in _pieces(list(_metrics(tracked)), _MAX_METRICS):
            await self._post("runs/log-batch", {"run_id": run_id, "metrics": metrics})
        status = _STATUS.get(tracked.info.status, "RUNNING")
        ended = {"end_time": _ms(tracked.ended_s)} if status != "RUNNING" else {}
        await self._post("runs/update", {"run_id": run_id, "status": status, **ended})
        return run_id

    async def _experiment(self, name: str) -> str:
        found = await self._ask("GET", "experiments/get-by-name", absent=True, params={"experiment_name": name})
        if found is not None:
            return str(found["experiment"]["experiment_id"])
        return str((await self._post("experiments/create", {"name": name}))["experiment_id"])

    async def _run(self, experiment: str, tracked: Tracked, may_create: bool) -> str:
        """MLflow's id of the run: that of an earlier export, or a new one."""
        info = tracked.info
        wanted = {"experiment_ids": [experiment], "filter": f"tags.`strata.run` = '{info.run}'", "max_results": 1}
        known = (await self._post("runs/search", wanted)).get("runs")
        if known:
            return str(known[0]["info"]["run_id"])
        if not may_create:
            lost = f"MLflow at {self.address} gave no answer when the run was to be created, and does not list it"
            raise Conflict(f"{lost}: look there for the tag strata.run = {info.run}")
        tags = [{"key": "strata.run", "value": info.run}]
        fields = {"experiment_id": experiment, "run_name": info.name, "start_time": _ms(tracked.begun_s), "tags": tags}
        try:
            return str((await self._post("runs/create", fields))["run"]["info"]["run_id"])
        except Unreachable as error:
            if isinstance(error.__context__, _NOT_SENT):
                raise
            raise MaybeCreated(error.detail) from None

    async def _post(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        return await self._ask("POST", path, json=body) or {}

    async def _ask(self, method: str, path: str, *, absent: bool = False, **given: Any) -> dict[str, Any] | None:
        """One request; with `absent`, None for a 404."""
        try:
            answer = await self._http.request(method, f"/{path}", **given)
        except httpx2.HTTPError as error:
            raise Unreachable(
                f"MLflow at {self.address} does not answer: {str(error) or type(error).__name__}"
            ) from None
        if absent and answer.status_code == 404:
            return None
        try:
            body = answer.json()
        except ValueError:
            body = {}
        if answer.status_code in (502, 504):  # of a proxy: the server itself may have taken the request
            raise Unreachable(f"MLflow at {self.address} does not answer: status {answer.status_code}")
        if answer.is_error or not isinstance(body, dict):
            why = body.get("message") if isinstance(body, dict) else None
            raise Conflict(f"MLflow at {self.address} refused {path}: {why or f'status {answer.status_code}'}"[:2000])
        return body


def tracking_uri() -> str:
    """The address of the server that the environment names.

    Raises:
        BadInput: it names none.
    """
    uri = os.environ.get(URI)
    if not uri:
        raise BadInput(f"{URI} is not set: the address of an MLflow server; `mlflow server` starts one", field=URI)
    return str(_url(uri))


def _url(uri: str) -> httpx2.URL:
    try:
        url = httpx2.URL(uri.rstrip("/"))
    except httpx2.InvalidURL as error:
        raise BadInput(f"{URI} is not an address: {error}", field=URI) from None
    if url.scheme not in ("http", "https") or not url.host:
        raise BadInput(
            f"{URI} is not the address of a server (http:// or https://); `mlflow server` starts one", field=URI
        )
    return url


def _metrics(tracked: Tracked) -> Iterator[dict[str, Any]]:
    for step in tracked.steps:
        for name, value in step.figures.items():
            yield {"key": _key(name), "value": value, "timestamp": _ms(step.at_s), "step": step.round_no}


def _param(key: str, value: str) -> dict[str, str]:
    return {"key": _key(key), "value": value[:_MAX_PARAM_CHARS]}


def _key(name: str) -> str:
    """A name that MLflow accepts: others than letters, digits and `_-. :/` become `_`."""
    return _ODD.sub("_", name)[:_MAX_KEY_CHARS]


def _ms(seconds: float) -> int:
    return round(1000 * seconds)


def _pieces(found: Sequence[Any], most: int) -> Iterator[Sequence[Any]]:
    for begin in range(0, len(found), most):
        yield found[begin : begin + most]
