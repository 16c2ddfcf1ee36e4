"Which layers feed a head, and what stands on them: for every family, on disk and back, and whatever the padding"
import json, pickle, subprocess, sys
from functools import partial
import pytest, torch
from fastai.data.all import RegressionBlock
from fastai.learner import load_learner
from fastformers.models.adapters import add_lora
from fastformers.inference.bundle import build_head, head_spec
from fastformers.callback.gradient_checkpointing import checkpointing, compiled
from fastformers.inference.predictor import from_hf
from fastformers.callback.freeze import FrozenCache
from fastformers.models.heads import LSTMHead, ScalarMix, plot_scalar_mix, pools
from fastformers.models.heads import HiddenStateSelector, all_states, state_widths
from fastformers.learner.core import classifier_learner
from fastformers.models.core import ModelInputs, block_modules, group_names
from fastformers.callback.schedule import gradual_unfreeze, head_only
from fastformers.testing import tiny_families
from test_contracts_common import *

some = 'bert gpt2 xlnet modernbert albert fnet deberta-v2 t5'.split() # post-norm, causal, padded left, a final norm, shared weights, unsafe with padding, distances, an encoder's half
feeds = [-1, -2, 0, [-4,-3,-2,-1], 'mix']
odd = ['', 'Loved it!', 'one two three four five six seven', '😡 ❤ 😀', 'a long story '*40]
n_hidden = 3

def at_of(body): return 'last' if is_causal(body.config) else 'cls'
def model_of(family, hidden_states=-1, head=None, **kwargs):
    torch.manual_seed(0)
    body = load_body(tiny_arch(family, **kwargs))[0]
    return loud(TextClassifier(body, None, lambda nf: (head or partial(PoolingHead, at=at_of(body)))(nf, 3), layers), by=4.)

def spread(mix):
    "Shares that differ"
    with torch.no_grad(): mix.s.copy_(torch.linspace(-1, 1, len(mix.s))); mix.gamma.fill_(1.5)

# ---- the states of all layers

@pytest.mark.parametrize('family', list(tiny_families))
def test_hidden_states_are_counted_as_the_signal_passes(family):
    torch.manual_seed(0)
    body = load_body(tiny_arch(family)).eval()[0]
    inputs = ModelInputs(body)
    if family=='funnel':
        with pytest.raises(ValueError, match='FunnelModel gives states.*hidden_states=-1'): state_widths(body, inputs)
        return
    n = body.config.num_hidden_layers
    assert state_widths(body, inputs)==[32]*(n+1)
    x = batch(tokenizer(family), [texts[4]])
    hs = hidden_states(body, inputs(x))
    assert torch.equal(hs[-1], body(**inputs(x))[0])
    blocks = block_modules(body)
    for k,h in enumerate(hs[:-1]): # the last may have passed a final norm
        ps = [[p for m in b for p in m.parameters()] for b in blocks]
        grads = [any(g is not None for g in torch.autograd.grad(h.sum(), b, retain_graph=True, allow_unused=True)) if h.requires_grad else False for b in ps]
        assert grads==[k>0] if family=='albert' else grads==[i<k for i in range(len(blocks))], (k, grads)

def test_the_self_test_leaves_no_trace():
    for family in ('bert','big_bird'):
        kw = dict(attention_type='block_sparse') if family=='big_bird' else {}
        body = load_body(tiny_arch(family, **kw)).train()[0]
        state = torch.get_rng_state()
        model = TextClassifier(body, None, lambda nf: PoolingHead(nf, 3, pool='mean'), 'mix')
        assert all(m.training for m in body.modules())
        assert family=='bert' or body.attention_type=='block_sparse'==body.encoder.layer[0].attention_type
        torch.set_rng_state(state); PoolingHead(32, 3, pool='mean'); after = torch.get_rng_state()
        torch.set_rng_state(state); state_widths(body, model.model_inputs); PoolingHead(32, 3, pool='mean')
        assert torch.equal(torch.get_rng_state(), after)

def test_opt_that_projects_what_it_gives():
    assert model_of('opt', word_embed_proj_dim=16).nf==16
    m = model_of('opt', [-1,-2], word_embed_proj_dim=16)
    assert m.nf==sum(state_widths(m.body, m.model_inputs)[-2:]) and m(batch(tokenizer('opt'), texts[:2])).shape==(2,3)

def test_scalar_mix_is_its_formula():
    mix = ScalarMix(4)
    with torch.no_grad(): mix.s.copy_(torch.tensor([.3,-1.,2.,0.])); mix.gamma.fill_(.7)
    hs = [torch.randn(2,5,8) for _ in range(4)]
    e = [2.718281828459045**o for o in (.3,-1.,2.,0.)]
    want = .7*sum(w/sum(e)*h for w,h in zip(e, hs))
    assert gap(mix(hs), want)<1e-6
    m = model_of('bert', 'mix')
    spread(m.mix)
    x = batch(tokenizer('bert'), texts[:1])
    with torch.no_grad(): assert gap(m.states(x), 1.5*sum(w*h for w,h in zip(m.mix.weights, hidden_states(m.body, m.model_inputs(x)))))<1e-5

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
            want = torch.cat([head(o, torch.ones(o.shape[:2])) for o in alone])
            assert layers==0 or want.std(0).max()>1e-3 # all texts begin alike
            for s,x in sides.items(): assert gap(head(h[s], x.real), want)<1e-4*max(1., float(want.abs().max())), (make, s)

# ---- learners

def dls_of(family, kind='single', n=24):
    df = tiny_df().iloc[:n]
    if kind=='equal': return classifier_dls(df.assign(label=[3.]+[2.5]*(n-1)), tiny_tok(family), y_block=RegressionBlock(), bs=8, device='cpu')
    return classifier_dls(df, tiny_tok(family), bs=8, max_len=60, device='cpu')

def learner(family, by=4., **kwargs):
    torch.manual_seed(0)
    learn = quiet(classifier_learner(dls_of(family), tiny_arch(family), **kwargs))
    loud(learn.model, by=by)
    return learn

def preds(learn, items): return learn.get_preds(dl=learn.dls.test_dl(items))[0]
small = partial(LSTMHead, width=8, ps=(.1,.1))
kinds = dict(mix=dict(hidden_states='mix'), below=dict(hidden_states=-2, pool='attn'), four=dict(hidden_states=[-4,-3,-2,-1], pool='mean'), embeddings=dict(hidden_states=0, pool='max'), lstm=dict(head=small),
             lstm_mix=dict(head=partial(small, n_hidden_states=2, bidirectional=False, pool='last', norm=None), hidden_states='mix'), hf=dict(head='hf'))

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
    assert 'layers' not in facts['head'] and facts['format']==1 and plain=={'layers.0.weight','layers.0.bias','layers.2.weight','layers.2.bias','layers.4.weight','layers.4.bias','layers.6.weight','layers.6.bias'}
    mixed,facts = names(learner('bert', hidden_states='mix'), 'mixed')
    assert facts['head']['layers']=='mix' and mixed=={'mix.s','mix.gamma'}|{f'head.{o}' for o in plain}
    _,facts = names(learner('bert', hidden_states=1), 'one')
    assert facts['head']['layers']==[-3] and facts['head']['class']=='PoolingHead'
    _,facts = names(learner('bert', head=small), 'lstm')
    assert facts['head']['class']=='LSTMHead' and 'layers' not in facts['head']

def test_a_head_of_a_later_version_is_refused(tmp_path):
    path = learner('bert').to_hf(tmp_path/'o')
    f = path/'classifier.json'
    f.write_text(f.read_text().replace('"PoolingHead"', '"WonderHead"'))
    with pytest.raises(ValueError, match="WonderHead.*knows PoolingHead, LSTMHead"): from_hf(path)

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
    learn = learner('bert', head=Weighted, layers=layers, drop_mult=.5)
    if layers=='mix': spread(learn.model.mix)
    assert learn.model.head.drop.p==.1
    path,want = learn.to_hf(tmp_path/'o'),preds(learn, odd)
    with pytest.raises(ValueError, match=r'head=Weighted\(\.\.\.\)'): from_hf(path)
    for head in (Weighted, Weighted(32, 3), lambda nf,n: Weighted(nf, n)): assert gap(from_hf(path, device='cpu', head=head).scores(odd), want)<1e-5
    with pytest.raises(ValueError, match='do not fit the head Weighted'): from_hf(path, head=Weighted(32, 4))

def test_a_head_that_does_not_fit_is_refused_at_once():
    dls = dls_of('bert')
    def make(**kw): return classifier_learner(dls, tiny_arch('bert'), **kw)
    with pytest.raises(ValueError, match=r'PoolingHead cannot take the hidden states of this bert, \(bs, sl, 32\).*build it for that width.*head=PoolingHead'): make(head=PoolingHead(48, 3, pool='mean'))
    with pytest.raises(ValueError, match=r'LSTMHead cannot take.*\(bs, sl, 32\).*width 48 and got 32'): make(head=LSTMHead(48, 3))
    with pytest.raises(ValueError, match=r'\(bs, sl, 64\)'): make(head=Weighted(32, 3), hidden_states=[-1,-2])
    with pytest.raises(ValueError, match='makes 5 numbers of a text, the data want 3'): make(head=Weighted(32, 5))
    with pytest.raises(TypeError, match=r'mean_pool\(32, 3\) failed'): make(head=pools['mean'])
    with pytest.raises(TypeError, match='gave a Tensor'): make(head=torch.zeros)
    with pytest.raises(TypeError, match='`head` is a module'): make(head=3)
    with pytest.raises(ValueError, match='called with .nf, n_out.*`pool`'): make(head='mean')
    with pytest.raises(ValueError, match="Hugging Face's own head is fed by the last layer"): make(head='hf', hidden_states='mix')
    with pytest.raises(ValueError, match='4 is no layer of this network; it has 0'): make(hidden_states=4)
    for o in ([-1,-1], 'all', [], True, 1.5):
        with pytest.raises(ValueError, match="or 'mix' for a learned mean"): make(layers=o)
    with pytest.raises(ValueError, match='dropout probability'): make(drop_mult=6.)
    make(head=Weighted(32, 5), loss_func=lambda pred,y: pred.mean()) # who brings the loss knows what it takes
    make(head='hf', hidden_states=[-1])

# ---- training

def moved(learn, before): return {n for n,p in learn.model.named_parameters() if not torch.equal(p, before[n])}
def weights(learn): return {n:p.detach().clone() for n,p in learn.model.named_parameters()}

@pytest.mark.parametrize('kind', ['mix','lstm','lstm_mix','hf'])
def test_summary_and_unfreezing(kind):
    learn = learner('bert', **kinds[kind])
    assert 'Total params' in learn.summary()
    names = group_names(learn.model)
    assert names==['embeddings','block 1','block 2','block 3','head']
    ids_ = {id(p):n for n,p in learn.model.named_parameters()}
    top = {ids_[id(p)] for p in layer_groups(learn.model)[-1]}
    assert kind!='mix' and kind!='lstm_mix' or {'feed.mix.s','feed.mix.gamma'}<=top
    before = weights(learn)
    learn.freeze_to(-1); learn.fit(1, 1e-2)
    assert moved(learn, before)==top
    before = weights(learn)
    learn.freeze_to(-2); learn.fit(1, 1e-2)
    assert any('layer.2' in n for n in moved(learn, before)) and not any('layer.1' in n for n in moved(learn, before))
    learn.fit_schedule(gradual_unfreeze, lr=1e-3, epochs=5)
    assert all(torch.isfinite(p).all() for p in learn.model.parameters())
    assert 'Total params' in learn.summary()

def test_what_is_above_the_feed_stays_as_it_is():
    learn = learner('bert', by=1., hidden_states=-2)
    before = weights(learn)
    learn.fit(1, 1e-2, wd=.1)
    now = moved(learn, before)
    assert any('layer.1.' in o for o in now) and not any('layer.2.' in o for o in now)

def test_a_feed_says_which_layers_it_takes():
    "A run that goes on compares the model with the one it began with, as text"
    assert repr(LayerFeed(-2, [32]*4))!=repr(LayerFeed(-3, [32]*4)) and repr(LayerFeed(2, [32]*4))==repr(LayerFeed(-2, [32]*4))

def test_features_stay_as_they_are():
    learn = learner('bert', by=1., head=small, hidden_states='mix')
    before = weights(learn)
    learn.fit_schedule(head_only, lr=1e-2, epochs=1)
    now = moved(learn, before)
    assert now and all(o.startswith(('head.','feed.')) for o in now) and {'feed.mix.s','head.lstm.weight_hh_l0'}<=now

@pytest.mark.parametrize('kw', [dict(hidden_states='mix'), dict(hidden_states=-2), dict(hidden_states=[0,-1]), dict(head=small)], ids=str)
def test_kept_states_feed_a_head_as_computed_ones(kw):
    "A mix trains with the head, so its states are computed"
    def run(cbs):
        learn = learner('bert', by=1., drop_mult=0., **kw)
        for f in (0.,1.): # the head alone, then with the last two blocks
            learn.freeze_to(-1 if not f else -3)
            torch.manual_seed(0); learn.fit(2, 1e-2, cbs=cbs)
        return preds(learn, odd)
    assert gap(run(FrozenCache()), run([]))<1e-4

def test_a_new_head_begins_with_what_needs_no_reading(tmp_path):
    dls,want = dls_of('bert', 'equal'),2.5+.5/18
    def bias(**kwargs): return [o for o in classifier_learner(dls, tiny_arch('bert'), **kwargs).model.head.modules() if isinstance(o, torch.nn.Linear)][-1].bias.item()
    assert len(dls.train_ds)==18 and bias()==pytest.approx(want) and bias(head=small)==pytest.approx(want)
    assert abs(bias(loss_func=torch.nn.MSELoss()))<1, 'nobody knows what outputs mean to a loss of the user'
    learn = quiet(classifier_learner(dls, tiny_arch('bert')))
    with torch.no_grad(): learn.model.head.layers[-1].bias.fill_(7.)
    learn.save_encoder(tmp_path/'o')
    assert classifier_learner(dls, tmp_path/'o').model.head.layers[-1].bias.item()==7., 'a head that was trained stays'

def test_numbers_of_which_one_differs_give_numbers():
    for kw in (dict(), dict(hidden_states='mix'), dict(head=small), dict(head='hf')):
        learn = quiet(classifier_learner(dls_of('bert', 'equal'), tiny_arch('bert'), **kw))
        learn.fit(1, 1e-3)
        assert torch.tensor(learn.recorder.losses).isfinite().all() and preds(learn, odd).isfinite().all()

def test_rows_without_a_token():
    x = TensorTokens(torch.zeros(2,5).long(), attention_mask=torch.tensor([[0]*5,[1]*3+[0]*2]))
    for kw in (dict(hidden_states='mix'), dict(hidden_states=-2), dict(hidden_states='mix', head=small)):
        m = model_of('bert', **kw)
        out = m(x)
        out.sum().backward()
        assert out.isfinite().all() and all(p.grad is None or p.grad.isfinite().all() for p in m.parameters())

def grads(m, x):
    m.zero_grad(set_to_none=True)
    torch.manual_seed(1)
    m(x).square().sum().backward()
    return {n:p.grad.clone() for n,p in m.named_parameters() if p.grad is not None}

@pytest.mark.parametrize('how,family', [(checkpointing,'bert'), (checkpointing,'gpt2'), (checkpointing,'deberta-v2'), (partial(compiled, backend='aot_eager'),'bert')], ids=['checkpointing-bert','checkpointing-gpt2','checkpointing-deberta','compiled-bert'])
def test_all_layers_when_blocks_are_run_another_way(how, family):
    m = model_of(family, 'mix').train()
    for o in m.modules():
        if isinstance(o, torch.nn.Dropout): o.p = 0.
    x = batch(tokenizer(family), texts[:3])
    want = grads(m, x)
    with how(m): got = grads(m, x)
    assert want.keys()==got.keys() and max(gap(got[k], want[k])/max(1., float(want[k].abs().max())) for k in want)<1e-5
    assert 'feed.mix.s' in got and got['feed.mix.s'].abs().max()>0

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

def test_a_predictor_needs_no_fastai(tmp_path, root):
    path = learner('bert', **kinds['lstm_mix']).to_hf(tmp_path/'o')
    code = f"import sys; from fastformers.inference.predictor import from_hf; print(from_hf({str(path)!r})(['a film'])[0]['label']); sys.exit('fastai' in sys.modules or 'matplotlib.pyplot' in sys.modules)"
    r = subprocess.run([sys.executable, '-c', code], cwd=root, capture_output=True, text=True)
    assert r.returncode==0, r.stderr

@pytest.mark.parametrize('spec', [dict(pool='concat', at='last'), dict(pool='attn', bidirectional=False, n_hidden_states=2), dict(lin_ftrs=(), ps=(.3,), norm=None, y_range=(0,5)), dict(norm=torch.nn.BatchNorm1d)], ids=str)
def test_an_lstm_head_is_rebuilt(spec):
    m = model_of('bert', 'mix', partial(small, **spec))
    said = json.loads(json.dumps(head_spec(m)))
    assert said['class']=='LSTMHead' and repr(build_head(said))==repr(m.head)
    m.head.lstm.extra = torch.nn.Linear(2, 2)
    assert head_spec(m)['class']=='custom' and head_spec(m)['layers']=='mix'

def test_the_picture_says_what_was_learnt():
    import matplotlib.pyplot as plt
    learn = learner('bert', hidden_states='mix')
    with torch.no_grad(): learn.model.mix.s.fill_(.3)
    assert plot_scalar_mix(learn).get_title().startswith('all layers alike')
    with torch.no_grad(): learn.model.mix.s.copy_(torch.tensor([0.,0.,9.,0.])); learn.model.mix.gamma.fill_(.5)
    fig,ax = plt.subplots()
    assert plot_scalar_mix(learn.model, ax) is ax and ax.get_title()=='layer 2 100%, gamma 0.50' and len(ax.patches)==4
    assert [o.get_text() for o in ax.get_xticklabels()]==['emb','1','2','3']
    for o in (learner('bert'), torch.nn.Linear(2, 2), 'mix'):
        with pytest.raises(ValueError, match="hidden_states='mix'"): plot_scalar_mix(o)
    plt.close('all')

class Shape(torch.nn.Module):
    "A head that gives `f` of the states of `n` classes"
    def __init__(self, f, n=3): super().__init__(); self.l,self.f = torch.nn.Linear(32, n),f
    def forward(self, h, mask): return self.f(self.l(h))

@pytest.mark.parametrize('f, says', [(lambda h: h, r'gives \(2, 16, 3\) for 2 texts'), (lambda h: h.mean((1,2)), r'gives \(2,\) for 2 texts'), (lambda h: h[0,0], r'gives \(3,\) for 2 texts'), (lambda h: h[:,0,:2], 'makes 2 numbers of a text')])
def test_a_head_gives_a_row_a_text(f, says):
    with pytest.raises(ValueError, match=f'the head Shape {says}, the data want 3'): classifier_learner(classifier_dls(tiny_df(), tiny_tok(), bs=4), tiny_arch('bert'), head=Shape(f))
    classifier_learner(classifier_dls(tiny_df(), tiny_tok(), bs=4), tiny_arch('bert'), head=Shape(lambda h: h[:,0]))

def test_one_number_may_have_no_column():
    dls = classifier_dls(tiny_df().assign(label=lambda d: d.text.str.len()/10), tiny_tok(), bs=4)
    classifier_learner(dls, tiny_arch('bert'), head=Shape(lambda h: h[:,0,0], 1)).fit(1)

def test_a_pool_that_nobody_would_use():
    dls = classifier_dls(tiny_df(), tiny_tok(), bs=4)
    for kw in (dict(head=LSTMHead, pool='mean'), dict(head='hf', pool='avg')):
        with pytest.raises(ValueError, match="`pool` is how the default head pools"): classifier_learner(dls, tiny_arch('bert'), **kw)

def test_a_head_may_give_more_than_a_tensor():
    "A callback takes the predictions, as fastai's for recurrent networks does"
    class First(Callback):
        def after_pred(self): self.learn.pred = self.pred[0]
    learn = classifier_learner(classifier_dls(tiny_df(), tiny_tok(), bs=4), tiny_arch('bert'), head=Shape(lambda h: (h[:,0], h)), cbs=First())
    with learn.no_bar(), learn.no_logging(): learn.fit(1)
