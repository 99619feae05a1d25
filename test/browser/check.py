"""The page of pg_leader history --html, as Chromium has it (test/browser/run).

Chromium is asked for what it made of the page (the tree that it has parsed),
for pictures and for a PDF.  A page that is wrong on purpose shows that what is
looked for would be found.
"""

import json
import re
import struct
import subprocess
import sys
import zlib
from html.parser import HTMLParser

FOLDER = sys.argv[1]
TERMS = r"""
CREATE EXTENSION leader_election;
INSERT INTO leader_election.history
SELECT e, term, leader, now() - began, now() - ended, reason, detail, kind, 'app'
FROM (VALUES
    ('scheduler', 1, 'worker-1', 'detached', interval '26 h', interval '21 h', 'resigned', NULL),
    ('scheduler', 2, 'worker-2', 'detached', '21 h', '13 h', 'expired', NULL),
    ('scheduler', 3, 'worker-1', 'session', '12 h', '9 h', 'session ended', NULL),
    ('scheduler', 4, 'worker-3', 'session', '8.9 h', '8.89 h', 'left', NULL),
    ('scheduler', 5, 'worker-1', 'session', '8.6 h', '5 h', 'failover', NULL),
    ('scheduler', 911000000000001, 'worker-2', 'detached', '4.9 h', '1 h', 'transferred', 'worker-3'),
    ('scheduler', 911000000000002, 'worker-3', 'detached', '1 h', NULL, NULL, NULL),
    ('nightly', 1, 'db-1.example.com', 'detached', '20 h', '19 h', 'resigned', 'done'),
    ('shards/1', 1, 'a', 'detached', '26 h', '2 h', 'dropped', NULL),
    ('</script><script>document.title=1</script>', 1, '"><img src=http://localhost:1/ onerror=alert(1)>',
     'detached', '20 h', '10 h', 'yielded', '</title><b onclick=x>'),
    (E'\u202Egnirts\u202C', 1, E'\u05D0\u05D1 ''x'' \u0001', 'detached', '9 h', '5 h', 'expired', NULL),
    (E'\u202Egnirts\u202C', 2, repeat('W', 200), 'detached', '5 h', NULL, NULL, NULL)
) AS t (e, term, leader, kind, began, ended, reason, detail)
"""
HISTORY = r"""
SELECT json_agg(json_build_array(election, term::text, leader, kind,
    to_char(acquired_at AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS.MS'),
    COALESCE(to_char(ended_at AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS.MS'), ''),
    COALESCE(reason, 'leads'), COALESCE(detail, '')) ORDER BY led DESC, election, term)
FROM (SELECT *, bool_or(ended_at IS NULL) OVER (PARTITION BY election) AS led
    FROM leader_election.history) h
"""
# What a page is made of, and what Chromium adds
ELEMENTS = set("""html head meta title style body h1 h2 p b bdi span div ul li figure figcaption table
    thead tbody tr th td svg defs pattern g rect line path text""".split())
# Colours of the page: of paper, and of a bar for each way to end
LIGHT = {"page": "ffffff", "leads": "d5eddd", "given": "dbe7f6", "lost": "fbe2d2", "failover": "eadff6", "dropped": "e4e6e9"}
DARK = {"page": "14171b", "leads": "1b4029", "given": "1e3655", "lost": "4b2c19", "failover": "3b2953", "dropped": "31373e"}

count = {True: 0, False: 0}


def check(good, what, why=""):
    count[bool(good)] += 1
    print(f"{'ok' if good else 'not ok'} - {what}" + (f": {why}" if why and not good else ""), flush=True)


def run(*command, **options):
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=120, **options)


def sql(text):
    return run("psql", "-XqAt", "-v", "ON_ERROR_STOP=1", "-c", text).stdout


def chromium(page, *args):
    """Open a page: what Chromium prints, and the errors in its console."""
    ran = run("chromium", "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
              "--enable-logging=stderr", f"--user-data-dir={FOLDER}/profile", *args, f"file://{page}")
    return ran.stdout, re.findall(r".*CONSOLE.*", ran.stderr)


class Tree(HTMLParser):
    """Elements, attributes, and the rows of the table's body."""

    def __init__(self, page):
        super().__init__()
        self.elements, self.attributes, self.rows, self.body, self.cell = set(), set(), [], False, False
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.elements.add(tag)
        self.attributes.update(name for name, _ in attrs)
        self.body = self.body or tag == "tbody"
        if self.body and tag == "tr":
            self.rows.append([])
        if self.body and tag in ("td", "th"):
            self.cell = True
            self.rows[-1].append("")

    def handle_endtag(self, tag):
        if tag in ("td", "th"):
            self.cell = False

    def handle_data(self, data):
        if self.cell:
            self.rows[-1][-1] += data


def colours(file):
    """How often each colour is in a PNG of 8 bits, as Chromium writes it."""
    with open(file, "rb") as stream:
        data = stream.read()
    place, packed = 8, b""
    while place < len(data):
        length, kind = struct.unpack(">I4s", data[place:place + 8])
        if kind == b"IHDR":
            width, height, _, colour = struct.unpack(">IIBB", data[place + 8:place + 18])
        elif kind == b"IDAT":
            packed += data[place + 8:place + 8 + length]
        place += length + 12
    size = {2: 3, 6: 4}[colour]
    raw, line, found = zlib.decompress(packed), bytearray(width * size), {}
    for row in range(height):
        start = row * (width * size + 1)
        how, new = raw[start], bytearray(raw[start + 1:start + 1 + width * size])
        for i in range(width * size):
            left, up = new[i - size] if i >= size else 0, line[i]
            corner = line[i - size] if i >= size else 0
            if how == 4:
                guess = left + up - corner
                near = min((abs(guess - left), 0, left), (abs(guess - up), 1, up), (abs(guess - corner), 2, corner))[2]
            else:
                near = (0, left, up, (left + up) // 2)[how]
            new[i] = (new[i] + near) & 255
        line = new
        for i in range(0, width * size, size):
            key = bytes(line[i:i + 3])
            found[key] = found.get(key, 0) + 1
    return {key.hex(): number for key, number in found.items()}


def shown(text):
    """As pg_leader shows what cannot be seen."""
    return re.sub("[\x00-\x1f\u202a-\u202e]", lambda c: "".join(f"\\x{byte:02X}" for byte in c[0].encode()), text)


def main():
    sql(TERMS)
    page = f"{FOLDER}/page.html"
    run("pg_leader", "history", "--html", page)

    dom, errors = chromium(page, "--dump-dom")
    tree = Tree(dom)
    rows = [row[:6] + row[7:] for row in tree.rows]
    rows = [[cell.replace(" new epoch", "") for cell in row] for row in rows]
    expected = [[shown(cell) for cell in row] for row in json.loads(sql(HISTORY))]
    check(rows == expected, "the rows are those of history", f"{rows} instead of {expected}")
    check(len(rows) == 12, "all of them")
    check(tree.elements <= ELEMENTS, "no element that a name has made", tree.elements - ELEMENTS)
    check(not [name for name in tree.attributes if name.startswith("on") or name in ("src", "href", "style")],
          "no attribute either", tree.attributes)
    check("<title>Who led</title>" in dom, "the title is that of the page")
    check(not errors, "nothing in the console", errors)

    for name, colour, scheme in (("light", LIGHT, 1), ("dark", DARK, 0)):
        file = f"{FOLDER}/{name}.png"
        _, errors = chromium(page, "--window-size=1280,1800", f"--blink-settings=preferredColorScheme={scheme}",
                             f"--screenshot={file}")
        found = colours(file)
        check(max(found, key=found.get) == colour["page"], f"{name}: the paper", max(found, key=found.get))
        for look in colour:
            check(found.get(colour[look], 0) > 100, f"{name}: {look}", found.get(colour[look], 0))
        check(not errors, f"{name}: nothing in the console", errors)

    _, errors = chromium(page, "--blink-settings=preferredColorScheme=0", "--no-pdf-header-footer",
                         f"--print-to-pdf={FOLDER}/page.pdf")
    printed = re.sub(r"\s+", " ", run("pdftotext", "-layout", f"{FOLDER}/page.pdf", "-").stdout)
    for word in ("worker-1", "session ended", "failover", "new epoch", "transferred", "db-1.example.com", "vacant", "UTC"):
        check(word in printed, f"on paper: {word}")
    run("pdftoppm", "-r", "60", "-png", f"{FOLDER}/page.pdf", f"{FOLDER}/paper")
    found = colours(f"{FOLDER}/paper-1.png")
    check(max(found, key=found.get) == "ffffff", "paper is white, though the screen is dark")

    # A page with a script, and with something to fetch: the policy forbids both.
    with open(page, encoding="ascii") as stream:
        wrong = stream.read().replace("<h1>", "<script>document.title='ran'</script><img src='http://localhost:1/'><h1>")
    with open(f"{FOLDER}/wrong.html", "w", encoding="ascii") as stream:
        stream.write(wrong)
    dom, errors = chromium(f"{FOLDER}/wrong.html", "--dump-dom")
    check({"script", "img"} <= Tree(dom).elements, "found: elements that do not belong there")
    check("<title>ran</title>" not in dom, "found: a script does not run")
    check(len(errors) >= 2, "found: errors in the console", errors)


main()
print(f"{count[True]} passed, {count[False]} failed")
sys.exit(1 if count[False] or not count[True] else 0)
