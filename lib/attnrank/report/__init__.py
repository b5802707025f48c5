"""What a chapter states and draws with: claims that can fail and enter the ledger, and one style of figure."""

from attnrank.report.claims import (
    CLAIM_MIME,
    POWER,
    RELATIONS,
    ROUNDING,
    VERDICTS,
    Claim,
    anchor,
    claim,
    comparison,
    control_comparison,
    powerless,
    read_ledger,
    slack_comparison,
)
from attnrank.report.figures import (
    COLOURS,
    draw_band,
    draw_ceiling,
    label_line,
    sequence_colours,
    setup,
)
from attnrank.report.heads import draw_heads, heads_figure_size
from attnrank.report.joins import join
from attnrank.report.margins import bernstein_margin, student_margin
from attnrank.report.tables import Table, table

__all__ = [
    "CLAIM_MIME",
    "COLOURS",
    "POWER",
    "RELATIONS",
    "ROUNDING",
    "VERDICTS",
    "Claim",
    "Table",
    "anchor",
    "bernstein_margin",
    "claim",
    "comparison",
    "control_comparison",
    "draw_band",
    "draw_ceiling",
    "draw_heads",
    "heads_figure_size",
    "join",
    "label_line",
    "powerless",
    "read_ledger",
    "sequence_colours",
    "setup",
    "slack_comparison",
    "student_margin",
    "table",
]
