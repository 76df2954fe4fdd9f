"""`python -m worker.jobs`: the ledger's command line."""

from __future__ import annotations

import os
import sys

from worker.jobs.admin import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], os.environ))
