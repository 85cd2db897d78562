# Feedmill as a command: `docker build -t feedmill .`, then
#
#   docker run --rm -v "$PWD:/data" -u "$(id -u):$(id -g)" feedmill show coco
#
# EXTRAS chooses what is in it; for clusters, see examples/cluster/Dockerfile. Keep /cache in a volume: indices and remote data are there.
ARG PYTHON=3.12
FROM python:${PYTHON}-slim AS build
ARG EXTRAS=media,tokenize,curation,arrow,web,s3,fsspec
WORKDIR /src
COPY pyproject.toml setup.py constraints.txt README.md LICENSE ./
COPY tools/kernels tools/kernels
COPY src src
RUN python3 -m venv /opt/feedmill \
    && /opt/feedmill/bin/pip install --no-cache-dir -c constraints.txt ".[${EXTRAS}]"

FROM python:${PYTHON}-slim
RUN useradd --create-home --uid 1000 feedmill && mkdir /data /cache && chown 1000:1000 /data && chmod 1777 /cache
COPY --from=build --chown=1000:1000 /opt/feedmill /opt/feedmill
ENV PATH=/opt/feedmill/bin:$PATH FEEDMILL_CACHE_DIR=/cache
USER 1000
WORKDIR /data
ENTRYPOINT ["feedmill"]
CMD ["--help"]
