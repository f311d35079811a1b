"""The same history, maintained by the official library and by icefloe: the same is left."""

from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from icefloe.maintenance.expire import expire_snapshots
from icefloe.maintenance.gc import garbage_collect
from maintenance.histories import (
    assets,
    build,
    contents,
    copy,
    files,
    official,
    plans,
    seen,
    times_between,
)

EXAMPLES = 20
_settings = settings(
    max_examples=EXAMPLES, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
SUMMARY = [
    "bytes_deleted",
    "chunks_deleted",
    "manifests_deleted",
    "snapshots_deleted",
    "attributes_deleted",
    "transaction_logs_deleted",
    "objects_failed_to_delete",
]


def kept_for_staged(before, ours, theirs):
    """Snapshots that only icefloe keeps: each must carry one that is in no history.

    Such a snapshot may be published later, which takes what it was written on.
    """
    kept = ours["snapshots"].keys() - theirs["snapshots"].keys()
    held = set()
    for tip in (*ours["branches"].values(), *ours["tags"].values()):
        while tip is not None and tip not in held:
            held.add(tip)
            tip = ours["snapshots"][tip][0]
    staged = ours["snapshots"].keys() - held
    assert kept <= {before["snapshots"][item][0] for item in staged}
    return kept


def expire_both(folder, plan, number, flags):
    history = build(folder / "repo", plan)
    when = history.time_of(number)
    theirs, ours = copy(history.path, folder / "theirs"), copy(history.path, folder / "ours")
    options = {"delete_expired_branches": flags[0], "delete_expired_tags": flags[1]}
    rehearsed = expire_snapshots(assets(ours), when, **options, dry_run=True)
    assert seen(ours) == seen(history.path)
    released = official(theirs).expire_snapshots(when, **options)
    result = expire_snapshots(assets(ours), when, **options)
    assert result == rehearsed
    kept = kept_for_staged(seen(history.path), seen(ours), seen(theirs))
    assert result.released_snapshots == released - kept
    assume(not kept)
    assert seen(ours) == seen(theirs)
    assert files(ours) == files(theirs)
    return theirs, ours


def collect_both(theirs, ours, fraction):
    times = times_between(ours)
    cutoff = times[int(fraction * (len(times) - 1))]
    before = seen(ours)
    rehearsed = garbage_collect(assets(ours), cutoff, dry_run=True)
    summary = official(theirs).garbage_collect(cutoff)
    result = garbage_collect(assets(ours), cutoff, force=True)
    assume(not kept_for_staged(before, seen(ours), seen(theirs)))
    for name in SUMMARY:
        assert getattr(result, name) == getattr(summary, name), name
        assert getattr(result, name) == getattr(rehearsed, name), name
    assert files(ours) == files(theirs)
    assert seen(ours) == seen(theirs)


def check(plan, number, flags, fraction):
    with TemporaryDirectory() as name:
        folder = Path(name)
        theirs, ours = expire_both(folder, plan, number, flags)
        collect_both(theirs, ours, fraction)
        assert contents(ours) == contents(theirs)
        # The official library goes on where we left, as it does where it left.
        for path in (theirs, ours):
            repo = official(path)
            repo.expire_snapshots(times_between(path)[-1])
            repo.garbage_collect(times_between(path)[-1])
        assert files(ours) == files(theirs)
        assert seen(ours)["snapshots"] == seen(theirs)["snapshots"]


_arguments = (
    plans,
    st.integers(0, 20),
    st.tuples(st.booleans(), st.booleans()),
    st.floats(0, 1),
)


@given(*_arguments)
@_settings
def test_expire_and_collect_leave_what_the_official_library_leaves(plan, number, flags, fraction):
    check(plan, number, flags, fraction)


@pytest.mark.slow
@given(*_arguments)
@settings(_settings, max_examples=500)
def test_many_histories_are_left_as_the_official_library_leaves_them(plan, number, flags, fraction):
    check(plan, number, flags, fraction)


@given(plans, st.floats(0, 1))
@_settings
def test_collecting_alone_leaves_what_the_official_library_leaves(plan, fraction):
    with TemporaryDirectory() as name:
        history = build(Path(name, "repo"), plan)
        theirs, ours = copy(history.path, Path(name, "a")), copy(history.path, Path(name, "b"))
        collect_both(theirs, ours, fraction)
