"""A fake MLflow tracking server."""

from __future__ import annotations

import json
from typing import Any

import httpx2


class Mlflow:
    """A tracking server with the documented REST API and its limits."""

    def __init__(self) -> None:
        self.experiments: dict[str, str] = {}
        self.runs: dict[str, dict[str, Any]] = {}
        self.headers: list[httpx2.Headers] = []

    def __call__(self, request: httpx2.Request) -> httpx2.Response:
        self.headers.append(request.headers)
        body = json.loads(request.content) if request.content else {}
        what = request.url.path.removeprefix("/api/2.0/mlflow/")
        answer = getattr(self, what.replace("/", "_").replace("-", "_"))(request, body)
        return answer if isinstance(answer, httpx2.Response) else httpx2.Response(200, json=answer)

    def experiments_get_by_name(self, request: httpx2.Request, body: Any) -> Any:
        name = request.url.params["experiment_name"]
        if name not in self.experiments:
            return httpx2.Response(404, json={"error_code": "RESOURCE_DOES_NOT_EXIST", "message": "none"})
        return {"experiment": {"experiment_id": self.experiments[name]}}

    def experiments_create(self, request: httpx2.Request, body: Any) -> Any:
        return {"experiment_id": self.experiments.setdefault(body["name"], "1")}

    def runs_search(self, request: httpx2.Request, body: Any) -> Any:
        key, _, value = body["filter"].removeprefix("tags.").partition(" = ")
        found = [run for run in self.runs.values() if run["tags"].get(key.strip("`")) == value.strip("'")]
        return {"runs": [{"info": {"run_id": run["id"]}} for run in found]}

    def runs_create(self, request: httpx2.Request, body: Any) -> Any:
        tags = {tag["key"]: tag["value"] for tag in body["tags"]}
        run = {"id": f"m{len(self.runs)}", "name": body["run_name"], "tags": tags, "params": {}, "metrics": set()}
        self.runs[run["id"]] = run
        return {"run": {"info": {"run_id": run["id"]}}}

    def runs_log_batch(self, request: httpx2.Request, body: Any) -> Any:
        run = self.runs[body["run_id"]]
        if len(body.get("params", [])) > 100 or len(body.get("metrics", [])) > 1000:
            return httpx2.Response(400, json={"message": "too many"})
        for metric in body.get("metrics", []):
            run["metrics"].add((metric["key"], metric["step"], metric["timestamp"], metric["value"]))
        for param in body.get("params", []):
            if run["params"].setdefault(param["key"], param["value"]) != param["value"]:
                return httpx2.Response(400, json={"message": "parameters do not change"})
        run["tags"] |= {tag["key"]: tag["value"] for tag in body.get("tags", [])}
        return {}

    def runs_update(self, request: httpx2.Request, body: Any) -> Any:
        self.runs[body["run_id"]] |= {"status": body["status"], "end_time": body.get("end_time")}
        return {}

    def metrics(self) -> set[str]:
        """Returns the names of all logged metrics."""
        return {key for run in self.runs.values() for key, *_ in run["metrics"]}
