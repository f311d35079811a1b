"""What Airflow asks at every start: who this provider is. Heavy imports do not belong here."""

from airflow_icechunk import __version__


def get_provider_info() -> dict[str, object]:
    return {
        "package-name": "airflow-icechunk",
        "name": "Icechunk",
        "description": "Icechunk repositories: transactions for Zarr arrays, written on Spark.",
        "versions": [__version__],
    }
