"""Bodies as the providers send them, made anew each time, for `gateway send` and for tests."""

from gateway.samples.sample import Sample, make_sample, sample_types

__all__ = ["Sample", "make_sample", "sample_types"]
