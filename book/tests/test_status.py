"""The status page: what it adds up."""

import status


def test_a_row_that_two_processors_compared_counts_once():
    """Where a line says which rows it counts; a count that does not say is one processor's, and stands by itself."""
    line = {"table": "heads", "rows": "9", "different": "0", "compared": "3", "same": "0-2", "differing": ""}
    overlapping = line | {"same": "2-3", "differing": "8", "different": "1"}
    assert status.by_table([line, overlapping]) == {"heads": (5, 9, 1)}
    unknown = line | {"compared": "7", "same": "", "table": "layers"}
    assert status.by_table([line, unknown, unknown | {"compared": "4"}]) == {"heads": (3, 9, 0), "layers": (7, 9, 0)}


def test_rows_and_times_of_a_table(tmp_path, monkeypatch):
    """A table written from checkpoints took the time of its runs; of a growing one there is no count but the file's."""
    monkeypatch.setattr(status, "RESULTS", tmp_path)
    (tmp_path / "heads.csv").write_text("n,seconds\n1,40.5\n2,\n3,30\n", encoding="utf-8")
    record = {"name": "heads", "wall_seconds": 12.0, "sessions": [{"wall_seconds": 8.0}, {"wall_seconds": 90.0}]}
    assert status.rows_of(record) == 3 and status.seconds(record) == 70.5
    assert status.seconds(record | {"wall_seconds": 71.0}) == 71.0
    assert status.seconds(record | {"wall_seconds": None}) == 98.0


def test_dates_and_durations():
    def said(*days):
        return status.dates({"sessions": [{"date": f"2026-{day}T10:00:00"} for day in days]}).replace("\u2011", "-")

    assert said("03-02") == said("03-02", "03-02") == "2026-03-02"
    assert said("03-05", "03-01") == said("03-05", "03-02", "03-01") == "2026-03-01 to 2026-03-05"
    for seconds, text in ((0.04, "0.0 s"), (9.94, "9.9 s"), (59.4, "59 s"), (60, "1.0 min"), (3599, "60 min"),
                          (3600, "1.0 h"), (36000, "10 h")):  # fmt: skip
        assert status.duration(seconds) == text.replace(" ", status.SPACE)
