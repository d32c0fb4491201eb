"""The frame of a page: one file that makes no network request and runs no script, and can be read on a phone, on
paper, without colour and by a screen reader."""

from collections.abc import Iterable, Sequence
from html import escape

MOST_NAME, MOST_WORDS = 300, 4000  # letters of a cell, and of a paragraph, at most

STYLE = """
:root{color-scheme:light}
body{font:16px/1.5 system-ui,sans-serif;color:#111;background:#fff;margin:0}
main{max-width:70rem;margin:0 auto;padding:1rem}
h1,h2,p,dd,figcaption,caption{overflow-wrap:anywhere}figure{margin:0}
td,th{white-space:nowrap}.words{white-space:normal;overflow-wrap:anywhere;min-width:8rem}
h1{font-size:1.6rem;line-height:1.2}h2{font-size:1.2rem;margin:2rem 0 .5rem;border-bottom:1px solid #767676}
.scroll{overflow-x:auto}
table{border-collapse:collapse;min-width:100%;font-variant-numeric:tabular-nums}
caption{text-align:left;padding:.3rem 0;color:#333}
th,td{padding:.2rem .6rem;text-align:right;vertical-align:top;border-bottom:1px solid #ccc}
th:first-child,td:first-child,.words{text-align:left}
thead .head{white-space:normal}thead th{border-bottom:2px solid #333}
tr.chosen{font-weight:bold;outline:2px solid #111}
dl{display:grid;grid-template-columns:minmax(6rem,max-content) 1fr;gap:.2rem 1rem}dt{font-weight:bold}dd{margin:0}
pre{white-space:pre-wrap;overflow-wrap:anywhere;background:#f3f3f3;padding:.6rem;border:1px solid #ccc}
svg{width:100%;max-width:640px;height:auto}
a:focus,.scroll:focus{outline:3px solid #1d4e7a}
@media(max-width:56rem){body{font-size:14px}main{padding:.5rem}dl{grid-template-columns:1fr}
table,thead,tbody,caption{display:block}
tr{display:flex;flex-wrap:wrap;border-bottom:1px solid #ccc}thead tr{border-bottom:2px solid #333}
th,td,thead th{border:0;padding:.1rem .2rem;flex:1 1 0;min-width:0;box-sizing:border-box;white-space:normal;
overflow-wrap:anywhere}
th:first-child{flex:0 0 100%}thead th{font-size:10px;font-weight:normal;hyphens:auto}}
@media print{main{max-width:none}.scroll{overflow:visible}h2{break-after:avoid}tr,figure{break-inside:avoid}}
"""
POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"


def text_of(words: object, most: int = MOST_NAME) -> str:
    """Return words of a file as isolated text: escaped, of bounded length, whatever the direction of its letters."""
    text = str(words)
    if len(text) > most:
        text = f"{text[:most]} … ({len(text):,} letters)"
    return f"<bdi>{escape(spell_out(text))}</bdi>"


def spell_out(words: str) -> str:
    """Return words with letters that a page cannot show, such as controls and direction marks, written as escapes."""
    return "".join(letter if letter.isprintable() or letter == "\n" else ascii(letter)[1:-1] for letter in words)


def page(title: str, parts: Iterable[str]) -> str:
    """Return the whole file."""
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        f"<title>{escape(spell_out(title)[:MOST_NAME])}</title><style>{STYLE}</style></head>\n<body><main>\n"
        + spell_out("\n".join(parts))
        + "\n</main></body></html>\n"
    )


def section(title: str, *parts: str) -> str:
    """Return a section of the page with its heading."""
    return f"<section><h2>{escape(title)}</h2>\n" + "\n".join(filter(None, parts)) + "</section>"


def paragraph(words: str) -> str:
    """Return words as a paragraph, with runs of spaces collapsed."""
    return f"<p>{text_of(' '.join(words.split()), MOST_WORDS)}</p>" if words.strip() else ""


def grid_of(
    caption: str,
    header: Sequence[str],
    rows: Sequence[Sequence[str]],
    chosen: int | None = None,
    words: Sequence[int] = (0,),
) -> str:
    """Return a table whose rows wrap to two lines on a narrow screen, and which scrolls if a word is wider still; the
    chosen row is also marked by a star. Roles are written, as a row with another layout loses its implicit ones."""
    head = "".join(
        f'<th scope="col" role="columnheader" class="{"words" if at in words else "head"}">{text_of(cell)}</th>'
        if cell
        else '<td role="cell"></td>'
        for at, cell in enumerate(header)
    )
    lines = []
    for number, row in enumerate(rows):
        cells = "".join(
            f'<th scope="row" role="rowheader" class="words">{text_of(cell)}</th>'
            if at == 0
            else f'<td role="cell"{" class=words" if at in words else ""}>{text_of(cell)}</td>'
            for at, cell in enumerate(row)
        )
        lines.append(f'<tr role="row"{" class=chosen" if number == chosen else ""}>{cells}</tr>')
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(caption, quote=True)}">'
        f'<table role="table"><caption>{escape(caption)}</caption><thead><tr role="row">{head}</tr></thead>'
        f"<tbody>{''.join(lines)}</tbody></table></div>"
    )


def facts_of(pairs: Iterable[tuple[str, object]]) -> str:
    """Return names and their values as a list."""
    return "<dl>" + "".join(f"<dt>{escape(name)}</dt><dd>{text_of(value)}</dd>" for name, value in pairs) + "</dl>"
