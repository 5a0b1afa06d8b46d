"""One HTML file that needs no network: a template of its body, its style and script, and data that no browser executes.

The page's policy allows this script and this style only, by their digests, so that even a text that became markup could
run nothing. Does not know what a page shows.
"""

from __future__ import annotations

import base64
import hashlib
from html import escape
from pathlib import Path

from agentloop._common.values import Value

_HEAD = """\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{{policy}}">
<meta name="color-scheme" content="light dark">
<title>{{title}}</title>
<style>{{style}}</style>
</head>
<body>
"""
_END = """\
<script>{{script}}</script>
</body>
</html>
"""
_UNSAFE = str.maketrans({char: f"\\u{ord(char):04x}" for char in "<>&\u2028\u2029"})


class PageFiles(Value, frozen=True):
    """The texts of which a page is made."""

    template: str
    """The body before its script: HTML with `{{data}}` once, and `{{title}}` where it is shown."""
    style: str
    script: str

    @classmethod
    def read(cls, folder: Path, name: str) -> PageFiles:
        """Return those of the page *name* in *folder*, by their endings."""
        return cls(*(folder.joinpath(f"{name}.{kind}").read_text(encoding="utf-8") for kind in ("html", "css", "js")))


def embed(data: str) -> str:
    """Return *data*, JSON text, with every sign that could end its element written out."""
    return data.translate(_UNSAFE)


def fill_page(files: PageFiles, title: str, data: str, *, connects: bool = False) -> str:
    """Return the page of *files* with *title* and *data*, which `embed` has made; to be written as UTF-8.

    *connects* allows it to ask its own server.
    """
    policy = ["default-src 'none'", f"style-src '{_digest(files.style)}'", f"script-src '{_digest(files.script)}'"]
    policy += ["base-uri 'none'", "form-action 'none'", *(["connect-src 'self'"] if connects else [])]
    values = {
        "title": escape(title),
        "policy": "; ".join(policy),
        "style": files.style,
        "script": files.script,
        "data": data,
    }
    page, rest = "", f"{_HEAD}{files.template}{_END}"
    while rest:  # one pass: a value that holds a placeholder is left as it is
        before, opening, after = rest.partition("{{")
        name, _, rest = after.partition("}}")
        page += before + (values[name] if opening else "")
    return page


def _digest(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
