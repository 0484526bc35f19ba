# One image for all three tiers; the command picks the tier:
#   python -m cloud_server | python -m edge_server | python -m device_agent
#
#   --build-arg TORCH_INDEX=URL   an index to take torch from beside pip's own, e.g. the one of the small CPU builds

# The list of dependencies alone (with what writes TensorBoard's files, for runs that are tracked), so that another line of pyproject.toml does not install torch again:
# the next stage's cache looks at what this file holds.
FROM python:3.11-slim AS requirements
COPY pyproject.toml /tmp/
RUN python3 -c "import tomllib; \
project = tomllib.load(open('/tmp/pyproject.toml', 'rb'))['project']; \
print(*project['dependencies'], *project['optional-dependencies']['tensorboard'], sep='\n')" > /requirements.txt

# What is installed, and what of it runs. Installers, compilers and the list of packages stay in this stage.
FROM python:3.11-slim AS build
ARG TORCH_INDEX=""
ENV PATH=/venv/bin:$PATH \
    PIP_DISABLE_PIP_VERSION_CHECK=1 \
    PYTHONDONTWRITEBYTECODE=1
RUN apt-get update -qq \
    && apt-get install -y -qq --no-install-recommends binutils \
    && rm -rf /var/lib/apt/lists/*
COPY --from=requirements /requirements.txt /build/
COPY constraints.txt /build/
# A virtual environment, so that the base image's own packages are neither used nor changed.
# Out goes what only tests, C++ extensions of torch and viewers need, and the symbols that only debuggers read.
RUN python3 -m venv /venv \
    && pip install --no-cache-dir --no-compile ${TORCH_INDEX:+--extra-index-url "$TORCH_INDEX"} \
        -c /build/constraints.txt setuptools -r /build/requirements.txt \
    && cd /venv/lib/python3.11/site-packages \
    && find . -depth -type d -name tests -exec rm -rf {} + \
    && rm -rf torch/test torch/include torch/bin/test* torch/bin/protoc* torch/bin/*StoreTest torch/share tensorboard_data_server/bin \
    && strip --strip-unneeded torch/lib/*.so
WORKDIR /app
# What is in the image, as CycloneDX, by a tool that is not in it.
RUN python3 -m venv /build/sbom \
    && /build/sbom/bin/pip install --no-cache-dir -q 'cyclonedx-bom==7.*' \
    && /build/sbom/bin/cyclonedx-py environment /venv/bin/python --output-file /app/sbom.cdx.json

COPY . .
# Compiled is what the tiers import: the user that runs cannot write beside the sources.
# Readable is everything, whatever the checkout's umask.
RUN pip install --no-cache-dir --no-compile --no-deps --no-build-isolation -e . \
    && python -m compileall -q cloud_server edge_server device_agent shared strata \
    && pip uninstall -q -y setuptools pip \
    && env PYTHONDONTWRITEBYTECODE= MPLCONFIGDIR=/tmp python -c "import importlib; \
from shared.federation.registry import all_algorithms; from strata.launcher.environment import Modules; \
late = ('matplotlib.pyplot', 'scipy.cluster.hierarchy', 'sklearn.datasets', 'torch.utils.tensorboard'); \
all_algorithms(); [importlib.import_module(name) for name in (*Modules().preloaded, *late)]" \
    && chmod -R a+rX .

FROM python:3.11-slim
# The folder that a tier's volume is mounted on: a new volume takes over its owner.
RUN useradd --uid 10001 --create-home strata \
    && mkdir -p /data /datasets /plugins /join/edge /join/device /join/fleet /join/public \
    && chown -R strata:strata /data /join
WORKDIR /app
# Apart from the sources, so that a change of these makes no new layer of all packages.
COPY --from=build /venv /venv
COPY --from=build /app /app

# One thread for whatever computes: the number of threads changes the order of additions, hence bits.
ENV PATH=/venv/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    OMP_NUM_THREADS=1 \
    MKL_NUM_THREADS=1 \
    OPENBLAS_NUM_THREADS=1 \
    NUMEXPR_NUM_THREADS=1 \
    MPLBACKEND=Agg \
    MPLCONFIGDIR=/data/cache/matplotlib \
    STRATA_DATA_DIR=/datasets \
    PYTHONPATH=/plugins \
    STRATA_CACHE_DIR=/data/cache \
    HEALTH_PORT=8000

USER strata
VOLUME /data

# Python's own HTTP client, the one both base images are sure to have. HEALTH_PORT is where this tier listens; in secure
# mode over TLS, whose certificate the tier itself does not check here. An agent that dials out listens nowhere.
HEALTHCHECK --interval=15s --timeout=5s --start-period=60s --retries=4 CMD ["python3", "-ISc", "\
import http.client, os, ssl; \
os.environ.get('AGENT_CONNECT') == 'up' and os._exit(0); \
where = dict(host='127.0.0.1', port=int(os.environ['HEALTH_PORT']), timeout=4); \
secure = os.environ.get('STRATA_SECURE', '').lower() in ('1', 'true', 'yes', 'on', 't', 'y'); \
tier = http.client.HTTPSConnection(**where, context=ssl._create_unverified_context()) if secure \
else http.client.HTTPConnection(**where); \
tier.request('GET', '/healthz'); \
raise SystemExit(tier.getresponse().status != 200)"]

CMD ["python", "-m", "cloud_server"]
