"""Who may see which pages in Airflow, and the tab of a task."""

import re

import pytest

from plugin_server import ORIGIN, REPO, commit, urls


@pytest.fixture
def without_view(monkeypatch, application):
    """The simple auth manager lets every viewer read every view; another one need not."""
    from airflow.api_fastapi.app import get_auth_manager

    asked = []

    def refuse(self, *, method, resource_name, user):
        asked.append((method, resource_name))
        return False

    monkeypatch.setattr(type(get_auth_manager()), "is_authorized_custom_view", refuse)
    return asked


def test_a_user_who_may_see_neither_connections_nor_the_view_gets_403_and_an_empty_list(
    clients, op, repo, without_view
):
    viewer = clients["viewer"]
    for url in urls(repo):
        expected = 403 if "icechunk_default" in url else 200
        assert viewer.get(url).status_code == expected, url
    assert viewer.get("/icechunk/api/repos").json() == {"repos": []}
    assert "icechunk_default" not in viewer.get("/icechunk/").text
    assert {*without_view} == {("GET", "Icechunk Repositories")}
    assert "Icechunk Repositories" in viewer.get(REPO).text
    assert op.get(REPO).status_code == 200


def test_a_user_who_may_read_the_view_sees_repositories_and_nothing_of_their_connections(
    clients, op, repo, connect, tmp_path
):
    viewer = clients["viewer"]
    for url in urls(repo):
        assert viewer.get(url).status_code == 200, url
    assert "icechunk_default" in viewer.get("/icechunk/").text
    connect("odd", host="s3://bucket/x", extra={"sesame": "tokentokentoken"})
    extra = {"endpoint_url": "http://127.0.0.1:9", "region": "the-region", "read_only": True}
    connect("closed", host="s3://bucket/x", login="AKIASOMEBODY", password="hush", extra=extra)
    connect("kept", host=str(tmp_path / "repo"), extra={"read_only": True})
    for conn_id in ("odd", "closed", "kept"):
        for url in (f"/icechunk/repos/{conn_id}", f"/icechunk/api/repos/{conn_id}", "/icechunk/"):
            text = viewer.get(url).text
            assert not re.search("sesame|127.0.0.1:9|the-region|AKIA|hush|read-only conn", text), (
                url
            )
            assert '"connection_is_read_only":true' not in text
    assert "Whoever may read its connection is told why" in viewer.get("/icechunk/repos/odd").text
    # Whoever may read the connection is told.
    assert "sesame" in op.get("/icechunk/repos/odd").text
    assert "read-only connection" in op.get("/icechunk/repos/kept").text


def test_a_view_is_of_no_use_for_the_connections_of_another_team(clients, op, repo, monkeypatch):
    from airflow.models.connection import Connection

    if not hasattr(Connection, "get_team_name"):
        pytest.skip("this Airflow knows no teams")
    monkeypatch.setattr(Connection, "get_team_name", lambda conn_id: "others")
    assert clients["viewer"].get(REPO).status_code == 403


TABS = '''
"""One task writes, one publishes, and one looks at what nobody here has made."""

import zarr
from airflow.sdk import DAG, task

from airflow_icechunk.operators.transactions import (
    IcechunkBeginOperator,
    IcechunkCommitOperator,
    IcechunkPublishOperator,
)

with DAG("tabs", schedule=None) as dag:

    @task.icechunk(stage=True)
    def write(row, store):
        zarr.open_array(store, path="t2m")[row] = row

    begin = IcechunkBeginOperator(task_id="begin")
    written = write.expand(row=[0, 1])
    merge = IcechunkCommitOperator(task_id="merge", snapshot_ids=written, branch=None, message="m")
    begin >> written
    IcechunkPublishOperator(task_id="publish", snapshot_id=merge.output)

    @task
    def quiet():
        pass

    quiet()
'''


def test_the_tab_of_a_task_shows_what_it_made_or_published(
    op, repo, connect, tmp_path, database, dag_of, clients
):
    before = repo.lookup_branch("main")
    (database / "tabs.py").write_text(TABS)
    run = dag_of("tabs").test()
    assert str(run.state) == "success"
    connect("gone", host=str(tmp_path / "gone"))
    commit(repo, 3, "Of another run", metadata={**ORIGIN, "airflow.run_id": "other"})
    tip = repo.lookup_snapshot(repo.lookup_branch("main")).parent_id

    def tab(task_id, index="{MAP_INDEX}", client=op):
        page = client.get(f"/icechunk/tasks/tabs/{run.run_id}/{task_id}/{index}").text
        assert "Of another run" not in page
        # A repository that this run has nothing to do with is not looked at.
        assert "gone" not in page
        mine, _, others = page.partition("Of other tasks of this run")
        return mine, others

    mine, others = tab("publish")
    assert f'data-copy="{tip}"' in mine
    assert f'data-copy="{tip}"' not in others
    assert "write of tabs" in others
    mine, others = tab("merge")
    assert f'data-copy="{tip}"' in mine
    mine, others = tab("write", 1)
    assert mine.count("data-copy") == 1
    assert f'data-copy="{tip}"' in others
    mine, _ = tab("begin")
    assert f'data-copy="{before}"' in mine
    mine, others = tab("quiet")
    assert "No snapshot of this task" in mine
    assert f'data-copy="{tip}"' in others
    # Who may see Dags may see it, too.
    assert f'data-copy="{tip}"' in tab("publish", client=clients["viewer"])[0]
