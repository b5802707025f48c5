"""The tables of chapter 05, Beyond the assumptions."""

from attnrank.experiments import beyond_heads, beyond_softmax, beyond_tokens

EXPERIMENTS = beyond_heads.EXPERIMENTS | beyond_softmax.EXPERIMENTS | beyond_tokens.EXPERIMENTS
