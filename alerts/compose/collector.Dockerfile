# The collector's image holds the collector alone, which cannot ask itself how it is: one static program is added that can.
FROM busybox:1.37.0-musl AS busybox
FROM otel/opentelemetry-collector:0.135.0
COPY --from=busybox /bin/busybox /busybox
