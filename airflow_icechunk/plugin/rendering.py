"""HTML from templates, in which every value is escaped."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from fastapi.responses import HTMLResponse
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from airflow_icechunk import __version__
from airflow_icechunk.links import PREFIX

if TYPE_CHECKING:
    from fastapi import Request

FOLDER = Path(__file__).parent

_UNITS = ((86400 * 365, "year"), (86400 * 30, "month"), (86400, "day"), (3600, "hour"))


def age(when: datetime, now: datetime | None = None) -> str:
    """How long ago, in words."""
    seconds = ((now or datetime.now(UTC)) - when).total_seconds()
    for size, unit in (*_UNITS, (60, "minute")):
        if seconds >= size:
            count = int(seconds // size)
            return f"{count} {unit}{'s' if count > 1 else ''} ago"
    return "just now"


def size(count: int | None) -> str:
    """Bytes, in the unit that suits."""
    if count is None:
        return "?"
    amount = float(count)
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if amount < 1024:
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1024
    return f"{amount:.1f} PiB"


def value(item: Any) -> str:
    """Metadata on one line."""
    return item if isinstance(item, str) else json.dumps(item, ensure_ascii=False, default=str)


def shape(lengths: list[int] | None) -> str:
    return "?" if lengths is None else " \u00d7 ".join(map(str, lengths)) if lengths else "scalar"


_environment = Environment(
    loader=FileSystemLoader(FOLDER / "templates"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
_environment.filters["age"] = age
_environment.filters["part"] = partial(quote, safe="")
_environment.filters["shape"] = shape
_environment.filters["size"] = size
_environment.filters["value"] = value


def airflow_root(request: Request) -> str:
    """The path that Airflow is served at, without a slash at the end."""
    root: str = request.scope["root_path"]
    return root.removesuffix(f"/{PREFIX}")


def render(request: Request, template: str, *, status: int = 200, **context: Any) -> HTMLResponse:
    """A page.

    :param request: what was asked; links are made relative to where Airflow is served.
    :param template: its file.
    :param status: of HTTP.
    :param context: what the template needs.
    """
    airflow = airflow_root(request)
    text = _environment.get_template(template).render(
        airflow=airflow, root=f"{airflow}/{PREFIX}", version=__version__, **context
    )
    return HTMLResponse(text, status)
