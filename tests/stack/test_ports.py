"""Ports are free, all different, and the same as before where that is possible."""

import socket

import pytest

from stack import ports


@pytest.fixture
def listener():
    with socket.socket() as server:
        server.bind((ports.LOOPBACK, 0))
        server.listen()
        yield server.getsockname()[1]


def test_a_free_port_is_kept(listener):
    with socket.socket() as probe:
        probe.bind((ports.LOOPBACK, 0))
        free = probe.getsockname()[1]
    assert ports.choose({"api": free}) == {"api": free}


def test_a_port_that_is_taken_is_passed_over(listener):
    assert not ports.is_free(listener)
    assert ports.choose({"api": listener})["api"] > listener


def test_a_port_taken_on_all_interfaces_is_passed_over():
    with socket.socket() as server:
        server.bind(("", 0))
        server.listen()
        assert not ports.is_free(server.getsockname()[1])


def test_names_that_prefer_one_port_get_different_ones():
    chosen = ports.choose({"a": 21000, "b": 21000, "c": 21001})
    assert len(set(chosen.values())) == 3


def test_a_port_is_free_again_after_its_server_has_gone():
    with socket.socket() as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind((ports.LOOPBACK, 0))
        server.listen()
        port = server.getsockname()[1]
        with socket.create_connection((ports.LOOPBACK, port)):
            # We hang up first: our end lingers.
            accepted, _ = server.accept()
            accepted.close()
    assert ports.is_free(port)


def test_it_says_so_if_nothing_is_free(monkeypatch):
    monkeypatch.setattr(ports, "is_free", lambda port: False)
    with pytest.raises(RuntimeError, match="no free port for api"):
        ports.choose({"api": 8080})


def test_preferred_ports_are_below_those_of_outgoing_connections():
    assert all(1024 < port < 32768 for port in ports.PREFERRED.values())
    assert len(set(ports.PREFERRED.values())) == len(ports.PREFERRED)
