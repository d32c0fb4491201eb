"""The workload of a search: a model or operator as given, batches, texts, and the rows that errors are stated from."""
