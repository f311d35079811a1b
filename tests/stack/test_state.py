"""What a stack keeps on disk."""

import stat

import pytest

from stack import keys, state
from stack.processes import ProcessRef
from stack.state import Started, State


def test_a_state_is_read_as_it_was_written(tmp_path):
    written = State(
        dags="dags",
        database="sqlite",
        ports={"api": 8080},
        processes={"scheduler": Started(ProcessRef(7, "123"), rank=2, stop_signal=15)},
    )
    state.write(tmp_path / "state.json", written)
    assert state.read(tmp_path / "state.json") == written


def test_without_a_file_the_state_is_empty(tmp_path):
    assert state.read(tmp_path / "state.json") == State()


def test_one_command_at_a_time(tmp_path):
    lock = tmp_path / "lock"
    with (
        state.locked(lock),
        pytest.raises(RuntimeError, match="another command"),
        state.locked(lock),
    ):
        pass
    with state.locked(lock):
        pass


def test_keys_are_made_once_and_each_stack_has_its_own(tmp_path):
    first = keys.load_or_generate(tmp_path / "first.json")
    assert keys.load_or_generate(tmp_path / "first.json") == first
    second = keys.load_or_generate(tmp_path / "second.json")
    assert not {*vars_of(first)} & {*vars_of(second)}


def vars_of(some):
    return [getattr(some, name) for name in some.__slots__]


def test_nobody_else_may_read_the_keys_and_they_are_not_shown(tmp_path):
    path = tmp_path / "keys.json"
    made = keys.load_or_generate(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert not any(value in repr(made) for value in vars_of(made))
