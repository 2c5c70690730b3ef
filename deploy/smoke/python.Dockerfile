# Stand-in for python:3.13-slim: Debian's Python under the name that the official image has it by.
FROM scratch
COPY . /
RUN ["/bin/bash", "-c", "ldconfig && mkdir -p /usr/local/bin && ln -sf /usr/bin/python3 /usr/local/bin/python && ln -sf /usr/bin/python3 /usr/local/bin/python3"]
ENV PATH=/usr/local/bin:/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8
CMD ["python"]
