"""Timelines of runs: choosing the part to show, and drawing it."""

import pytest

from gpuloader.demo.timeline import COLOURS, add_legend, choose_window, draw, draw_run
from gpuloader.watch.meter import Span

RUN = [
    Span("wait", "MainThread", 0, 2_000_000),
    Span("step", "MainThread", 2_000_000, 5_000_000),
    Span("fetch", "gpuloader-worker-1", 0, 4_000_000),
    Span("copy", "simulated:0 copies", 1_000_000, 2_000_000),
]


@pytest.fixture
def panel():
    figures = pytest.importorskip("matplotlib.figure", reason="matplotlib is not installed")
    return figures.Figure().subplots()


def bars(panel):
    """Return the left end, width, row and color of each bar."""
    boxes = [(bar.get_paths()[0].get_extents(), tuple(bar.get_facecolor()[0])) for bar in panel.collections]
    return sorted((box.x0, box.x1 - box.x0, round(box.y0 + 0.4), color) for box, color in boxes)


def test_each_row_has_its_bars_in_their_colours_and_milliseconds(panel):
    from matplotlib.colors import to_rgba

    assert draw_run(panel, RUN, 0, 5_000_000) == 1
    labels = [label.get_text() for label in panel.get_yticklabels()]
    assert labels == ["consumer", "worker 1", "simulated:0, copy stream"]
    assert bars(panel) == [
        (0, 2, 0, to_rgba(COLOURS["wait"])),
        (0, 4, 1, to_rgba(COLOURS["fetch"])),
        (1, 1, 2, to_rgba(COLOURS["copy"])),
        (2, 3, 0, to_rgba(COLOURS["compute"])),
    ]


def test_what_lies_outside_the_window_is_cut_off(panel):
    draw_run(panel, RUN, 1_500_000, 3_000_000)
    assert [bar[:3] for bar in bars(panel)] == [(0, 0.5, 0), (0, 0.5, 2), (0, 1.5, 1), (0.5, 1, 0)]
    assert panel.get_xlim() == (0, 1.5)


def test_what_the_user_marks_as_computing_takes_the_place_of_the_step(panel):
    from matplotlib.colors import to_rgba

    draw_run(panel, [*RUN, Span("compute", "MainThread", 3_000_000, 4_000_000)], 0, 5_000_000)
    computing = [one for one in bars(panel) if one[-1] == to_rgba(COLOURS["compute"])]
    assert [one[:3] for one in computing] == [(3, 1, 0)]


def test_the_legend_names_what_there_is(panel):
    add_legend(panel.figure, RUN)
    shown = [text.get_text() for text in panel.figure.legends[0].get_texts()]
    assert shown == ["fetch", "wait", "copy", "compute"]


def test_a_run_of_a_step_or_none_is_shown_whole():
    assert choose_window(RUN, steps=8) == (0, 5_000_000)
    assert choose_window([], steps=8) == (0, 1)


def test_runs_are_drawn_into_one_file(panel, tmp_path):
    draw({"as it is": {"one": RUN, "other": RUN}, "with waits": {"one": RUN}}, tmp_path / "runs.png")
    assert (tmp_path / "runs.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
