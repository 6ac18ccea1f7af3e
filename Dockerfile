# A small image of the server. It is built from the root of the source:
#   docker build --tag tidegate .
#   docker run --detach --name tidegate --read-only --cap-drop all \
#     --publish 127.0.0.1:8080:8080 --volume tidegate:/var/lib/tidegate tidegate

ARG RUST_TAG=1.95-slim-bookworm
ARG DEBIAN_TAG=12.12-slim

FROM rust:${RUST_TAG} AS build
# The versions of the tools are those of the Debian release that the tag pins.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends \
        gcc libc6-dev libprotobuf-dev make protobuf-compiler \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /source
COPY . .
RUN --mount=type=cache,target=/usr/local/cargo/registry \
    --mount=type=cache,target=/source/target \
    cargo build --locked --profile dist --bin tidegate \
    && install -D --strip target/dist/tidegate /root-of-image/usr/bin/tidegate \
    && install -D --mode 644 packaging/container/tidegate.toml \
        /root-of-image/etc/tidegate/tidegate.toml \
    && install -D --mode 644 --target-directory /root-of-image/usr/share/doc/tidegate \
        LICENSE LICENSE-APACHE LICENSE-MIT

FROM debian:${DEBIAN_TAG}
# Certificates, for upstreams and stores that speak TLS.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends ca-certificates \
    && rm -rf /var/lib/apt/lists/* \
    && groupadd --system --gid 65532 tidegate \
    && useradd --system --uid 65532 --gid tidegate --no-create-home \
        --home-dir /var/lib/tidegate --shell /usr/sbin/nologin tidegate \
    && install --directory --owner tidegate --group tidegate --mode 750 /var/lib/tidegate
COPY --from=build /root-of-image /
# By number, so that an orchestrator can see that it is not root.
USER 65532:65532
WORKDIR /var/lib/tidegate
VOLUME ["/var/lib/tidegate"]
# HTTP, gRPC, RESP; administration stays inside of the container, on loopback.
EXPOSE 8080/tcp 8081/tcp 6380/tcp
STOPSIGNAL SIGTERM
# Administration, because an `allow` list of [http] need not contain loopback.
HEALTHCHECK --interval=10s --timeout=3s --start-period=10s --retries=3 \
    CMD ["/usr/bin/tidegate", "healthcheck", "--server", "http://127.0.0.1:8090"]
ENTRYPOINT ["/usr/bin/tidegate"]
CMD ["serve", "--config", "/etc/tidegate/tidegate.toml"]
