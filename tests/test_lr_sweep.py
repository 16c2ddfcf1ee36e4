"A sweep of learning rates finds a rate, and no trial has a lasting effect"
import random
import matplotlib.pyplot as plt, numpy as np, pytest, torch
from functools import partial
from fastai.basics import Adam, Callback, OptimWrapper, defaults, ranger
from fastai.callback.progress import CSVLogger, ProgressCallback
from fastai.callback.schedule import lr_find
from fastai.callback.tracker import SaveModelCallback
from fastai.callback.training import GradientAccumulation, GradientClip
from fastai.torch_core import set_seed
from fastformers.callback.compute import TokenAccumulation, cpu_bf16
from fastformers.callback.lr_find import find_fall
from fastformers.callback.regularize import L2SP, Mixout
from fastformers.callback.resume import Resume
from fastformers.callback.schedule import gradual_unfreeze
from fastformers.data.block import classifier_dls, lm_dls
from fastformers.learner.core import classifier_learner, lm_learner
from fastformers.models.adapters import add_adapters
from fastformers.objectives.clm import CLM
from fastformers.testing import tiny_arch, tiny_df, tiny_tok

short = dict(num_it=12, restarts=2, end_lr=1., show_plot=False)

def classifier(arch=None, bs=8, **kwargs):
    set_seed(0)
    return classifier_learner(classifier_dls(tiny_df(), tiny_tok(), bs=bs, device='cpu'), arch or tiny_arch('bert', num_hidden_layers=2), **kwargs)

def lm(bs=8, **kwargs):
    set_seed(0)
    return lm_learner(lm_dls(tiny_df(), tiny_tok(), seq_len=32, bs=bs, device='cpu'), tiny_arch('bert', num_hidden_layers=1), **kwargs)

def fit(learn, n=1, **kwargs):
    with learn.no_logging(): learn.fit_one_cycle(n, 1e-3, **kwargs)
    return learn

def sweep(learn, **kwargs): return learn.lr_sweep(**{**short, **kwargs})

def tensors(o, seen=None):
    "The tensors and numbers in `o`, in their order"
    if isinstance(o, torch.Tensor): return 'tensor', tuple(o.shape), str(o.dtype), o.detach().cpu().numpy().tobytes()
    if isinstance(o, dict): return [(tensors(k), tensors(v)) for k,v in o.items()]
    if isinstance(o, (list,tuple)) or type(o).__name__=='L': return [tensors(v) for v in o]
    if isinstance(o, np.ndarray): return o.tobytes()
    return o if isinstance(o, (int,float,str,bool,type(None))) else id(o)

def everything(learn):
    "All that a sweep could have changed"
    opt,dl = learn.opt,learn.dls.train
    return dict(model=tensors(learn.model.state_dict()), open=[p.requires_grad for p in learn.model.parameters()], grads=[tensors(p.grad) for p in learn.model.parameters()],
        modes=[m.training for m in learn.model.modules()], hooks=[len(m._forward_hooks)+len(m._forward_pre_hooks) for m in learn.model.modules()],
        opt=id(opt), memory=None if opt is None else tensors(opt.state_dict()), hypers=None if opt is None else tensors([dict(h) for h in opt.hypers]), frozen=getattr(opt,'frozen_idx',None),
        learner={k:tensors(v) for k,v in vars(learn).items()}, cbs={o.name:{k:tensors(v) for k,v in vars(o).items()} for o in learn.cbs}, metrics=[tensors(vars(o)) for o in learn.metrics],
        random=[random.getstate(), tensors(list(np.random.get_state())), tensors(torch.get_rng_state())], loaders=[(o.passes, o.rng.getstate()) for o in learn.dls.loaders],
        tfms=[(id(f), {k:tensors(v) for k,v in vars(f).items()}) for f in dl.after_batch.fs], autocast=torch.is_autocast_enabled('cpu'))

def same(a, b):
    for k in a: assert a[k]==b[k], k

opts = dict(adam=Adam, sgd=partial(OptimWrapper, opt=torch.optim.SGD, momentum=.9), adamw=partial(OptimWrapper, opt=torch.optim.AdamW), ranger=ranger)

def trace(learn, **kwargs):
    "A sweep of a learner that may be unable to learn"
    try: return sweep(learn, **kwargs)
    except ValueError as e: assert 'falls nowhere' in str(e) or 'exploded after' in str(e), e

@pytest.mark.parametrize('name', opts)
def test_no_trace(name):
    learn = classifier(opt_func=opts[name])
    for _ in range(2): # without an optimizer, and with one that has a state
        before = everything(learn)
        trace(learn)
        same(before, everything(learn))
        fit(learn)

@pytest.mark.parametrize('make', [classifier,lm])
def test_no_trace_after_a_schedule(make):
    learn = make(cbs=[GradientClip(1.), TokenAccumulation(n_acc=12)])
    with learn.no_logging(): learn.fit_schedule(gradual_unfreeze, 1e-3, epochs=3)
    learn.freeze_to(-2); next(learn.model.parameters()).grad = torch.ones_like(next(learn.model.parameters()))
    before = everything(learn)
    trace(learn)
    same(before, everything(learn))

@pytest.fixture(scope='module')
def pretrained(tmp_path_factory): return lm().save_encoder(tmp_path_factory.mktemp('lm')/'lm')

class Boom(Callback):
    "Raise at the `at`-th time of `event`"
    def __init__(self, event, at, ex): self.n,self.at,self.ex = 0,at,ex; setattr(self, event, self.count)
    def count(self):
        self.n += 1
        if self.n==self.at: raise self.ex

@pytest.mark.parametrize('ex', [KeyboardInterrupt(),RuntimeError('out of memory')])
@pytest.mark.parametrize('event,at', [('after_pred',5),('before_step',7)])
def test_no_trace_when_interrupted(event, at, ex, pretrained):
    learn = fit(classifier(pretrained, cbs=[Mixout(.1), cpu_bf16(enabled=True), L2SP()]))
    learn.add_cb(Boom(event, at, ex))
    before = everything(learn)
    with pytest.raises(type(ex)): sweep(learn)
    same(before, everything(learn))

@pytest.mark.parametrize('make', [classifier,lm])
def test_training_afterwards_is_the_same(make):
    def run(look):
        learn = fit(make()) # `make` sets the seed
        if look: trace(learn)
        return fit(learn, 2)
    a,b = run(False),run(True)
    assert list(map(float, a.recorder.losses))==list(map(float, b.recorder.losses)) and list(map(list, a.recorder.values))==list(map(list, b.recorder.values))
    same({'model':tensors(a.model.state_dict())}, {'model':tensors(b.model.state_dict())})

class Watch(Callback):
    "Note what moves in a sweep"
    order = 2000
    def before_fit(self): self.start,self.moved,self.lrs = [p.detach().clone() for p in self.model.parameters()],set(),[]
    def before_batch(self): pass
    def after_step(self):
        self.lrs.append([h['lr'] for h in self.opt.hypers])
        seen.update(k for (k,p),o in zip(self.model.named_parameters(), self.start) if not torch.equal(p, o))
        rates.append(self.lrs[-1])
seen,rates = set(),[]

@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    seen.clear(); rates.clear()
    monkeypatch.setattr(defaults, 'callbacks', [o for o in defaults.callbacks if o is not ProgressCallback])

def test_frozen_groups_do_not_move():
    learn = classifier(cbs=Watch())
    learn.freeze_to(-2)
    found = {k for k,p in learn.model.named_parameters() if p.requires_grad}
    trace(learn, end_lr=.1)
    assert seen and seen<=found and len(seen)>len(found)//2

def test_adapters_alone_move():
    learn = classifier()
    add_adapters(learn.model); learn.opt = None
    learn.add_cb(Watch())
    found = {k for k,p in learn.model.named_parameters() if p.requires_grad}
    before = everything(learn)
    trace(learn)
    same(before, everything(learn))
    assert seen and seen<=found

def test_rates_grow_and_groups_keep_their_share():
    learn = classifier(cbs=Watch())
    trace(learn, discr=2., restarts=1, end_lr=.1)
    got = np.array(rates)
    np.testing.assert_allclose(got[:,-1], np.geomspace(1e-6, .1, 12)[:len(got)])
    np.testing.assert_allclose(got[:,1:]/got[:,:-1], 2.)

def test_accumulation_counts_steps():
    learn = classifier(cbs=[TokenAccumulation(n_acc=16), Watch()])
    trace(learn, restarts=1, end_lr=.1)
    assert len(rates)==len({o[-1] for o in rates})==12
    for cb in (GradientAccumulation(16), GradientAccumulation(1000)): # the second takes more than an epoch for a step
        learn = classifier(cbs=cb)
        before = everything(learn)
        trace(learn, restarts=1)
        same(before, everything(learn))

def test_few_batches():
    learn = fit(lm(bs=64))
    assert len(learn.dls.train)<3
    before,found = everything(learn),sweep(learn, num_it=20)
    same(before, everything(learn))
    assert found.low<=found.lr<=found.high

def test_restarts_see_other_batches_and_a_repeated_sweep_the_same():
    firsts = []
    class First(Callback):
        order = 5
        def before_batch(self):
            if not self.iter: firsts.append(self.xb[0].cpu().numpy().tobytes())
    learn = classifier(bs=2, cbs=First())
    assert len(learn.dls.train)>12
    a = trace(learn, restarts=3)
    assert len(set(firsts))==3 and trace(learn, restarts=3)==a and len(set(firsts))==3

class NaN(Callback):
    "From the `at`-th batch on the loss is no number"
    order = 5
    def __init__(self, at): self.n,self.at = 0,at
    def before_fit(self): self.n = 0
    def after_loss(self):
        self.n += 1
        if self.n>=self.at: self.learn.loss_grad = self.loss_grad*float('nan'); self.learn.loss = self.learn.loss_grad.clone()

@pytest.mark.parametrize('at', [1,5])
def test_loss_that_is_no_number(at):
    learn = classifier(cbs=NaN(at))
    before = everything(learn)
    with pytest.raises(ValueError, match=f'exploded after {at-1} of 12 steps'): sweep(learn)
    same(before, everything(learn))

def test_logs_and_checkpoints_are_not_written(tmp_path):
    learn = classifier(cbs=[CSVLogger(tmp_path/'history.csv'), SaveModelCallback(), Resume(tmp_path/'ckpt', every=1)], path=tmp_path)
    trace(learn)
    assert not any(tmp_path.rglob('*.*'))

def test_groups_that_a_callback_unfreezes_are_frozen_again():
    class Unfreeze(Callback):
        def before_fit(self): [p.requires_grad_(True) for p in self.model.parameters()]
        def before_batch(self): pass
    learn = classifier(cbs=Unfreeze)
    learn.freeze_to(-1)
    before = everything(learn)
    trace(learn)
    same(before, everything(learn))

def test_causal_language_model():
    tok = tiny_tok('gpt2')
    set_seed(0)
    learn = lm_learner(lm_dls(tiny_df(), tok, objective=CLM(tok), seq_len=32, bs=8, device='cpu'), tiny_arch('gpt2'))
    assert 1e-5<sweep(learn, num_it=20).lr<1

def test_suggestion_follows_the_fall():
    rates = np.geomspace(1e-6, 1, 61)
    for lowest in (-2.4,-2,-1.5):
        lr,low,high = find_fall([np.interp(np.log10(rates), [lowest-2,lowest,lowest+1], [2,1,1.5])], rates)
        assert abs(np.log10(lr)-(lowest-np.log10(8)))<.1 and abs(np.log10(high)-lowest)<.11 and abs(np.log10(low)-(lowest-1.8))<.15

def test_lr_find_is_still_fastais():
    assert set(classifier().lr_find(num_it=10, show_plot=False)._fields)=={'valley'}

def test_a_sweep_that_suggests_nothing_is_drawn_too():
    plt.close('all')
    learn = classifier(); learn.freeze()
    with pytest.raises(ValueError, match='falls nowhere'): sweep(learn, start_lr=1e-9, end_lr=1e-8, show_plot=True)
    assert len(plt.get_fignums())==1 and 'No suggestion' in plt.gca().get_title()
    with pytest.raises(ValueError, match='exploded after 0 of 12'): sweep(classifier(cbs=NaN(1)), show_plot=True)
    plt.close('all')
