"Callbacks that keep what pretraining learnt: by hand, and beside everything else that happens around a step"
import copy, importlib.util, math
from contextlib import contextmanager
from functools import partial
import pandas as pd, pytest, torch, torch.nn.functional as F
from fastai.basics import Callback, CancelFitException, OptimWrapper
from fastai.callback.fp16 import MixedPrecision
from fastai.callback.schedule import lr_find
from fastai.learner import load_learner
from fastai.optimizer import SGD, Adam
from fastai.torch_core import set_seed
from transformers import AutoModelForCausalLM, AutoModelForMaskedLM
from fastformers.callback.compute import TokenAccumulation
from fastformers.models.adapters import add_lora
from fastformers.models.adapters import load_adapters, save_adapters
from fastformers.callback.auxiliary_lm import AuxiliaryLM
from fastformers.callback.contrastive import Contrastive
from fastformers.text.core import as_tokens
from fastformers.data.block import classifier_dls, lm_dls
from fastformers.interpret.forgetting import forgetting
from fastformers.learner.core import classifier_learner, lm_learner
from fastformers.models.load import load_config
from fastformers.models.families import layer_groups
from fastformers.objectives.clm import CLM
from fastformers.objectives.mlm import MLM
from fastformers.callback.regularize import L2SP, RDrop, loaded_weights, symmetric_kl
from fastformers.papers.ewc import EWC, fisher_diagonal
from fastformers.papers.mixout import Mixout
from fastformers.callback.resume import Resume
from fastformers.callback.schedule import gradual_unfreeze
from fastformers.testing import tiny_arch, tiny_df, tiny_tok
from fastformers.callback.compute import cpu_bf16
from fastformers.learner.optimizer import FusedAdam

df = tiny_df()

def quiet(learn, *args, verb='fit', **kwargs):
    with learn.no_logging(), learn.no_bar(): getattr(learn, verb)(*args, **kwargs)
    return learn

@pytest.fixture(scope='module')
def stages(tmp_path_factory):
    "Directories of small language models, by family, and the Fisher information of BERT's"
    tmp,res = tmp_path_factory.mktemp('stages'),{}
    for family in ('bert','gpt2','roberta'):
        set_seed(0)
        learn = lm_learner(lm_dls(df, tiny_tok(family), seq_len=32, bs=16), tiny_arch(family, num_hidden_layers=2))
        quiet(learn, 1, 1e-3)
        res[family] = learn.save_encoder(tmp/family)
        if family=='bert': res['fisher'] = fisher_diagonal(learn, n=10)
    return res

def classifier(arch, *cbs, bs=8, family='bert', data=df, seed=0, **kwargs):
    set_seed(seed)
    return classifier_learner(classifier_dls(data, tiny_tok(family), bs=bs), arch, cbs=list(cbs), **dict(head_init='random') | kwargs)

def weights(learn): return {k:p.detach().clone() for k,p in learn.model.named_parameters()}

class Steps(Callback):
    "Gradients of each step, the shown losses of each batch; weights are moved a little before the first"
    order = MixedPrecision.order+2
    def __init__(self, nudge=.1, n=None): self.nudge,self.n = nudge,n
    def before_fit(self): self.grads,self.shown,self.weights = [],[],[]
    def before_train(self):
        if not self.nudge: return
        gen = torch.Generator().manual_seed(1)
        for p in self.model.parameters(): p.data += self.nudge*torch.randn(p.shape, generator=gen)
        self.nudge = 0
    def after_loss(self):
        if self.training: self.shown.append(float(self.loss.detach()))
    def before_step(self):
        self.weights.append(weights(self.learn))
        self.grads.append({k:p.grad.clone() for k,p in self.model.named_parameters() if p.grad is not None})
        if len(self.grads)==self.n: raise CancelFitException()

def first_grads(arch, *cbs, bs=8, open_from=0, drop=0., **kwargs):
    "Gradients and weights at the first step, weights before it"
    learn = classifier(arch, *cbs, Steps(n=1), bs=bs, drop_mult=drop, **kwargs)
    learn.freeze_to(open_from)
    before = weights(learn)
    quiet(learn, 1)
    return learn.steps.grads[0], learn.steps.weights[0], before, learn.steps.shown

def everything(stages):
    "Each callback, fresh"
    return {'L2SP':L2SP(.3,.2), 'EWC':EWC(stages['fisher'], 50.), 'Mixout':Mixout(.5), 'RDrop':RDrop(2.), 'AuxiliaryLM':AuxiliaryLM(.5), 'Contrastive':Contrastive()}
names = ['L2SP','EWC','Mixout','RDrop','AuxiliaryLM','Contrastive']

# --- gradients by hand

def test_ewc_by_hand(stages):
    fisher = stages['fisher']
    a,_,_,shown = first_grads(stages['bert'])
    b,w,w0,shown_too = first_grads(stages['bert'], EWC(stages['fisher'], 1000.))
    assert shown==shown_too
    for k in b:
        want = 1000*fisher[k.removeprefix('hf.')]*(w[k]-w0[k]) if k.startswith('hf.') else torch.zeros_like(w[k])
        torch.testing.assert_close(b[k]-a[k], want, atol=1e-4, rtol=1e-3)

def test_new_weights_are_those_that_were_not_loaded(stages):
    learn = classifier(stages['bert'], head='hf')
    assert {k for k,p in learn.model.named_parameters() if p not in loaded_weights(learn.model)}=={f'hf.{o}' for o in learn.model.loaded.new}
    assert loaded_weights(classifier(tiny_arch('bert')).model)==set()
    learn = classifier(stages['bert'], AuxiliaryLM())
    assert {k.split('.')[0] for k,p in learn.model.named_parameters() if p not in loaded_weights(learn.model)}=={'head'}
    learn = classifier(stages['bert'], pretrained=False).load_encoder(stages['bert'])
    assert {k.split('.')[0] for k,p in learn.model.named_parameters() if p in loaded_weights(learn.model)}=={'hf'}

@pytest.mark.parametrize('opt_func', [SGD, FusedAdam, Adam, partial(OptimWrapper, opt=torch.optim.AdamW)])
def test_l2sp_replaces_weight_decay(stages, opt_func):
    learn,plain = (classifier(stages['bert'], *cbs, opt_func=opt_func, drop_mult=0.) for cbs in ([L2SP(0.,0.)], []))
    quiet(learn, 1, 1e-3, wd=.5); quiet(plain, 1, 1e-3, wd=0.)
    for (k,a),b in zip(weights(learn).items(), weights(plain).values()): torch.testing.assert_close(a, b)
    assert {h['wd'] for h in learn.opt.hypers}=={.5}

@pytest.mark.parametrize('cb', [L2SP, Contrastive])
@pytest.mark.parametrize('of_the_learner', [True, False])
def test_an_interrupted_fit_leaves_order_and_weight_decay(stages, cb, of_the_learner):
    class Stop(Callback):
        def after_batch(self): raise KeyboardInterrupt
    cbs = [[cb()],[]] if of_the_learner else [[],[cb()]]
    learn = classifier(stages['bert'], *cbs[0])
    def order(): return [int(i) for i in learn.dls.train.new(passes=5).get_idxs()]
    start = order()
    with pytest.raises(KeyboardInterrupt): quiet(learn, 1, 1e-3, cbs=[*cbs[1],Stop()])
    assert order()==start
    quiet(learn, 1, 1e-3)
    learn.dls.train.passes = 5
    assert [*map(int, learn.dls.train.get_idxs())]==start
    if of_the_learner: assert {h['wd'] for h in learn.opt.hypers}=={.01}

def test_other_weights_renew_the_reference(stages, tmp_path):
    other = lm_learner(lm_dls(df, tiny_tok(), seq_len=32, bs=16), tiny_arch('bert', num_hidden_layers=2)).save_encoder(tmp_path/'other')
    learn = quiet(quiet(classifier(stages['bert'], L2SP(10., 0.), drop_mult=0.), 2, 1e-3), 1, 0.)
    before = float(learn.l2_sp.value)
    assert before>1e-3
    assert abs(float(quiet(copy.deepcopy(learn), 1, 0.).l2_sp.value)-before)<1e-3*before
    quiet(learn.load_encoder(other), 1, 0.)
    assert learn.l2_sp.value==0

def test_fisher_of_another_architecture(stages):
    learn = classifier(stages['gpt2'], EWC(stages['fisher'], 1.), family='gpt2')
    with pytest.raises(ValueError, match='another architecture'): quiet(learn, 1)
    with pytest.raises(AssertionError, match='measures a language model'): fisher_diagonal(classifier(stages['bert']))

# --- R-Drop

def test_rdrop_is_two_passes_by_hand(stages):
    learn = classifier(stages['bert'], RDrop(3.), drop_mult=2.)
    x,y = learn.dls.train.one_batch(); x = x.as_subclass(torch.Tensor)
    learn.xb,learn.yb,learn.training = (x,),(y,),True
    learn.model.train(); torch.manual_seed(3)
    learn.pred = learn.model(x)
    learn.loss_grad = learn.loss_func(learn.pred, y); learn.loss = learn.loss_grad.clone()
    learn.r_drop.after_loss()
    torch.manual_seed(3)
    a,b = learn.model(x),learn.model(x)
    p,q = a.log_softmax(-1),b.log_softmax(-1)
    kl = (F.kl_div(p, q, log_target=True, reduction='batchmean')+F.kl_div(q, p, log_target=True, reduction='batchmean'))/2
    want = (F.cross_entropy(a, y)+F.cross_entropy(b, y) + 3*kl)/2 # half of eq. 4
    assert kl>1e-3 and not torch.allclose(a, b)
    torch.testing.assert_close(learn.loss_grad, want)
    torch.testing.assert_close(learn.loss, F.cross_entropy(a, y))
    params = [p for p in learn.model.parameters()]
    for g,h in zip(torch.autograd.grad(learn.loss_grad, params, retain_graph=True, allow_unused=True), torch.autograd.grad(want, params, allow_unused=True)):
        if g is not None: torch.testing.assert_close(g, h, atol=1e-5, rtol=1e-3)

def test_rdrop_other_targets(stages):
    multi = df.assign(label=['a;b' if i%3==0 else 'a' if i%3==1 else 'b' for i in range(len(df))])
    learn = classifier(stages['bert'], RDrop(1.), data=multi)
    a,b = torch.randn(5,2),torch.randn(5,2)
    P,Q = (torch.distributions.Bernoulli(logits=o) for o in (a,b))
    want = (torch.distributions.kl_divergence(P,Q)+torch.distributions.kl_divergence(Q,P)).mean()/2
    torch.testing.assert_close(symmetric_kl(a, b, learn.loss_func.activation), want)
    numbers = df.assign(label=[float(len(o)) for o in df.text])
    for o in (learn, classifier(stages['bert'], RDrop(1.), data=numbers)):
        quiet(o, 1, 1e-3)
        assert all(math.isfinite(o) for o in o.recorder.losses) and o.r_drop.divergence>0

# --- Mixout

def test_mixout_in_training_alone_and_plain_afterwards(stages):
    learn = classifier(stages['bert'], Mixout(.6), drop_mult=0.)
    x = learn.dls.valid.one_batch()[0].as_subclass(torch.Tensor)
    class Look(Callback):
        order = 100
        def before_batch(self):
            if self.learn.train_iter!=5 or not self.training: return
            w = weights(self.learn)
            a,b = self.model(x),self.model(x)
            self.model.eval(); c,d = self.model(x),self.model(x); self.model.train()
            self.res = bool((a!=b).any()), torch.equal(c, d), all(torch.equal(v, w[k]) for k,v in weights(self.learn).items())
    learn.add_cb(Look()); quiet(learn, 2, 1e-3)
    assert learn.look.res==(True,True,True)
    assert not any(m._forward_pre_hooks for m in learn.model.modules()) and not any('weight' in vars(m) for m in learn.model.modules())
    copy.deepcopy(learn.model)

@contextmanager
def mixing(learn):
    "`Mixout` of `learn` at work, as in a fit"
    learn.create_opt(); learn.mixout.before_fit()
    try: yield
    finally: learn.mixout.after_fit()

@pytest.mark.exact
def test_mixout_expectation_and_gradient_through_the_model(stages):
    "A linear layer's output: its mean over draws is that of the plain layer, its gradient reaches kept entries alone"
    learn = classifier(stages['bert'], Mixout(.5), drop_mult=0.)
    m = learn.model.body.encoder.layer[0].output.dense
    start = m.weight.detach().clone()
    with mixing(learn):
        with torch.no_grad(): m.weight += torch.randn_like(m.weight)*.1
        m.train(); x = torch.randn(3, m.in_features)
        plain = F.linear(x, m.weight, m.bias)
        draws = torch.stack([m(x).detach() for _ in range(4000)])
        assert ((draws.mean(0)-plain).abs()<5*draws.std(0)/4000**.5+1e-6).float().mean()>.99
        out = m(torch.eye(m.in_features)).T-m.bias[:,None]                        # the mixed weight itself
    g, = torch.autograd.grad(out.sum(), m.weight)
    replaced = torch.isclose(out, start, atol=1e-6)
    assert .4<replaced.float().mean()<.6
    assert torch.equal(g, torch.where(replaced, 0., 2.))
    m.eval(); assert torch.equal(m(x), plain)
    m.train(); assert torch.equal(m(x), plain), 'off after the block'

def test_mixout_cleans_up_after_an_error_and_ends_with_its_fit(stages):
    learn = classifier(stages['bert'])
    class Bad(Callback):
        order = 100
        def after_batch(self): raise KeyboardInterrupt
    with pytest.raises(KeyboardInterrupt): quiet(learn, 1, cbs=[Mixout(.5), Bad()])
    with torch.no_grad():
        for p in learn.model.parameters(): p += .01
    learn.model.train()
    for m in learn.model.modules():
        if isinstance(m, torch.nn.Dropout): m.p = 0.
    m = learn.model.body.encoder.layer[0].output.dense
    x = torch.randn(2, m.in_features)
    assert torch.equal(m(x), F.linear(x, m.weight, m.bias))                        # hooks that are left do nothing

def test_mixout_and_gradient_checkpointing(stages):
    "The second forward pass of checkpointing draws the same mixture"
    res = []
    for on in (False,True):
        learn = classifier(stages['bert'], Mixout(.5), Steps(n=2), drop_mult=0.)
        if on: learn.model.body.gradient_checkpointing_enable()
        set_seed(4); quiet(learn, 1)
        res.append(learn.steps.grads[1])
    assert all(torch.equal(a, b) for a,b in zip(res[0].values(), res[1].values()))

# --- the auxiliary language model

@pytest.mark.parametrize('family', ['bert','gpt2','roberta'])
def test_auxiliary_by_hand(stages, family):
    learn = classifier(stages[family], AuxiliaryLM(.7), family=family, drop_mult=0.)
    plain = classifier(stages[family], family=family, drop_mult=0.)
    lm = learn.model.lm
    assert lm.hf.get_output_embeddings().weight is learn.model.body.get_input_embeddings().weight
    assert lm.body is learn.model.body and isinstance(learn.auxiliary_lm.objective, CLM if family=='gpt2' else MLM)
    x,y = next(iter(learn.dls.train)); x = x.as_subclass(torch.Tensor)
    learn.dl,learn.xb,learn.yb,learn.training,learn.pct_train = learn.dls.train,(x,),(y,),True,0.
    learn.pred = learn.model.train()(x)
    learn.loss_grad = learn.loss_func(learn.pred, y); learn.loss = learn.loss_grad.clone()
    learn.auxiliary_lm.after_loss()
    obj = learn.auxiliary_lm.objective
    xm,ym = obj((as_tokens(x),), split_idx=0)
    hf = (AutoModelForCausalLM if family=='gpt2' else AutoModelForMaskedLM).from_pretrained(stages[family]).eval()
    extra = {'token_type_ids':xm.segment_ids} if family=='bert' else {}
    logits = hf(input_ids=xm.ids, attention_mask=xm.attention_mask, **extra).logits
    want = F.cross_entropy(logits.flatten(0,1), ym.as_subclass(torch.Tensor).flatten(), ignore_index=-100)
    torch.testing.assert_close(learn.auxiliary_lm.lm_loss, want.detach(), atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(learn.loss_grad, learn.loss+.7*want, atol=1e-4, rtol=1e-4)
    assert torch.equal(learn.model.eval()(x), plain.model.eval()(x))

@pytest.mark.exact
def test_auxiliary_head_learns_in_the_head_group_and_is_no_part_of_a_bundle(stages, tmp_path):
    learn = classifier(stages['bert'], AuxiliaryLM())
    learn.freeze()
    before = weights(learn)
    quiet(learn, 1, 1e-2)
    moved = {k for k,w in weights(learn).items() if not torch.equal(w, before[k])}
    assert any(k.startswith('lm.hf.cls') for k in moved) and not any(k.startswith('hf.') for k in moved)
    assert sum(len(ps) for ps in layer_groups(learn.model))==len(before)==len({p for ps in learn.opt.param_lists for p in ps})
    learn.save_encoder(tmp_path/'a')
    again = classifier(tmp_path/'a')
    x = again.dls.valid.one_batch()[0]
    assert torch.equal(again.model.eval()(x), learn.model.eval()(x)) and not hasattr(again.model, 'lm')

def test_auxiliary_with_untied_head_another_head_and_grown_vocabulary(stages, tmp_path):
    tok = tiny_tok('bert')
    learn = lm_learner(lm_dls(df, tok, seq_len=32, bs=16), tiny_arch('bert', num_hidden_layers=2, tie_word_embeddings=False))
    learn.save_encoder(tmp_path/'untied')
    learn = classifier(tmp_path/'untied', AuxiliaryLM(), head='hf')
    out = learn.model.lm.hf.get_output_embeddings().weight
    assert out is not learn.model.body.get_input_embeddings().weight and any(out is p for p in layer_groups(learn.model)[-1])
    before = out.detach().clone()
    quiet(learn, 1, 1e-2)
    assert not torch.equal(out, before)
    grown = copy.deepcopy(tok); grown.add_tokens(['zwieback','rhubarb'])
    set_seed(0)
    learn = classifier_learner(classifier_dls(df, grown, bs=8), stages['bert'], cbs=AuxiliaryLM())
    quiet(learn, 1, 1e-3)
    n = learn.model.body.get_input_embeddings().num_embeddings
    assert learn.model.lm.hf.get_output_embeddings().weight.shape[0]==n==max(len(grown), n)

def test_auxiliary_masks_do_not_depend_on_batches_or_fits(stages):
    seen = {}
    class Look(Callback):
        order = 100
        def before_fit(self): self.at = getattr(self,'at',0)
        def after_loss(self):
            if not self.training: return
            x = as_tokens(self.xb[0]); m = self.auxiliary_lm.objective((x,), split_idx=0)[0].predicted
            for r,k,real in zip(x.ids.tolist(), m, x.real): seen.setdefault((self.dls.train.passes, tuple(torch.tensor(r)[real].tolist())), set()).add(tuple(k[real].tolist()))
    for bs in (4,9):
        learn = classifier(stages['bert'], AuxiliaryLM(), Look(), bs=bs)
        quiet(learn, 1, 0.); quiet(learn, 1, 0.)
    assert {k[0] for k in seen}=={0,1} and all(len(v)==1 for v in seen.values())
    a,b = ({k[1]:v for k,v in seen.items() if k[0]==i} for i in (0,1))
    assert any(a[k]!=b[k] for k in a)

def test_empty_and_odd_texts(stages):
    odd = pd.DataFrame({'text':['','😡'*50,'a','x '*30000,'[MASK] [SEP]','ok','',' '], 'label':list('abababab'), 'is_valid':[False]*6+[True]*2})
    for cb in everything(stages).values():
        learn = classifier(stages['bert'], cb, data=odd, bs=2)
        quiet(learn, 1, 1e-3)
        assert all(math.isfinite(o) for o in learn.recorder.losses) and all(p.isfinite().all() for p in learn.model.parameters())

# --- beside everything else

@pytest.mark.parametrize('name', names)
def test_frozen_stays_frozen_and_shown_loss_is_plain(stages, name):
    learn = classifier(stages['bert'], everything(stages)[name], Steps(nudge=0))
    low = [p for ps in layer_groups(learn.model)[:2] for p in ps]
    before = [p.detach().clone() for p in low]
    learn.freeze_to(2)
    quiet(learn, 1, 1e-2)
    assert all(torch.equal(a, b) for a,b in zip(low, before)) and all(p.grad is None for p in low)
    open_ = {k for k,p in learn.model.named_parameters() if p.requires_grad}
    assert all(g.keys()<=open_ for g in learn.steps.grads)

@pytest.mark.parametrize('name', names)
def test_with_schedule_bf16_accumulation_and_lr_find(stages, name):
    cb = everything(stages)[name]
    learn = classifier(stages['bert'], cb, cpu_bf16(True), TokenAccumulation(n_acc=20), bs=4)
    before = weights(learn)
    learn.lr_find(num_it=4, show_plot=False)
    assert all(torch.equal(v, before[k]) for k,v in weights(learn).items())
    quiet(learn, gradual_unfreeze, 1e-3, epochs=2, verb='fit_schedule')
    assert all(p.isfinite().all() for p in learn.model.parameters()) and any(not torch.equal(v, before[k]) for k,v in weights(learn).items())
    assert not any(m._forward_pre_hooks for m in learn.model.modules())
    start = getattr(cb, 'reference', {})
    assert (len(start)>0)==(name in ('L2SP','EWC','Mixout'))
    names_ = {p:k for k,p in learn.model.named_parameters()}
    assert all(torch.equal(w, before[names_[p]]) for p,w in start.items())         # lr_find did not move the start

@pytest.mark.exact
@pytest.mark.parametrize('name', ['L2SP','EWC','RDrop'])
def test_counted_once_a_window(stages, name):
    "The gradient of a window is that of the large batch, penalty and all"
    cb = lambda: everything(stages)[name]
    whole = first_grads(stages['bert'], cb(), bs=1000)[0]
    parts = first_grads(stages['bert'], cb(), TokenAccumulation(n_acc=10**6), bs=7)[0]
    plain = first_grads(stages['bert'], bs=1000)[0]
    size = max(float(o.abs().max()) for o in whole.values())
    assert whole.keys()==parts.keys() and max(float((whole[k]-parts[k]).abs().max()) for k in whole)<1e-4*size
    if name!='RDrop': assert max(float((whole[k]-plain[k]).abs().max()) for k in whole)>.01*size

@pytest.mark.parametrize('name', names)
def test_resume_bit_by_bit(stages, tmp_path, name):
    "Killed in the second of two fits; the start is the pretrained weights, not those of the checkpoint"
    class Killed(Exception): pass
    class Kill(Callback):
        order = 2000
        def __init__(self, at): self.at = at
        def after_batch(self):
            if self.training: self.at -= 1
            if not self.at: raise Killed('here')
    def run(path, at=None):
        cb = everything(stages)[name]
        learn = classifier(stages['bert'], cb, Resume(tmp_path/path, every=2, minutes=None))
        before = weights(learn)
        if at: learn.add_cb(Kill(at))
        quiet(learn, 1, 1e-3); quiet(learn, 2, 1e-3)
        known = {p:k for k,p in learn.model.named_parameters()}
        assert all(torch.equal(w, before[known[p]]) for p,w in getattr(cb, 'reference', {}).items())
        return weights(learn)
    want = run('whole')
    n = -(-45//8)
    with pytest.raises(Killed): run('cut', n+3)
    got = run('cut')
    assert all(torch.equal(want[k], got[k]) for k in want)

def test_resume_compares_settings(stages, tmp_path):
    def run(cb): quiet(classifier(stages['bert'], cb, Resume(tmp_path/'x', every=2, minutes=None)), 1, 1e-3)
    run(L2SP(.3))
    with pytest.raises(ValueError, match='alpha=0.3'): run(L2SP(.4))

def test_all_together(stages):
    learn = classifier(stages['bert'], *everything(stages).values())
    quiet(learn, 2, 1e-3)
    assert all(math.isfinite(o) for o in learn.recorder.losses)
    assert torch.is_tensor(learn.predict('A wonderful film')[2])

@pytest.mark.parametrize('name', names)
def test_validation_and_prediction_before_within_and_after_a_fit(stages, tmp_path, name):
    "They send the events of a fit, which is none of these callbacks' concern"
    cb = everything(stages)[name]
    class Within(Callback):
        order = 100
        def after_epoch(self):
            if self.learn.lock.locked(): return
            self.learn.validate()
            self.hooks = sum(bool(m._forward_pre_hooks) for m in self.model.modules())
    learn = classifier(stages['bert'], cb, Within())
    with learn.no_bar(): learn.validate(); learn.predict('Great')
    assert not getattr(cb, 'reference', None)
    quiet(learn, 1, 1e-3)
    assert bool(learn.within.hooks)==(name=='Mixout') and not any(m._forward_pre_hooks for m in learn.model.modules())
    learn.remove_cb(learn.within); learn.export(tmp_path/'x.pkl')
    again = load_learner(tmp_path/'x.pkl')
    with learn.no_bar(), again.no_bar(): assert torch.equal(again.predict('Great')[2], learn.predict('Great')[2])

# --- at the door

def test_ewc_for_the_second_language_model(stages):
    "From general text to the target's: names in the body are the same"
    set_seed(0)
    learn = lm_learner(lm_dls(df, tiny_tok(), seq_len=32, bs=16), stages['bert'], cbs=[EWC(stages['fisher'], 10.), L2SP(), Mixout()])
    quiet(learn, 1, 1e-3)
    assert learn.ewc.value>0 and all(math.isfinite(o) for o in learn.recorder.losses)

@pytest.mark.exact
def test_fisher_is_that_of_rows(stages):
    "Squares of each row's gradient, not of a batch's, with answers drawn from the model"
    set_seed(0)
    learn = lm_learner(lm_dls(df, tiny_tok(), seq_len=32, bs=16), stages['bert'])
    x,y = learn.dls.valid.one_batch()
    got,model = fisher_diagonal(learn, [(x[:3],y[:3])], n=3, seed=7),learn.model.eval()
    gen,want,n = torch.Generator().manual_seed(7),{k:torch.zeros_like(p) for k,p in model.body.named_parameters()},0
    for i in range(3):
        model.zero_grad()
        logits = model(x[i:i+1])[0]
        drawn = torch.multinomial(logits.softmax(-1), 1, generator=gen)[:,0]
        F.cross_entropy(logits, drawn, reduction='sum').backward()
        for k,p in model.body.named_parameters(): want[k] += p.grad**2
        n += len(drawn)
    for k in want: torch.testing.assert_close(got[k], want[k].detach()/n, atol=1e-9, rtol=1e-3)

def test_auxiliary_wrong_places(stages):
    with pytest.raises(ValueError, match='`cbs` of `classifier_learner`'): quiet(classifier(stages['bert']), 1, cbs=AuxiliaryLM())
    with pytest.raises(ValueError, match='another tokenizer'): classifier(stages['bert'], AuxiliaryLM(objective=MLM(tiny_tok('roberta'))))
    with pytest.raises(ValueError): classifier(stages['bert'], AuxiliaryLM(objective=CLM(tiny_tok())))
    with pytest.raises(ValueError, match='another architecture'): classifier(tiny_arch('bert'), AuxiliaryLM(arch=stages['bert']))

def test_forgetting_needs_no_luck(stages):
    learn = classifier(stages['bert'])
    a = forgetting(learn, df.text[:20])
    assert a.loc['now',['change','from','to']].tolist()==[0.,0.,0.]                # not trained yet
    with torch.no_grad():
        for p in learn.model.body.parameters(): p += .05*torch.randn_like(p)
    b = forgetting(learn, df.text[:20])
    lo,mid,hi = b.loc['now',['from','change','to']]
    assert lo<mid<hi and mid==pytest.approx(b.loc['now','LM loss']-b.loc['before','LM loss']) and b.loc['before','LM loss']==a.loc['before','LM loss']
    assert forgetting(learn, 'one text 😀').shape==(2,5)

def test_a_new_block_below_an_auxiliary_head_is_not_kept_near_its_luck(stages, deeper):
    "A block that the checkpoint lacks was not loaded, whoever else holds the body"
    arch = deeper(stages['bert'])
    for cbs in ([], [AuxiliaryLM(.5)]):
        learn = classifier(arch, *cbs)
        known = loaded_weights(learn.model)
        last = [p for p in learn.model.body.encoder.layer[-1].parameters()]
        assert not any(p in known for p in last) and learn.model.body.get_input_embeddings().weight in known

def penalty(learn, cls): return float(next(o for o in learn.cbs if isinstance(o, cls)).value)

def test_a_summary_before_the_first_fit(stages, capsys):
    for cbs in ([AuxiliaryLM()], [L2SP()], [EWC(stages['fisher'], 1.)], [Mixout()]): assert 'Total trainable params' in str(classifier(stages['bert'], *cbs).summary())

@pytest.mark.skipif(importlib.util.find_spec('peft') is None, reason='peft is an extra')
def test_lora_beside_and_below(stages, tmp_path, deeper):
    learn = classifier(stages['bert'], EWC(stages['fisher'], 1.)); add_lora(learn.model)
    def change(): return forgetting(learn, ['good work', 'a test of the tests']).change['now']
    assert change()==0
    quiet(learn, 1, 1e-2)
    assert change()!=0
    lm = lm_learner(lm_dls(df, tiny_tok(), seq_len=32, bs=16), stages['bert']); add_lora(lm.model)
    quiet(lm, 1, 1e-2)
    fisher = fisher_diagonal(lm, n=3)
    assert fisher.keys()==stages['fisher'].keys()
    assert penalty(quiet(classifier(lm.save_encoder(tmp_path/'lm'), EWC(fisher, 1.)), 1, 1e-3), EWC)>0
    arch = deeper(stages['bert'])
    learn = classifier(arch); add_lora(learn.model)
    top = {n:p for n,p in learn.model.body.named_parameters() if '.layer.2.' in n}
    assert top and all(p.requires_grad for p in top.values()), 'what began at random trains'
    assert not loaded_weights(learn.model)&{*top.values()}
    quiet(learn, 1, 1e-2); a = learn.get_preds()[0]
    new = classifier(arch, seed=5)
    load_adapters(new.model, save_adapters(learn.model, tmp_path/'a.safetensors')); new.opt = None
    assert torch.equal(new.get_preds()[0], a)
