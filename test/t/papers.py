# Runs the Python blocks of a paper, one after the other, in one namespace. Each
# comes as a line of JSON; what it prints is followed by a line with a SQLSTATE,
# or the name of its exception. SystemExit ends a block only.
import json
import os
import sys
import traceback

names = {"__name__": "__main__"}
for line in sys.stdin:
    block = json.loads(line)
    os.environ.update(block["env"])
    state = "00000"
    try:
        exec(compile(block["text"], block["name"], "exec"), names)
    except SystemExit:
        pass
    except Exception as error:
        traceback.print_exc(file=sys.stdout)
        state = getattr(error, "sqlstate", None) or type(error).__name__
    print("--end-of-block--", state, flush=True)
