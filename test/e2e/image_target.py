"""A process for tools to look at: does what lines on stdin say, and answers each with one line of JSON.

    hit N           calls hit() N times                 threads N K   K threads call hit() N times each
    price N         calls Shop().price() N times        fork N K      K forked children do
    grow N          calls N new functions               maps          the images that are mapped
    quit

It waits for the next line with outer() > middle() > inner() on its stack.
"""
import json
import os
import sys
import threading

GENERATED = "/srv/generated/module_%d.py"       # of ten functions each
grown = 0


def hit():
    return 1


class Shop:
    def price(self):
        return 2

    def twice(self):
        return self.price() + self.price()


class Stall:
    def price(self):
        return 3


def inner():
    return sys.stdin.readline()


def middle():
    return inner()


def outer():
    return middle()


def grow(count):
    global grown
    for number in range(grown, grown + count):
        namespace = {}
        source = "%sdef grown_%d():\n    return %d\n" % ("\n" * (number % 10), number, number)
        exec(compile(source, GENERATED % (number // 10), "exec"), namespace)
        assert namespace["grown_%d" % number]() == number
    grown += count
    return grown


def hits(count):
    for _ in range(count):
        hit()
    return count


def prices(count):
    shop = Shop()
    return sum(shop.price() for _ in range(count)) // 2


def in_threads(count, threads):
    running = [threading.Thread(target=hits, args=(count,)) for _ in range(threads)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    return count * threads


def in_children(count, children):
    for _ in range(children):
        child = os.fork()
        if child == 0:
            hits(count)
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
    return count * children


def mapped_images():
    with open("/proc/self/maps") as maps:
        return sorted({line.split()[-1] for line in maps if "/pyjd-" in line})


def main():
    Shop().twice(), Stall().price(), hit()
    commands = {"hit": hits, "price": prices, "grow": grow, "threads": in_threads, "fork": in_children,
                "maps": mapped_images}
    print(json.dumps("ready"), flush=True)
    while True:
        words = outer().split()
        if words in ([], ["quit"]):
            return
        answer = commands[words[0]](*map(int, words[1:]))
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
