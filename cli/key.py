"""`./chairlift key NAME`: makes an API key, shows it once, and prints its line for the key file."""

import sys
from collections.abc import Sequence

from common.api_keys import ApiKeyError, make_key

USAGE = """usage: ./chairlift key NAME >> FILE

Makes an API key for NAME. The key itself goes to the terminal (stderr) and is stored nowhere; its
line for the file of --api-keys, which holds a hash, goes to stdout.
"""


def main(arguments: Sequence[str]) -> int:
    if {"-h", "--help"} & set(arguments):
        print(USAGE, end="")
        return 0
    if len(arguments) != 1:
        sys.stderr.write("chairlift key: give one name, as in: ./chairlift key alice >> keys\n")
        return 2
    try:
        key, line = make_key(arguments[0])
    except ApiKeyError as error:
        sys.stderr.write(f"chairlift key: {error}\n")
        return 2
    sys.stderr.write(f"{key}\n")
    print(line)
    return 0
