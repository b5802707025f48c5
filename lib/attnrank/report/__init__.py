"""What a chapter states and draws with: claims that can fail and enter the ledger, and one style of figure."""

from attnrank.report.claims import (
    CLAIM_MIME,
    RELATIONS,
    ROUNDING,
    VERDICTS,
    Claim,
    claim,
    comparison,
    control_comparison,
    read_ledger,
)
from attnrank.report.figures import (
    COLOURS,
    draw_band,
    draw_ceiling,
    label_line,
    sequence_colours,
    setup,
)
from attnrank.report.margins import bernstein_margin, student_margin

__all__ = [
    "CLAIM_MIME",
    "COLOURS",
    "RELATIONS",
    "ROUNDING",
    "VERDICTS",
    "Claim",
    "bernstein_margin",
    "claim",
    "comparison",
    "control_comparison",
    "draw_band",
    "draw_ceiling",
    "label_line",
    "read_ledger",
    "sequence_colours",
    "setup",
    "student_margin",
]
