"""Run notebooks as tests, two at a time: `python tools/pages.py [--slow] [nbs/x.ipynb ...]`

Without a name all run; the tutorials, which train for minutes, with `--slow` only, as cells with that flag.

Each page runs in a process of its own, so that what it patches or registers does not reach the next page. The processes are forked
from one that has imported fastai and transformers already, which saves five seconds a page."""
import os, sys, time
from pathlib import Path
from nbdev.test import test_nb
import fastai.text.all, matplotlib.pyplot, sklearn.feature_extraction.text, transformers

root = Path(__file__).resolve().parent.parent
skip = 'slow','gpu','network'

def start(page):
    "The process that runs `page`; it exits with 0 if no cell fails"
    sys.stdout.flush()
    if pid := os.fork(): return pid
    try: ok,_ = test_nb(page, skip_flags=skip, basepath=root, cell_timeout=300)
    except BaseException: ok = False
    sys.stdout.flush(); sys.stderr.flush()
    os._exit(not ok)

def run(pages, n=2):
    "Run `pages`, `n` at a time; those that failed"
    todo,running,failed = [*pages],{},[]
    while todo or running:
        while todo and len(running)<n: page = todo.pop(0); running[start(page)] = page,time.time()
        pid,status = os.wait()
        page,began = running.pop(pid)
        if status: failed.append(page)
        print(f"{'FAILED' if status else 'ok'} {page.relative_to(root)} {time.time()-began:.0f} s", flush=True)
    return failed

if __name__=='__main__':
    every = sorted(o for o in (root/'nbs').rglob('*.ipynb') if not any(p[0] in '._' for p in o.relative_to(root).parts))
    every.sort(key=lambda o: 'tutorials' not in o.parts) # the longest first, so that both processes end together
    if '--slow' in sys.argv: skip = skip[1:]
    else: every = [o for o in every if 'tutorials' not in o.parts]
    pages = [Path(o).resolve() for o in sys.argv[1:] if o!='--slow'] or every
    os.chdir(root)
    failed = run(pages)
    print(f'notebooks: {len(pages)-len(failed)} passed, {len(failed)} failed')
    sys.exit(bool(failed))
