"""Airflow, Spark and an S3 server on this machine: `python -m stack up|status|down`."""
