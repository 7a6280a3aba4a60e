"""Tensors and facts in one safetensors file: written whole or not at all, read by mapping it."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from pna.data.table import is_table
from pna.files import replacing

#: What to do about a file of another kind, by the kind that was expected.
_INSTEAD = {
    "pna.GraphSet": "pass a file that pna data or GraphSet.save wrote",
    "pna.train.best": "pass a run, or restore the best.safetensors that pna train wrote in it",
    "pna.train.last": "restore the last.safetensors that pna train wrote in the run",
}


def write(
    path: Path,
    tensors: dict[str, Tensor],
    facts: dict[str, Any],
    *,
    kind: str,
    version: int,
    force: bool = False,
    checksum: bool = False,
) -> None:
    """Write tensors, and facts as JSON; aside, synced, renamed. Only `force` overwrites.

    `kind` and `version` say what is in the file, and are what `read` expects. With `checksum` the
    file holds one of all that is in it, and is read whole to be checked, which files of gigabytes
    had better not be.
    """
    if path.exists() and not force:
        raise FileExistsError(
            f"got {path}, which exists, expected a new file; choose another name, or overwrite it "
            "with force"
        )
    header = {"format": kind, "version": str(version), "facts": json.dumps(facts)}
    if checksum:
        header["sha256"] = _digest(tensors, header["facts"])
    content = safetensors.torch.save(tensors, header)
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path, binary=True) as file:
        file.write(content)


def read(path: Path, *, kind: str, version: int) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors, mapped from the file, and the facts, if it holds this kind of thing.

    They are checked where the file has a checksum.
    """
    if not path.is_file():
        raise FileNotFoundError(f"got {path}, expected a file there; check the path")
    try:
        with safe_open(path, framework="pt") as file:
            header = file.metadata() or {}
            _check_header(path, header, kind, version)
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except SafetensorError as error:
        raise ValueError(_why_unreadable(path, error)) from error
    if "sha256" in header and header["sha256"] != _digest(tensors, header.get("facts", "")):
        raise ValueError(
            f"got {path}, which is damaged (its checksum is not that of its contents), expected "
            "what was written; restore it from a copy, or make it again"
        )
    try:
        return tensors, json.loads(header["facts"])
    except (KeyError, ValueError) as error:
        raise ValueError(
            f"got {path}, whose facts are damaged ({error!r}), expected JSON; copy or make it again"
        ) from error


def _digest(tensors: dict[str, Tensor], facts: str) -> str:
    """A hash of the facts and of the tensors' names, types, shapes and bytes."""
    digest = hashlib.sha256(facts.encode())
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        flat = tensor.as_strided((tensor.numel(),), (1,))  # one of size 1 may have any stride
        digest.update(flat.view(torch.uint8).numpy().data)  # not a copy
    return digest.hexdigest()


def _check_header(path: Path, header: dict[str, str], kind: str, version: int) -> None:
    if header.get("format") != kind or not header.get("version", "").isdecimal():
        held = header.get("format", "something else")
        raise ValueError(
            f"got {path}, a safetensors file of {held}, expected one of {kind}; {_INSTEAD[kind]}"
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
    if is_table(path):
        return f"got {path}, a table, expected graphs; of molecules, pna data molecules makes them"
    return (
        f"got {path}, which is no safetensors file ({error}), expected one; check the path, or "
        "make the file again"
    )
