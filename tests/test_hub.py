"A stage that was uploaded to the hub is opened by its id, whole: from a server that speaks the hub's protocol, then from the cache alone"
import base64, hashlib, json, os, subprocess, sys, threading
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlparse
import pytest, torch
from huggingface_hub import constants
from transformers import AutoModelForMaskedLM
from fastformers.text import tokenizer
from fastformers.models.adapters import add_adapters
from fastformers.inference.predictor import from_hf
from fastformers import hub
from fastformers.hub import resolve_arch
from fastformers.text.tokenizer import load_tokenizer
from fastformers.models.load import load_body, load_config, load_hf
from fastformers.testing import tiny_tok
from test_adapters import learner, loud

odd = ['A fine film.', '', 'no', 'x '*200, '[SEP] \N{PILE OF POO} <pad>']

def adapted():
    "A learner with trained bottlenecks"
    learn = learner('bert')
    loud(add_adapters(learn.model), .1)
    learn.fit(1, lr=1e-2)
    return learn

def wanted(learn): return learn.get_preds(dl=learn.dls.test_dl(odd))[0]
def gap(a, b): return float((a-b).abs().max())

sha = 'c0ffee'*6+'c0de'

class Hub(BaseHTTPRequestHandler):
    "Serves the folders of `repos` as repositories with one commit each"
    repos,asked = {},[]
    def log_message(self, *args): pass
    def answer(self, status, body=b'', head=False, **headers):
        self.send_response(status)
        for k,v in {'X-Repo-Commit':sha, 'Content-Length':len(body), **headers}.items(): self.send_header(k.replace('_','-'), str(v))
        self.end_headers()
        if not head: self.wfile.write(body)
    def do_HEAD(self): self.do_GET(head=True)
    def do_GET(self, head=False):
        path = unquote(urlparse(self.path).path).strip('/')
        self.asked.append(path)
        if not path: return self.answer(200, head=head)
        if path.startswith('api/models/'):
            name,kind = '/'.join(path.split('/')[2:4]),[*path.split('/'), ''][4]
            if name not in self.repos: return self.answer(404, head=head, X_Error_Code='RepoNotFound')
            files = [dict(type='file', path=o.name, size=o.stat().st_size, oid=self.tag(o)) for o in sorted(self.repos[name].iterdir())]
            return self.answer(200, json.dumps(files if kind=='tree' else dict(id=name, sha=sha, siblings=[dict(rfilename=o['path']) for o in files])).encode(), head, Content_Type='application/json')
        name,_,rest = path.partition('/resolve/')
        if name not in self.repos: return self.answer(404, head=head, X_Error_Code='RepoNotFound')
        f = self.repos[name]/rest.split('/', 1)[1]
        if not f.is_file(): return self.answer(404, head=head, X_Error_Code='EntryNotFound')
        self.answer(200, f.read_bytes(), head, ETag=f'"{self.tag(f)}"')
    def do_POST(self):
        size = self.headers.get('Content-Length')
        body = self.rfile.read(int(size)) if size else b''.join(iter(self.chunk, b''))
        path = urlparse(self.path).path.strip('/')
        if path=='api/repos/create':
            o = json.loads(body)
            name = f"{o.get('organization', 'me')}/{o['name']}"
            self.repos[name] = self.made/o['name']
            self.repos[name].mkdir()
            res = dict(url=f'http://{self.headers["Host"]}/{name}')
        elif path=='api/validate-yaml': res = dict(errors=[], warnings=[])
        elif '/preupload/' in path:
            res = dict(files=[dict(path=o['path'], uploadMode='regular', shouldIgnore=False, oid=None) for o in json.loads(body)['files']])
        else:
            name = '/'.join(path.split('/')[2:4])
            for o in map(json.loads, body.splitlines()):
                if o['key']=='file': (self.repos[name]/o['value']['path']).write_bytes(base64.b64decode(o['value']['content']))
            res = dict(success=True, commitOid=sha, commitUrl=f'http://{self.headers["Host"]}/{name}/commit/{sha}')
        self.answer(200, json.dumps(res).encode(), Content_Type='application/json')
    def chunk(self):
        data = self.rfile.read(int(self.rfile.readline(), 16))
        self.rfile.readline()
        return data
    @staticmethod
    def tag(f): return hashlib.sha1(f.read_bytes()).hexdigest()

client = """import sys, torch
from fastformers.data.block import classifier_dls
from fastformers.inference.predictor import from_hf
from fastformers.learner.core import classifier_learner
from fastformers.models.load import load_body
from fastformers.testing import tiny_df
texts,out = torch.load(sys.argv[1]),{}
out['from_hf'] = from_hf('me/reviews', device='cpu').scores(texts)
out['revision'] = from_hf('me/reviews', device='cpu', revision=sys.argv[3]).scores(texts)
learn = classifier_learner(classifier_dls(tiny_df(), 'me/reviews', bs=4, device='cpu'), 'me/reviews')
out['learner'] = learn.get_preds(dl=learn.dls.test_dl(texts))[0]
out['parent'],out['stage'] = learn.lineage.parent,learn.lineage.stage['stage']
out['plain'] = load_body('me/plain')[1].loaded
out['vectors'] = from_hf('me/plain', device='cpu').vectors(['a film'])
try: from_hf('me/nobody')
except FileNotFoundError as e: out['no stage'] = str(e)
try: load_body('me/nobody')
except OSError as e: out['nobody'] = str(e)
out['pushed'] = learn.push_to_hub('me/mine'), from_hf('me/mine', device='cpu').scores(texts)
from_hf('me/reviews', device='cpu').push_to_hub('me/again')
out['again'] = from_hf('me/again', device='cpu').scores(texts)
torch.save(out, sys.argv[2])
"""

@pytest.fixture(scope='module')
def uploaded(tmp_path_factory):
    "(cache, what the client got, what the learner says)"
    d = tmp_path_factory.mktemp('hub')
    learn = adapted()
    want = wanted(learn)
    Hub.made = tmp_path_factory.mktemp('made')
    Hub.repos = {'me/reviews':learn.to_hf(d/'reviews'), 'me/plain':d/'plain'}
    learner('bert').model.body.save_pretrained(d/'plain'); tiny_tok('bert').save_pretrained(d/'plain')
    server = ThreadingHTTPServer(('localhost', 0), Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    torch.save(odd, d/'texts')
    env = {k:v for k,v in os.environ.items() if k!='HF_HUB_OFFLINE' and 'proxy' not in k.lower()} | dict(HF_ENDPOINT=f'http://localhost:{server.server_port}', HF_HOME=str(d/'home'), HF_HUB_DISABLE_XET='1')
    try: res = subprocess.run([sys.executable, '-W', 'ignore', '-c', client, d/'texts', d/'out', sha], env=env, capture_output=True, text=True)
    finally: server.shutdown()
    assert res.returncode==0, res.stderr
    return d/'home'/'hub', torch.load(d/'out'), want

@pytest.mark.exact
def test_the_hub_id_of_a_classifier_opens_it_whole(uploaded):
    _,got,want = uploaded
    assert gap(torch.as_tensor(got['from_hf']), want)<1e-5 and gap(torch.as_tensor(got['revision']), want)<1e-5

@pytest.mark.exact
def test_what_was_pushed_is_opened_again(uploaded):
    _,got,want = uploaded
    assert got['pushed'][0].endswith('/me/mine') and gap(got['pushed'][1], want)<1e-5 and gap(got['again'], want)<1e-5

def test_a_learner_from_a_hub_id_has_head_adapters_and_lineage(uploaded):
    _,got,want = uploaded
    assert gap(got['learner'], want)<1e-5 and (got['parent'],got['stage'])==('me/reviews','classifier')

def test_other_repositories_are_as_they_were(uploaded):
    _,got,_ = uploaded
    assert got['plain']>10 and len(got['vectors'])==1 and all('not in the cache' in got[k] for k in ('no stage','nobody'))

def test_the_tokenizer_is_of_the_revision_that_is_asked_for(monkeypatch):
    asked = []
    def opened(path, revision=None, **kwargs): asked.append((path, revision)); return tiny_tok('bert')
    monkeypatch.setattr(tokenizer.AutoTokenizer, 'from_pretrained', opened)
    load_tokenizer('me/other', revision='v2'); load_tokenizer('me/other')
    assert asked==[('me/other','v2'), ('me/other','main')]

def test_without_a_network_the_cache_serves(uploaded, monkeypatch):
    cache,_,want = uploaded
    monkeypatch.setattr(constants, 'HF_HUB_CACHE', str(cache))
    assert gap(torch.as_tensor(from_hf('me/reviews', device='cpu').scores(odd)), want)<1e-5
    assert resolve_arch('me/plain')=='me/plain'

def test_a_name_that_is_nowhere_is_tried_once(monkeypatch):
    "Without an answer of the hub: one request, then an error with a suggestion; a path is no hub id and makes none"
    tried = []
    hub._from_hub.cache_clear() # of other tests in this process
    def refuse(url, **kwargs): tried.append(url); raise ConnectionError('refused')
    monkeypatch.setattr(hub, 'get_hf_file_metadata', refuse)
    monkeypatch.setattr(constants, 'HF_HUB_OFFLINE', False)
    for f in (load_tokenizer, load_config, load_body, partial(from_hf, device='cpu')):
        with pytest.raises(FileNotFoundError, match='did you mean minilm'): f('mini-lm')
        assert len(tried)==1; tried.clear()
    learn = learner('bert')
    with pytest.raises(FileNotFoundError, match='not a directory'): learn.load_encoder('runs/other/lm')
    with pytest.raises(FileNotFoundError, match='not a directory'): learn.load_encoder(Path('runs/lm'))
    assert not tried

def test_a_hub_id_is_looked_up_once_for_a_learner(uploaded):
    "The client opened five objects by the id of a stage, a plain checkpoint twice, and twice one that does not exist"
    assert [Hub.asked.count(f'me/{o}/resolve/{r}/stage.json') for o,r in (('plain','main'), ('nobody','main'))]==[1,2]

def test_nobody_is_asked_whether_code_of_others_may_run(tmp_path, monkeypatch):
    facts = dict(model_type='their-own', auto_map={f'Auto{o}':f'code.Their{o}' for o in 'Config Model ModelForMaskedLM Tokenizer'.split()})
    for o in ('config.json','tokenizer_config.json'): (tmp_path/o).write_text(json.dumps(facts))
    (tmp_path/'code.py').write_text(f"open({str(tmp_path/'was-run')!r}, 'w')")
    monkeypatch.setattr('builtins.input', lambda *_: pytest.fail('asked'))
    for f in (load_tokenizer, load_config, load_body, partial(load_hf, AutoModelForMaskedLM), partial(from_hf, device='cpu')):
        with pytest.raises((OSError,ValueError), match='Python code of its own, which is not run'): f(str(tmp_path))
    assert not (tmp_path/'was-run').exists()
    (tmp_path/'config.json').write_text(json.dumps(dict(model_type='their-own')))
    for f in (load_config, load_body, partial(from_hf, device='cpu')):
        with pytest.raises((OSError,ValueError), match='model type `their-own`'): f(str(tmp_path))

def test_the_shipped_language_model_is_small_whole_and_needs_no_network():
    path = Path(resolve_arch('wiki-mini'))
    assert {'config.json','model.safetensors','tokenizer.json','tokenizer_config.json','stage.json','README.md','NOTICE'} == {o.name for o in path.iterdir()}
    assert sum(o.stat().st_size for o in path.iterdir())<16e6
    for text in ('CC BY-SA 3.0','Wikipedia'): assert text in (path/'NOTICE').read_text() and text in (path/'README.md').read_text()
    hf,report = load_hf(AutoModelForMaskedLM, 'wiki-mini')
    assert not report.new and hf.dtype==torch.float32 and hf.config.max_position_embeddings>=512
    tok = load_tokenizer('wiki-mini')
    x = tok('The capital of France is the [MASK] of Paris.', return_tensors='pt')
    at = (x['input_ids'][0]==tok.mask_token_id).nonzero()[0,0]
    with torch.no_grad(): best = hf(**x).logits[0,at].topk(20).indices
    assert 'city' in tok.convert_ids_to_tokens(best)

def test_threads_that_load_at_once_keep_weights_tied():
    from concurrent.futures import ThreadPoolExecutor
    from transformers import AutoModelForMaskedLM, PreTrainedModel
    from fastformers.models.load import load_hf
    before = PreTrainedModel.tie_weights
    with ThreadPoolExecutor(4) as pool: loaded = [*pool.map(lambda i: load_hf(AutoModelForMaskedLM, 'wiki-mini')[0], range(12))]
    assert PreTrainedModel.tie_weights is before
    assert all(o.get_output_embeddings().weight is o.get_input_embeddings().weight for o in loaded)
