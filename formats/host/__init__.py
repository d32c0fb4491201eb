"""The processors, threads, libraries and switches that this process may use, and how busy they are."""
