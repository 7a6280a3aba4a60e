"""Without matplotlib, tests of modules that draw are left out."""

from importlib.util import find_spec

collect_ignore = (
    []
    if find_spec("matplotlib")
    else [
        "test_benchmark.py",
        "test_browser.py",
        "test_demo.py",
        "test_describe.py",
        "test_drawings.py",
        "test_experiments.py",
        "test_figures.py",
        "test_line_plots.py",
        "test_results.py",
        "test_run_page.py",
        "test_run_plots.py",
        "test_theory.py",
    ]
)
