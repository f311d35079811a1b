"""The application that the API server mounts: pages, JSON, and the headers of both."""

from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import quote

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, RedirectResponse, Response
from fastapi.staticfiles import StaticFiles
from starlette.exceptions import HTTPException

from airflow_icechunk import compat
from airflow_icechunk.links import PREFIX
from airflow_icechunk.plugin import api, pages
from airflow_icechunk.plugin.errors import ViewError
from airflow_icechunk.plugin.rendering import FOLDER, airflow_root, render
from airflow_icechunk.plugin.repositories import Repositories
from airflow_icechunk.plugin.security import RESOURCE

_HEADERS = {
    # All that a page needs comes from here; nothing in it can be made to run.
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
        "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'self'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
}
_FRAMED_SINCE = (3, 3)
"""The version of Airflow whose own URLs can lead to a page inside the frame."""
_EXPLAINED = {
    401: "You are not signed in to Airflow.",
    403: (
        f"You may not see this. It takes permission to read the connection, or the view {RESOURCE}."
    ),
    404: "There is no such page.",
    405: "This can only be read.",
}


def create_app(repositories: Repositories | None = None) -> FastAPI:
    """The application; it needs the auth manager that the API server sets up.

    :param repositories: how repositories are read.
    """
    app = FastAPI(title="Icechunk", docs_url=None, redoc_url=None, openapi_url=None)
    app.state.repositories = repositories or Repositories()
    app.include_router(api.router)
    app.include_router(pages.router)
    app.mount("/static", StaticFiles(directory=FOLDER / "static"), name="static")
    app.add_exception_handler(ViewError, _show_error)
    app.add_exception_handler(HTTPException, _show_error)
    app.add_exception_handler(RequestValidationError, _show_error)
    app.middleware("http")(_with_headers)
    return app


async def _with_headers(
    request: Request, respond: Callable[[Request], Awaitable[Response]]
) -> Response:
    inside = _framed_url(request)
    response = await respond(request) if inside is None else RedirectResponse(inside)
    response.headers.update(_HEADERS)
    if not _path(request).startswith("/static/"):
        # Who may see it can change.
        response.headers["Cache-Control"] = "no-store"
    return response


def _framed_url(request: Request) -> str | None:
    """Where the page is shown within Airflow; None if it is, or cannot be."""
    if request.headers.get("sec-fetch-dest") != "document" or _is_data(request):
        return None
    if _path(request).startswith(("/static/", "/tasks/")) or compat.VERSION < _FRAMED_SINCE:
        return None
    root = airflow_root(request)
    query = f"?{request.url.query}" if request.url.query else ""
    return f"{root}/plugin/{PREFIX}{root}/{PREFIX}{quote(_path(request))}{query}"


def _path(request: Request) -> str:
    """Within this application."""
    path: str = request.scope["path"]
    return path.removeprefix(request.scope["root_path"])


def _is_data(request: Request) -> bool:
    return _path(request).startswith("/api/")


async def _show_error(request: Request, error: Any) -> Response:
    status, text = 422, "The address is not valid."
    if isinstance(error, ViewError):
        status, text = error.status, error.text
    elif isinstance(error, HTTPException):
        status, text = error.status_code, _EXPLAINED.get(error.status_code, str(error.detail))
    if _is_data(request):
        return JSONResponse({"detail": text}, status)
    return render(request, "error.html", status=status, code=status, text=text)
