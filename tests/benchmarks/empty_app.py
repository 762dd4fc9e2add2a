"""The least that a typer app can be."""

import typer

app = typer.Typer()


@app.command()
def nothing() -> None:
    """Do nothing."""


app()
