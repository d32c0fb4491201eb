"""What a program is made cheapest for: a model or operator as it comes, batches, texts, and rows to state errors of."""
