# One image serves all functions, PodSource and the console; FUNCTION and the command select the program.
# BASE must be based on Debian and have Python 3.10 or later with its module venv.
ARG BASE=python:3.13-slim

FROM ${BASE} AS build
# Additional packages for pip, for example those of tracing (docs/observability.md).
ARG EXTRA=""
COPY requirements.txt /
# pip has its own environment, which is not copied into the image.
RUN python3 -m venv /tools && python3 -m venv --without-pip /venv && /tools/bin/pip --python /venv/bin/python install --no-cache-dir --no-compile --requirement /requirements.txt 'psycopg[binary]>=3.3,<4' $EXTRA

FROM build AS trimmed
# This stage removes the libraries' tests, and generated clients and models, which the product does not import and which
# are half of all libraries. It compiles the other modules, because the image's user cannot write compiled files. The
# fixed hash seed and the hash-based bytecode make the layer reproducible.
ENV PYTHONHASHSEED=0
RUN /tools/bin/pip --python /venv/bin/python uninstall --yes pydantic pydantic-core && cd /venv/lib/python3*/site-packages && rm -r kubernetes/client kubernetes/aio/client/api */tests sqlalchemy/testing && find kubernetes/aio/client/models -name '[a-z]*.py' -delete && /venv/bin/python -m compileall -q --invalidation-mode unchecked-hash .

# These stages generate the SBOM in CycloneDX format, which `make image` writes to build/sbom.json.
FROM trimmed AS described
RUN /tools/bin/pip install --no-cache-dir 'cyclonedx-bom>=7,<8' && /tools/bin/cyclonedx-py environment --output-reproducible --output-file /sbom.json /venv/bin/python
FROM scratch AS sbom
COPY --from=described /sbom.json /

FROM ${BASE}
ARG BASE
ARG VERSION=unreleased
ARG REVISION=unknown
LABEL org.opencontainers.image.title=nodemaintenance org.opencontainers.image.description="Event-driven node maintenance for Kubernetes" org.opencontainers.image.licenses=Apache-2.0 org.opencontainers.image.version=${VERSION} org.opencontainers.image.revision=${REVISION} org.opencontainers.image.base.name=${BASE}
COPY --from=trimmed /venv /venv
WORKDIR /app
COPY functions functions
COPY eventing eventing
COPY kube kube
COPY console console
# Sources that were cloned with a strict umask are readable only by their owner, and so are files compiled from them.
RUN PYTHONHASHSEED=0 /venv/bin/python -m compileall -q --invalidation-mode unchecked-hash functions eventing kube console && find . ! -perm -a=r -exec chmod a+rX {} +
# Few threads of a function allocate concurrently. If each thread had its own arena, their memory peaks would add up.
ENV PATH=/venv/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 MALLOC_ARENA_MAX=2
# The id is numeric, so that Kubernetes can verify that the user is not root (runAsNonRoot).
USER 65532:65532
EXPOSE 8080
CMD ["gunicorn", "-c", "functions/gunicorn.conf.py", "functions.app:create_app()"]
