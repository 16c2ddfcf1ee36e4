"""Run notebooks as tests, two at a time: `python tools/pages.py [--slow] [--part N] [--seconds] [nbs/x.ipynb ...]`

Without a name all run; the tutorials, which train for minutes, with `--slow` only, as cells with that flag.
With `--part` those of `parts.py` that are quick or of one part run, and `--seconds` stores what each page took.

Each page runs in a process of its own, so that what it patches or registers does not reach the next page. The processes are forked
from one that has imported fastai and the base classes of transformers already, which saves seven seconds a page. What a failed page printed is shown at once;
its name and error stand at the end too, and in `.venv/failed-pages`, for `make test` to repeat after pytest."""
import argparse, os, sys, tempfile
from pathlib import Path
import parts
from nbdev.test import test_nb
import fastai.text.all, matplotlib.pyplot, sklearn.feature_extraction.text, transformers.modeling_utils

root = Path(__file__).resolve().parent.parent
skip = 'slow','gpu','network'

def start(page, out):
    "Start a process that runs `page`, prints to `out`, and exits with 0 if no cell fails"
    sys.stdout.flush()
    if pid := os.fork(): return pid
    for fd in (1,2): os.dup2(out.fileno(), fd)
    try: ok,_ = test_nb(page, skip_flags=skip, basepath=root, cell_timeout=3600)
    except BaseException as e:
        print(repr(e))
        ok = False
    sys.stdout.flush(); sys.stderr.flush()
    os._exit(not ok)

def run(pages, n=2):
    "Run `pages`, `n` at a time. Return the names of those that failed, each with the end of its output, and the core seconds of each"
    todo,running,failed,seconds = [*pages],{},[],{}
    while todo or running:
        while todo and len(running)<n:
            page,out = todo.pop(0),tempfile.TemporaryFile('w+', errors='replace')
            running[start(page, out)] = page,out
        pid,status,used = os.wait3(0)
        page,out = running.pop(pid)
        out.seek(0)
        said = out.read().strip()
        name = page.relative_to(root)
        if status: print(said)
        if status:
            lines = [o[:200] for o in said.splitlines() if o.strip()]
            failed.append('\n'.join([f'FAILED {name}', *lines[:1], *lines[-3:]]))
        seconds[str(name)] = used.ru_utime+used.ru_stime
        print(f"{'FAILED' if status else 'ok'} {name} {seconds[str(name)]:.0f} s of a core", flush=True)
    return failed,seconds

if __name__=='__main__':
    p = argparse.ArgumentParser()
    p.add_argument('pages', nargs='*', type=Path)
    p.add_argument('--slow', action='store_true')
    p.add_argument('--part', type=int)
    p.add_argument('--seconds', action='store_true')
    args = p.parse_args()
    every = sorted(o for o in (root/'nbs').rglob('*.ipynb') if not any(p[0] in '._' for p in o.relative_to(root).parts))
    every.sort(key=lambda o: 'tutorials' not in o.parts) # the longest first, so that both processes end together
    if args.slow: skip = skip[1:]
    else: every = [o for o in every if 'tutorials' not in o.parts]
    others = parts.left_out(args.part, 'nbs/')
    pages = [o.resolve() for o in args.pages] or [o for o in every if str(o.relative_to(root)) not in others]
    os.chdir(root)
    failed,seconds = run(pages)
    if args.seconds: parts.write(seconds, 'nbs/')
    summary = '\n'.join([*failed, f'notebooks: {len(pages)-len(failed)} passed, {len(failed)} failed'])
    print(summary)
    (root/'.venv').mkdir(exist_ok=True)
    (root/'.venv/failed-pages').write_text(summary*bool(failed))
    sys.exit(bool(failed))
