"""HTML pages that need no other file; page.css is their style, for light and dark, wide and narrow windows."""

import html
from pathlib import Path

STYLE = Path(__file__).with_name("page.css")


def make_document(title: str, body: str) -> str:
    """Return a page with a title (text) and a body (HTML)."""
    return "\n".join(
        (
            "<!DOCTYPE html>",
            '<html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{html.escape(title)}</title><style>{STYLE.read_text(encoding='utf-8')}</style></head><body>",
            body,
            "</body></html>\n",
        )
    )
