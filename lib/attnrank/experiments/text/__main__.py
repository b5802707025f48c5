"""Train the runs of a series that are neither published nor finished, in order; several processes share the work.

    ATTNRANK_RUNS=/folder/of/runs nice python -m attnrank.experiments.text "64 words"

As :mod:`attnrank.experiments.accuracy`, for the text Transformers of :mod:`attnrank.experiments.text.tables`.
"""

import sys

from attnrank.experiments.accuracy.__main__ import main
from attnrank.experiments.text.runs import text_accuracy
from attnrank.experiments.text.tables import FINISHED, SERIES

if __name__ == "__main__":
    sys.exit(main(series=SERIES, published=FINISHED, compute=text_accuracy, program="attnrank.experiments.text"))
