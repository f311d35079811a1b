"""Neighbouring ranges become few requests that lose nothing."""

from hypothesis import given
from hypothesis import strategies as st

from icefloe.virtual.checksum import Checksum
from icefloe.virtual.ranges import Place, Span, coalesce

PLACES = [
    Place("s3://b/", "s3://b/x", "x", Checksum()),
    Place("s3://b/", "s3://b/x", "x", Checksum("other")),
    Place("s3://b/", "s3://b/y", "y", Checksum()),
]


def spans_of(items):
    return [Span(PLACES[place], start, length, row) for row, (place, start, length) in
            enumerate(items)]  # fmt: skip


@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 100), st.integers(0, 30)), max_size=12),
    st.integers(0, 20),
    st.integers(1, 60),
)
def test_every_span_is_in_one_request_of_its_own_object(items, gap, limit):
    spans = spans_of(items)
    requests = coalesce(spans, gap=gap, limit=limit)
    served = [span for request in requests for span in request.spans]
    assert sorted(span.row for span in served) == [span.row for span in spans if span.length]
    for request in requests:
        for span in request.spans:
            assert span.place == request.place
            assert request.start <= span.start
            assert span.start + span.length <= request.start + request.length
        assert len(request.spans) == 1 or request.length <= limit


def test_neighbours_are_joined_and_strangers_are_not():
    spans = spans_of([(0, 10, 5), (0, 0, 10), (0, 20, 5), (0, 100, 5), (1, 15, 5), (2, 15, 5)])
    requests = coalesce(spans, gap=5, limit=1000)
    assert [(each.place.key, each.start, each.length) for each in requests] == [
        ("x", 0, 25),
        ("x", 100, 5),
        ("x", 15, 5),
        ("y", 15, 5),
    ]


def test_an_overlap_is_read_once():
    (request,) = coalesce(spans_of([(0, 0, 10), (0, 2, 3), (0, 5, 10)]), gap=0, limit=100)
    assert (request.start, request.length) == (0, 15)


def test_a_large_range_stays_whole_and_alone():
    requests = coalesce(spans_of([(0, 0, 30), (0, 30, 5)]), gap=5, limit=20)
    assert [(each.start, each.length) for each in requests] == [(0, 30), (30, 5)]
