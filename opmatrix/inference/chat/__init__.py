"""Chats: messages as a model's template writes them, replies by sessions that keep what they have computed."""
