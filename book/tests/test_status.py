"""The status page: what it adds up."""

import status


def test_a_row_that_two_processors_compared_counts_once():
    """Where a line says which rows it counts; a count that does not say is one processor's, and stands by itself."""
    line = {"table": "heads", "rows": "9", "different": "0", "compared": "3", "same": "0-2", "differing": ""}
    overlapping = line | {"same": "2-3", "differing": "8", "different": "1"}
    assert status.by_table([line, overlapping]) == {"heads": (5, 9, 1)}
    unknown = line | {"compared": "7", "same": "", "table": "layers"}
    assert status.by_table([line, unknown, unknown | {"compared": "4"}]) == {"heads": (3, 9, 0), "layers": (7, 9, 0)}
