"""`icechunk_transaction`: how it is wired, and what is cleared together."""

import zarr
from airflow.sdk import DAG, task

from airflow_icechunk.task_groups import icechunk_transaction


@task.icechunk(stage=True)
def prepare(store):
    zarr.create_group(store)


@task.icechunk(stage=True)
def write(row, store):
    zarr.open_array(store, path="t2m")[row] = row


@task
def look_at(snapshot_id):
    pass


def transaction(**arguments):
    with DAG("dag") as dag:
        made = icechunk_transaction(
            write=lambda base: write.override(base=base).expand(row=[0, 1]), **arguments
        )
    return dag, made


def upstream(dag):
    return {
        name.removeprefix("transaction."): {
            above.removeprefix("transaction.") for above in item.upstream_task_ids
        }
        for name, item in dag.task_dict.items()
    }


def test_without_an_audit_the_merge_is_the_commit():
    dag, made = transaction()
    assert upstream(dag) == {"begin": set(), "write": {"begin"}, "commit": {"write"}}
    commit = dag.get_task("transaction.commit")
    assert (commit.branch, commit.writer_task_ids) == ("main", ["transaction.write"])
    assert made.snapshot_id.operator is commit


def test_an_audit_stands_between_the_merge_and_the_branch():
    dag, made = transaction(
        prepare=lambda tip: prepare.override(base=tip)(), audit=look_at, tag="v1", branch="dev"
    )
    assert upstream(dag) == {
        "begin": set(),
        "prepare": {"begin"},
        "write": {"prepare"},
        "merge": {"write"},
        "look_at": {"merge"},
        "publish": {"merge", "look_at"},
        "tag": {"publish"},
    }
    assert dag.get_task("transaction.merge").branch is None
    assert dag.get_task("transaction.publish").branch == "dev"
    assert made.snapshot_id.operator.task_id == "transaction.publish"


def test_guards_make_publishing_a_step_of_its_own():
    dag, _ = transaction(guards={"forbid_shrink": True}, outlets=["asset"])
    assert dag.get_task("transaction.publish").forbid_shrink is True
    assert dag.get_task("transaction.publish").outlets == ["asset"]
    assert dag.get_task("transaction.merge").outlets == []


def test_clearing_the_writers_clears_the_group(stored):
    dag, _ = transaction(prepare=lambda tip: prepare.override(base=tip)(), audit=look_at, tag="v1")
    cleared = stored(dag).partial_subset(
        task_ids=["transaction.write"], include_downstream=True, include_upstream=False
    )
    assert {*cleared.task_dict} == {*dag.task_dict}
