# Tessera in a container.
#
#   docker build -t tessera .                                  CPU
#   docker build --build-arg VARIANT=cuda -t tessera:cuda .    NVIDIA GPUs (Hopper)
#
#   docker run --rm -p 50051:50051 -p 9464:9464 tessera
#   docker run --rm -p 50051:50051 -v /models/qwen3:/model:ro tessera --model /model
#   docker run --rm --gpus all -p 50051:50051 -v /models/qwen3:/model:ro tessera:cuda --model /model
#
# gRPC is on 50051, metrics on 9464. Arguments go to tessera-server. The image holds the bundled model, runs as user
# 10001, writes nothing, and drains on SIGTERM.
ARG VARIANT=cpu
ARG CUDA_VERSION=13.0.1

FROM debian:bookworm AS build-cpu
FROM nvidia/cuda:${CUDA_VERSION}-devel-ubuntu24.04 AS build-cuda

# hadolint ignore=DL3006
FROM build-${VARIANT} AS build
WORKDIR /src
# The packages are a layer of their own, so that a change of the code does not fetch them again.
COPY deploy/lib deploy/lib
COPY deploy/packages deploy/packages
COPY deploy/install-packages deploy/install-packages
RUN deploy/install-packages build
COPY . .
ARG VARIANT
# Without nvcc CMake builds for CPUs alone, which would be the wrong image.
RUN cmake --preset release -DTESSERA_TESTS=OFF -DTESSERA_BENCH=OFF -DCMAKE_INSTALL_PREFIX=/usr \
 && { [ "$VARIANT" != cuda ] || grep -q tessera_kernels_cuda build/build.ninja; } \
 && cmake --build --preset release --target tessera-server tessera \
 && DESTDIR=/out cmake --install build --strip

FROM debian:bookworm-slim AS runtime-cpu
FROM nvidia/cuda:${CUDA_VERSION}-base-ubuntu24.04 AS runtime-cuda

# hadolint ignore=DL3006
FROM runtime-${VARIANT} AS runtime
LABEL org.opencontainers.image.title="Tessera" \
      org.opencontainers.image.description="Serves mixture-of-experts language models in NVFP4 over gRPC" \
      org.opencontainers.image.licenses="Apache-2.0"
COPY deploy/lib /tmp/tessera/deploy/lib
COPY deploy/packages /tmp/tessera/deploy/packages
COPY deploy/install-packages /tmp/tessera/deploy/install-packages
RUN /tmp/tessera/deploy/install-packages runtime \
 && rm -rf /tmp/tessera /var/lib/apt/lists/* /var/cache/apt/*.bin /var/log/apt /var/log/dpkg.log \
 && groupadd --gid 10001 tessera \
 && useradd --uid 10001 --gid 10001 --no-create-home --home-dir /nonexistent --shell /usr/sbin/nologin tessera
COPY --from=build /out /
# Fails the build, rather than the first start, if a library is missing.
RUN tessera-server --version && tessera --version
USER 10001:10001
EXPOSE 50051 9464
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=5s --start-period=120s --retries=3 CMD ["tessera", "health", "--quiet"]
# Every flag of the server may come as an argument or as TESSERA_FLAG from the environment.
ENV TESSERA_LISTEN=0.0.0.0:50051 \
    TESSERA_METRICS=0.0.0.0:9464
ENTRYPOINT ["tessera-server"]
