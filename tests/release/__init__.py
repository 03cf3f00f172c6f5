"""What is shipped: how it is built, tried and described. `make release`, `make pythons`."""
