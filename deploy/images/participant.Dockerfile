# The participant's image: its own distribution and what that imports, and nothing of a coordinator.
#
# From the repository's root: docker build --file deploy/images/participant.Dockerfile --tag veilsum-participant .
# Where PyTorch's default wheels would bring CUDA along, name an index with its CPU wheels: --build-arg PIP_EXTRA_INDEX_URL=...
# The base is pinned by its tag. Pin it by digest with --build-arg PYTHON_IMAGE=python@sha256:... of an image that you have checked.
ARG PYTHON_IMAGE=python:3.11.13-slim-bookworm

FROM ${PYTHON_IMAGE} AS build
ARG PIP_INDEX_URL=""
ARG PIP_EXTRA_INDEX_URL=""
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore
WORKDIR /src
COPY LICENSE README.md SECURITY.md constraints.txt pyproject.toml reached.py ./
COPY docs docs
COPY proto proto
COPY node node
COPY privacy privacy
COPY aggregation aggregation
COPY participant participant
RUN python -m pip wheel --no-cache-dir --no-deps --wheel-dir /wheels ./participant
RUN python -m venv --without-pip /opt/veilsum
RUN python -m pip --python /opt/veilsum/bin/python install --no-cache-dir --constraint constraints.txt /wheels/*.whl
# The bill of materials: what Python packages the environment holds, by name, version, licence and origin.
RUN python -m venv /opt/sbom
RUN /opt/sbom/bin/python -m pip install --no-cache-dir --constraint constraints.txt cyclonedx-bom==7.5.0
RUN /opt/sbom/bin/cyclonedx-py environment --pyproject ./participant/pyproject.toml --mc-type application --spec-version 1.6 \
    --output-reproducible --output-format JSON --output-file /opt/veilsum/sbom.cdx.json /opt/veilsum/bin/python
RUN mkdir -m 0700 /state

FROM ${PYTHON_IMAGE}
ARG VERSION=0.3.0.dev0
ARG REVISION=unknown
LABEL org.opencontainers.image.title="veilsum-participant" \
      org.opencontainers.image.description="Clips, noises, masks and encrypts beside a site's records, and keeps its privacy ledger" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.licenses="Apache-2.0"
COPY --from=build /opt/veilsum /opt/veilsum
COPY --from=build --chown=10001:10001 /state /var/lib/veilsum
# The root file system may be read-only: state goes to the volume, the rest to a tmpfs at /tmp.
ENV PATH=/opt/veilsum/bin:/usr/local/bin:/usr/bin:/bin \
    HOME=/tmp \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1
WORKDIR /var/lib/veilsum
VOLUME /var/lib/veilsum
USER 10001:10001
EXPOSE 9465
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=30s --timeout=10s --start-period=60s --retries=3 \
    CMD ["veilsum", "participant", "health", "--config", "/etc/veilsum/participant.toml"]
ENTRYPOINT ["veilsum"]
CMD ["participant", "start", "--config", "/etc/veilsum/participant.toml"]
