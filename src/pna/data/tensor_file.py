"""Tensors and facts (JSON) in one safetensors file: written completely or not, checked when read.

Files of up to `IN_MEMORY` bytes are read into memory. Larger ones are memory-mapped, so that sets
may be larger than the memory. Such a file must not change while it is in use (`Watch`).
"""

from __future__ import annotations

import hashlib
import json
import os
import reprlib
import textwrap
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import safetensors.torch
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from pna.data.progress import Progress
from pna.data.table import is_table
from pna.files import check_readable, make_folder, naming, replacing
from pna.stored import parse_json

#: Bytes of the largest file that is read into memory; larger ones are mapped.
IN_MEMORY = 256 * 2**20
#: Bytes of the largest header, which holds the facts and becomes Python objects.
MOST_HEADER = 32 * 2**20

_CHUNK = 2**22  # bytes hashed at a time
_LENGTH = 8  # bytes at the start of a file with the length of its header

#: The remedy for a file of another kind, by the expected kind.
_INSTEAD = {
    "pna.GraphSet": "pass a file of many graphs that pna data or GraphSet.save wrote",
    "pna.NodeGraph": "pass a file that pna data graph or NodeGraph.save wrote",
    "pna.train.best": "pass a run, or restore the best.safetensors that pna train wrote in it",
    "pna.train.calibration": "restore the calibration.safetensors that pna train wrote in the run",
    "pna.train.molecules": "restore the molecules.safetensors that pna train wrote in the run",
    "pna.train.last": "restore the last.safetensors that pna train wrote in the run",
}


@dataclass(frozen=True)
class Watch:
    """The state of a file when it was mapped, to detect later changes.

    The system ends a process (SIGBUS) that reads a truncated part of a mapped file, and Python
    cannot catch that. Every reader therefore checks first, at the cost of one system call. Only a
    truncation during reading remains undetected. A file that is removed, or replaced by another of
    its name, stays available to processes that have mapped it, and is not an error.
    """

    path: Path
    inode: tuple[int, int]
    size: int
    modified: int  # in nanoseconds

    @classmethod
    def of(cls, path: Path) -> Watch | None:
        """The watch of a file that `read` maps; None for one that it reads into memory."""
        found = path.stat()
        if found.st_size <= IN_MEMORY:
            return None
        inode = (found.st_dev, found.st_ino)
        return cls(path.absolute(), inode, found.st_size, found.st_mtime_ns)

    def check(self) -> None:
        """Raise if the file was truncated or written to."""
        try:
            found = os.stat(self.path)
        except OSError:
            return  # removed, but still mapped
        if (found.st_dev, found.st_ino) != self.inode:
            return
        if (found.st_size, found.st_mtime_ns) != (self.size, self.modified):
            raise ValueError(
                f"got {self.path}, which was changed while it was in use (it had {self.size:,} "
                f"bytes, and has {found.st_size:,}), expected it to stay as it was; restore it and "
                "start again, and write changes to a new file"
            )


def write(
    path: Path,
    tensors: dict[str, Tensor],
    facts: dict[str, Any],
    *,
    kind: str,
    version: int,
    force: bool = False,
    checksum: bool = True,
) -> None:
    """Write tensors, and facts as JSON, to a new file; only `force` overwrites another.

    `read` expects the same `kind` and at most its `version`. The header has a `checksum` of the
    tensors and the facts, which `read` and `verify` compare.
    """
    with naming(path):
        if path.exists() and not force:
            raise FileExistsError(
                f"got {path}, which exists, expected a new file; choose another name, or overwrite "
                "it with force"
            )
    header = {"format": kind, "version": str(version), "facts": json.dumps(facts)}
    if checksum:
        header["sha256"] = _digest(tensors, header["facts"])
    content = memoryview(safetensors.torch.save(tensors, header))
    begin = _LENGTH + int.from_bytes(content[:_LENGTH], "little")
    names = _sorted(bytes(content[_LENGTH:begin]))
    if len(names) > MOST_HEADER:
        raise ValueError(
            f"got names and metadata of {len(names):,} bytes for {path}, expected at most "
            f"{MOST_HEADER:,}; keep the metadata in a file of its own"
        )
    make_folder(path.parent)
    with replacing(path, binary=True) as file:
        file.write(len(names).to_bytes(_LENGTH, "little") + names)
        file.write(content[begin:])


def _sorted(header: bytes) -> bytes:
    """A header in alphabetical order, so that equal content has equal bytes: safetensors writes
    metadata in a random order. Spaces make its length a multiple of eight."""
    entries = json.loads(header)
    text = json.dumps(entries, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
    return text + b" " * (-len(text) % _LENGTH)


def read(
    path: Path, *, kind: str, version: int, check_up_to: int | None = None
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read the tensors and facts of a file of this kind.

    The checksum is verified, if the file has one; with `check_up_to`, only in files of at most that
    many bytes.
    """
    check_readable(path)
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        _check_start(path, file, size)
        try:
            tensors, header = _load(file.read(size)) if size <= IN_MEMORY else _map(path)
        except _UNREADABLE as error:
            raise _damaged(path, error) from error
    _check_header(path, header, kind, version)
    checked = "sha256" in header and (check_up_to is None or size <= check_up_to)
    if checked and header["sha256"] != _digest(tensors, header.get("facts", "")):
        raise _wrong_checksum(path)
    try:
        return tensors, parse_json(header.get("facts", ""))
    except ValueError as error:
        raise ValueError(
            f"got {path}, whose facts are damaged ({error}), expected what was written; copy or "
            "make it again"
        ) from error


def kind_of(path: Path) -> str:
    """The kind of a file as its header states it; nothing if it cannot be read."""
    check_readable(path)
    with path.open("rb") as file:
        try:
            length = _check_start(path, file, os.fstat(file.fileno()).st_size)
            header = json.loads(file.read(_LENGTH + length)[_LENGTH:])
            return str(header["__metadata__"]["format"])
        except (*_UNREADABLE, RecursionError):
            return ""


def verify(path: Path, *, kind: str, version: int, progress: Progress | None = None) -> bool:
    """Compare a file of any size with its checksum; False if it has none.

    Raises a `ValueError` if the file is damaged. It is read in chunks, without mapping: a
    truncation meanwhile does no harm.
    """
    check_readable(path)
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        length = _check_start(path, file, size)
        try:
            tensors, header = _map(path)
            entries = json.loads(file.read(_LENGTH + length)[_LENGTH:])
        except _UNREADABLE as error:
            raise _damaged(path, error) from error
        _check_header(path, header, kind, version)
        if "sha256" not in header:
            return False

        def chunks(name: str, _: Tensor) -> Iterable[bytes]:
            begin, end = (_LENGTH + length + offset for offset in entries[name]["data_offsets"])
            file.seek(begin)
            while begin < end and (chunk := file.read(min(_CHUNK, end - begin))):
                begin += len(chunk)
                if progress is not None:
                    progress(begin, size)
                yield chunk

        if header["sha256"] != _digest(tensors, header.get("facts", ""), chunks):
            raise _wrong_checksum(path)
    return True


#: Errors for content that is not a safetensors file, or has tensors of a type unknown to torch.
_UNREADABLE = (SafetensorError, ValueError, LookupError, TypeError, AttributeError, RuntimeError)


def _load(content: bytes) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors, copied from a file's content, and the header."""
    tensors = safetensors.torch.load(content)
    length = int.from_bytes(content[:_LENGTH], "little")
    header = json.loads(content[_LENGTH : _LENGTH + length])
    return tensors, header.get("__metadata__") or {}


def _map(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    with safe_open(path, framework="pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        return tensors, file.metadata() or {}


def _digest(
    tensors: dict[str, Tensor],
    facts: str,
    chunks: Callable[[str, Tensor], Iterable[Any]] | None = None,
) -> str:
    """A hash of the facts and of the tensors' names, types, shapes and bytes.

    `chunks` gives the bytes of a tensor, if they are not those in memory.
    """
    digest = hashlib.sha256(facts.encode())
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        for chunk in [bytes_of(tensor)] if chunks is None else chunks(name, tensor):
            digest.update(chunk)
    return digest.hexdigest()


def bytes_of(tensor: Tensor) -> memoryview:
    """The bytes of a contiguous tensor on the CPU, without a copy."""
    flat = tensor.as_strided((tensor.numel(),), (1,))  # an axis of size 1 may have any stride
    return flat.view(torch.uint8).numpy().data


def _check_start(path: Path, file: BinaryIO, size: int) -> int:
    """The length of the header of a safetensors file; `file` stays at 0."""
    start = file.read(_LENGTH + 1)
    file.seek(0)
    length = int.from_bytes(start[:_LENGTH], "little")
    if size == 0:
        raise ValueError(f"got {path}, which is empty, expected a file; copy or make it again")
    if start[_LENGTH:] != b"{":  # with which the header begins
        if is_table(path):
            raise ValueError(
                f"got {path}, a table, expected graphs; pna data molecules makes them of molecules"
            )
        raise ValueError(
            f"got {path}, which is no safetensors file, expected one; check the path, or make the "
            "file again"
        )
    if length > min(MOST_HEADER, size - _LENGTH):
        raise ValueError(
            f"got {path}, a safetensors file that is truncated or damaged (its header claims "
            f"{length:,} bytes, the file has {size:,}), expected a header of at most "
            f"{MOST_HEADER:,}; copy or make it again"
        )
    return length


def _damaged(path: Path, error: Exception) -> ValueError:
    return ValueError(
        f"got {path}, a safetensors file that is truncated or damaged "
        f"({textwrap.shorten(str(error), 200)}), expected a whole one; copy or make it again"
    )


def _wrong_checksum(path: Path) -> ValueError:
    return ValueError(
        f"got {path}, which is damaged (its checksum is not that of its contents), expected "
        "what was written; restore it from a copy, or make it again"
    )


def _check_header(path: Path, header: dict[str, str], kind: str, version: int) -> None:
    written = header.get("version", "")
    if header.get("format") != kind or not (written.isdecimal() and len(written) < 10):
        found = reprlib.repr(header.get("format", "something else")).strip("'")
        raise ValueError(
            f"got {path}, a safetensors file of {found}, expected one of {kind}; {_INSTEAD[kind]}"
        )
    if int(written) > version:
        raise ValueError(
            f"got {path} in version {written} of the format of a {kind}, expected "
            f"{version} or older; upgrade pna, or make the file again with this one"
        )
