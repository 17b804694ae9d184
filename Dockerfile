# The exporter in a container; docker-compose.yml runs it. It listens on loopback as everywhere, so alone it serves nobody
# but its own health check: whoever runs it passes what docker-compose.yml passes.
FROM rust:1.95.0-slim-bookworm AS build
WORKDIR /src
COPY . .
# Crates and what was compiled stay between builds; the binary has to leave the cache within the same step.
RUN --mount=type=cache,target=/usr/local/cargo/registry \
    --mount=type=cache,target=/src/target \
    cargo build --release --locked --bin agent-session-exporter \
    && install -D target/release/agent-session-exporter /out/agent-session-exporter

# The same Debian as above: the binary needs its libc and nothing else.
FROM debian:12.12-slim
# For servers of agents that are reached by https.
COPY --from=build /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs/ca-certificates.crt
COPY --from=build /out/agent-session-exporter /usr/local/bin/agent-session-exporter
# Agents' files can often be read by their owner alone, so the exporter runs as whoever that is: anybody may make a folder
# in here, and the exporter makes its own, which nobody else can read.
RUN install -d -m 1777 /var/lib/agent-session-exporter
VOLUME /var/lib/agent-session-exporter
USER 1000:1000
EXPOSE 10077
# There is no curl in here; bash can ask by itself.
HEALTHCHECK --interval=15s --timeout=5s --start-period=30s --retries=3 \
    CMD ["bash", "-c", "exec 3<>/dev/tcp/127.0.0.1/10077 && printf 'GET /-/healthy HTTP/1.0\\r\\n\\r\\n' >&3 && read -r -t 4 _ code _ <&3 && [ \"$code\" = 200 ]"]
ENTRYPOINT ["/usr/local/bin/agent-session-exporter"]
CMD ["--home", "/agents", "--state-dir", "/var/lib/agent-session-exporter/state"]
