"""What holds for every test: one thread, fixed before torch and the BLAS libraries look."""

import os

# The number of threads changes the order of additions, hence bits. The libraries read these
# variables once, when they are loaded; processes that tests start inherit them.
for _name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS"):
    os.environ[_name] = "1"
# Pictures are drawn into files; no test may look for a display.
os.environ["MPLBACKEND"] = "Agg"

import pytest  # noqa: E402 - after the variables above, on purpose
import torch  # noqa: E402

torch.set_num_threads(1)


@pytest.fixture
def counting(monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of an algorithm whose devices remember something: how often they were visited."""
    monkeypatch.setenv("STRATA_ALGORITHMS", "tests.probes")
    return "probe_counter"
