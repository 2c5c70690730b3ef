"""The master: Postgres keeps the record, the coordinator moves jobs between it and the buckets."""
