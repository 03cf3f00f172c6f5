"""What every room builds on: the model, errors, units, problems by line, secret references."""
