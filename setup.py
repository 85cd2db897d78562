"""Build the package: compile its kernels into it. All else is in ``pyproject.toml``."""

import os
import sys
from pathlib import Path

from setuptools import Distribution, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py

ROOT = Path(__file__).parent
sys.path.insert(0, str(ROOT / "tools"))

from kernels.build import TARGETS, ZIG, build, target  # noqa: E402


class Build(build_py):
    """Compile the kernels beside their sources: in the wheel, or in the checkout if it is installed to be edited."""

    def run(self) -> None:
        super().run()
        folder = (ROOT / "src" if self.editable_mode else Path(self.build_lib)) / "feedmill/kernels"
        for other in folder.glob("kernels.*.so"):  # of an earlier build for another machine
            other.unlink()
        build(folder)


class Wheel(bdist_wheel):
    """Name the wheel for one platform, and for all Pythons: the library uses none of their interfaces."""

    def get_tag(self) -> tuple[str, str, str]:
        name = target()
        return "py3", "none", TARGETS[name].tag if name else super().get_tag()[2]


class Platform(Distribution):
    """A package that is not the same on all platforms."""

    def has_ext_modules(self) -> bool:
        return True


setup(
    cmdclass={"build_py": Build, "bdist_wheel": Wheel},
    distclass=Platform,
    # Asked for here, as a build with another compiler needs no zig.
    setup_requires=[] if "FEEDMILL_CC" in os.environ else [ZIG],
)
