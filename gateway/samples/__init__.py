"""Bodies as the providers send them, made anew each time, for `gateway send` and for tests."""

from gateway.samples.recorded import Recorded, check_recorded, dump_recorded, load_recorded
from gateway.samples.sample import Sample, check_type, make_sample, sample_types
from gateway.samples.sole import receive_alone
from gateway.samples.successor import make_successor

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
]
