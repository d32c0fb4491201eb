"""The command `chat`: lines of a user, and replies."""
