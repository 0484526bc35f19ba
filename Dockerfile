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

FROM python:3.11-slim
ARG TORCH_INDEX=""

# A virtual environment, so that the base image's own packages are neither used nor changed.
ENV PATH=/app/venv/bin:$PATH \
    PIP_DISABLE_PIP_VERSION_CHECK=1
COPY --from=requirements /requirements.txt /app/requirements.txt
COPY constraints.txt /app/
# Packages' own tests, and the headers that only building an extension of torch needs, are a sixth of the whole.
RUN python3 -m venv /app/venv \
    && pip install --no-cache-dir ${TORCH_INDEX:+--extra-index-url "$TORCH_INDEX"} \
        -c /app/constraints.txt setuptools -r /app/requirements.txt \
    && find /app/venv/lib -depth -type d \
        \( -name tests -o -path '*/torch/test' -o -path '*/torch/include' \) -exec rm -rf {} +

# The folder that a tier's volume is mounted on: a new volume takes over its owner.
RUN useradd --uid 10001 --create-home strata \
    && mkdir -p /data /datasets /plugins /join/edge /join/device /join/fleet /join/public \
    && chown -R strata:strata /data /join

WORKDIR /app
COPY . .
# Compiled here, since the user that runs cannot write beside the sources; readable whatever the checkout's umask.
RUN pip install --no-cache-dir --no-deps --no-build-isolation -e . \
    && python -m compileall -q cloud_server edge_server device_agent shared strata \
    && find . -path ./venv -prune -o -exec chmod a+rX {} +

# One thread for whatever computes: the number of threads changes the order of additions, hence bits.
ENV PYTHONUNBUFFERED=1 \
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
# mode over TLS, whose certificate the tier itself does not check here.
HEALTHCHECK --interval=15s --timeout=5s --start-period=60s --retries=4 CMD ["python3", "-ISc", "\
import http.client, os, ssl; \
where = dict(host='127.0.0.1', port=int(os.environ['HEALTH_PORT']), timeout=4); \
secure = os.environ.get('STRATA_SECURE', '').lower() in ('1', 'true', 'yes', 'on', 't', 'y'); \
tier = http.client.HTTPSConnection(**where, context=ssl._create_unverified_context()) if secure \
else http.client.HTTPConnection(**where); \
tier.request('GET', '/healthz'); \
raise SystemExit(tier.getresponse().status != 200)"]

CMD ["python", "-m", "cloud_server"]
