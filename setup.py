"""The C code of `pna.ops` and `pna.population`; everything else is in pyproject.toml.

`pna` loads their library with ctypes, so it is a plain shared library without `PyInit`.
It is optional: without a compiler the package installs all the same and torch does the work.
"""

import os
from concurrent.futures import ThreadPoolExecutor

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

_SOURCES = (
    *("adjacency", "ops/cpu", "ops/cpu_long", "ops/small", "ops/triton/launch"),
    *("population/adam", "population/set2set"),
)


class BuildKernel(build_ext):
    def build_extensions(self):
        """Compile as many files at a time as there are cores."""
        compile_all = self.compiler.compile

        def compile_each(sources, **options):
            with ThreadPoolExecutor(os.cpu_count()) as pool:
                objects = pool.map(lambda source: compile_all([source], **options), sources)
                return [name for of_source in objects for name in of_source]

        self.compiler.compile = compile_each
        super().build_extensions()

    def get_export_symbols(self, ext):
        return []


setup(
    ext_modules=[
        Extension(
            "pna.ops._cpu",
            [f"src/pna/{name}.c" for name in _SOURCES],
            depends=["src/pna/population/dense.h", "src/pna/population/variants.h"],
            include_dirs=["src/pna/population"],
            extra_compile_args=["-O3", "-g0", "-fno-math-errno", "-fno-trapping-math"],
            optional=True,
        )
    ],
    cmdclass={"build_ext": BuildKernel},
)
