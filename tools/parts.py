"""Deal the pages and tests that take a second or longer into parts that take equally long

`make test` runs all that is quick and one part of the rest, another one after each commit. `make test-all` runs all parts. `make test-all WHICH=--seconds` does so and writes the seconds anew."""
import json
from pathlib import Path

path = Path(__file__).resolve().parent.parent/'tests/seconds.json' # {page: seconds of a core, test: seconds, with all its parameters}
n_parts = 10

def parts(seconds):
    "Return the part of each name in `seconds`: the longest first, each to the part that is the shortest so far"
    res,sums = {},[0]*n_parts
    for name,s in sorted(seconds.items(), key=lambda o: (-o[1],o[0])):
        res[name] = sums.index(min(sums))
        sums[res[name]] += s
    return res

def left_out(part, kind):
    "Return the pages or tests, by the start `kind` of their names, that `part` leaves out: a number, such as that of commits, or None for none"
    if part is None: return set()
    of = parts({k:v for k,v in json.loads(path.read_text()).items() if k.startswith(kind)})
    return {k for k,v in of.items() if v!=part%n_parts}

def write(seconds, kind):
    "Store the `seconds` of the pages or tests that take at least one, in place of those of the same `kind`"
    old = json.loads(path.read_text()) if path.exists() else {}
    new = {k:v for k,v in old.items() if not k.startswith(kind)} | {k:round(v) for k,v in seconds.items() if v>=1}
    path.write_text(json.dumps(dict(sorted(new.items())), indent=0)+'\n')
