"No trial has a lasting effect"
import random
import numpy as np, pytest, torch
from functools import partial
from fastai.basics import Adam, Callback, OptimWrapper, defaults, ranger
from fastai.callback.progress import CSVLogger, ProgressCallback
from fastai.callback.tracker import SaveModelCallback
from fastai.callback.training import GradientAccumulation, GradientClip
from fastai.torch_core import set_seed
from fastformers.callback.budget import epochs_for, trial
from fastformers.callback.compute import TokenAccumulation, cpu_bf16
from fastformers.callback.regularize import L2SP, Mixout
from fastformers.callback.resume import Resume
from fastformers.callback.schedule import gradual_unfreeze
from fastformers.data.block import classifier_dls, lm_dls
from fastformers.learner.core import classifier_learner, lm_learner
from fastformers.models.adapters import add_adapters
from fastformers.testing import tiny_arch, tiny_df, tiny_tok

def classifier(arch=None, bs=8, **kwargs):
    set_seed(0)
    return classifier_learner(classifier_dls(tiny_df(), tiny_tok(), bs=bs, device='cpu'), arch or tiny_arch('bert', num_hidden_layers=2), **kwargs)

def lm(bs=8, **kwargs):
    set_seed(0)
    return lm_learner(lm_dls(tiny_df(), tiny_tok(), seq_len=32, bs=bs, device='cpu'), tiny_arch('bert', num_hidden_layers=1), **kwargs)

def fit(learn, n=1, **kwargs):
    with learn.no_logging(): learn.fit_one_cycle(n, 1e-3, **kwargs)
    return learn

def trace(learn, n=2, lr=.1):
    "Train a copy of `learn`"
    with trial(learn) as new, new.no_logging(): new.fit(n, lr)

def tensors(o, seen=None):
    "The tensors and numbers in `o`, in their order"
    if isinstance(o, torch.Tensor): return 'tensor', tuple(o.shape), str(o.dtype), o.detach().cpu().numpy().tobytes()
    if isinstance(o, dict): return [(tensors(k), tensors(v)) for k,v in o.items()]
    if isinstance(o, (list,tuple)) or type(o).__name__=='L': return [tensors(v) for v in o]
    if isinstance(o, np.ndarray): return o.tobytes()
    return o if isinstance(o, (int,float,str,bool,type(None))) else id(o)

def everything(learn):
    "All that a trial could have changed"
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
    trace(learn); epochs_for(learn, 1)
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
    with pytest.raises(type(ex)): trace(learn)
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
    "Note what moves in a trial"
    order = 2000
    def before_fit(self): self.start = [p.detach().clone() for p in self.model.parameters()]
    def before_batch(self): pass
    def after_step(self): seen.update(k for (k,p),o in zip(self.model.named_parameters(), self.start) if not torch.equal(p, o))
seen = set()

@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    seen.clear()
    monkeypatch.setattr(defaults, 'callbacks', [o for o in defaults.callbacks if o is not ProgressCallback])

def test_frozen_groups_do_not_move():
    learn = classifier(cbs=Watch())
    learn.freeze_to(-2)
    found = {k for k,p in learn.model.named_parameters() if p.requires_grad}
    trace(learn)
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

def test_accumulation():
    for n in (16, 1000): # the second takes more than an epoch for a step
        learn = classifier(cbs=GradientAccumulation(n))
        before = everything(learn)
        trace(learn)
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
