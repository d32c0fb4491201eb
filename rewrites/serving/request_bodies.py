"""Bodies of requests: JSON that is checked field by field, in the names of OpenAI's embeddings and Cohere's rerank.
Other fields are ignored, as clients send some that mean nothing here."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias, cast

from formats.core.errors import InputError
from formats.disk.files import parse_json
from rewrites.serving.refusals import Refused, invalid

BodyFields: TypeAlias = Mapping[str, object]
EmbeddingInput: TypeAlias = list[str] | list[list[int]]  # texts, or the tokens of texts
ENCODING_FORMATS = "float", "base64"
MOST_ID = 1 << 31  # ids are below


@dataclass(frozen=True)
class EmbeddingRequest:
    """A request of embeddings: texts or tokens, the form of the numbers, and how many of them."""

    model: str | None
    inputs: EmbeddingInput
    base64: bool
    dimensions: int | None
    prompt_name: str | None


@dataclass(frozen=True)
class RerankRequest:
    """A request of scores of documents behind a query: how many of the best, and whether with their texts."""

    model: str | None
    query: str
    documents: list[str]
    top_n: int
    return_documents: bool


def read_embedding(body: bytes, most: int) -> EmbeddingRequest:
    """Parse a request of at most `most` texts. Raises Refused, which names the field."""
    fields = read_fields(body)
    form = fields.get("encoding_format") or "float"
    if form not in ENCODING_FORMATS:
        raise invalid(f"encoding_format {form!r:.40}: give one of {', '.join(ENCODING_FORMATS)}", "encoding_format")
    return EmbeddingRequest(
        optional_text(fields, "model"),
        read_texts_or_ids(fields.get("input"), most),
        form == "base64",
        optional_count(fields, "dimensions"),
        optional_text(fields, "prompt_name"),
    )


def read_rerank(body: bytes, most: int) -> RerankRequest:
    """Parse a request of at most `most` documents. Raises Refused, which names the field."""
    fields = read_fields(body)
    query, documents = fields.get("query"), fields.get("documents")
    if not isinstance(query, str):
        raise invalid(f"query {query!r:.60}: give a text", "query")
    if not isinstance(documents, list) or not documents:
        raise invalid(f"documents {documents!r:.60}: give a list of texts", "documents")
    check_items(len(documents), most, "documents")
    return RerankRequest(
        optional_text(fields, "model"),
        query,
        [read_document(document, at) for at, document in enumerate(documents)],
        optional_count(fields, "top_n") or len(documents),
        optional_flag(fields, "return_documents"),
    )


# ---- fields


def read_fields(body: bytes) -> BodyFields:
    """Parse a JSON object. Raises Refused for anything else."""
    try:
        fields = parse_json(body, "the body")
    except InputError as error:
        raise invalid(str(error), code="invalid_json") from error
    if not isinstance(fields, dict):
        raise invalid(f"the body is {fields!r:.40}: give a JSON object", code="invalid_json")
    return fields


def read_texts_or_ids(value: object, most: int) -> EmbeddingInput:
    """Return a text, texts, tokens, or lists of tokens as a list. Raises Refused."""
    items = [value] if isinstance(value, str) else value
    if not isinstance(items, list) or not items:
        raise invalid(f"input {value!r:.60}: give a text, a list of texts, or tokens", "input")
    if isinstance(items[0], int):
        items = [items]
    check_items(len(items), most, "input")
    check: Callable[[object], bool] = is_text if isinstance(items[0], str) else are_ids
    for at, entry in enumerate(items):
        if not check(entry):
            raise invalid(f"input {at} is {entry!r:.60}: give texts alone, or lists of tokens alone", "input")
    return cast(EmbeddingInput, items)


def is_text(entry: object) -> bool:
    """True for a text."""
    return isinstance(entry, str)


def are_ids(entry: object) -> bool:
    """True for a list of ids of tokens, one at least."""
    return isinstance(entry, list) and bool(entry) and all(type(one) is int and 0 <= one < MOST_ID for one in entry)


def read_document(document: object, at: int) -> str:
    """Return the text of a document, which is a text or an object with one. Raises Refused."""
    text = document.get("text") if isinstance(document, dict) else document
    if not isinstance(text, str):
        raise invalid(f'document {at} is {document!r:.60}: give a text, or {{"text": …}}', "documents")
    return text


def check_items(count: int, most: int, name: str) -> None:
    """Raise Refused if a request has too many texts."""
    if count > most:
        raise Refused(413, f"{name} has {count} texts: a request has at most {most}: split it", name, "too_many_items")


def optional_text(fields: BodyFields, name: str) -> str | None:
    """Return a text; None if there is none. Raises Refused."""
    value = fields.get(name)
    if value is None or isinstance(value, str):
        return value
    raise invalid(f"{name} {value!r:.60}: give a text", name)


def optional_count(fields: BodyFields, name: str) -> int | None:
    """Return a whole number above 0; None if there is none. Raises Refused."""
    value = fields.get(name)
    if value is None:
        return None
    if type(value) is int and value > 0:
        return value
    raise invalid(f"{name} {value!r:.40}: give a whole number above 0", name)


def optional_flag(fields: BodyFields, name: str) -> bool:
    """Return a truth value; False if there is none. Raises Refused."""
    value = fields.get(name) or False
    if isinstance(value, bool):
        return value
    raise invalid(f"{name} {value!r:.40}: give true or false", name)
