"""A file that is written in parts, which a later process can continue after an interruption."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pna.files import check_plain, make_folder, naming, replacing

_ROWS, _STATE = "rows.csv", "state.json"


def partial_folder(out: Path) -> Path:
    """The folder that has the parts of a file so far."""
    return out.with_name(f"{out.name}.partial")


@dataclass
class PartialFile:
    """The text of the file `out` so far, and what its writer remembers.

    Both are in `partial_folder(out)`, synced after every part. `finish` renames the file.
    """

    out: Path
    state: dict[str, Any] = field(default_factory=dict)  # of the writer, after the last part

    @property
    def folder(self) -> Path:
        return partial_folder(self.out)

    @classmethod
    def resumed(cls, out: Path) -> PartialFile:
        """The parts that an interrupted process left."""
        folder = partial_folder(out)
        try:
            state = json.loads((folder / _STATE).read_text(encoding="utf-8"))
            with (folder / _ROWS).open("r+b") as file:
                if os.fstat(file.fileno()).st_size < state["bytes"]:
                    raise ValueError("rows are missing")
                file.truncate(state["bytes"])  # a part may have been written without its state
        except FileNotFoundError as error:
            raise FileNotFoundError(
                f"got --resume, but there is no {folder} of an interrupted command, expected one; "
                "leave out --resume"
            ) from error
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(
                f"got {folder}, which is damaged ({error}); start again without --resume, with "
                "--force"
            ) from error
        return cls(out, state["of_writer"])

    def append(self, text: str, state: dict[str, Any]) -> None:
        """Write a part, and then what the writer needs to continue after it."""
        new = not self.state
        if new:
            shutil.rmtree(self.folder, ignore_errors=True)
            make_folder(self.folder)
        path = self.folder / _ROWS
        with naming(path), path.open("w" if new else "a", newline="", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
            size = file.tell()
        with replacing(self.folder / _STATE) as file:
            json.dump({"bytes": size, "of_writer": state}, file)
        self.state = state

    def finish(self) -> None:
        """Rename the file to `out`, and remove the folder."""
        check_plain(self.out)
        with naming(self.out):
            (self.folder / _ROWS).replace(self.out.resolve())
        shutil.rmtree(self.folder)

    def discard(self) -> None:
        """Remove what was written."""
        shutil.rmtree(self.folder, ignore_errors=True)
