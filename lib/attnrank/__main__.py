"""attnrank COMMAND ...: the commands of the package behind one name, as ``python -m attnrank`` too."""

from __future__ import annotations

import importlib
import sys

from attnrank import __version__

COMMANDS = {
    "probe": "ranks of every attention layer and head of a Hugging Face model, on your text or images",
    "sweep": "published tables: list them, compute what is missing, verify rows",
    "benchmarks": "measure every ratio of speed anew, beside its bar",
}
HELP = """usage: attnrank COMMAND [ARGUMENTS]

Measure and bound the rank of attention matrices.

commands (each has a --help of its own):
{commands}

options:
  -h, --help   show this and exit
  --version    show the version and exit

In Python:
  import attnrank
  attnrank.head_ranks(q, k)        queries and keys of yours: a table, every head's rank beside the bounds that fit
  attnrank.probe(model, batch)     any torch model: a row for each layer and head
"""


def main(arguments: list[str] | None = None) -> int:
    """Run the command named first with the arguments that follow; returns the exit status."""
    name, *rest = (sys.argv[1:] if arguments is None else arguments) or ["--help"]
    if name in ("-h", "--help"):
        print(HELP.format(commands="\n".join(f"  {command:12} {text}" for command, text in COMMANDS.items())), end="")
        return 0
    if name == "--version":
        print(f"attnrank {__version__}")
        return 0
    if name not in COMMANDS:
        print(f"error: {name!r} is no command of attnrank; there are {', '.join(COMMANDS)}", file=sys.stderr)
        return 2
    return importlib.import_module(f"attnrank.{name}.__main__").main(rest) or 0


if __name__ == "__main__":
    sys.exit(main())
