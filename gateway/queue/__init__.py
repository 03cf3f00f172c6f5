"""arq, and nothing else knows arq: the hand-off of ids and the worker's glue."""

from typing import Any

from gateway.project import load_project, redis_url
from gateway.queue.worker import worker_settings
from gateway.settings import load_settings
from gateway.worker import Worker


def __getattr__(name: str) -> Any:
    """Builds `WorkerSettings` when arq asks for it: settings are read then, not at import."""
    if name != "WorkerSettings":
        raise AttributeError(name)
    settings = load_settings()
    project = load_project(settings, with_api_keys=True)
    return worker_settings(redis_url(settings), lambda: Worker(project))
