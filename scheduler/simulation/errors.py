"""What a user of the simulator did wrong, in one line."""


class InputError(Exception):
    """A file or a flag cannot be used; the text says which, and why."""
