"""What rank is good for: one attention layer on tasks that say which token each token wants."""

from attnrank.experiments.does_rank_matter import lengths
from attnrank.experiments.does_rank_matter.layer import Head, ceiling_of, head, measured
from attnrank.experiments.does_rank_matter.lengths import circle_head
from attnrank.experiments.does_rank_matter.tables import EXPERIMENTS, recipe, task_heads
from attnrank.experiments.does_rank_matter.tasks import TASKS, Task

__all__ = [
    "EXPERIMENTS", "TASKS", "Head", "Task", "ceiling_of", "circle_head", "head", "lengths", "measured", "recipe",
    "task_heads",
]
