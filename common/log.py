"""Logging set up once: one line an event to stderr, as text or JSON, with what is bound to it.

`structlog.contextvars.bound_contextvars(request_id=…, worker_id=…, step=…)` binds for all that a
task logs. Libraries that log through `logging` come out in the same form.
"""

import logging
import sys

import orjson
import structlog
from structlog.typing import Processor


def setup(level: str, log_format: str) -> None:
    """`level`: debug, info, warning or error. `log_format`: text, json, or auto (by terminal)."""
    as_text = sys.stderr.isatty() if log_format == "auto" else log_format == "text"
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="%H:%M:%S" if as_text else "iso", utc=not as_text),
    ]
    render: list[Processor] = [structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())]
    if not as_text:
        render = [structlog.processors.format_exc_info, structlog.processors.JSONRenderer(_dumps)]
    number = logging.getLevelNamesMapping()[level.upper()]
    structlog.configure(
        processors=[*shared, *render],
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=structlog.WriteLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *render],
        )
    )
    logging.basicConfig(handlers=[handler], level=max(number, logging.WARNING), force=True)


def _dumps(event: object, **_: object) -> str:
    return orjson.dumps(event, default=str).decode()
