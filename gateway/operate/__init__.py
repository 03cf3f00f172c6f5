"""What people do with a running gateway: look, send, replay."""
