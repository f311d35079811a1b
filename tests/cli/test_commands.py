"""The command line: what it prints, what it changes, and how it ends."""

import json
import os
import pty
import signal
import subprocess
import sys
import termios
import time
from datetime import UTC, datetime, timedelta

import pytest
import zarr

from icefloe import (
    ManifestConfig,
    ManifestSplitCondition,
    ManifestSplitDimCondition,
    ManifestSplittingConfig,
    Repository,
    RepositoryConfig,
)
from icefloe.cli.arguments import moment
from icefloe.cli.main import main
from icefloe.cli.wording import one_line
from servers_hostile import silent, talking


@pytest.fixture
def url(tmp_path):
    path = tmp_path / "repo"
    repo = Repository.create(path)
    for number in range(3):
        with repo.transaction("main", message=f"Commit {number}") as store:
            array = zarr.create_array(
                store,
                name=f"a{number}",
                shape=(4, 600),
                chunks=(1, 600),
                dtype="f8",
                compressors=None,
            )
            array[:] = number + 1
    repo.create_tag("v1", repo.lookup_branch("main"))
    return str(path)


def run(capsys, *argv):
    code = main(list(argv))
    out = capsys.readouterr().out
    return code, json.loads(out) if "--json" in argv else out


def test_log_graph_refs_and_ops_tell_the_history(url, capsys):
    _, log = run(capsys, "log", url, "-n", "2")
    assert [line.split("  ")[-1] for line in log.splitlines()] == ["Commit 2", "Commit 1"]
    _, data = run(capsys, "log", url, "--json")
    assert [item["message"] for item in data][-1] == "Repository initialized"
    _, graph = run(capsys, "graph", url)
    assert "(main, tag: v1)" in graph
    _, refs = run(capsys, "refs", url, "--json")
    assert refs == {"branches": {"main": data[0]["id"]}, "tags": {"v1": data[0]["id"]}}
    _, ops = run(capsys, "ops", url, "--json")
    assert [item["kind"] for item in ops][:2] == ["tag_created", "new_commit"]


def test_verify_ends_with_one_if_something_is_wrong(url, capsys):
    assert run(capsys, "verify", url, "--level", "data") == (0, "nothing is wrong\n")
    storage = Repository.open(url).storage
    chunk = next(storage.list("chunks/"))[0].key
    storage.delete([chunk])
    code, text = run(capsys, "verify", url, "--level", "objects")
    assert code == 1
    assert chunk in text
    code, findings = run(capsys, "verify", url, "--level", "objects", "--json")
    assert code == 1
    assert {item["file"] for item in findings} == {chunk}


def test_expire_and_gc_free_space_only_without_dry_run(url, capsys):
    repo = Repository.open(url)
    session = repo.writable_session("main")
    session.delete_node("/a0")
    session.commit("Drop a0")
    repo.delete_tag("v1")
    later = (datetime.now(UTC) + timedelta(seconds=5)).isoformat()
    _, tried = run(capsys, "expire", url, "--older-than", later, "--dry-run", "--json")
    assert len(tried["released_snapshots"]) == 3
    assert len([*repo.ancestry(branch="main")]) == 5
    _, done = run(capsys, "expire", url, "--older-than", later, "--json")
    assert done["released_snapshots"] == tried["released_snapshots"]
    assert len([*repo.ancestry(branch="main")]) == 2
    code, text = run(capsys, "gc", url, "--older-than", later)
    assert code == 2
    assert text == ""
    _, tried = run(capsys, "gc", url, "--older-than", later, "--dry-run", "--json")
    _, done = run(capsys, "gc", url, "--older-than", later, "--force", "--json")
    assert done["bytes_deleted"] == tried["bytes_deleted"] > 0
    assert run(capsys, "verify", url, "--level", "objects")[0] == 0


def test_trim_rewrite_repack_and_stats(url, capsys):
    code, text = run(capsys, "trim", url)
    assert (code, text.split(";")[0]) == (0, "deleted 0 backups: 0 B")
    _, stats = run(capsys, "stats", url, "--by", "array")
    assert [line.split()[-1] for line in stats.splitlines()[1:]] == ["/a0", "/a1", "/a2"]
    _, before = run(capsys, "stats", url, "--by", "repository", "--json")
    rules = {ManifestSplitCondition.AnyArray(): {ManifestSplitDimCondition.Axis(0): 2}}
    splitting = ManifestSplittingConfig.from_dict(rules)
    config = RepositoryConfig(manifest=ManifestConfig(splitting=splitting))
    Repository.open(url, config=config).save_config()
    _, rewritten = run(capsys, "rewrite-manifests", url, "--json")
    repo = Repository.open(url)
    assert len(repo.list_manifest_files(rewritten["snapshot_id"])) == 6
    _, text = run(capsys, "repack", url)
    assert "no small objects" in text or "moved from" in text
    _, after = run(capsys, "stats", url, "--by", "repository", "--json")
    assert after[0]["native_bytes"] >= before[0]["native_bytes"]


def test_status_closes_and_opens_a_repository(url, capsys):
    assert run(capsys, "status", url)[1].startswith("online since")
    run(capsys, "status", url, "--set", "read-only", "--reason", "moving")
    assert "read-only" in run(capsys, "status", url)[1]
    assert main(["repack", url]) == 2
    assert "moving" in capsys.readouterr().err
    run(capsys, "status", url, "--set", "online")
    assert main(["repack", url]) == 0


def test_errors_name_the_input_and_end_with_two(tmp_path, capsys):
    assert main(["log", str(tmp_path / "nothing")]) == 2
    error = capsys.readouterr().err
    assert "nothing" in error
    assert error.count("\n") == 1
    with pytest.raises(SystemExit) as caught:
        main(["gc", str(tmp_path), "--older-than", "soon"])
    assert caught.value.code == 2
    assert "neither an age such as 30d" in capsys.readouterr().err


@pytest.mark.parametrize(("text", "age"), [("90m", 1.5), ("36h", 36), ("2d", 48), ("1w", 168)])
def test_ages_count_back_from_now(text, age):
    assert abs((datetime.now(UTC) - moment(text)) - timedelta(hours=age)) < timedelta(seconds=5)


def test_store_options_come_from_a_file(url, tmp_path, capsys):
    options = tmp_path / "options.json"
    options.write_text('{"deadline": 30}')
    assert main(["refs", f"file://{url}", "--storage-options", f"@{options}"]) == 0


@pytest.mark.parametrize("module", ["icefloe.cli", "icefloe.cli.main"])
def test_the_command_runs_as_a_module(url, module):
    done = subprocess.run(
        [sys.executable, "-m", module, "refs", url], capture_output=True, check=True, text=True
    )
    assert "main" in done.stdout
    assert done.stderr == ""


def test_a_terminal_shows_a_progress_bar_and_a_pipe_does_not(url):
    command = [sys.executable, "-c", "from icefloe.cli.main import run; run()", "verify", url]
    primary, secondary = pty.openpty()
    termios.tcsetwinsize(secondary, (24, 80))
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=secondary, check=True)
    os.set_blocking(primary, False)
    shown = os.read(primary, 65536)
    os.close(secondary)
    os.close(primary)
    assert done.stdout == b"nothing is wrong\n"
    assert b"objects" in shown
    piped = subprocess.run(command, capture_output=True, check=True)
    assert piped.stderr == b""


COMMAND = [sys.executable, "-c", "from icefloe.cli.main import run; run()"]
HOSTILE = "one\r\ntwo\x1b[31m\x9b2J\u202eevil\u2028three\x00\ud7ff\tfour\b\a"


def test_messages_of_others_take_one_line_and_move_no_cursor(url, capsys):
    repo = Repository.open(url)
    repo.writable_session("main").commit(HOSTILE, allow_empty=True)
    repo.set_status(repo.get_status().availability, HOSTILE)
    for command in ("log", "graph", "status", "ops", "refs"):
        _, text = run(capsys, command, url)
        assert all(line.isprintable() for line in text.split("\n")), command
        assert "\u202e" not in text
    _, log = run(capsys, "log", url, "-n", "1")
    assert log.count("\n") == 1
    assert r"one two\x1b[31m\x9b2J\u202eevil three\x00" in log
    assert run(capsys, "log", url, "-n", "1", "--json")[1][0]["message"] == HOSTILE


def test_errors_take_one_line_and_show_no_control_characters(url, capsys):
    assert main(["log", url, "--branch", "no\x1b[2J\nsuch"]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert error.rstrip("\n").isprintable()


@pytest.mark.parametrize("text", ["plain", "  columns   stay", "ü ✓"])
def test_ordinary_text_stays_as_it_is(text):
    assert one_line(text) == text.strip()


@pytest.mark.parametrize(
    ("argv", "told"),
    [
        (["gc", "--older-than", "1h"], "pass --force if nobody writes"),
        (["expire", "--older-than", "1d", "--branch", "nope"], "nope"),
        (["repack", "--array", "nope"], "no array at nope"),
        (["log", "--branch", "nope"], "no branch 'nope'"),
        (["log", "--branch", "\udc80"], "no branch"),
        (["rewrite-manifests", "--branch", "nope"], "no branch 'nope'"),
        (["log", "--storage-options", '{"deadline": 0}'], "deadline"),
    ],
)
def test_errors_speak_of_options_and_not_of_arguments(url, capsys, argv, told):
    command, *rest = argv
    assert main([command, url, *rest]) == 2
    error = capsys.readouterr().err
    assert told in error
    assert "Traceback" not in error
    assert not any(word in error for word in ("=True", "Repository.", "storage_options"))
    assert error.count("\n") == 1


def test_a_cutoff_is_told_to_the_second(url, capsys):
    assert main(["gc", url, "--older-than", "1h"]) == 2
    error = capsys.readouterr().err
    assert "younger than 1 day: " in error
    assert "." not in error.partition("the cutoff")[2].partition(" is younger")[0]


def test_a_closed_repository_says_how_to_open_it(url, capsys):
    run(capsys, "status", url, "--set", "read-only", "--reason", "moving")
    assert main(["repack", url]) == 2
    assert "icefloe status --set online" in capsys.readouterr().err


@pytest.mark.parametrize(
    "argv",
    [
        ["log", "-n", "-1"],
        ["log", "-n", "many"],
        ["graph", "-n", "-1"],
        ["trim", "--keep", "-1"],
        ["expire", "--older-than", "1d", "--keep-last", "-1"],
        ["gc", "--older-than", "99999999999w"],
        ["gc", "--older-than", "900000w"],
        ["log", "--storage-options", "[]"],
        ["log", "--storage-options", "@/nonexistent"],
    ],
)
def test_bad_options_are_told_by_the_usage(url, capsys, argv):
    command, *rest = argv
    with pytest.raises(SystemExit) as caught:
        main([command, url, *rest])
    assert caught.value.code == 2
    assert f"argument {rest[-2]}" in capsys.readouterr().err.replace("-n/", "")


def test_a_slip_in_store_options_does_not_show_them(url, capsys):
    with pytest.raises(SystemExit):
        main(["log", url, "--storage-options", '{"secret": "hunter2"'])
    assert "hunter2" not in capsys.readouterr().err


def test_a_missing_repository_and_a_file_are_told(tmp_path, capsys):
    (tmp_path / "file").write_bytes(b"x")
    for place in ("nothing", "file"):
        assert main(["log", str(tmp_path / place)]) == 2
        error = capsys.readouterr().err
        assert place in error
        assert "Repository." not in error


def test_nobody_reading_what_is_printed_is_no_error(url):
    with subprocess.Popen(
        [*COMMAND, "log", url], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        process.stdout.close()
        error = process.stderr.read()
    assert error == b""
    assert process.returncode == 141


def test_a_terminal_without_unicode_gets_escapes(url):
    Repository.open(url).writable_session("main").commit("Grüße", allow_empty=True)
    environment = os.environ | {"PYTHONIOENCODING": "ascii"}
    done = subprocess.run([*COMMAND, "log", url], capture_output=True, env=environment, check=True)
    assert rb"Gr\xfc\xdfe" in done.stdout


def test_an_interruption_ends_without_a_traceback():
    with talking(silent) as server:
        process = subprocess.Popen(
            [*COMMAND, "log", f"{server.url}/x"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            # What a shell runs in the background ignores interrupts, and so do its children.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )
        ends = time.monotonic() + 60
        while not server.heads and time.monotonic() < ends:
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        out, error = process.communicate(timeout=60)
    assert process.returncode == 130
    assert (out, error) == (b"", b"icefloe log: interrupted\n")
