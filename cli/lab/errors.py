"""What keeps an experiment from showing anything."""


class LabError(Exception):
    """One line that says why."""
