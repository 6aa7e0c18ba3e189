"""Write docs/methods.md from the registry. Run with `make docs`; a test fails when page and registry differ."""

from __future__ import annotations

from pathlib import Path

import ctta
from ctta import MethodEntry
from ctta.cli.methods import TITLES

PAGE = Path(__file__).with_name("methods.md")
HEAD = """# Methods

This page is written by `make docs` from the registry; `ctta methods NAME` prints the same. Settings are keyword
arguments of `ctta.adapt(model, NAME, ...)`; a preset is chosen with `preset="..."`; settings given beside it win.
Cost is that of a batch at most, in forward passes of the model (a backward pass through all layers counts two).
Confidence is how sure we are that this is the published method.
"""


def main() -> None:
    """Write the page."""
    PAGE.write_text(render())


def render() -> str:
    """Return the page as Markdown."""
    return HEAD + "".join(section(entry) for entry in ctta.list_methods())


def section(entry: MethodEntry) -> str:
    """Everything about one method."""
    year = f" ({entry.year})" if entry.year else ""
    lines = [
        f"\n## {entry.name}\n",
        f"{entry.summary}\n",
        f"Paper: {entry.paper}{year}. Needs: {', '.join(sorted(entry.needs)) or 'any model'}. "
        f"Adapts: {entry.method.adapts}. Cost: {entry.cost:g}. Confidence: {entry.confidence}.\n",
    ]
    for group, title in TITLES.items():
        found = [s for s in entry.settings if s.group == group]
        if found:
            lines += [f"{title}:\n"] if group != "paper" else []
            lines += ["| setting | default | accepts | help |", "|---|---|---|---|"]
            lines += [
                f"| `{s.name}` | `{cell(str(s.default))}` | {cell(s.accepts)} | {cell(s.help)} |" for s in found
            ]
            lines.append("")
    for title, groups in (("Preset", entry.presets), ("Variant", entry.variants)):
        for name, values in groups.items():
            text = ", ".join(f"{key}={value}" for key, value in values.items())
            lines.append(f"- {title} `{name}`: {f'`{text}`' if text else 'the defaults'}")
    kept = entry.method.kept()
    lines += ["", "Keeps from batch to batch, beside the adapted weights:", ""]
    lines += [f"- `{name}` ({item.kind}): {item.help}" for name, item in kept.items()]
    return "\n".join(lines) + "\n"


def cell(text: str) -> str:
    """Escape what would end a table cell."""
    return text.replace("|", "\\|")


if __name__ == "__main__":
    main()
