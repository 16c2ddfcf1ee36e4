"The web service of examples/service.py gives the answers of `from_hf` to many askers at once, and refuses in sentences"
import asyncio, importlib, json, os, socket, subprocess, sys, time
from concurrent.futures import ThreadPoolExecutor
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen
import pytest
from transformers import BertForSequenceClassification
from fastformers.inference.predictor import from_hf
from fastformers.data.block import classifier_dls
from fastformers.learner.core import classifier_learner
from fastformers.testing import tiny_arch, tiny_df, tiny_pairs, tiny_tok

for o in ('fastapi','uvicorn'): pytest.importorskip(o)

@pytest.fixture(scope='module')
def model(tmp_path_factory):
    "The directory of a tiny classifier"
    d = tmp_path_factory.mktemp('model')
    BertForSequenceClassification(tiny_arch('bert', initializer_range=.3)).save_pretrained(d); tiny_tok('bert').save_pretrained(d)
    return d

@pytest.fixture(scope='module')
def ask(root, model):
    "A function that sends a body to the service, and returns the status and the answer"
    with socket.create_server(('127.0.0.1', 0)) as s: port = s.getsockname()[1]
    env = {**os.environ, 'PYTHONPATH':os.pathsep.join(sys.path), 'FASTFORMERS_MODEL':str(model)}
    command = f'-W ignore -m uvicorn service:app --app-dir {root}/examples --port {port} --log-level error'.split()
    def f(body):
        r = Request(f'http://127.0.0.1:{port}/predict', json.dumps(body).encode(), {'content-type':'application/json'})
        try:
            with urlopen(r) as o: return o.status, json.load(o)
        except HTTPError as e: return e.code, json.load(e)
    p = subprocess.Popen([sys.executable, *command], env=env)
    try:
        while True:
            assert p.poll() is None, 'the service has ended'
            try: f({}); break
            except URLError: time.sleep(.1)
        yield f
    finally: p.terminate(); p.wait()

@pytest.mark.exact
def test_eight_askers_get_the_answers_of_from_hf(ask, model):
    texts = tiny_df().text.tolist()
    parts = [texts[i%50:i%50+1+i%7] for i in range(64)]
    with ThreadPoolExecutor(8) as pool: got = [*pool.map(lambda o: ask({'texts':o}), parts)]
    here = from_hf(model, device='cpu')
    for (status,answers),part in zip(got, parts, strict=True):
        want = here(part)
        assert status==200 and [o['label'] for o in answers]==[o['label'] for o in want]
        assert [o['score'] for o in answers]==pytest.approx([o['score'] for o in want], abs=1e-5)

@pytest.mark.parametrize('body,words', [({}, 'texts: field required'), ({'texts':[]}, 'at least 1 item'), ({'texts':['a']*65}, 'at most 64 items'),
    ({'texts':['a','b'*10_001]}, 'texts 1: string should have at most 10000'), ({'texts':'one'}, 'valid list'), ({'texts':[None]}, 'texts 0: input should be a valid string'), ('text', 'got body')])
def test_a_refusal_is_a_sentence(ask, body, words):
    status,answer = ask(body)
    assert status==422 and list(answer)==['error'] and words in answer['error'], answer
    assert answer['error'].startswith('expected {"texts": [...]} with 1 to 64 texts of at most 10,000 characters') and 'bbb' not in answer['error']

def test_bounds_are_allowed(ask):
    status,answers = ask({'texts':['a '*5000, '', *['Great sound.']*62]})
    assert status==200 and len(answers)==64

def test_a_classifier_of_pairs_is_served(root, tmp_path, monkeypatch):
    df = tiny_pairs()
    learn = classifier_learner(classifier_dls(df, tiny_tok('bert'), ['text_a','text_b'], bs=8, device='cpu'), tiny_arch('bert', num_hidden_layers=1))
    monkeypatch.setenv('FASTFORMERS_MODEL', str(learn.to_hf(tmp_path/'pairs'))); monkeypatch.syspath_prepend(root/'examples')
    monkeypatch.delitem(sys.modules, 'service', raising=False)
    service = importlib.import_module('service')
    def ask(texts): return asyncio.run(service.predict(service.Texts(texts=texts)))
    two = df[['text_a','text_b']].values.tolist()[:3]
    assert [o['label'] for o in ask(two)]==[o['label'] for o in service.predictor([*map(tuple, two)])]
    with pytest.raises(TypeError, match='pairs of texts') as e: ask(['alone'])
    assert service.app.exception_handlers[TypeError](None, e.value).status_code==422
    monkeypatch.delitem(sys.modules, 'service')

def test_requests_that_wait_are_answered_together_and_a_failure_ends_nothing(root, model, monkeypatch):
    monkeypatch.setenv('FASTFORMERS_MODEL', str(model)); monkeypatch.syspath_prepend(root/'examples')
    service = importlib.import_module('service')
    calls = []
    class Slow:
        as_list = staticmethod(list)
        def __call__(self, texts):
            calls.append(len(texts)); time.sleep(.2 if texts else 0)
            if 'fails' in texts: raise RuntimeError('out of memory')
            return [o.upper() for o in texts]
    monkeypatch.setattr(service, 'predictor', Slow())
    def ask(*parts):
        async def f(): return await asyncio.gather(*(service.predict(service.Texts(texts=o)) for o in parts), return_exceptions=True)
        return asyncio.run(f())
    parts = [[f'a{i}', f'b{i}'][:1+i%2] for i in range(20)]
    assert ask(*parts)==[[o.upper() for o in p] for p in parts] and sum(calls)==30 and len([o for o in calls if o])<=5
    assert all(isinstance(o, RuntimeError) for o in ask(['fails'])) and ask(['a'])==[['A']] and not service.waiting
