"""The program that scripts/quickstart records: a small order service, all of it the standard library.

    quickstart-workload.py [SECONDS]

A loop stands in for the network. Each handler spends its time in Python, in a C library, or in both by
turns; the one for reports is called back by SQLite in the middle of a query.
"""
import hashlib
import json
import os
import random
import re
import sqlite3
import sys
import time
import zlib

HANDLERS = {}
WORDS = "amber brass cedar delta ember flint grove haven ivory jade".split()
PRICE = re.compile(r"(?P<euros>\d+)\.(?P<cents>\d\d)")


def route(path):
    def register(handler):
        HANDLERS[path] = handler
        return handler
    return register


def connect():
    database = sqlite3.connect(":memory:")
    database.create_function("fingerprint", 1, fingerprint)
    database.execute("create table orders (id integer primary key, customer text, note text, cents integer)")
    return database


def fingerprint(text):
    """Called by SQLite for each row of a report."""
    return hashlib.sha256(text.encode() * 20).hexdigest()


def to_cents(match):
    """Called by the re module for each price it finds."""
    return str(int(match["euros"]) * 100 + int(match["cents"]))


def validate(order):
    if not order["customer"] or len(order["note"]) > 1000:
        raise ValueError("not an order: %r" % order)
    return order["customer"].title(), order["note"], int(PRICE.sub(to_cents, order["price"]))


@route("/orders/import")
def import_orders(database, body):
    orders = json.loads(body)
    with database:
        database.executemany("insert into orders (customer, note, cents) values (?, ?, ?)", map(validate, orders))
    return {"imported": len(orders)}


@route("/orders/report")
def report(database, body):
    rows = database.execute(
        "select customer, sum(cents), max(fingerprint(note)) from orders where note like ? group by customer",
        ("%" + json.loads(body)["word"] + "%",))
    return {customer: {"cents": cents, "mark": mark} for customer, cents, mark in rows}


@route("/orders/export")
def export(database, body):
    rows = database.execute("select * from orders order by id desc limit 150").fetchall()
    return {"archive": pack(rows)}


def pack(rows):
    return zlib.compress(json.dumps(rows, indent=1).encode(), 6).hex()


@route("/login")
def login(database, body):
    request = json.loads(body)
    return {"key": hashlib.pbkdf2_hmac("sha256", request["password"].encode(), b"salt", 2000).hex()}


def requests(chance):
    """An endless stream of (path, body), the same in each run."""
    def order():
        return {"customer": chance.choice(WORDS), "note": " ".join(chance.choices(WORDS, k=30)),
                "price": "%d.%02d" % (chance.randrange(90), chance.randrange(100))}
    while True:
        yield "/orders/import", json.dumps([order() for _ in range(100)])
        yield "/login", json.dumps({"password": chance.choice(WORDS)})
        yield "/orders/report", json.dumps({"word": " ".join(chance.choices(WORDS, k=2))})
        yield "/orders/export", "{}"


def serve(seconds):
    database = connect()
    served, end = 0, time.monotonic() + seconds
    for path, body in requests(random.Random(1)):
        json.dumps(HANDLERS[path](database, body))
        served += 1
        if served % 100 == 0:       # so that a report costs the same all the time
            database.execute("delete from orders")
        if time.monotonic() >= end:
            return served


def main():
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 5.0
    print("process %d serves for %g s" % (os.getpid(), seconds), flush=True)
    print("%d requests" % serve(seconds))


if __name__ == "__main__":
    main()
