"""Tables of the chapter measuring_speed: the routines beside what they replace, and the cost of rows."""

from attnrank.experiments.experiment import merge
from attnrank.experiments.measuring_speed import probing, row_costs, speed

EXPERIMENTS = merge([speed, row_costs, probing])
