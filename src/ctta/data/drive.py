"""Google Drive as a source: where a file is, and its page that asks "download anyway?" for large ones."""

from __future__ import annotations

from html.parser import HTMLParser
from urllib.parse import urlencode, urljoin, urlsplit

ADDRESS = "https://drive.usercontent.google.com/download?id={id}&export=download&confirm=t"
"""The address that answers with the file itself; `confirm=t` answers the question beforehand."""


def address(source: str) -> str:
    """Turn `gdrive:ID` into the address of the file.

    >>> address("gdrive:1t98aEuze")
    'https://drive.usercontent.google.com/download?id=1t98aEuze&export=download&confirm=t'
    """
    return ADDRESS.format(id=source.removeprefix("gdrive:"))


def confirmed(page: str, base: str) -> str | None:
    """Return the address behind the "download anyway" button of a confirm page, or None if it has none.

    Two forms have been in use: a form with hidden fields (id, confirm, uuid), and a plain link with confirm=CODE.
    The answer must stay on the same site as the page.
    """
    reader = _Page()
    found = None
    try:
        reader.feed(page)
        if reader.action is not None and "id" in reader.fields:
            found = urljoin(base, reader.action) + "?" + urlencode(reader.fields)
        elif reader.link is not None:
            found = urljoin(base, reader.link)
        if found is None or found == base or _site(found) != _site(base):
            return None
    except (ValueError, AssertionError):  # markup or an address that Python's parsers do not take
        return None
    return found


def explain(page: str) -> str:
    """Return what a page of Drive says went wrong, as the end of a sentence."""
    text = page.lower()
    if "quota" in text or "too many users" in text:
        return " (the file's download quota is used up for today)"
    if "sign in" in text or "accounts.google.com" in text:
        return " (Drive asks to sign in)"
    if "not found" in text or "does not exist" in text:
        return " (Drive does not have the file any more)"
    return ""


def _site(link: str) -> str:
    """Return the last two labels of the host: drive.google.com and drive.usercontent.google.com are one site."""
    return ".".join((urlsplit(link).hostname or "").split(".")[-2:])


class _Page(HTMLParser):
    """Collect the download form, or else the first link that carries a confirm code."""

    def __init__(self) -> None:
        super().__init__()
        self.action: str | None = None
        self.fields: dict[str, str] = {}
        self.link: str | None = None
        self._inside = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        if tag == "form" and "download" in values.get("id", "") + values.get("action", ""):
            self.action, self._inside = values.get("action", ""), True
        elif tag == "input" and self._inside and values.get("name"):
            self.fields[values["name"]] = values.get("value", "")
        elif tag == "a" and self.link is None and "confirm=" in values.get("href", ""):
            self.link = values["href"]

    def handle_endtag(self, tag: str) -> None:
        if tag == "form":
            self._inside = False
