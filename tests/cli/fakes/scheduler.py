"""Stands in for a service that has nothing to do."""

import signal

signal.pause()
