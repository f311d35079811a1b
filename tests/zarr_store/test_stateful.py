"""zarr's own state machines, on our store, with commits in between."""

import json

import hypothesis.strategies as st
import pytest
import zarr
from hypothesis import HealthCheck, assume, settings
from hypothesis.stateful import initialize, precondition, rule, run_state_machine_as_test
from zarr.core.buffer import cpu
from zarr.testing.stateful import ZarrHierarchyStateMachine, ZarrStoreStateMachine

from icefloe import MemoryStorage, PackingConfig, Repository, RepositoryConfig

pytestmark = pytest.mark.filterwarnings("ignore::zarr.errors.UnstableSpecificationWarning")
BOUNDED = settings(
    max_examples=50,
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
# Inline, packed (and packs of a few chunks), single: some of the values go to each.
CONFIG = RepositoryConfig(
    inline_chunk_threshold_bytes=20, packing=PackingConfig(max_chunk_bytes=60, target_bytes=200)
)

ARRAYS = {"a": (3, 3), "g/b": (), "g/c": (2,)}
DOCUMENTS = ["zarr.json", "g/zarr.json", *(f"{path}/zarr.json" for path in ARRAYS)]
CHUNKS = [
    *(f"a/c/{row}/{column}" for row in range(3) for column in range(3)),
    "g/b/c",
    "g/c/c/0",
    "g/c/c/1",
]


def document(path, note):
    """A zarr.json; it may change, but never to one that needs other chunks."""
    shape = ARRAYS.get(path)
    content = {"zarr_format": 3, "node_type": "group", "attributes": {"note": note}}
    if shape is not None:
        grid = {"name": "regular", "configuration": {"chunk_shape": [1] * len(shape)}}
        content |= {"node_type": "array", "shape": shape, "chunk_grid": grid}
    return json.dumps(content).encode()


class StoreMachine(ZarrStoreStateMachine):
    """Any key may be read; but only a zarr v3 hierarchy can be written, arrays before chunks."""

    def __init__(self):
        self.repo = Repository.create(MemoryStorage(), config=CONFIG)
        super().__init__(self.repo.writable_session("main").store)

    @rule(key=st.sampled_from(DOCUMENTS + CHUNKS), data=st.binary(min_size=1, max_size=100))
    def set(self, key, data):
        if key in CHUNKS:
            array = next(path for path in ARRAYS if key.startswith(f"{path}/c"))
            assume(f"{array}/zarr.json" in self.model)
        else:
            data = document(key.removesuffix("zarr.json").strip("/"), data.hex())
        buffer = cpu.Buffer.from_bytes(data)
        self.store.set(key, buffer)
        self.model[key] = buffer

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def delete(self, data):
        """With a node goes all that is below it: icechunk has no chunks without an array."""
        key = data.draw(st.sampled_from(sorted(self.model)))
        self.store.delete(key)
        gone = key.removesuffix("zarr.json") if key in DOCUMENTS else key
        self.model = {other: it for other, it in self.model.items() if not other.startswith(gone)}

    @rule()
    def commit(self):
        self.store.store.session.commit("all so far", allow_empty=True)
        self.store.store = self.repo.writable_session("main").store


class HierarchyMachine(ZarrHierarchyStateMachine):
    def __init__(self):
        self.repo = Repository.create(MemoryStorage(), config=CONFIG)
        super().__init__(self.repo.writable_session("main").store)

    @initialize()
    def init_store(self):
        zarr.group(store=self.store)

    @precondition(lambda self: bool(self.all_groups))
    @rule(data=st.data())
    def check_list_dir(self, data):
        """Every array lists `c`, as the official store has it; zarr's lists it if there is one."""
        path = self.draw_directory(data)
        expected = set(self._sync_iter(self.model.list_dir(path)))
        if path in self.all_arrays:
            expected.add("c")
        assert sorted(self._sync_iter(self.store.list_dir(path))) == sorted(expected)

    @rule()
    def commit(self):
        self.store.session.commit("all so far", allow_empty=True)
        self.store = self.repo.writable_session("main").store


@pytest.mark.parametrize("machine", [StoreMachine, HierarchyMachine])
def test_the_store_does_what_the_model_does(machine):
    run_state_machine_as_test(machine, settings=BOUNDED)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("machine", [StoreMachine, HierarchyMachine])
def test_the_store_does_what_the_model_does_for_long(machine):
    run_state_machine_as_test(
        machine, settings=settings(BOUNDED, max_examples=500, stateful_step_count=50)
    )
