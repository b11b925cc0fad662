"""`python -m tests.chaos`: a whole system of processes under load, and what is done to it.

Exit status 0: all that is promised held. The same seed draws the same faults and the same requests;
what they meet differs from run to run.
"""

import argparse
import json
import sys
import tempfile
from pathlib import Path

import uvloop

from tests.chaos import report, table
from tests.chaos.faults import ROLES
from tests.chaos.run import Options, run


def main() -> int:
    arguments = _arguments()
    if arguments.table is not None:
        return table.main(arguments.table or list(table.ROWS), arguments.seed, arguments.json)
    options = Options(
        arguments.seconds,
        arguments.kills,
        arguments.seed,
        tuple(arguments.roles.split(",")),
        arguments.clients,
    )
    if not set(options.roles) <= set(ROLES):
        sys.exit(f"--roles: some of {','.join(ROLES)}")
    folder = Path(tempfile.mkdtemp(prefix="chaos-"))
    outcome = uvloop.run(run(options, folder))
    told = report.figures(outcome)
    print(report.table(told))
    print(f"logs: {folder}/logs")
    if arguments.json:
        arguments.json.write_text(json.dumps(told, indent=1) + "\n")
    if arguments.records:
        lines = (json.dumps(record) for record in report.records(outcome))
        arguments.records.write_text("".join(f"{line}\n" for line in lines))
    return 1 if told["wrong"] else 0


def _arguments() -> argparse.Namespace:
    default = Options()
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--seconds", type=float, default=default.seconds, help="of load")
    parser.add_argument("--kills", type=int, default=default.kills, help="faults of all kinds")
    parser.add_argument("--seed", type=int, default=default.seed)
    parser.add_argument("--roles", default=",".join(default.roles), help="to whom faults come")
    parser.add_argument("--clients", type=int, default=default.clients)
    parser.add_argument("--json", type=Path, help="a file for all figures")
    parser.add_argument("--records", type=Path, help="a file for each token as it was shown")
    parser.add_argument(
        "--table",
        nargs="*",
        choices=list(table.ROWS),
        metavar="ROW",
        help="one fault at a time under a steady load, and what it costs: " + ", ".join(table.ROWS),
    )
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
