"Which layers feed a head, and what stands on them: for every family, on disk and back, and whatever the padding"
import json, pickle
from functools import partial
import pytest, torch
from fastai.learner import load_learner
from fastformers.models.adapters import add_lora
from fastformers.inference.predictor import from_hf
from fastformers.models.hidden_states import ScalarMix
from fastformers.models.heads import pools
from fastformers.papers.lstm_head import LSTMHead
from fastformers.models.hidden_states import all_states
from fastformers.learner.core import classifier_learner
from fastformers.models.core import ModelInputs
from fastformers.models.families import block_modules, group_names
from fastformers.callback.schedule import gradual_unfreeze, head_only
from fastformers.testing import tiny_families
from test_contracts_common import *

pytestmark = pytest.mark.exact

some = 'bert gpt2 xlnet modernbert albert fnet deberta-v2 t5'.split() # post-norm, causal, padded left, a final norm, shared weights, unsafe with padding, distances, an encoder's half
feeds = [-1, -2, 0, [-4,-3,-2,-1], 'mix']
odd = ['', 'Loved it!', 'one two three four five six seven', '😡 ❤ 😀', 'a long story '*40]
n_hidden = 3

def at_of(body): return 'last' if is_causal(body.config) else 'cls'
def model_of(family, hidden_states=-1, head=None, **kwargs):
    torch.manual_seed(0)
    body = load_body(tiny_arch(family, **kwargs))[0]
    return loud(TextClassifier(body, None, lambda nf: (head or partial(PoolingHead, at=at_of(body)))(nf, 3), hidden_states), by=4.)

def spread(mix):
    "Shares that differ"
    with torch.no_grad(): mix.s.copy_(torch.linspace(-1, 1, len(mix.s))); mix.gamma.fill_(1.5)

# ---- the states of all layers

@pytest.mark.parametrize('family', list(tiny_families))
def test_hidden_states_are_counted_as_the_signal_passes(family):
    torch.manual_seed(0)
    body = load_body(tiny_arch(family))[0].eval()
    inputs = ModelInputs(body)
    x = batch(tokenizer(family), [texts[4]])
    if family=='funnel':
        with pytest.raises(ValueError, match='FunnelModel.*hidden_states=-1'): all_states(body, inputs(x))
        return
    hs = all_states(body, inputs(x))
    assert [h.shape[-1] for h in hs]==[32]*(body.config.num_hidden_layers+1)
    assert torch.equal(hs[-1], body(**inputs(x))[0])
    blocks = block_modules(body)
    for k,h in enumerate(hs[:-1]): # the last may have passed a final norm
        ps = [[p for m in b for p in m.parameters()] for b in blocks]
        grads = [any(g is not None for g in torch.autograd.grad(h.sum(), b, retain_graph=True, allow_unused=True)) if h.requires_grad else False for b in ps]
        assert grads==[k>0] if family=='albert' else grads==[i<k for i in range(len(blocks))], (k, grads)

def test_opt_that_projects_what_it_gives(): assert model_of('opt', word_embed_proj_dim=16).nf==16

# ---- padding, and texts that share a row

@pytest.mark.parametrize('layers', feeds, ids=str)
@pytest.mark.parametrize('family', some)
def test_padding_changes_no_prediction(family, layers):
    m = model_of(family, layers)
    if m.mix is not None: spread(m.mix)
    heads = [partial(PoolingHead, pool=o, at=at_of(m.body)) for o in pools]+[partial(LSTMHead, width=8)]
    rows = odd[1:4]+texts[:2]
    sides = {s:batch(tokenizer(family, s), rows) for s in ('left','right')}
    with torch.no_grad():
        alone = [m.states(batch(tokenizer(family), [o])) for o in rows]
        h = {s:m.states(x) for s,x in sides.items()}
        for make in heads:
            head = loud(make(m.nf, 3), by=4.)
            want = torch.cat([head(o, torch.ones(o.shape[:2]).bool()) for o in alone])
            assert layers==0 or want.std(0).max()>1e-3 # all texts begin alike
            for s,x in sides.items(): assert gap(head(h[s], x.real), want)<1e-4*max(1., float(want.abs().max())), (make, s)

# ---- learners

def dls_of(family, kind='single', n=24):
    df = tiny_df().iloc[:n]
    return classifier_dls(df, tiny_tok(family), bs=8, max_len=60, device='cpu')

def learner(family, by=4., **kwargs):
    torch.manual_seed(0)
    learn = quiet(classifier_learner(dls_of(family), tiny_arch(family), **kwargs))
    loud(learn.model, by=by)
    return learn

def preds(learn, items): return learn.get_preds(dl=learn.dls.test_dl(items))[0]
small = partial(LSTMHead, width=8, ps=(.1,.1))
kinds = dict(mix=dict(hidden_states='mix'), below=dict(hidden_states=-2, pool='last'), four=dict(hidden_states=[-4,-3,-2,-1], pool='mean'), embeddings=dict(hidden_states=0, pool='max'), lstm=dict(head=small),
             lstm_mix=dict(head=partial(small, n_layers=2, bidirectional=False, pool='last', norm=None), hidden_states='mix'), hf=dict(head='hf'))

@pytest.mark.parametrize('kind', kinds)
@pytest.mark.parametrize('family', 'bert gpt2 xlnet modernbert albert fnet'.split())
def test_on_disk_and_back(family, kind, tmp_path):
    learn = learner(family, **kinds[kind])
    if kind!='hf' and learn.model.mix is not None: spread(learn.model.mix)
    path,want = learn.to_hf(tmp_path/'o'),preds(learn, odd)
    assert want.isfinite().all()
    p = from_hf(path, device='cpu')
    assert gap(p.scores(odd), want)<1e-5 and gap(learn.predict(odd[1])[2], want[1])<1e-5
    again = quiet(classifier_learner(learn.dls, path, **kinds[kind]))
    assert gap(preds(again, odd), want)<1e-6, 'the head goes on'

def test_what_is_in_the_directory(tmp_path):
    from safetensors import safe_open
    def names(learn, k): path = learn.to_hf(tmp_path/k); return {*safe_open(path/'head.safetensors', 'pt').keys()},json.loads((path/'classifier.json').read_text())
    plain,facts = names(learner('bert'), 'plain')
    assert 'hidden_states' not in facts['head'] and facts['format']==1 and plain=={'layers.0.weight','layers.0.bias','layers.2.weight','layers.2.bias','layers.4.weight','layers.4.bias','layers.6.weight','layers.6.bias'}
    mixed,facts = names(learner('bert', hidden_states='mix'), 'mixed')
    assert facts['head']['hidden_states']=='mix' and mixed=={'mix.s','mix.gamma'}|{f'head.{o}' for o in plain}
    _,facts = names(learner('bert', hidden_states=1), 'one')
    assert facts['head']['hidden_states']==[-3] and facts['head']['class']=='PoolingHead'
    _,facts = names(learner('bert', head=small), 'lstm')
    assert facts['head']['class']=='LSTMHead' and 'hidden_states' not in facts['head']

def test_another_feed_or_head_starts_anew(tmp_path):
    learn = learner('bert', hidden_states='mix')
    spread(learn.model.mix)
    path,want = learn.save_encoder(tmp_path/'o'),preds(learn, odd)
    for kw in (dict(), dict(hidden_states=-2), dict(hidden_states='mix', pool='mean'), dict(hidden_states='mix', head=small), dict(hidden_states='mix', pretrained=False)):
        other = quiet(classifier_learner(learn.dls, path, **kw))
        assert gap(preds(other, odd), want)>1e-4 and (other.model.mix is None or other.model.mix.weights.std()==0)
    mine = PoolingHead(32, 3)
    before = [p.clone() for p in mine.parameters()]
    quiet(classifier_learner(learn.dls, path, hidden_states='mix', head=mine))
    assert all(torch.equal(a, b) for a,b in zip(before, mine.parameters())), 'a module of the user stays as it is'

class Weighted(torch.nn.Module):
    def __init__(self, nf, n_out): super().__init__(); self.lin,self.drop = torch.nn.Linear(nf, n_out),torch.nn.Dropout(.2)
    def forward(self, h, mask): return self.drop(self.lin((h*mask[...,None]).sum(1)))

@pytest.mark.parametrize('layers', [-1,'mix'])
def test_a_head_of_ones_own(tmp_path, layers):
    learn = learner('bert', head=Weighted, hidden_states=layers, drop_mult=.5)
    if layers=='mix': spread(learn.model.mix)
    assert learn.model.head.drop.p==.1
    path,want = learn.to_hf(tmp_path/'o'),preds(learn, odd)
    with pytest.raises(ValueError, match='is a Weighted'): from_hf(path)
    for head in (Weighted, Weighted(32, 3), lambda nf,n: Weighted(nf, n)): assert gap(from_hf(path, device='cpu', head=head).scores(odd), want)<1e-5
    with pytest.raises(RuntimeError, match='size mismatch'): from_hf(path, head=Weighted(32, 4))

# ---- training

def moved(learn, before): return {n for n,p in learn.model.named_parameters() if not torch.equal(p, before[n])}
def weights(learn): return {n:p.detach().clone() for n,p in learn.model.named_parameters()}

def test_what_is_above_the_feed_stays_as_it_is():
    learn = learner('bert', by=1., hidden_states=-2)
    before = weights(learn)
    learn.fit(1, 1e-2, wd=.1)
    now = moved(learn, before)
    assert any('layer.1.' in o for o in now) and not any('layer.2.' in o for o in now)

def test_features_stay_as_they_are():
    learn = learner('bert', by=1., head=small, hidden_states='mix')
    before = weights(learn)
    learn.fit_schedule(head_only, lr=1e-2, epochs=1)
    now = moved(learn, before)
    assert now and all(o.startswith(('head.','selector.')) for o in now) and {'selector.mix.s','head.lstm.weight_hh_l0'}<=now

def test_rows_without_a_token():
    x = TensorTokens(torch.zeros(2,5).long(), attention_mask=torch.tensor([[0]*5,[1]*3+[0]*2]))
    for kw in (dict(hidden_states='mix'), dict(hidden_states=-2), dict(hidden_states='mix', head=small)):
        m = model_of('bert', **kw)
        out = m(x)
        out.sum().backward()
        assert out.isfinite().all() and all(p.grad is None or p.grad.isfinite().all() for p in m.parameters())

def test_half_precision():
    m = model_of('bert', 'mix', small).to(torch.bfloat16)
    x = batch(tokenizer('bert'), texts[:3])
    assert m(x).isfinite().all()
    full = model_of('bert', 'mix', small)
    with torch.no_grad():
        want = full(x)
        with torch.autocast('cpu', dtype=torch.bfloat16): assert gap(full(x).float(), want)<.2*max(1., float(want.abs().max()))

# ---- away

@pytest.mark.parametrize('kind', ['mix','four','lstm_mix'])
def test_a_pickle_opens(kind, tmp_path):
    learn = learner('bert', **kinds[kind])
    want = learn.predict('a raw text')[2]
    learn.export(tmp_path/'o.pkl')
    assert gap(load_learner(tmp_path/'o.pkl').predict('a raw text')[2], want)<1e-6
    assert gap(pickle.loads(pickle.dumps(learn.model))(batch(tokenizer('bert'), texts[:2])), copy.deepcopy(learn.model)(batch(tokenizer('bert'), texts[:2])))<1e-6
    assert gap(learn.predict('a raw text')[2], want)<1e-6, 'and the learner goes on'

def test_adapters_and_a_mix():
    pytest.importorskip('peft')
    m = model_of('bert', 'mix')
    x = batch(tokenizer('bert'), texts[:2])
    want = m(x)
    add_lora(m, r=2)
    assert gap(m(x), want)<1e-5 and {id(m.mix.s),id(m.mix.gamma)}<={id(p) for p in layer_groups(m)[-1]}

def test_a_predictor_needs_no_fastai(tmp_path, without_fastai):
    path = learner('bert', **kinds['lstm_mix']).to_hf(tmp_path/'o')
    code = f"import sys; from fastformers.inference.predictor import from_hf; print(from_hf({str(path)!r})(['a film'])[0]['label']); sys.exit('fastai' in sys.modules or 'matplotlib.pyplot' in sys.modules)"
    without_fastai(code)

