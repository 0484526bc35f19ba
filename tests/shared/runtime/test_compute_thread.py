"""The compute thread: whatever a function raises arrives, and what it sets for the process does not stay."""

import asyncio
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from shared.core.errors import BadInput, UserCodeFailed
from shared.runtime.compute_thread import ComputeThread, run_beside
from tests.waits import HANG_S


@pytest.fixture
def thread() -> Iterator[ComputeThread]:
    made = ComputeThread()
    yield made
    made.close()


def raises(error: BaseException) -> Any:
    raise error


@pytest.mark.parametrize("kind", [StopIteration, SystemExit, KeyboardInterrupt, GeneratorExit, asyncio.CancelledError])
async def test_errors_that_loops_take_for_theirs_are_plug_ins(kind: type[BaseException], thread: ComputeThread) -> None:
    for run in (thread.run, run_beside):
        with pytest.raises(UserCodeFailed, match=rf"a plug-in failed: {kind.__name__}: mine \(.*, in raises\)"):
            await asyncio.wait_for(run(raises, kind("mine")), HANG_S)
    assert await thread.run(abs, -1) == 1


@pytest.mark.parametrize("error", [TimeoutError("mine"), StopAsyncIteration("mine"), BadInput("mine")])
async def test_other_errors_arrive_as_they_were_raised(error: Exception, thread: ComputeThread) -> None:
    with pytest.raises(type(error)) as found:
        await asyncio.wait_for(thread.run(raises, error), HANG_S)
    assert found.value is error
    assert found.traceback[-1].name == "raises"


async def test_what_a_function_sets_for_the_process_is_put_back(thread: ComputeThread) -> None:
    def sets() -> None:
        torch.set_default_dtype(torch.float64)
        torch.set_num_threads(torch.get_num_threads() + 1)
        torch.set_grad_enabled(False)
        torch.set_default_device("meta")
        torch.set_flush_denormal(True)
        np.seterr(all="raise")

    def settings() -> tuple[Any, ...]:
        small = torch.tensor(1e-40) * torch.tensor(0.5)
        return small.dtype, float(small) > 0, torch.get_num_threads(), torch.is_grad_enabled(), np.geterr()

    before = await thread.run(settings)
    await thread.run(sets)
    assert await thread.run(settings) == before
