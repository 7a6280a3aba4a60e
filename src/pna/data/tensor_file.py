"""Tensors and facts in one safetensors file: written whole or not at all, read by mapping it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import safetensors.torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from pna.files import replacing


def write(
    path: Path,
    tensors: dict[str, Tensor],
    facts: dict[str, Any],
    *,
    kind: str,
    version: int,
    force: bool = False,
) -> None:
    """Write tensors, and facts as JSON; aside, synced, renamed. Only `force` overwrites.

    `kind` and `version` say what is in the file, and are what `read` expects.
    """
    if path.exists() and not force:
        raise FileExistsError(
            f"got {path}, which exists, expected a new file; choose another name, or overwrite it "
            "with force"
        )
    header = {"format": kind, "version": str(version), "facts": json.dumps(facts)}
    content = safetensors.torch.save(tensors, header)
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path, binary=True) as file:
        file.write(content)


def read(path: Path, *, kind: str, version: int) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors, mapped from the file, and the facts, if it holds this kind of thing."""
    if not path.is_file():
        raise FileNotFoundError(f"got {path}, expected a file there; check the path")
    try:
        with safe_open(path, framework="pt") as file:
            header = file.metadata() or {}
            _check_header(path, header, kind, version)
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except SafetensorError as error:
        raise ValueError(_why_unreadable(path, error)) from error
    try:
        return tensors, json.loads(header["facts"])
    except (KeyError, ValueError) as error:
        raise ValueError(
            f"got {path}, whose facts are damaged ({error!r}), expected JSON; copy or make it again"
        ) from error


def _check_header(path: Path, header: dict[str, str], kind: str, version: int) -> None:
    if header.get("format") != kind or not header.get("version", "").isdecimal():
        held = header.get("format", "something else")
        raise ValueError(
            f"got {path}, a safetensors file of {held}, expected one of a {kind}; "
            f"pass a file that {kind}.save wrote"
        )
    if int(header["version"]) > version:
        raise ValueError(
            f"got {path} in version {header['version']} of the format of a {kind}, expected "
            f"{version} or older; upgrade pna, or make the file again with this one"
        )


def _why_unreadable(path: Path, error: SafetensorError) -> str:
    with path.open("rb") as file:
        start = file.read(9)
    if start[8:] == b"{":  # after the length of the header, the header
        return (
            f"got {path}, a safetensors file that is truncated or damaged ({error}), expected a "
            "whole one; copy or make it again"
        )
    return (
        f"got {path}, which is no safetensors file ({error}), expected one; check the path, or "
        "make the file again"
    )
