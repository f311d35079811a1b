"""The pages in Airflow: who may see them, what they show, and what they never show."""

import os
import re
import subprocess
import sys
import threading
from html import unescape

import httpx
import pytest
import zarr

import icefloe
from airflow_icechunk.plugin.icechunk_plugin import IcechunkPlugin
from icefloe.format.ids import INITIAL_SNAPSHOT_ID
from icefloe.format.status import Availability
from plugin_server import API, ORIGIN, REPO, RUN, commit, make_app, serving, urls

EVIL = "<script>alert(1)</script>\"'><img src=x onerror=alert(1)>"


def test_every_page_shows_something_to_a_user_who_may_read_the_connection(op, repo):
    for url in urls(repo):
        answer = op.get(url)
        assert answer.status_code == 200, url
        is_data = "/api/" in url
        assert answer.headers["content-type"].startswith(
            "application/json" if is_data else "text/html"
        )
        assert is_data or answer.text.startswith("<!doctype html>")


def test_nobody_gets_anything_but_the_style_sheet(clients, op, repo):
    for url in urls(repo):
        assert clients["nobody"].get(url).status_code == 401, url
    assert "Sign in" in clients["nobody"].get(REPO).text
    assert clients["nobody"].get("/icechunk/static/icechunk.css").status_code == 200
    assert clients["nobody"].get("/icechunk/docs").status_code == 404
    assert clients["nobody"].get("/icechunk/openapi.json").status_code == 404


def test_one_connection_that_fails_in_an_odd_way_does_not_blank_the_list(
    op, repo, connect, monkeypatch, tmp_path
):
    monkeypatch.setenv("AIRFLOW_CONN_BROKEN", '{"conn_type": "icechunk", "extra": "not JSON"}')
    monkeypatch.setenv("AIRFLOW_CONN_ODDER", '{"conn_type": "icechunk", "nonsense": 1}')
    connect("strange", host="s3://[bucket")
    connect("typed", host=str(tmp_path / "repo"), extra={"read_only": ["hush-hush"]})
    answer = op.get("/icechunk/")
    assert answer.status_code == 200
    assert "Arrays" in answer.text
    assert answer.text.count("cannot be opened") >= 2
    assert "nonsense" not in answer.text
    assert op.get("/icechunk/api/repos").status_code == 200


def test_the_cookie_of_the_browser_will_do(address, op, repo):
    token = op.headers["Authorization"].removeprefix("Bearer ")
    with httpx.Client(base_url=address, cookies={"_token": token}) as browser:
        assert browser.get(REPO).status_code == 200


def test_a_token_that_somebody_made_up_will_not_do(address, op, repo):
    with httpx.Client(base_url=address, cookies={"_token": "made.up.token"}) as browser:
        assert browser.get(REPO).status_code in (401, 403)


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE"])
def test_nothing_can_be_changed(op, repo, method):
    for url in urls(repo):
        assert op.request(method, url.partition("?")[0]).status_code == 405


def test_pages_need_nothing_from_elsewhere_and_run_no_code_of_their_own(op, repo):
    for url in urls(repo):
        answer = op.get(url)
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["cache-control"] == "no-store"
        if "/api/" in url:
            continue
        assert not re.search(r"<script(?! src=)|<style|\sstyle=|\son\w+=", answer.text), url
        for source in re.findall(r'(?:src|href)="([^"]*)"', answer.text):
            assert source.startswith("/"), source
            assert not source.startswith("//"), source


def hostile(repository):
    """A repository in which every text is an attack; the tip of its branch main."""
    with repository.transaction(
        "main",
        message=f"{EVIL}\nand {EVIL}",
        metadata={**ORIGIN, "airflow.dag_id": EVIL, "airflow.task_id": EVIL, EVIL: {EVIL: [EVIL]}},
        write_key=EVIL,
    ) as store:
        group = zarr.open_group(store)
        name = EVIL.replace("/", "")
        group.create_array(name, shape=(2,), chunks=(1,), dtype="f4", dimension_names=[EVIL])[0] = 1
    tip = repository.lookup_branch("main")
    repository.create_branch(EVIL, tip)
    repository.create_tag(EVIL, tip)
    repository.set_metadata({EVIL: EVIL})
    repository.set_status(Availability.READ_ONLY, EVIL)
    return tip


def test_what_users_wrote_is_text_and_never_markup(op, repo):
    tip = hostile(repo)
    pages = [
        "/icechunk/",
        REPO,
        f"{REPO}/snapshots/{tip}",
        f"{REPO}/ops",
        f"{REPO}/settings",
    ]
    for url in pages:
        text = op.get(url).text
        assert "alert(1)" in text, url
        assert "<script>" not in text, url
        assert "<img src=x" not in text, url
        assert EVIL in unescape(text), url
    branch = op.get(REPO, params={"branch": EVIL})
    assert branch.status_code == 200
    assert "<script>" not in branch.text
    task = op.get(f"/icechunk/tasks/{EVIL.replace('/', '%2F')}/{RUN}/x/0")
    assert "<script>" not in task.text
    for link in re.findall(r'data-airflow href="([^"]*)"', op.get(REPO).text):
        assert link.startswith("/dags/%3Cscript%3E")


def test_errors_repeat_no_markup(op):
    for url in ("/icechunk/repos/<script>", f"{REPO}?branch=<script>", "/icechunk/<script>"):
        answer = op.get(url)
        assert answer.status_code in (404, 422)
        assert "<script>" not in answer.text.replace('<script src="', "")


def test_an_error_of_the_store_names_no_secret(op, connect, caplog):
    secrets = {"login": "AKIAVERYSECRET", "password": "hush-hush-hush"}
    extra = {"endpoint_url": "http://127.0.0.1:9", "session_token": "tokentokentoken"}
    connect("closed", host="s3://AKIAVERYSECRET:hush-hush-hush@bucket/x", **secrets, extra=extra)
    connect("odd", host="s3://bucket/x", extra={"sesame": "tokentokentoken"})
    connect("nowhere", **secrets)
    connect("loose", host="https://user:hush-hush-hush@127.0.0.1:9/x?sig=tokentokentoken")
    for conn_id in ("closed", "odd", "nowhere", "loose"):
        for url in (f"/icechunk/repos/{conn_id}", f"/icechunk/api/repos/{conn_id}", "/icechunk/"):
            answer = op.get(url)
            assert answer.status_code in (200, 404, 422, 502)
            for secret in ("AKIAVERYSECRET", "hush-hush", "tokentoken"):
                assert secret not in answer.text, url
                assert secret not in caplog.text
    assert "unknown extras: sesame" in op.get("/icechunk/repos/odd").text
    assert "cannot be opened" in op.get("/icechunk/").text


@pytest.mark.parametrize("kind", [icefloe.StorageError, icefloe.NotFoundError, RuntimeError])
def test_whatever_fails_later_names_no_secret_either(repo, connect, tmp_path, caplog, kind):
    from airflow_icechunk.plugin.errors import ViewError
    from airflow_icechunk.plugin.repositories import Repositories

    connect("mine", host=str(tmp_path / "repo"), password="hush-hush", login="AKIAVERYSECRET")

    told = "hush-hush was refused to AKIAVERYSECRET at https://me:word@host/x?sig=1234"

    def fail(opened):
        assert "hush" not in repr(opened)
        raise kind(told)

    with pytest.raises(ViewError) as caught:
        Repositories().read("mine", fail)
    for text in (caught.value.text, caplog.text):
        assert not re.search("hush|AKIA|word|1234", text)
    assert caught.value.__cause__ is None
    # Nobody has judged what strangers say.
    assert ("was refused" in caught.value.text) == (kind is not RuntimeError)


def test_a_repository_that_is_not_there_yet_is_told_in_words(op, connect, tmp_path):
    connect("new", host=str(tmp_path / "nothing"))
    answer = op.get("/icechunk/repos/new")
    assert answer.status_code == 404
    assert f"no repository at {tmp_path}/nothing yet" in answer.text


def test_connections_of_other_types_are_not_opened(op, connect):
    connect("database", "postgres", host="db", password="hush-hush-hush")
    for conn_id in ("database", "missing"):
        answer = op.get(f"/icechunk/repos/{conn_id}")
        assert answer.status_code == 404
        assert f"no connection {conn_id} of the type icechunk" in answer.text
    assert "database" not in op.get("/icechunk/").text


def test_connections_in_the_database_are_listed_too(op, repo):
    from airflow.models import Connection
    from airflow.utils.session import create_session

    stored = Connection(conn_id="stored", conn_type="icechunk", host=repo.storage.url)
    with create_session() as session:
        session.add(stored)
    try:
        names = [item["connection_id"] for item in op.get("/icechunk/api/repos").json()["repos"]]
        assert names == ["icechunk_default", "stored"]
        assert op.get("/icechunk/repos/stored").status_code == 200
    finally:
        with create_session() as session:
            session.query(Connection).delete()


def test_wrong_addresses_get_a_friendly_page(op, repo):
    wrong = {
        f"{REPO}/snapshots/nonsense": 422,
        f"{REPO}/snapshots/{'0' * 19}1": 422,
        f"{REPO}/snapshots/{'0' * 20}": 404,
        f"{REPO}?branch=missing": 404,
        f"{REPO}?branch=": 422,
        f"{REPO}?limit=0": 422,
        f"{REPO}?limit=201": 422,
        f"{REPO}?limit=many": 422,
        f"{REPO}?after=../../etc": 422,
        f"{REPO}?after={'0' * 20}": 404,
        f"{REPO}/ops?limit=100000": 422,
        f"{REPO}/missing": 404,
        f"{API}/snapshots/{'0' * 20}": 404,
        f"{API}/history?limit=1000": 422,
        f"{API}/diff": 422,
        f"{API}/diff?to={INITIAL_SNAPSHOT_ID}": 422,
    }
    for url, status in wrong.items():
        answer = op.get(url)
        assert answer.status_code == status, url
        if "/api/" in url:
            assert answer.json()["detail"]
        else:
            assert "All repositories" in answer.text


def test_the_list_tells_the_state_of_each_repository(op, repo):
    tip = commit(repo, 1, "Ingest of 1 January")
    repo.create_branch("dev", tip)
    repo.create_tag("v1", tip)
    (listed,) = op.get("/icechunk/api/repos").json()["repos"]
    assert listed["connection_id"] == "icechunk_default"
    assert (listed["branches"], listed["tags"], listed["snapshots"]) == (2, 1, 3)
    assert listed["latest"]["id"] == tip
    assert listed["status"]["availability"] == "online"
    page = op.get("/icechunk/").text
    assert "Ingest of 1 January" in page
    assert "just now" in page


def test_a_commit_shows_at_once(op, repo):
    assert op.get(f"{API}/history").json()["total"] == 2
    commit(repo, 1)
    assert op.get(f"{API}/history").json()["total"] == 3


def test_pages_of_history_show_every_snapshot_once(op, repo):
    for value in range(1, 8):
        commit(repo, value, f"number {value}")
    expected = [item.id for item in repo.ancestry(branch="main")]
    found, after = [], None
    while True:
        params = {"branch": "main", "limit": 2, **({"after": after} if after else {})}
        page = op.get(f"{API}/history", params=params).json()
        found += [item["id"] for item in page["snapshots"]]
        assert page["total"] == len(expected)
        after = page["after"]
        if after is None:
            break
    assert found == expected
    page = op.get(REPO, params={"limit": 2, "after": expected[1]}).text
    assert "3 \u2013 4 of 9" in page
    assert 'rel="next"' in page
    assert page.count("<circle") == 2


def test_history_shows_where_branches_and_tags_are_and_who_made_what(op, repo):
    base = repo.lookup_branch("main")
    repo.create_branch("dev", base)
    made = commit(repo, 1, "On main", metadata=ORIGIN, write_key="airflow-abc")
    commit(repo, 2, "On dev", branch="dev")
    repo.create_tag("v1", made)
    page = op.get(REPO).text
    # Two lines, of which one turns into the other.
    assert page.count("<path") == 2
    assert re.search(r"<path[^>]* d=\"[^\"]*C", page)
    assert ">dev</a>" in page
    assert '<span class="label tag">v1</span>' in page
    run = "manual__2026-01-01T00%3A00%3A00%2B00%3A00"
    assert f'href="/dags/ingest/runs/{run}/tasks/write/mapped/2"' in page
    assert "Write key airflow-abc" in page
    history = op.get(f"{API}/history", params={"branch": "dev"}).json()
    assert history["snapshots"][0]["message"] == "On dev"
    assert "On main" not in {item["message"] for item in history["snapshots"]}


def test_a_snapshot_shows_what_it_holds_and_what_changed(op, repo):
    parent = repo.lookup_branch("main")
    tip = commit(repo, 3, metadata={"source": "era5"})
    repo.create_branch("dev", tip)
    found = op.get(f"{API}/snapshots/{tip}").json()
    assert found["snapshot"]["metadata"] == {"source": "era5"}
    assert found["in_branches"] == ["main", "dev"]
    assert found["contents"]["arrays"] == 2
    t2m = next(item for item in found["contents"]["listed"] if item["path"] == "/t2m")
    assert (t2m["shape"], t2m["chunks"], t2m["dtype"]) == ([4, 2], [1, 2], "float32")
    assert (t2m["num_chunks"], t2m["size_bytes"]) == (4, 32)
    difference = op.get(f"{API}/diff", params={"to": tip}).json()
    assert difference["from"] == parent
    (chunks,) = difference["changes"]["chunks"]
    assert chunks == {"path": "/t2m", "count": 1, "box": [[3, 3], [0, 0]]}
    first = op.get(f"{API}/diff", params={"from": str(INITIAL_SNAPSHOT_ID), "to": tip}).json()
    assert first["changes"]["new_arrays"] == ["/daily/max", "/t2m"]
    backwards = op.get(f"{API}/diff", params={"from": tip, "to": parent})
    assert backwards.status_code == 422
    page = op.get(f"{REPO}/snapshots/{tip}").text
    for text in ("4 \u00d7 2", "float32", "1 chunk", "/t2m", "era5", parent):
        assert text in page


def test_a_snapshot_whose_log_is_gone_still_has_a_page(op, repo, tmp_path):
    tip = commit(repo, 1)
    (tmp_path / "repo" / "transactions" / tip).unlink()
    page = op.get(f"{REPO}/snapshots/{tip}")
    assert page.status_code == 200
    assert "is gone" in page.text
    assert "/t2m" in page.text


def test_a_staged_snapshot_is_on_no_branch(op, repo, stage):
    page = op.get(f"{REPO}/snapshots/{stage(1)}").text
    assert "no branch or tag: staged, or left behind" in page


def test_operations_and_status_are_told(op, repo):
    repo.create_branch("dev", repo.lookup_branch("main"))
    repo.set_feature_flag("move_node", False)
    repo.set_status(Availability.READ_ONLY, "moving house")
    found = op.get(f"{API}/ops", params={"limit": 3}).json()["operations"]
    kinds = [(item["kind"], item["name"], item["detail"]) for item in found]
    assert kinds == [
        ("repo_status_changed", None, "read_only: moving house"),
        ("feature_flag_changed", None, "move_node: off"),
        ("branch_created", "dev", None),
    ]
    page = op.get(f"{REPO}/ops").text
    assert "Read-only" in page
    assert "moving house" in page
    settings = op.get(API).json()["settings"]
    assert {"name": "move_node", "enabled": False, "is_default": False} in settings["flags"]


def test_settings_show_the_configuration_without_the_options_of_stores(op, repo):
    config = repo.config.merge(icefloe.RepositoryConfig(inline_chunk_threshold_bytes=77))
    config.set_virtual_chunk_container(
        icefloe.VirtualChunkContainer(
            "gs://old/data/",
            icefloe.ObjectStoreConfig.Gcs({"service_account_key": "hush-hush-hush"}),
            "old",
        )
    )
    repo.reopen(config=config).save_config()
    page = op.get(f"{REPO}/settings").text
    assert "inline_chunk_threshold_bytes" in page
    assert "old/data/" in page
    assert "hush" not in page
    assert "hush" not in op.get(API).text


def test_a_browser_is_led_to_the_page_inside_airflow(op, repo):
    inside = op.get(f"{REPO}?branch=main", headers={"Sec-Fetch-Dest": "document"})
    assert inside.status_code == 307
    assert inside.headers["location"] == f"/plugin/icechunk{REPO}?branch=main"
    assert op.get(REPO, headers={"Sec-Fetch-Dest": "iframe"}).status_code == 200
    assert op.get(API, headers={"Sec-Fetch-Dest": "document"}).status_code == 200


def test_links_lead_below_the_path_that_airflow_is_served_at(op, repo):
    commit(repo, 1, metadata=ORIGIN)
    with (
        serving(make_app("/airflow")) as other,
        httpx.Client(base_url=other, headers=op.headers) as client,
    ):
        page = client.get(f"/airflow{REPO}")
        assert page.status_code == 200
        for link in re.findall(r'(?:src|href)="([^"]*)"', page.text):
            assert link.startswith(("/airflow/icechunk/", "/airflow/dags/")), link
        framed = client.get(f"/airflow{REPO}", headers={"Sec-Fetch-Dest": "document"})
        assert framed.headers["location"] == f"/airflow/plugin/icechunk/airflow{REPO}"


def test_a_store_that_does_not_answer_costs_one_thread_and_a_moment(connect, tmp_path):
    from airflow_icechunk.plugin.errors import ViewError
    from airflow_icechunk.plugin.repositories import Repositories

    place = tmp_path / "stuck"
    place.mkdir()
    # Whoever opens a pipe waits for somebody at its other end.
    os.mkfifo(place / "repo")
    connect("stuck", host=str(place))
    before = threading.active_count()
    repositories = Repositories(timeout=0.2)
    for _ in range(3):
        with pytest.raises(ViewError, match=r"did not answer within 0\.2 seconds") as caught:
            repositories.read("stuck", lambda opened: None)
        assert caught.value.status == 504
    mine = [thread for thread in threading.enumerate() if thread.name == "icechunk-ui"]
    assert len(mine) == 1
    assert threading.active_count() - before <= 3
    with open(place / "repo", "wb"):
        pass
    mine[0].join(timeout=30)
    assert not mine[0].is_alive()


def test_every_component_loads_the_plugin_and_only_the_api_server_its_application(tmp_path):
    program = (
        "import sys\n"
        "from importlib.metadata import entry_points\n"
        "(entry,) = entry_points(group='airflow.plugins', name='icechunk')\n"
        "plugin = entry.load()()\n"
        "views = [view['destination'] for view in plugin.external_views]\n"
        "before = sorted({'fastapi', 'icefloe', 'numpy', 'zarr'} & set(sys.modules))\n"
        "(app,) = plugin.fastapi_apps\n"
        "print(*views, before, app['url_prefix'], 'fastapi' in sys.modules)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        check=True,
        capture_output=True,
        text=True,
        env={**os.environ, "AIRFLOW_HOME": str(tmp_path)},
    )
    assert done.stdout.splitlines()[-1] == "nav task_instance [] /icechunk True"


def test_the_tab_of_tasks_can_be_turned_off(monkeypatch):
    assert [view["destination"] for view in IcechunkPlugin().external_views] == [
        "nav",
        "task_instance",
    ]
    monkeypatch.setenv("AIRFLOW__ICECHUNK__UI_TASK_TAB", "False")
    assert [view["destination"] for view in IcechunkPlugin().external_views] == ["nav"]


def test_many_stores_that_do_not_answer_leave_the_others_alone(repo, connect, tmp_path):
    from airflow_icechunk.plugin.errors import ViewError
    from airflow_icechunk.plugin.repositories import Repositories

    pipes = []
    for number in range(12):
        place = tmp_path / f"stuck-{number}"
        place.mkdir()
        os.mkfifo(place / "repo")
        pipes.append(place / "repo")
        connect(f"stuck_{number}", host=str(place))
    names = [f"stuck_{number}" for number in range(12)]
    repositories = Repositories(timeout=1.0)
    try:
        found = repositories.read_all([*names, "icechunk_default"], lambda opened: "read")
        assert found.pop("icechunk_default") == "read"
        assert all(isinstance(item, ViewError) and item.status == 504 for item in found.values())
        assert repositories.read("icechunk_default", lambda opened: "again") == "again"
    finally:
        for pipe in pipes:
            # Whoever waits gets an empty file.
            os.close(os.open(pipe, os.O_WRONLY))
