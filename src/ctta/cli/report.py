"""`ctta report`: what the runs of a store come to, as one page to look at, figures and tables."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Literal

import click

FILE = click.Path(dir_okay=False, path_type=Path)
FOLDER = click.Path(file_okay=False, path_type=Path)
Form = Literal["svg", "pdf"]


@click.command("report")
@click.argument("store", type=FILE)
@click.option("--out", type=FILE, help="Page [default: STORE as .html].")
@click.option("--figures", type=FOLDER, help="Folder for the figures as files.")
@click.option(
    "--format", "form", type=click.Choice(["svg", "pdf"]), default="svg", show_default=True, help="Theirs."
)
@click.option("--tables", type=FOLDER, help="Folder for md, tex and csv tables.")
@click.option(
    "--domains", default="glass_blur,snow", show_default=True, help="To show learning-rate importance of."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON for a program to read.")
def command(
    store: Path,
    out: Path | None,
    figures: Path | None,
    form: Form,
    tables: Path | None,
    domains: str,
    as_json: bool,
) -> None:
    """Write one self-contained page about the finished runs of STORE, and figures and tables as files.

    The page opens offline and needs nothing beside it. Runs on the same model and stream are compared; several
    seeds give mean, standard deviation and worst. Page and figures need the extra `report`.

    Example: ctta report runs/bench.db --out report.html --figures figures --format pdf --tables tables
    """
    from ctta.bench.store import Store
    from ctta.report.page import write_figures, write_page, write_tables

    shown = [name.strip() for name in domains.split(",") if name.strip()]
    with Store(store, read_only=True) as opened:
        page = write_page(opened, out or store.with_suffix(".html"), shown)
        drawn = write_figures(opened, figures, form, shown) if figures else []
        written = write_tables(opened, tables) if tables else []
    if as_json:
        paths = {"page": str(page), "figures": [str(p) for p in drawn], "tables": [str(p) for p in written]}
        click.echo(json.dumps(paths, indent=2))
        return
    click.echo(f"page in {page} ({page.stat().st_size / 1024:,.0f} kB)")
    if drawn:
        click.echo(f"{len(drawn)} figures in {figures}")
    if written:
        click.echo(f"{len(written)} tables in {tables}")
