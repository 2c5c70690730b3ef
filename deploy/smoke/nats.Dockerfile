# Stand-in for nats:2.15-alpine: the server from its wheel, and busybox' wget for the health check.
FROM jobmaster-standin-python
COPY nats-server /usr/local/bin/nats-server
RUN ln -sf /bin/busybox /usr/local/bin/wget
EXPOSE 4222 6222 8222
ENTRYPOINT ["nats-server"]
