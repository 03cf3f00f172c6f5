"""Sample bodies like those of the providers, generated for `gateway send` and for tests."""

from gateway.providers.samples.recorded import (
    Recorded,
    check_recorded,
    dump_recorded,
    load_recorded,
    says_its_type,
)
from gateway.providers.samples.sample import (
    Sample,
    check_type,
    make_sample,
    receive_alone,
    sample_types,
    shared_object,
)
from gateway.providers.samples.successor import make_successor

__all__ = [
    "Recorded",
    "Sample",
    "check_recorded",
    "check_type",
    "dump_recorded",
    "load_recorded",
    "make_sample",
    "make_successor",
    "receive_alone",
    "sample_types",
    "says_its_type",
    "shared_object",
]
