# The program `monarch`, for workers and operators. Non-root; needs no writable file system but /tmp,
# where large source transactions are spooled.
FROM rust:1-bookworm AS build
WORKDIR /src
COPY . .
RUN cargo build --release --locked --package monarch-cli

FROM debian:bookworm-slim
RUN apt-get update \
    && apt-get install --yes --no-install-recommends ca-certificates \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --system --uid 10001 monarch
COPY --from=build /src/target/release/monarch /usr/local/bin/monarch
USER monarch
WORKDIR /etc/monarch
ENTRYPOINT ["monarch"]
CMD ["worker"]
