"""icefloe and the official library take turns, and get in each other's way, on one repository."""

import shutil
import sys
import tempfile
from datetime import UTC, datetime, timedelta
from pathlib import Path

import icechunk
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

import icefloe
from icefloe.assets import Assets
from icefloe.format.ids import SnapshotId
from icefloe.maintenance.expire import expire_snapshots
from stateful import reading
from stateful.actors import ACTORS, OFFICIAL, OURS, PATHS, Pair, attempt
from stateful.layout import check_layout
from stateful.reading import content, document, rectilinear, regular

NUMBERS = st.integers(0, 2**16)
WHO = st.sampled_from(ACTORS)
LENGTHS = st.lists(st.integers(0, 7), min_size=1, max_size=3)
# In a manifest, in a pack, in an object of its own.
SIZES = st.sampled_from([1, 16, 17, 60, 199, 200, 450])
SPLITS = (None, {"any": 2}, {"first": 1})
BRANCHES = ("dev", "b/1", "é", "dev-2")
TAGS = ("v1", "v2", "v3", "ü")
PACKING = icefloe.PackingConfig(enabled=True, max_chunk_bytes=200, target_bytes=500)


@st.composite
def array_documents(draw):
    rank = draw(st.integers(0, 3))
    shape = draw(st.lists(st.integers(0, 7), min_size=rank, max_size=rank))
    names = [f"d{axis}" if axis else None for axis in range(rank)]
    grid = regular(*[2] * rank)
    if draw(st.booleans()):
        grid = rectilinear(*([1] * (n % 2) + [2] * (n // 2) for n in shape))
    return document(shape, grid, draw(st.sampled_from([None, names])))


EDITS = st.lists(
    st.one_of(
        st.tuples(st.just("group"), st.sampled_from(PATHS)),
        st.tuples(st.just("array"), st.sampled_from(PATHS), array_documents()),
        st.tuples(st.just("write"), NUMBERS, NUMBERS, SIZES),
        st.tuples(st.just("write"), NUMBERS, NUMBERS, SIZES),
        st.tuples(st.just("delete_chunk"), NUMBERS, NUMBERS),
        st.tuples(st.just("delete"), NUMBERS),
        st.tuples(st.just("resize"), NUMBERS, LENGTHS),
        st.tuples(st.just("annotate"), NUMBERS),
    ),
    min_size=1,
    max_size=5,
)
SOLVERS = st.sampled_from(["detector", "ours", "theirs", "fail", "keep updated"])


def solver(library, kind):
    choice = library.VersionSelection
    if kind == "detector":
        return library.ConflictDetector()
    if kind == "keep updated":
        return library.BasicConflictSolver(
            fail_on_delete_of_updated_array=True, fail_on_delete_of_updated_group=True
        )
    chosen = {"ours": choice.UseOurs, "theirs": choice.UseTheirs, "fail": choice.Fail}
    return library.BasicConflictSolver(on_chunk_conflict=chosen[kind])


def configuration(library, split, updates_per_file):
    """The same configuration in either library."""
    config = library.RepositoryConfig(
        inline_chunk_threshold_bytes=16, num_updates_per_repo_info_file=updates_per_file
    )
    condition, axis = library.ManifestSplitCondition, library.ManifestSplitDimCondition
    if split is not None:
        parts = {axis.Any(): 2} if "any" in split else {axis.Axis(0): 1}
        splitting = library.ManifestSplittingConfig.from_dict({condition.AnyArray(): parts})
        config.manifest = library.ManifestConfig(splitting=splitting)
    return config


class TwoActors(RuleBasedStateMachine):
    """After every step both libraries read the same tree, values, history, refs and ops log."""

    def __init__(self):
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="two-actors-"))
        self.path = self.folder / "repo"
        self.repos = {}
        self.pairs = []
        self.contents = {}
        """What each snapshot must show."""
        self.read = set()
        self.steps = 0

    def teardown(self):
        try:
            if self.repos and sys.exception() is None:
                self.reopen()
                self.both_read_the_same()
                self.either_can_write_next()
        finally:
            shutil.rmtree(self.folder)

    @initialize(
        creator=WHO, split=st.sampled_from(SPLITS), updates_per_file=st.sampled_from([3, 1000])
    )
    def create(self, creator, split, updates_per_file):
        if creator == OURS:
            icefloe.Repository.create(
                self.path, config=configuration(icefloe, split, updates_per_file)
            )
        else:
            icechunk.Repository.create(
                icechunk.local_filesystem_storage(str(self.path)),
                configuration(icechunk, split, updates_per_file),
            )
        self.reopen()
        self.contents[self.tip("main")] = {}
        pair = self.begin("main", "writable_session")
        self.pairs.clear()
        pair.make_array("g/a", document([5], regular(2)))
        pair.make_array("a", document([4, 3], rectilinear([1, 3], [2, 1])))
        for path, number in (("g/a", 0), ("g/a", 2), ("a", 3)):
            pair.write(path, number, b"first")
        self.published(creator, pair, "commit")

    def reopen(self):
        """Handles that have cached nothing."""
        self.repos = {
            OURS: icefloe.Repository.open(
                self.path, config=icefloe.RepositoryConfig(packing=PACKING)
            ),
            OFFICIAL: icechunk.Repository.open(icechunk.local_filesystem_storage(str(self.path))),
        }
        self.read = set()

    def branch(self, number):
        names = sorted(self.repos[OURS].list_branches())
        return names[number % len(names)]

    def tip(self, branch):
        """None if there is no such branch any more."""
        return attempt(lambda: self.repos[OURS].lookup_branch(branch))[0]

    def listed(self):
        """Snapshots that a ref can point to."""
        info, _ = Assets(self.repos[OURS].storage).repo()
        known = {str(info.snapshots.id_at(row)) for row in range(len(info.snapshots))}
        return [item for item in self.contents if item in known]

    def pair(self, number):
        return self.pairs[number % len(self.pairs)]

    def begin(self, branch, kind):
        base = self.tip(branch)
        sessions = {actor: getattr(repo, kind)(branch) for actor, repo in self.repos.items()}
        pair = Pair(sessions, branch, base, self.contents[base])
        self.pairs.append(pair)
        return pair

    # Sessions of both on one snapshot, with the same changes.

    @rule(branch=NUMBERS)
    @precondition(lambda self: len(self.pairs) < 3)
    def open_sessions(self, branch):
        self.begin(self.branch(branch), "writable_session")

    @rule(number=NUMBERS, edits=EDITS, branch=NUMBERS)
    def change(self, number, edits, branch):
        writable = [pair for pair in self.pairs if not pair.moves_nodes]
        if writable:
            pair = writable[number % len(writable)]
        else:
            pair = self.begin(self.branch(branch), "writable_session")
        for name, *details in edits:
            getattr(self, f"edit_{name}")(pair, *details)
        pair.check()

    @rule(who=WHO, edits=EDITS, branch=NUMBERS, verb=st.sampled_from(["commit", "flush", "amend"]))
    def take_a_turn(self, who, edits, branch, verb):
        """A session from beginning to end, while others stay open."""
        pair = self.changed(self.branch(branch), edits)
        if verb == "amend":
            self.amend_or_refuse(who, pair)
        elif pair.sessions[who].has_uncommitted_changes:
            self.published(who, pair, verb)

    @rule(
        who=WHO,
        edits=EDITS,
        rivals=st.lists(st.tuples(WHO, EDITS), min_size=1, max_size=2),
        branch=NUMBERS,
        kind=SOLVERS,
    )
    def overtake(self, who, edits, rivals, branch, kind):
        """Others commit to the branch before a session does."""
        name = self.branch(branch)
        pair = self.changed(name, edits)
        for rival, theirs in rivals:
            self.published(rival, self.changed(name, theirs), "commit", allow_empty=True)
        self.commit_or_rebase(who, pair, kind)

    def changed(self, branch, edits):
        """Sessions with changes, not among those that stay open."""
        pair = self.begin(branch, "writable_session")
        self.pairs.remove(pair)
        for name, *details in edits:
            getattr(self, f"edit_{name}")(pair, *details)
        pair.check()
        return pair

    def edit_group(self, pair, path):
        pair.make_group(path)

    def edit_array(self, pair, path, value):
        pair.make_array(path, value)

    def edit_write(self, pair, number, chunk, size):
        if arrays := sorted(pair.arrays()):
            self.steps += 1
            data = (f"{self.steps}." * size)[:size].encode()
            pair.write(arrays[number % len(arrays)], chunk, data)

    def edit_delete_chunk(self, pair, number, chunk):
        if arrays := sorted(filter(pair.chunks, pair.arrays())):
            chunks = pair.chunks(arrays[number % len(arrays)])
            pair.unset(chunks[chunk % len(chunks)])

    def edit_delete(self, pair, number):
        if paths := sorted({*pair.arrays(), *pair.groups()} - {""}):
            pair.delete(paths[number % len(paths)])

    def edit_resize(self, pair, number, lengths):
        if arrays := sorted(path for path, it in pair.arrays().items() if it["shape"]):
            pair.resize(arrays[number % len(arrays)], lengths)

    def edit_annotate(self, pair, number):
        if paths := sorted({*pair.arrays(), *pair.groups()}):
            pair.annotate(paths[number % len(paths)], f"note {number}")

    @rule(branch=NUMBERS, moves=st.lists(st.tuples(NUMBERS, st.sampled_from(PATHS)), max_size=3))
    @precondition(lambda self: len(self.pairs) < 3)
    def rearrange(self, branch, moves):
        pair = self.begin(self.branch(branch), "rearrange_session")
        for number, target in moves:
            if paths := sorted({*pair.arrays(), *pair.groups()}):
                pair.move(paths[number % len(paths)], target)
        pair.check()

    @rule(number=NUMBERS)
    @precondition(lambda self: self.pairs)
    def discard(self, number):
        pair = self.pair(number)
        pair.discard()
        pair.expected = dict(self.contents[pair.sessions[OURS].snapshot_id])
        pair.check()
        self.pairs.remove(pair)

    # Publishing: one of the two sessions does it, the other is dropped.

    @rule(who=WHO, number=NUMBERS, kind=SOLVERS)
    @precondition(lambda self: self.pairs)
    def commit(self, who, number, kind):
        pair = self.pair(number)
        self.pairs.remove(pair)
        if self.tip(pair.branch) is None:
            refused = [attempt(lambda it=it: it.commit("gone"))[1] for it in pair.sessions.values()]
            assert None not in refused
        else:
            self.commit_or_rebase(who, pair, kind)

    def commit_or_rebase(self, who, pair, kind):
        if self.tip(pair.branch) != pair.sessions[OURS].snapshot_id:
            for session in pair.sessions.values():
                if session.has_uncommitted_changes:
                    _, error = attempt(lambda it=session: it.commit("too late"))
                    assert isinstance(error, icefloe.ConflictError | icechunk.ConflictError)
            if not pair.rebase({OURS: solver(icefloe, kind), OFFICIAL: solver(icechunk, kind)}):
                return
        self.published(who, pair, "commit", allow_empty=True)

    @rule(who=WHO, number=NUMBERS)
    @precondition(lambda self: self.pairs)
    def amend(self, who, number):
        pair = self.pair(number)
        self.pairs.remove(pair)
        self.amend_or_refuse(who, pair)

    def amend_or_refuse(self, who, pair):
        tip, base = self.tip(pair.branch), pair.sessions[OURS].snapshot_id
        possible = tip == base and len([*self.repos[OURS].ancestry(snapshot_id=base)]) > 1
        if possible and (pair.moves_nodes or not self.has_moves(base)):
            self.published(who, pair, "amend", allow_empty=True)
        else:
            for session in pair.sessions.values():
                assert attempt(lambda it=session: it.amend("no", allow_empty=True))[1] is not None

    def has_moves(self, snapshot_id):
        assets = Assets(self.repos[OURS].storage)
        return bool(assets.transaction_log(SnapshotId.parse(snapshot_id)).moves)

    @rule(who=WHO, number=NUMBERS)
    @precondition(lambda self: self.pairs)
    def flush(self, who, number):
        pair = self.pair(number)
        self.pairs.remove(pair)
        if pair.sessions[OURS].snapshot_id not in self.listed():
            # It was expired, so nothing can stand on it.
            for session in pair.sessions.values():
                assert attempt(lambda it=session: it.flush("no"))[1] is not None
        elif pair.sessions[OURS].has_uncommitted_changes:
            self.published(who, pair, "flush")

    def published(self, who, pair, verb, **options):
        self.steps += 1
        metadata = {"by": who, "step": self.steps, "ünicode": ["é", None, 1.5, -3]}
        write = getattr(pair.sessions[who], verb)
        snapshot_id = write(f"{who} {verb} {self.steps}", metadata=metadata, **options)
        self.contents[snapshot_id] = pair.expected
        check_layout(self.repos[OURS].storage, snapshot_id)

    @rule(number=NUMBERS, count=st.integers(1, 3), branch=NUMBERS, detached=st.booleans())
    def merge_staged(self, number, count, branch, detached):
        """Ours joins detached snapshots that either library flushed, wherever that is possible."""
        repo = self.repos[OURS]
        told = {item[5]: item for item in reading.ops_log(repo) if item[0] == "newdetachedsnapshot"}
        staged = [item for item in self.listed() if item in told]
        if not staged:
            return
        chosen = {staged[(number + step) % len(staged)] for step in range(count)}
        target = None if detached else self.branch(branch)
        merged, error = attempt(
            lambda: repo.merge_snapshots(target, sorted(chosen), f"merge {number}")
        )
        if error is None:
            session = repo.readonly_session(snapshot_id=merged)
            self.contents[merged] = content(session.store)
            check_layout(repo.storage, merged)
        else:
            assert isinstance(error, icefloe.ConflictError | icefloe.InvalidInputError)

    # Refs.

    @rule(
        who=WHO,
        step=st.sampled_from(
            ["create_branch", "delete_branch", "reset", "create_tag", "delete_tag"]
        ),
        number=NUMBERS,
        to=NUMBERS,
    )
    def move_refs(self, who, step, number, to):
        snapshots = self.listed()
        getattr(self, step)(self.repos[who], number, snapshots[to % len(snapshots)])

    def create_branch(self, repo, number, snapshot_id):
        name = BRANCHES[number % len(BRANCHES)]
        taken = name in repo.list_branches()
        _, error = attempt(lambda: repo.create_branch(name, snapshot_id))
        assert (error is not None) == taken

    def delete_branch(self, repo, number, _):
        name = self.branch(number)
        _, error = attempt(lambda: repo.delete_branch(name))
        assert (error is not None) == (name == "main")

    def reset(self, repo, number, snapshot_id):
        name = self.branch(number)
        tip = self.tip(name)
        seen = [tip, snapshot_id][number % 2]
        _, error = attempt(lambda: repo.reset_branch(name, snapshot_id, from_snapshot_id=seen))
        assert (error is not None) == (seen != tip)

    def create_tag(self, repo, number, snapshot_id):
        name = TAGS[number % len(TAGS)]
        once = {item[3] for item in reading.ops_log(repo) if item[0] == "tagcreated"}
        _, error = attempt(lambda: repo.create_tag(name, snapshot_id))
        assert (error is not None) == (name in once)

    def delete_tag(self, repo, number, _):
        name = TAGS[number % len(TAGS)]
        there = name in repo.list_tags()
        _, error = attempt(lambda: repo.delete_tag(name))
        assert (error is None) == there

    # Maintenance.

    @rule(
        step=st.sampled_from([*["expire"] * 6, "collect", "collect all"]), who=WHO, number=NUMBERS
    )
    def maintain(self, step, who, number):
        if step == "expire":
            self.expire(who, number)
        else:
            self.collect_garbage(everything=step == "collect all")

    def expire(self, who, number):
        snapshots = self.listed()
        bound = self.repos[OURS].lookup_snapshot(snapshots[number % len(snapshots)]).written_at
        options = {
            "delete_expired_branches": number % 3 == 0,
            "delete_expired_tags": number % 5 == 0,
        }
        if who == OFFICIAL:
            self.repos[OFFICIAL].expire_snapshots(bound, **options)
        else:
            limit = self.repos[OURS].config.num_updates_per_repo_info_file or 1000
            assets = Assets(self.repos[OURS].storage)
            expire_snapshots(assets, bound, updates_per_file=limit, **options)

    def collect_garbage(self, *, everything):
        # By design, collecting objects younger than an open session takes its chunks.
        self.pairs.clear()
        bound = datetime.now(UTC) + timedelta(days=1 if everything else -1)
        self.repos[OFFICIAL].garbage_collect(bound)
        self.reopen()

    # What must hold.

    @invariant()
    def both_read_the_same(self):
        if not self.repos:
            return
        ours, official = self.repos[OURS], self.repos[OFFICIAL]
        refs = reading.refs(ours)
        assert refs == reading.refs(official)
        assert reading.histories(ours) == reading.histories(official)
        assert reading.ops_log(ours) == reading.ops_log(official)
        for snapshot_id in {*refs["branches"].values(), *refs["tags"].values()} - self.read:
            self.check_content(snapshot_id)

    def check_content(self, snapshot_id):
        for actor, repo in self.repos.items():
            store = repo.readonly_session(snapshot_id=snapshot_id).store
            differs = self.contents[snapshot_id].items() ^ content(store).items()
            assert not differs, (actor, differs)
        told = [reading.line(repo.lookup_snapshot(snapshot_id)) for repo in self.repos.values()]
        assert told[0] == told[1]
        self.check_diff(snapshot_id)
        self.read.add(snapshot_id)

    def check_diff(self, snapshot_id):
        first = [*self.repos[OURS].ancestry(snapshot_id=snapshot_id)][-1].id
        if first == snapshot_id:
            # The official library finds no snapshot among its own ancestors.
            return
        ends = {"from_snapshot_id": first, "to_snapshot_id": snapshot_id}
        diffs = [attempt(lambda it=it: reading.diff(it.diff(**ends))) for it in self.repos.values()]
        (ours, mine), (official, theirs) = diffs
        assert (mine is None) == (theirs is None), (mine, theirs)
        assert ours == official, (ours, official)

    def either_can_write_next(self):
        for actor, repo in self.repos.items():
            session = repo.writable_session("main")
            reading.put(session.store, "last/zarr.json", reading.group(by=actor))
            session.commit(f"{actor} writes last")
        self.contents[self.tip("main")] = self.contents.pop(self.tip("main"), None) or content(
            self.repos[OURS].readonly_session("main").store
        )
        self.both_read_the_same()


QUIET = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]


def test_both_libraries_see_the_same_after_every_step_of_either():
    run_state_machine_as_test(
        TwoActors,
        settings=settings(
            max_examples=24,
            stateful_step_count=30,
            derandomize=True,
            deadline=None,
            suppress_health_check=QUIET,
        ),
    )


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_both_libraries_see_the_same_through_long_histories():
    run_state_machine_as_test(
        TwoActors,
        settings=settings(
            max_examples=200,
            stateful_step_count=50,
            derandomize=False,
            deadline=None,
            suppress_health_check=QUIET,
            print_blob=True,
        ),
    )
