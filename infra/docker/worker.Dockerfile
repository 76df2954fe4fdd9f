# One worker, one process, at most one GPU. The torch of PyPI brings its own CUDA libraries; the host needs the driver and
# the NVIDIA container toolkit. Without a GPU it runs on the CPU.
# Build from the repository's root: docker build -f infra/docker/worker.Dockerfile -t omnivoice-queue-worker .
FROM python:3.11-slim-bookworm

ENV PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 PIP_NO_CACHE_DIR=1
# So that memory stays flat with hundreds of threads, and is found sooner after a pause (bench/README.md).
ENV GLIBC_TUNABLES=glibc.malloc.hugetlb=1:glibc.malloc.tcache_count=0:glibc.malloc.arena_max=1 PYTHONMALLOC=malloc
WORKDIR /app

COPY pyproject.toml constraints.txt README.md LICENSE NOTICE ./
COPY omnivoice ./omnivoice
COPY worker ./worker
COPY api ./api
RUN pip install --constraint constraints.txt '.[worker]' \
    && useradd --system --uid 10001 --create-home omnivoice \
    && mkdir /models && chown omnivoice /models

USER omnivoice
WORKDIR /
# Downloads from the Hub go here: a volume keeps them when the container goes.
ENV HF_HOME=/models
VOLUME /models
# SIGTERM drains: what runs is finished, the rest is handed back. Give it longer than OMNIVOICE_DRAIN_SECONDS.
ENTRYPOINT ["python", "-m", "worker"]
