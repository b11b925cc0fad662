"""The version, as `/version`, `./chairlift version` and the package say it."""

VERSION = "0.1.0"
