"""What every mapping of `routes.yaml` has in common."""

from gateway.notation.section import Section

__all__ = ["Section"]
