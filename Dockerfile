# One image for every function, PodSource and the console; FUNCTION and the command tell them apart.
FROM python:3.13-slim AS build
# More that pip shall install, such as what spans take (docs/observability.md).
ARG EXTRA=""
COPY requirements.txt /
RUN python -m venv /venv && /venv/bin/pip install --no-cache-dir --requirement /requirements.txt 'psycopg[binary]>=3.3,<4' $EXTRA

FROM python:3.13-slim
COPY --from=build /venv /venv
WORKDIR /app
COPY functions functions
COPY eventing eventing
COPY kube kube
COPY console console
# Compiled here, as pip does with the libraries: nobody may write beside the sources later.
RUN python -m compileall -q --invalidation-mode unchecked-hash functions eventing kube console
ENV PATH=/venv/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
# A number, so that Kubernetes can tell that it is not root.
USER 65532:65532
EXPOSE 8080
CMD ["gunicorn", "-c", "functions/gunicorn.conf.py", "functions.app:create_app()"]
