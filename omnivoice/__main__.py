"""`python -m omnivoice verify FOLDER`: is this the published checkpoint, whole and unchanged?"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from omnivoice.hub import verify


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m omnivoice", description="Tools for checkpoint folders.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    command = commands.add_parser("verify", help="compare a folder with the published files, by SHA-256")
    command.add_argument("folder", type=Path)
    differences = verify(parser.parse_args().folder)
    for line in differences:
        sys.stderr.write(line + "\n")
    if not differences:
        sys.stdout.write("equal to the published files\n")
    return 1 if differences else 0


if __name__ == "__main__":
    sys.exit(main())
