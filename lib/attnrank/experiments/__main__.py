"""Command line: compute what is missing of a published table."""

import argparse

from attnrank.experiments import EXPERIMENTS, PROFILES, run


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m attnrank.experiments",
        description="Compute what is missing of a published table.",
        epilog="\n".join(f"{name}: {experiment.question}" for name, experiment in sorted(EXPERIMENTS.items())),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("name", choices=sorted(EXPERIMENTS))
    parser.add_argument("--profile", choices=PROFILES, default="quick", help="quick (default) or as published")
    parser.add_argument("--workers", type=int, default=1, help="processes (default 1)")
    parser.add_argument("--folder", help="where the table is; default: the book's results folder")
    options = parser.parse_args()
    table = run(options.name, profile=options.profile, folder=options.folder, workers=options.workers)
    print(f"{options.name} ({options.profile}): {len(table)} rows, complete")


if __name__ == "__main__":
    main()
