"""Finds libpyjitdump.so: in the wheel, in the build directory, or where meson installed it."""
import glob
import os

from . import ui

NAME = "libpyjitdump.so"
HERE = os.path.dirname(os.path.abspath(__file__))


def candidates():
    """Where it may be, best first. The package lies in the wheel's site-packages, in scripts/ of the
    source tree, or in PREFIX/share/pyjitdump."""
    yield os.path.join(os.path.dirname(HERE), ".libpyjitdump.mesonpy.libs", NAME + ".0")
    top = os.path.dirname(os.path.dirname(HERE))
    builds = glob.glob(os.path.join(glob.escape(top), "build*", "libpyjitdump", NAME))
    yield from sorted(builds, key=os.path.getmtime, reverse=True)
    prefix = os.path.dirname(top)
    for libdir in "lib", "lib64", "lib/*-linux-gnu*":
        yield from glob.glob(os.path.join(glob.escape(prefix), libdir, NAME))
        yield from glob.glob(os.path.join(glob.escape(prefix), libdir, NAME + ".0"))


def find(given=None):
    """The absolute path of the library; `given` is what the user said."""
    if given:
        if not os.path.isfile(given):
            raise ui.UserError("there is no library %s" % given)
        path = os.path.abspath(given)
    else:
        path = next(filter(os.path.isfile, candidates()), None)
        if not path:
            raise ui.UserError("%s is not there; build it (meson setup build && meson compile -C build), or name it "
                               "with --library" % NAME)
    if any(character in path for character in " :"):
        raise ui.UserError("the dynamic loader takes no preload with a blank or a colon in its path: %s" % path)
    return path


def preload(path):
    """The value of LD_PRELOAD with our library before what is there."""
    others = [word for word in os.environ.get("LD_PRELOAD", "").replace(" ", ":").split(":")
              if word and NAME not in word]
    return ":".join([path] + others)
