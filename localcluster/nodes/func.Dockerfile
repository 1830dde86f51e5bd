# The same image as from `func deploy --builder=host`: the sources are in /func, and func's scaffolding with all
# libraries is in /func/.func/build. The build context `scaffolding` is the directory of func's templates.
ARG BASE

FROM ${BASE} AS build
WORKDIR /func
COPY . .
COPY --from=scaffolding . .func/build
RUN ln -s ../.. .func/build/f && python3 -m venv /tools && cd .func/build && /tools/bin/pip install --no-cache-dir --target lib .

FROM ${BASE}
COPY --from=build --chown=1000:1000 /func /func
WORKDIR /func
ENV PYTHONPATH=/func/.func/build/lib LISTEN_ADDRESS=[::]:8080
USER 1000:1000
EXPOSE 8080
CMD ["python3", "/func/.func/build/service/main.py"]
