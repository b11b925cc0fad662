# One image a service: docker build --target gateway|scheduler|cpu_worker|gpu_worker .
FROM python:3.11-slim-bookworm AS base
ENV PYTHONPATH=/app PYTHONSAFEPATH=1 PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 \
    PIP_NO_CACHE_DIR=1 PIP_ROOT_USER_ACTION=ignore \
    HOME=/data CHAIRLIFT_DATA_DIR=/data TOKENIZERS_PARALLELISM=false MALLOC_ARENA_MAX=2
WORKDIR /app
# A volume takes its owner from the folder that it is first mounted on.
RUN useradd --uid 10001 --home-dir /data --no-create-home chairlift \
 && mkdir /data /redis /run/chairlift && chown 10001:10001 /data /redis /run/chairlift
COPY pyproject.toml constraints.txt ./
COPY cli/__init__.py cli/install.py cli/
COPY common/__init__.py common/config.py common/

FROM base AS gateway
RUN python -m cli.install gateway
COPY cli cli
COPY common common
COPY gateway gateway
USER 10001:10001
ENV CHAIRLIFT_HOST=0.0.0.0 OMP_NUM_THREADS=1
EXPOSE 8000
HEALTHCHECK --interval=10s --timeout=10s --start-period=300s CMD ["python", "-m", "cli.health", "gateway"]
ENTRYPOINT ["python", "-m", "gateway"]

FROM base AS scheduler
RUN python -m cli.install scheduler
COPY cli cli
COPY common common
COPY scheduler scheduler
USER 10001:10001
ENV OMP_NUM_THREADS=1
HEALTHCHECK --interval=10s --timeout=10s --start-period=60s CMD ["python", "-m", "cli.health", "scheduler"]
ENTRYPOINT ["python", "-m", "scheduler"]

FROM base AS cpu_worker
RUN python -m cli.install worker
COPY cli cli
COPY common common
COPY gpu_worker gpu_worker
USER 10001:10001
HEALTHCHECK --interval=10s --timeout=10s --start-period=300s CMD ["python", "-m", "cli.health", "worker"]
ENTRYPOINT ["python", "-m", "gpu_worker"]

FROM base AS gpu_worker
RUN python -m cli.install --gpu worker
COPY cli cli
COPY common common
COPY gpu_worker gpu_worker
USER 10001:10001
HEALTHCHECK --interval=10s --timeout=10s --start-period=300s CMD ["python", "-m", "cli.health", "worker"]
ENTRYPOINT ["python", "-m", "gpu_worker"]
