# The image of `jm`: coordinators, workers and the command line. See docs/compose.md.
#
#     docker build -t jobmaster .
#
# An application goes on top: FROM jobmaster, COPY its modules to /app, CMD ["worker", "shop:jm"].
ARG PYTHON_IMAGE=python:3.13-slim

FROM ${PYTHON_IMAGE} AS build
# Options for pip, for example to take wheels put into deploy/wheels instead of an index (the smoke script does so).
ARG PIP_OPTIONS=""
# Extras of the package, in brackets: "[embedded]".
ARG EXTRAS=""
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 PIP_ROOT_USER_ACTION=ignore
# Without pip of its own: what installs stays in this stage.
RUN python -m venv --without-pip /opt/jobmaster
COPY deploy/wheels /wheels
COPY . /src
RUN python -m pip --python /opt/jobmaster/bin/python install ${PIP_OPTIONS} "/src${EXTRAS}"

FROM ${PYTHON_IMAGE}
LABEL org.opencontainers.image.title="JobMaster for NATS" \
      org.opencontainers.image.description="A distributed job scheduler: NATS JetStream for speed, Postgres for the record." \
      org.opencontainers.image.licenses="Apache-2.0"
COPY --from=build /opt/jobmaster /opt/jobmaster
ENV PATH=/opt/jobmaster/bin:$PATH \
    PYTHONPATH=/app \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1
WORKDIR /app
# By number, so that Kubernetes' runAsNonRoot can see that it is not root.
USER 10001:10001
# `jm` handles SIGTERM itself: a worker drains, a coordinator steps down. No shell in between. Run it with an init
# (docker run --init, compose's `init: true`): a process 1 does not get a signal that comes before it has a handler.
STOPSIGNAL SIGTERM
ENTRYPOINT ["jm"]
CMD ["--help"]
