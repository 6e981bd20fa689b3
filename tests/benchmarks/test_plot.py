"""The plot is written as a PNG for any set of figures."""

import pytest

from benchmarks.hosts import Row
from benchmarks.measure import Spread
from benchmarks.peers import plot
from benchmarks.peers.report import Measured, Report

pytest.importorskip("matplotlib", reason="matplotlib is not installed")
MACHINE = {"processor": "Processor", "cores": "2", "gpuloader": "0.1.0"}


def case(**medians):
    rows = [Row(peer, "way", Spread(value, value, value), 1) for peer, value in medians.items()]
    return Measured("small", "Small batches", tuple(rows))


@pytest.mark.parametrize(
    "cases",
    [
        [],
        [case(floor=1.0, gpuloader=2.0)],
        [case(floor=1.0, gpuloader=0.5, torch=0.0001), case(floor=1.0, torch=50_000.0)],
        [case(floor=1.0, gpuloader=2.0, torch=3.0)] * 3,
        [case(gpuloader=2.0), Measured("small", "Failed", (Row("gpuloader", "", None, 0, "gone"),))],
    ],
    ids=["nothing", "one", "far from the floor", "odd", "without a floor"],
)
def test_it_is_drawn(cases, tmp_path):
    plot.draw(Report(MACHINE, {"torch": "2.13.0", "spdl": None}, 5, cases), tmp_path / "plot.png")
    written = (tmp_path / "plot.png").read_bytes()
    assert written[:8] == b"\x89PNG\r\n\x1a\n"
    assert len(written) > 2_000


def test_ours_alone_has_its_colour(monkeypatch, tmp_path):
    from matplotlib.colors import to_hex
    from matplotlib.figure import Figure

    figures = []
    save = Figure.savefig

    def save_and_keep(figure, *arguments, **options):
        figures.append(figure)
        save(figure, *arguments, **options)

    monkeypatch.setattr(Figure, "savefig", save_and_keep)
    report = Report(MACHINE, {}, 5, [case(floor=1.0, gpuloader=2.0, torch=0.5, paddle=3.0)])
    plot.draw(report, tmp_path / "plot.png")
    (panel,) = figures[0].axes
    assert [label.get_text() for label in panel.get_yticklabels()] == ["torch", "gpuloader", "paddle"]
    colours = [to_hex(bar.get_facecolor()) for bar in panel.patches]
    assert colours == [plot.PEER_COLOUR, plot.OUR_COLOUR, plot.PEER_COLOUR]
    assert [bar.get_x() + bar.get_width() for bar in panel.patches] == pytest.approx([0.5, 2.0, 3.0])
    assert [text.get_text().split()[0] for text in panel.texts] == ["0.50×", "2.00×", "3.00×"]
