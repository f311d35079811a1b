"""Who looks at a job sees how far it is: on a terminal, and in Spark's user interface."""

import io
import sys
import time

import pytest

from icefloe.spark.progress import bar
from icefloe.spark.writing import run


class Screen(io.StringIO):
    def __init__(self, is_terminal):
        super().__init__()
        self.is_terminal = is_terminal

    def isatty(self):
        return self.is_terminal


@pytest.mark.parametrize("is_terminal", [True, False])
def test_a_terminal_shows_finished_tasks_and_a_log_shows_nothing(spark, monkeypatch, is_terminal):
    screen = Screen(is_terminal)
    monkeypatch.setattr(sys, "stderr", screen)
    run(spark.sparkContext, lambda seconds: time.sleep(seconds), [0, 1.5, 1.5, 1.5], "icefloe: nap")
    told = screen.getvalue()
    if is_terminal:
        assert "of 4 tasks icefloe: nap" in told
        assert any(f"{done} of 4 tasks" in told for done in (1, 2, 3)), told
        assert told.endswith("\r\033[K"), "the next line of output starts on a clear line"
    else:
        assert told == ""


def test_a_job_that_fails_leaves_a_clear_line(spark, monkeypatch):
    screen = Screen(is_terminal=True)
    monkeypatch.setattr(sys, "stderr", screen)
    with pytest.raises(Exception, match="division"):
        run(spark.sparkContext, lambda _: 1 // 0, [0], "icefloe: nap")
    assert screen.getvalue().endswith("\r\033[K")


def test_the_bar_is_full_when_all_is_done():
    assert bar(0, 0).startswith("[....")
    assert bar(3, 3).count("#") == 30
    assert bar(1_500, 3_000) == f"[{'#' * 15}{'.' * 15}] 1,500 of 3,000 tasks"


def test_spark_shows_a_description_while_a_job_runs_and_the_users_own_afterwards(spark):
    context = spark.sparkContext
    context.setJobDescription("mine")
    try:
        run(context, lambda _: 0, [0], "icefloe: nap")
        assert context.getLocalProperty("spark.job.description") == "mine"
    finally:
        context.setLocalProperty("spark.job.description", None)
