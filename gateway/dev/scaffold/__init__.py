"""Write a new project, or a new handler for an existing one."""
