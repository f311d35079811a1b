"""The plugin: a page under Browse, a tab of task instances, and the application behind them."""

from __future__ import annotations

from functools import cached_property
from typing import Any

from airflow.providers.common.compat.sdk import AirflowPlugin, conf

from airflow_icechunk.links import PREFIX

# Without a slash in front: Airflow may be served below a path, which its pages take as their base.
_HOME = f"{PREFIX}/"
_TASK = f"{PREFIX}/tasks/{{DAG_ID}}/{{RUN_ID}}/{{TASK_ID}}/{{MAP_INDEX}}"


class IcechunkPlugin(AirflowPlugin):
    """Every component of Airflow loads it; only the API server asks for the application."""

    name = "icechunk"

    @cached_property
    def fastapi_apps(self) -> list[dict[str, Any]]:  # type: ignore[override]
        # Workers need neither FastAPI nor icefloe for this.
        from airflow_icechunk.plugin.app import create_app

        return [{"app": create_app(), "url_prefix": f"/{PREFIX}", "name": "Icechunk"}]

    @cached_property
    def external_views(self) -> list[dict[str, Any]]:  # type: ignore[override]
        icons = {
            "icon": f"{PREFIX}/static/icon.svg",
            "icon_dark_mode": f"{PREFIX}/static/icon-dark.svg",
        }
        views: list[dict[str, Any]] = [
            {
                "name": "Icechunk",
                "href": _HOME,
                "destination": "nav",
                "category": "browse",
                "url_route": PREFIX,
                **icons,
            }
        ]
        if conf.getboolean("icechunk", "ui_task_tab", fallback=True):
            views.append(
                {
                    "name": "Icechunk",
                    "href": _TASK,
                    "destination": "task_instance",
                    "url_route": f"{PREFIX}_task",
                    **icons,
                }
            )
        return views
