"""What Airflow asks at every start: who this provider is. Heavy imports do not belong here."""

from typing import Any

from airflow_icechunk import __version__

_INTEGRATION = "Icechunk"


def get_provider_info() -> dict[str, Any]:
    return {
        "package-name": "airflow-icechunk",
        "name": "Icechunk",
        "description": "Icechunk repositories: transactions for Zarr arrays, written on Spark.",
        "versions": [__version__],
        "integrations": [
            {
                "integration-name": _INTEGRATION,
                "external-doc-url": "https://icechunk.io",
                "tags": ["software"],
            }
        ],
        "connection-types": [
            {
                "connection-type": "icechunk",
                "hook-class-name": "airflow_icechunk.hooks.icechunk.IcechunkHook",
                "hook-name": "Icechunk",
                "ui-field-behaviour": {
                    "hidden-fields": ["port", "schema"],
                    "relabeling": {
                        "host": "Repository URL",
                        "login": "Access key or account",
                        "password": "Secret key",
                    },
                    "placeholders": {"host": "s3://bucket/prefix"},
                },
                "conn-fields": _connection_fields(),
            }
        ],
        "hooks": _modules("airflow_icechunk.hooks.icechunk"),
        "operators": _modules(
            "airflow_icechunk.operators.branches",
            "airflow_icechunk.operators.maintenance",
            "airflow_icechunk.operators.repositories",
            "airflow_icechunk.operators.spark",
            "airflow_icechunk.operators.spark_maintenance",
            "airflow_icechunk.operators.tags",
            "airflow_icechunk.operators.transactions",
        ),
        "sensors": _modules("airflow_icechunk.sensors.icechunk"),
        "triggers": _modules("airflow_icechunk.triggers.icechunk"),
        "extra-links": [
            "airflow_icechunk.links.IcechunkRepositoryLink",
            "airflow_icechunk.links.IcechunkSnapshotLink",
        ],
        "asset-uris": [
            {
                "schemes": ["icechunk"],
                "handler": "airflow_icechunk.assets.sanitize_uri",
                "factory": "airflow_icechunk.assets.create_asset",
                "to_openlineage_converter": "airflow_icechunk.assets.convert_asset_to_openlineage",
            }
        ],
        "task-decorators": [
            {"name": "icechunk", "class-name": "airflow_icechunk.decorators.icechunk.icechunk_task"}
        ],
        "config": {
            "icechunk": {
                "description": "Options for the Icechunk provider.",
                "options": {
                    "poll_interval": {
                        "description": (
                            "Seconds between two looks of a trigger at a repository, where the "
                            "trigger does not say otherwise.\n"
                        ),
                        "version_added": "0.1.0",
                        "type": "float",
                        "example": "60",
                        "default": "30",
                    },
                    "ui_task_tab": {
                        "description": (
                            "Whether task instances have a tab with the snapshots that they made. "
                            "Airflow shows it on every task, also on those that make none.\n"
                        ),
                        "version_added": "0.1.0",
                        "type": "boolean",
                        "example": "False",
                        "default": "True",
                    },
                },
            }
        },
    }


def _modules(*names: str) -> list[dict[str, Any]]:
    return [{"integration-name": _INTEGRATION, "python-modules": [*names]}]


def _connection_fields() -> dict[str, Any]:
    return {
        "endpoint_url": _text(
            "Endpoint", "Of an S3, GCS or Azure service other than the public one"
        ),
        "region": _text("Region", "Of the S3 bucket"),
        "anonymous": _flag("Anonymous", "Read a public bucket without credentials"),
        "path_style": _flag("Path style", "Name the S3 bucket in the path, not in the host"),
        "read_only": _flag("Read only", "Refuse writes through this connection"),
        "session_token": {
            **_text("Session token", "Of temporary S3 credentials, or an Azure SAS token"),
            "schema": {"type": ["string", "null"], "format": "password"},
        },
        "account_name": _text("Azure account", "If the access key is not it"),
        "project": _text("GCS project", ""),
        "aws_conn_id": _text("AWS connection", "Whose credentials to use for S3"),
        "gcp_conn_id": _text("Google Cloud connection", "Whose credentials to use for GCS"),
        "azure_conn_id": _text("Azure connection", "Of the type wasb: whose credentials to use"),
    }


def _text(label: str, description: str) -> dict[str, Any]:
    return {"label": label, "description": description, "schema": {"type": ["string", "null"]}}


def _flag(label: str, description: str) -> dict[str, Any]:
    schema = {"type": ["boolean", "null"], "default": False}
    return {"label": label, "description": description, "schema": schema}
