"""Requests between their bodies and their replies: which model, its texts as tokens, and the reply that its numbers
become."""

import base64
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from uuid import uuid4

import numpy as np

from formats.core.arrays import Floats
from formats.core.errors import InputError
from opmatrix.inference.scores.text_pairs import TokenRow, check_scoring, pair_rows
from rewrites.encoders.embedding_forms import cut_columns, unit_rows
from rewrites.serving.batcher import Lane
from rewrites.serving.refusals import invalid
from rewrites.serving.request_bodies import EmbeddingRequest, RerankRequest, read_embedding, read_rerank
from rewrites.serving.served_models import (
    Served,
    ServedEmbedder,
    ServedReranker,
    check_lengths,
    find_model,
    input_rows,
    text_reading,
)
from rewrites.serving.serving_limits import ServingLimits


@dataclass(frozen=True)
class PreparedRequest:
    """The tokens of a request, and the function from the numbers of its texts (S, n) to the body of the reply."""

    lane: Lane
    rows: Sequence[TokenRow]
    write: Callable[[Floats], bytes]


def prepare_embedding(models: Served, limits: ServingLimits, body: bytes) -> PreparedRequest:
    """Read a request of embeddings. Raises Refused."""
    asked = read_embedding(body, limits.items)
    model = find_model(models, asked.model, ServedEmbedder.paths[0])
    assert isinstance(model, ServedEmbedder)
    prompt = None if asked.prompt_name is None else named_prompt(model, asked.prompt_name)
    if asked.dimensions is not None and asked.dimensions > model.width:
        raise invalid(f"dimensions {asked.dimensions}: {model.name} has {model.width}: give no more", "dimensions")
    reading, tokenizer = text_reading(limits, "input", prompt), model.program.tokenizer
    try:
        rows = input_rows(tokenizer, asked.inputs, reading)
        check_lengths(rows, limits.tokens, reading)
    except InputError as error:
        raise invalid(str(error), "input") from error
    left = tokenizer.left_out(reading) if isinstance(asked.inputs[0], str) else 0
    return PreparedRequest(Lane(model, left), rows, lambda vectors: write_embeddings(asked, model, rows, vectors))


def named_prompt(model: ServedEmbedder, name: str) -> str:
    """Return the prompt of that name. Raises Refused, which lists the names."""
    try:
        return model.program.pooling.named_prompt(name)
    except InputError as error:
        raise invalid(str(error), "prompt_name") from error


def prepare_rerank(models: Served, limits: ServingLimits, body: bytes) -> PreparedRequest:
    """Read a request of scores of documents behind a query. Raises Refused."""
    asked = read_rerank(body, limits.items)
    model = find_model(models, asked.model, ServedReranker.paths[0])
    assert isinstance(model, ServedReranker)
    reading = text_reading(limits, "document")
    try:
        pairs = [(asked.query, text) for text in asked.documents]
        rows = pair_rows(model.program.tokenizer, pairs, reading, check_scoring(model.program).template)
        check_lengths(rows, limits.tokens, reading)
    except InputError as error:
        raise invalid(str(error), "documents") from error
    return PreparedRequest(Lane(model), rows, lambda scores: write_ranking(asked, model.name, rows, scores))


Prepare = Callable[[Served, ServingLimits, bytes], PreparedRequest]
PREPARED_BY: Mapping[str, Prepare] = dict.fromkeys(ServedEmbedder.paths, prepare_embedding) | dict.fromkeys(
    ServedReranker.paths, prepare_rerank
)


# ---- replies


def write_embeddings(
    asked: EmbeddingRequest, model: ServedEmbedder, rows: Sequence[TokenRow], vectors: Floats
) -> bytes:
    """Return embeddings as OpenAI's API gives them: numbers, or little-endian float32 in base64. Shorter ones are of
    length one if those of the model are."""
    if asked.dimensions is not None:
        vectors = cut_columns(vectors, asked.dimensions)
        vectors = unit_rows(vectors) if model.program.pooling.normalise else vectors
    data = [
        {"object": "embedding", "index": at, "embedding": in_base64(vector) if asked.base64 else vector.tolist()}
        for at, vector in enumerate(vectors)
    ]
    return reply_json({"object": "list", "data": data, "model": model.name, "usage": count_usage(rows)})


def in_base64(vector: Floats) -> str:
    """Return numbers as base64 of little-endian float32."""
    return base64.b64encode(np.ascontiguousarray(vector, "<f4").tobytes()).decode()


def write_ranking(asked: RerankRequest, name: str, rows: Sequence[TokenRow], scores: Floats) -> bytes:
    """Return the best documents, the best first, equal ones in their order, as Cohere's and Jina's APIs give them."""
    order = np.argsort(-scores[:, 0], kind="stable")[: asked.top_n]
    results = [
        {"index": int(at), "relevance_score": float(scores[at, 0])}
        | ({"document": {"text": asked.documents[at]}} if asked.return_documents else {})
        for at in order
    ]
    return reply_json({"id": uuid4().hex, "model": name, "results": results, "usage": count_usage(rows)})


def count_usage(rows: Sequence[TokenRow]) -> dict[str, int]:
    """Return the number of tokens that a model read, special ones and prompts included."""
    count = sum(len(ids) for ids, _ in rows)
    return {"prompt_tokens": count, "total_tokens": count}


def reply_json(reply: object) -> bytes:
    """Return a reply as JSON. Raises ValueError for numbers that are not finite, which JSON lacks."""
    return json.dumps(reply, allow_nan=False, separators=(",", ":")).encode()
