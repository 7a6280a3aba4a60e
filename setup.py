"""The C code of `pna.ops` and `pna.population`; everything else is in pyproject.toml.

`pna` loads their library with ctypes, so it is a plain shared library without `PyInit`.
It is optional: without a compiler the package installs all the same and torch does the work.
"""

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

_SOURCES = (
    *("adjacency", "ops/cpu", "ops/small", "ops/triton/launch"),
    *("population/adam", "population/set2set"),
)


class BuildKernel(build_ext):
    def get_export_symbols(self, ext):
        return []


setup(
    ext_modules=[
        Extension(
            "pna.ops._cpu",
            [f"src/pna/{name}.c" for name in _SOURCES],
            depends=["src/pna/population/dense.h", "src/pna/population/variants.h"],
            include_dirs=["src/pna/population"],
            extra_compile_args=["-O3", "-fno-math-errno", "-fno-trapping-math"],
            optional=True,
        )
    ],
    cmdclass={"build_ext": BuildKernel},
)
