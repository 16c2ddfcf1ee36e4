"What all tests share: no hub, few threads, marks that say what a test needs"
import json, os, shutil, subprocess, sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

os.environ.update(HF_HUB_OFFLINE='1', TOKENIZERS_PARALLELISM='false')
os.environ.setdefault('OMP_NUM_THREADS', '2')
os.environ.setdefault('MPLBACKEND', 'agg')
precision = os.environ.setdefault('FASTFORMERS_PRECISION', 'fp32')

import pytest

sys.path.append(str(Path(__file__).resolve().parent.parent/'tools'))
import parts

def pytest_addoption(parser):
    parser.addoption('--part', type=int, help='of the tests that take a second or longer run one part in ten, by this number')
    parser.addoption('--seconds', action='store_true', help='store what each test takes in tests/seconds.json')
    for o,h in (('slow','tests that take minutes, and those of more families'), ('network','tests that need a network')): parser.addoption(f'--{o}', action='store_true', help=f'run {h} too')

def pytest_configure(config):
    if config.getoption('--network'): os.environ.pop('HF_HUB_OFFLINE', None)

often = set('bert roberta modernbert xlnet gpt2 t5'.split())                                  # run in all tests
kinds = often | set('albert electra deberta-v2 big_bird fnet llama'.split())                 # one of each kind: run in the tests of contracts

def rare(item, families):
    "Is the test of a family that runs with `--slow` only?"
    params = getattr(item, 'callspec', None)
    return params is not None and any(isinstance(o, str) and o in families for o in params.params.values())

def pytest_collection_modifyitems(config, items):
    "Leave out other parts, skip what this machine cannot do or this run did not ask for"
    others = parts.left_out(config.getoption('--part'), 'tests/')
    def is_left_out(o): return o.nodeid.split('[')[0] in others
    config.hook.pytest_deselected(items=[o for o in items if is_left_out(o)])
    items[:] = [o for o in items if not is_left_out(o)]
    from fastformers.testing import tiny_families
    for o in items:
        if 'site' in getattr(o, 'fixturenames', ()): o.add_marker(pytest.mark.slow)            # `make docs` builds the site in continuous integration
        contracts = o.path.name.startswith(('test_contracts','test_families'))
        if rare(o, {*tiny_families}-(kinds if contracts else often)): o.add_marker(pytest.mark.slow)
    def lacks(mark):
        if mark!='gpu': return not config.getoption(f'--{mark}')
        import torch
        return not torch.cuda.is_available()
    for mark,why in (('gpu','no GPU'), ('network','not asked for with --network'), ('slow','not asked for with --slow')):
        marked = [o for o in items if o.get_closest_marker(mark)]
        if marked and lacks(mark):
            for o in marked: o.add_marker(pytest.mark.skip(reason=why))

seconds = Counter()
def pytest_runtest_logreport(report): seconds[report.nodeid.split('[')[0]] += report.duration
def pytest_sessionfinish(session):
    if session.config.getoption('--seconds') and not hasattr(session.config, 'workerinput'): parts.write(seconds, 'tests/')

@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item):
    "Tests of equalities run in float32, the others in the format that FASTFORMERS_PRECISION names"
    os.environ['FASTFORMERS_PRECISION'] = 'fp32' if item.get_closest_marker('exact') else precision

@pytest.fixture(scope='session')
def root(): return Path(__file__).resolve().parent.parent

@pytest.fixture(scope='session')
def data_dir():
    "The folder of benchmark data; its layout is `origin` in benchmarks/common.py"
    d = os.environ.get('FASTFORMERS_DATA')
    if not d: pytest.skip('FASTFORMERS_DATA is not set')
    return Path(d)

_light = """import json, os, sys, tempfile, traceback
import fastformers.inference.predictor
for line in sys.stdin:
    outs = [tempfile.TemporaryFile('w+', encoding='utf-8') for _ in range(2)]
    if not (pid := os.fork()):
        for fd,o in zip((1,2), outs): os.dup2(o.fileno(), fd)
        status = 0
        try: exec(json.loads(line), {})
        except SystemExit as e: status = print(e.code or '', file=sys.stderr) or int(bool(e.code))
        except BaseException: status = traceback.print_exc() or 1
        sys.stdout.flush(); sys.stderr.flush()
        os._exit(status)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    for o in outs: o.seek(0)
    print(json.dumps([status, *(o.read() for o in outs)]), flush=True)
"""

@pytest.fixture(scope='session')
def without_fastai():
    "A function that runs code where `fastformers.inference` alone was imported, and returns what it printed; the code raises if it fails"
    p = subprocess.Popen([sys.executable, '-W', 'ignore', '-c', _light], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, encoding='utf-8')
    def run(code):
        print(json.dumps(code), file=p.stdin, flush=True)
        status,out,err = json.loads(p.stdout.readline())
        assert status==0, err
        return out
    yield run
    p.stdin.close(); p.wait()

@pytest.fixture
def clock(monkeypatch):
    "A clock that is a millisecond later whenever it is read, so that a busy machine is as fast as any; `skip(s)` lets `s` seconds pass"
    clock = SimpleNamespace(seconds=0.)
    def skip(s):
        clock.seconds += s
        return clock.seconds
    clock.skip = skip
    monkeypatch.setattr('fastformers.callback.schedule.time', SimpleNamespace(monotonic=lambda: skip(.001)))
    return clock

@pytest.fixture
def deeper(tmp_path):
    "A function that copies a checkpoint and gives its config one block more than it has weights for"
    def f(path):
        new = shutil.copytree(path, tmp_path/'deeper')
        cfg = json.loads((new/'config.json').read_text())
        cfg['num_hidden_layers'] += 1
        (new/'config.json').write_text(json.dumps(cfg))
        return new
    return f

@pytest.fixture
def shown(monkeypatch):
    "The tables that were displayed"
    from fastformers.data import show as core_show
    res = []
    monkeypatch.setattr(core_show, 'display_rows', res.append)
    return res
