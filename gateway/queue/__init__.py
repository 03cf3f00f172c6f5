"""The only package that uses arq: it sends delivery ids to Redis and runs the arq worker."""

from typing import Any

from gateway.config.project import load_project, redis_url
from gateway.config.settings import load_settings
from gateway.processes.work import start_worker
from gateway.queue.worker import worker_settings


def __getattr__(name: str) -> Any:
    """Build `WorkerSettings` when arq asks for it, so that settings are not read at import."""
    if name != "WorkerSettings":
        raise AttributeError(name)
    settings = load_settings()
    project = load_project(settings, with_api_keys=True)
    return worker_settings(redis_url(settings), lambda: start_worker(project))
