"""Grammars that replies keep to, from files."""

from pathlib import Path

from formats.core.errors import InputError
from formats.disk.files import read_json, read_text
from opmatrix.inference.chat.reply_grammars import Grammar


def read_grammar(schema: Path | None, rules: Path | None) -> Grammar | None:
    """Return the JSON schema of a file, or the rules of one in Lark's notation; None without a file. Raises InputError
    for both, and for a schema that is no object."""
    if schema is not None and rules is not None:
        raise InputError(f"--json-schema {schema} and --grammar {rules}: a reply keeps to one of them: leave one out")
    if rules is not None:
        return read_text(rules)
    if schema is None:
        return None
    stored = read_json(schema)
    if not isinstance(stored, dict):
        raise InputError(f"--json-schema {schema}: {stored!r:.40} is no JSON object: give a schema, such as {{}}")
    return stored
