"""What runs on every node: it collects facts and never judges them; it imports neither typer nor torch."""
