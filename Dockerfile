# One image for every function, PodSource and the console; FUNCTION and the command tell them apart.
# Debian or alike, with Python 3.10 or later and its venv.
ARG BASE=python:3.13-slim

FROM ${BASE} AS build
# More that pip shall install, such as what spans take (docs/observability.md).
ARG EXTRA=""
COPY requirements.txt /
# pip stays here: it has an environment of its own.
RUN python3 -m venv /tools && python3 -m venv --without-pip /venv && /tools/bin/pip --python /venv/bin/python install --no-cache-dir --no-compile --requirement /requirements.txt 'psycopg[binary]>=3.3,<4' $EXTRA

FROM build AS trimmed
# Typed clients and their models, of which nothing is imported, are half of all libraries; tests are run where a library is
# made. All else is compiled here, since nobody may write beside it later: in a fixed order, and by what is in a file and
# not by its date, so that it is the same layer each time.
ENV PYTHONHASHSEED=0
RUN /tools/bin/pip --python /venv/bin/python uninstall --yes pydantic pydantic-core && cd /venv/lib/python3*/site-packages && rm -r kubernetes/client kubernetes/aio/client/api */tests sqlalchemy/testing && find kubernetes/aio/client/models -name '[a-z]*.py' -delete && /venv/bin/python -m compileall -q --invalidation-mode unchecked-hash .

# What is in it, as CycloneDX has it: `make image` writes this beside the image.
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
# Sources that were cloned under a strict umask may be their owner's alone; the compiled ones have their modes.
RUN PYTHONHASHSEED=0 /venv/bin/python -m compileall -q --invalidation-mode unchecked-hash functions eventing kube console && find . ! -perm -a=r -exec chmod a+rX {} +
# Few of a function's threads allocate at once; in an arena each would have a peak of its own.
ENV PATH=/venv/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 MALLOC_ARENA_MAX=2
# A number, so that Kubernetes can tell that it is not root.
USER 65532:65532
EXPOSE 8080
CMD ["gunicorn", "-c", "functions/gunicorn.conf.py", "functions.app:create_app()"]
