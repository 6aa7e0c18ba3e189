"""Google Drive as a source: where a file is, and its page that asks "download anyway?" for large ones."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from urllib.parse import urlencode, urljoin, urlsplit

ADDRESS = "https://drive.usercontent.google.com/download?id={id}&export=download&confirm=t"
"""The address that answers with the file itself; `confirm=t` answers the question beforehand."""

REASONS = {
    "quota|too many users": " (the file's download quota is used up for today)",
    "sign in|accounts.google.com": " (Drive asks to sign in)",
    "not found|does not exist": " (Drive does not have the file any more)",
}


def explain(page: str) -> str:
    """Return what a page of Drive says went wrong, as the end of a sentence."""
    return next((reason for marks, reason in REASONS.items() if re.search(marks, page, re.IGNORECASE)), "")


def confirmed(page: str, base: str) -> str | None:
    """Return the address behind the "download anyway" button of a confirm page, or None if it has none.

    Two forms have been in use: a form with hidden fields (id, confirm, uuid), and a plain link with confirm=CODE.
    The answer must stay on the same site as the page.
    """
    reader = _Page()
    try:
        reader.feed(page)
        if "id" in reader.fields:
            found = urljoin(base, reader.action) + "?" + urlencode(reader.fields)
        else:
            found = urljoin(base, reader.link)
        return found if found != base and _site(found) == _site(base) else None
    except (ValueError, AssertionError):  # markup or an address that Python's parsers do not take
        return None


def _site(link: str) -> list[str]:
    """Return the last two labels of the host: drive.google.com and drive.usercontent.google.com are one site."""
    return (urlsplit(link).hostname or "").split(".")[-2:]


class _Page(HTMLParser):
    """Collect the download form, or else the first link that carries a confirm code."""

    def __init__(self) -> None:
        super().__init__()
        self.action, self.link = "", ""
        self.fields: dict[str, str] = {}
        self._inside = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        if tag == "form" and "download" in values.get("id", "") + values.get("action", ""):
            self.action, self._inside = values.get("action", ""), True
        elif tag == "input" and self._inside and values.get("name"):
            self.fields[values["name"]] = values.get("value", "")
        elif tag == "a" and not self.link and "confirm=" in values.get("href", ""):
            self.link = values["href"]

    def handle_endtag(self, tag: str) -> None:
        self._inside = self._inside and tag != "form"
