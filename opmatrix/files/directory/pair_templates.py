"""Templates of chats by which rerankers read pairs, as the files of tokenizers hold them in Jinja's language. Of that
only the lines that place an instruction, a query and a document in a text are read; nothing is run."""

import json
import re
from pathlib import Path

from formats.core.errors import InputError
from formats.disk.files import read_text
from opmatrix.files.directory.declared import read_entries
from opmatrix.files.directory.model_files import CHAT_TEMPLATE, TOKENIZER_CONFIG
from opmatrix.inference.scores.pair_template import DOCUMENT, LITERAL, QUERY, ROLES, PairTemplate

TAG = re.compile(  # {% statement %}, {{ value }} or {# comment #}
    r"\{(?P<kind>(?P<statement>%)|(?P<value>\{)|#)(?P<left>-?)(?P<inside>.*?)(?P<right>-?)(?(statement)%|(?(value)\}|#))\}",
    re.DOTALL,
)
STRING = r"\"(?:[^\"\\]|\\.)*\"|'(?:[^'\\]|\\.)*'"
CONTENT = re.compile(  # messages | selectattr("role", "eq", ROLE) | map(attribute="content") | first | default(TEXT)
    r"\s*\(?\s*messages\s*\|\s*selectattr\(\s*[\"']role[\"']\s*,\s*[\"'](?:eq|equalto|==)[\"']\s*,"
    r"\s*[\"'](?P<role>\w+)[\"']\s*\)\s*\|\s*map\(\s*attribute\s*=\s*[\"']content[\"']\s*\)\s*\|\s*first\s*"
    rf"(?:\|\s*default\(\s*(?P<default>{STRING})\s*\)\s*)?\)?\s*"
)
ASSIGNED = re.compile(r"\s*set\s+(?P<name>\w+)\s*=(?P<value>.*)", re.DOTALL)
TemplatePiece = tuple[str, str]


def read_template(directory: Path) -> PairTemplate | None:
    """Read the template of a directory; None where its files have none. Raises InputError for one that is not
    supported, or that has no place for a query and a document."""
    file = directory / CHAT_TEMPLATE
    if file.exists():
        return parse_template(read_text(file), str(file))
    entries = read_entries(directory / TOKENIZER_CONFIG, absent=True)
    text = entries.said.get("chat_template")
    return None if text is None else parse_template(str(text), entries.at("chat_template"))


def parse_template(text: str, where: str) -> PairTemplate:
    """Return the pieces of a template. Raises InputError that names the tag that is not supported."""
    pieces, known, at = list[TemplatePiece](), dict[str, TemplatePiece](), 0
    for tag in TAG.finditer(text):
        pieces.append((LITERAL, literal_before(text, at, tag)))
        at = end_of(text, tag)
        if tag["kind"] == "{":
            pieces.append(value_of(tag["inside"], known, tag[0], where))
        elif tag["kind"] == "%":
            assigned = ASSIGNED.fullmatch(tag["inside"])
            if assigned is None:
                raise unsupported(tag[0], where)
            known[assigned["name"]] = value_of(assigned["value"], known, tag[0], where)
    pieces.append((LITERAL, text[at:].removesuffix("\n")))
    roles = {role for role, _ in pieces}
    if not {QUERY, DOCUMENT} <= roles:
        raise InputError(
            f"{where}: it has no place for messages of the roles {QUERY} and {DOCUMENT}, so it renders no pair: "
            "give the template of a reranker"
        )
    return PairTemplate(tuple(piece for piece in pieces if piece != (LITERAL, "")))


def literal_before(text: str, at: int, tag: re.Match[str]) -> str:
    """Return the text from a place up to a tag, without the space that the tag takes away: all of it before a minus;
    before a statement at the beginning of a line the space of that line."""
    literal = text[at : tag.start()]
    if tag["left"]:
        return literal.rstrip()
    if tag["kind"] != "{" and (at == 0 or "\n" in literal):
        return re.sub(r"(^|\n)[ \t]*$", r"\1", literal)
    return literal


def end_of(text: str, tag: re.Match[str]) -> int:
    """Return the place behind a tag and the space that it takes away: all of it behind a minus; behind a statement a
    new line."""
    if tag["right"]:
        return len(text) - len(text[tag.end() :].lstrip())
    return tag.end() + (tag["kind"] != "{" and text.startswith("\n", tag.end()))


def value_of(expression: str, known: dict[str, TemplatePiece], tag: str, where: str) -> TemplatePiece:
    """Return the piece that an expression stands for: a name, a text, or the content of the first message of a role."""
    name = expression.strip()
    if name in known:
        return known[name]
    if re.fullmatch(STRING, name):
        return LITERAL, string_of(name)
    content = CONTENT.fullmatch(expression)
    if content is None or content["role"] not in ROLES:
        raise unsupported(tag, where)
    return content["role"], string_of(content["default"]) if content["default"] else ""


def string_of(spelt: str) -> str:
    """Return the text that a string of the template spells."""
    inside = spelt[1:-1] if spelt[0] == '"' else spelt[1:-1].replace("\\'", "'").replace('"', '\\"')
    return str(json.loads(f'"{inside}"', strict=False))


def unsupported(tag: str, where: str) -> InputError:
    """Return the error about a tag that is not read."""
    return InputError(
        f"{where}: {' '.join(tag.split())!r:.120}: a template of pairs sets names to the content of the first message "
        f"of a role, {', '.join(ROLES)}, and places them: nothing else is supported, and nothing is run"
    )
