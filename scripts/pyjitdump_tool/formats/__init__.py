"""The formats that `pyjitdump export` writes, one module each, with

    HELP                what it is for, and what its numbers mean, for --help
    SUFFIX              of a file's name
    GZIPPED             True if the format is compressed as such
    VIEW                the frames that are shown if the user does not say (stacks.VIEWS)
    write(source, file) writes export.Source to a binary file

Names of modules here may be those of the standard library; imports are relative for that reason.
"""
import importlib

NAMES = ("collapsed", "speedscope", "gecko", "pstats", "pprof")


def load(name):
    return importlib.import_module("." + name, __package__)
