"""A server of embeddings and scores over HTTP: requests are read within limits, joined into batches, and
answered as the APIs of OpenAI and Cohere answer them."""
