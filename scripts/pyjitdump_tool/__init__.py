"""The pyjitdump command: records Python programs with perf and libpyjitdump, and shows what they did.

Python 3.8 and later, standard library only. One module for each subcommand, with

    add_arguments(parser)   its options, help and examples, on an argparse parser
    run(args)               does it, and returns the exit status

and, where it is so, TAKES_COMMAND = True (what stands behind `--` is in args.command, a list) and
PASSES_ON = True (options it does not know are in args.unknown, a list).

cli.py starts them; stacks.py reads samples for all of them; recording.py knows the directory.
"""
