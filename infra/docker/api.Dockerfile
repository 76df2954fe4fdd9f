# The HTTP API. No torch: importing or running it never loads the model.
# Build from the repository's root: docker build -f infra/docker/api.Dockerfile -t omnivoice-queue-api .
FROM python:3.11-slim-bookworm

ENV PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 PIP_NO_CACHE_DIR=1
# So that memory stays flat with hundreds of threads, and is found sooner after a pause (bench/README.md).
ENV GLIBC_TUNABLES=glibc.malloc.hugetlb=1:glibc.malloc.tcache_count=0:glibc.malloc.arena_max=1 PYTHONMALLOC=malloc
WORKDIR /app

COPY pyproject.toml constraints.txt README.md LICENSE NOTICE ./
COPY omnivoice ./omnivoice
COPY worker ./worker
COPY api ./api
RUN pip install --constraint constraints.txt '.[api]' \
    && useradd --system --uid 10001 --no-create-home omnivoice

USER omnivoice
WORKDIR /
ENV OMNIVOICE_API_HOST=0.0.0.0
EXPOSE 8080
HEALTHCHECK --interval=10s --timeout=6s --start-period=20s \
    CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8080/livez', timeout=5)"]
# gunicorn takes its place and so gets the signals.
ENTRYPOINT ["python", "-m", "api"]
