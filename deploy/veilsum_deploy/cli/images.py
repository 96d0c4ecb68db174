"""The ``veilsum images`` command: folders of images as records that studies read."""

from pathlib import Path
from typing import Annotated

import typer

from veilsum.cli.display import show_progress
from veilsum_deploy.images import FrozenNetwork, Shape, write_records
from veilsum_node.errors import Misuse
from veilsum_node.process.console import JsonOption, print_fields

app = typer.Typer(add_completion=False)


@app.command()
def images(
    folder: Annotated[Path, typer.Argument(help="Folder of images as DOMAIN/CLASS/name.png; JPEG, BMP, GIF, TIFF, WebP too.")],
    out: Annotated[Path, typer.Option("--out", help="New folder for one npz file a domain, and their schema.toml.")],
    size: Annotated[int, typer.Option("--size", min=1, max=1024, help="Rows and columns of an image's middle square.")] = 32,
    channels: Annotated[int, typer.Option("--channels", help="3 for colours, 1 for grey.")] = 3,
    program: Annotated[
        Path | None,
        typer.Option("--program", help="Frozen network that makes features; they get an L2 norm of 1. Without it: pixels."),
    ] = None,
    program_format: Annotated[
        str,
        typer.Option("--format", help="The network's format: torchscript (torch.jit.save) or exported (torch.export.save)."),
    ] = "torchscript",
    as_json: JsonOption = False,
) -> None:
    """Turn a folder of images in domains and classes into records for `veilsum simulate --data`."""
    if channels not in (1, 3):
        raise Misuse(f"Images have no {channels} channels.", "State 1 or 3.")
    if program_format not in ("torchscript", "exported"):
        raise Misuse(f"No format is called {program_format!r}.", "Use torchscript or exported.")
    network = (
        None if program is None else FrozenNetwork(program, "exported" if program_format == "exported" else "torchscript")
    )
    with show_progress() as progress:
        counts = write_records(folder, out, Shape(3 if channels == 3 else 1, size), network, progress)
    fields = {"domains": counts if as_json else [f"{name}: {count}" for name, count in counts.items()], "folder": str(out)}
    print_fields(fields, title="Records", as_json=as_json)
