"""The help of every command: what each option is, its allowed values and its default."""

import pytest
import typer
from typer.testing import CliRunner

from pna.bench import real_world
from pna.cli import app, options
from pna.data.edge_labels import MESSAGES
from pna.data.molecule_features import FEATURES
from pna.data.multitask.draw import PROTOCOLS
from pna.data.multitask.families import FAMILIES
from pna.data.multitask.labels import SIX
from pna.nn.architectures import ARCHITECTURES
from pna.nn.architectures.stacked import NORMS
from pna.nn.depth import RULES
from pna.nn.initial import INITIAL
from pna.nn.registry import CONVOLUTIONS
from pna.paper.registry import EXPERIMENTS
from pna.train.exporting import FORMATS
from pna.train.recipes import RECIPES
from pna.train.schedules import SCHEDULES
from pna.train.settings import OPTIMISERS, PRECISIONS, SELECTIONS, THRESHOLDS
from pna.train.tasks import LOSSES


def commands(command, path=()):
    """Every command by its words; groups of commands too."""
    yield path, command
    for name, inner in getattr(command, "commands", {}).items():
        yield from commands(inner, (*path, name))


COMMANDS = dict(commands(typer.main.get_command(app)))
OPTIONS = {
    path: [
        parameter
        for parameter in command.params
        if parameter.name != "help" and not getattr(parameter, "hidden", False)
    ]
    for path, command in COMMANDS.items()
}

DEVICES = ("cpu", "cuda")
#: The allowed values of options that take one of a few names; of a command alone where it is named.
CHOICES = {
    "device": DEVICES,
    "model": CONVOLUTIONS,
    "architecture": ARCHITECTURES,
    "depth": RULES,
    "norm": NORMS,
    "select": SELECTIONS,
    "threshold": THRESHOLDS,
    "mask_column": ("all",),
    "readout": ("sum", "mean", "max", "set2set"),
    "init": INITIAL,
    "optimiser": OPTIMISERS,
    "schedule": SCHEDULES,
    "precision": PRECISIONS,
    "loss": LOSSES,
    "peer": ("chemprop",),
    "message_edges": MESSAGES,
    "direction": ("in", "both"),
    "address": ("local", "auto", "HOST:PORT", "ray://HOST:PORT"),
    "where": ("public",),
    ("bench train", "only"): ("population", "multitask", "zinc-sized"),
    ("bench real-world", "only"): real_world.ROWS,
    ("data multitask", "protocol"): PROTOCOLS,
    ("data molecules", "split"): ("scaffold", "random"),
    "features": FEATURES,
    ("data multitask", "tasks"): (",".join(SIX),),
    ("data multitask", "mixture"): [family.name for family in FAMILIES],
    ("export", "format"): FORMATS,
    ("reproduce", "protocol"): {p for e in EXPERIMENTS.values() for p in e.protocols},
    ("train", "recipe"): RECIPES,
    ("reproduce", "recipe"): {r for e in EXPERIMENTS.values() for r in e.recipes},
}
#: Options that take any text: names in files, lists and ranges of numbers.
FREE = {
    *("name", "models", "split", "splits", "smiles", "targets", "tasks", "weight", "weights"),
    *("mixture", "class_weights", "encoding", "out", "peer_python", "target"),
    *("sizes", "lr", "weight_decay", "width", "dropout", "rows", "paths"),
    *("id", "source", "dest", "edge_split", "random_split", "sample", "note"),
}
#: Left out, they mean nothing: a run is new, or its graphs are where they were.
NO_DEFAULT = {(("train",), "data"), (("train",), "resume")}


def is_text(parameter):
    """Whether any text is parsed; versions of Typer say it in two ways."""
    if hasattr(parameter, "type_descriptor"):
        return parameter.type_descriptor.annotation is str
    return parameter.type.name == "text"


def choices(path, parameter):
    of_command = CHOICES.get((" ".join(path), parameter.name))
    return CHOICES.get(parameter.name, ()) if of_command is None else of_command


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_every_command_is_explained(path):
    assert COMMANDS[path].help and COMMANDS[path].help[0].isupper()
    assert CliRunner().invoke(app, [*path, "--help"]).exit_code == 0


@pytest.mark.parametrize("path", OPTIONS, ids=" ".join)
def test_every_option_is_explained(path):
    for parameter in OPTIONS[path]:
        name, words = parameter.name, parameter.help
        assert words and words[0].isupper() and words.rstrip().endswith((".", "…")), name
        is_switch = getattr(parameter, "is_flag", False) and not parameter.secondary_opts
        if not (parameter.required or is_switch or "Default:" in words):
            shown = parameter.show_default and parameter.default not in (None, "")
            assert shown or (path, name) in NO_DEFAULT, f"{name} names no default"


@pytest.mark.parametrize("path", OPTIONS, ids=" ".join)
def test_every_choice_is_listed(path):
    for parameter in OPTIONS[path]:
        given = choices(path, parameter)
        if is_text(parameter):
            assert given or parameter.name in FREE, f"list {parameter.name} in CHOICES or FREE"
        for value in given:
            assert value in parameter.help, parameter.name


def test_defaults_of_settings_are_named():
    """What the table of options leaves out is the default of `Settings`."""
    help_of = {p.name: p.help for p in COMMANDS["train",].params}
    for name, default in {"seed": "0", "decay": "0.5"}.items():
        assert help_of[name].endswith(f"Default: {default}.")
    of_molecules = "For tables of molecules: 0.001, below 3,000 molecules 0.002."
    assert help_of["lr"].endswith(f"Default: 0.001. {of_molecules}")
    for name, default, molecules in (("patience", 100, 0), ("members", 1, 5)):
        assert help_of[name].endswith(f"Default: {default}. For tables of molecules: {molecules}.")
    of_molecules = "For tables of molecules: 50, from 6,000 molecules on 30."
    assert help_of["epochs"].endswith(f"Default: 1000. {of_molecules}")
    assert help_of["layers"].endswith("For tables of molecules: 3, below 3,000 molecules 1.")
    assert {name for panel in options.OPTIONS.values() for name in panel} <= help_of.keys()


def test_only_parameters_are_explained():
    def command(*, there: int = 0) -> None:
        """A command.

        Args:
            there: A number.
            gone: Another.
        """

    with pytest.raises(TypeError, match="command has no gone, which it explains"):
        options.explained(command)
