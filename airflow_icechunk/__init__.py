"""Airflow provider for Icechunk repositories."""

__version__ = "0.1.0"
