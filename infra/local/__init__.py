"""The whole system on one machine: Redis, an S3 server, the API and a worker, started and stopped from a checkout."""
