"""The handlers of this project: copy, change and delete them as you like."""
