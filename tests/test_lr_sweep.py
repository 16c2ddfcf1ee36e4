"A sweep of learning rates finds a rate and leaves no trace"
import random
import numpy as np, pandas as pd, pytest, torch
import fastai.callback.schedule # lr_find
from functools import partial
from torch import nn
from fastai.basics import Adam, Callback, CancelBatchException, DataLoaders, Learner, OptimWrapper, defaults, ranger
from fastai.data.block import CategoryBlock
from fastai.callback.progress import CSVLogger, ProgressCallback
from fastai.callback.tracker import SaveModelCallback
from fastai.callback.training import GradientAccumulation, GradientClip
from fastai.torch_core import set_seed
from fastformers.callback.compute import TokenAccumulation
from fastformers.models.adapters import add_adapters
from fastformers.data.block import classifier_dls, lm_dls
from fastformers.callback.frozen_cache import FrozenCache
from fastformers.learner.core import classifier_learner, lm_learner
from fastformers.callback.lr_find import find_fall, usual_lrs
from fastformers.objectives.clm import CLM
from fastformers.callback.regularize import L2SP, Mixout
from fastformers.callback.resume import Resume
from fastformers.callback.schedule import gradual_unfreeze
from fastformers.testing import tiny_arch, tiny_df, tiny_tok
from fastformers.callback.compute import cpu_bf16

short = dict(num_it=12, restarts=2, end_lr=1., show_plot=False)

def classifier(df=None, bs=8, arch=None, **kwargs):
    set_seed(0)
    return classifier_learner(classifier_dls(tiny_df() if df is None else df, tiny_tok(), bs=bs, device='cpu'), arch or tiny_arch('bert', num_hidden_layers=2), **kwargs)

def lm(bs=8, **kwargs):
    set_seed(0)
    return lm_learner(lm_dls(tiny_df(), tiny_tok(), seq_len=32, bs=bs, device='cpu'), tiny_arch('bert', num_hidden_layers=1), **kwargs)

def fit(learn, n=1, **kwargs):
    with learn.no_logging(): learn.fit_one_cycle(n, 1e-3, **kwargs)
    return learn

def sweep(learn, **kwargs): return learn.lr_sweep(**{**short, **kwargs})

def tensors(o, seen=None):
    "What is in `o`, without the objects around it: bits of tensors, numbers, in their order"
    if isinstance(o, torch.Tensor): return 'tensor', tuple(o.shape), str(o.dtype), o.detach().cpu().numpy().tobytes()
    if isinstance(o, dict): return [(tensors(k), tensors(v)) for k,v in o.items()]
    if isinstance(o, (list,tuple)) or type(o).__name__=='L': return [tensors(v) for v in o]
    if isinstance(o, np.ndarray): return o.tobytes()
    return o if isinstance(o, (int,float,str,bool,type(None))) else id(o)

def everything(learn):
    "All that a sweep could have moved"
    opt,dl = learn.opt,learn.dls.train
    return dict(model=tensors(learn.model.state_dict()), open=[p.requires_grad for p in learn.model.parameters()], grads=[tensors(p.grad) for p in learn.model.parameters()],
        modes=[m.training for m in learn.model.modules()], hooks=[len(m._forward_hooks)+len(m._forward_pre_hooks) for m in learn.model.modules()],
        opt=id(opt), memory=None if opt is None else tensors(opt.state_dict()), hypers=None if opt is None else tensors([dict(h) for h in opt.hypers]), frozen=getattr(opt,'frozen_idx',None),
        learner={k:tensors(v) for k,v in vars(learn).items()}, cbs={o.name:{k:tensors(v) for k,v in vars(o).items()} for o in learn.cbs}, metrics=[tensors(vars(o)) for o in learn.metrics],
        random=[random.getstate(), tensors(list(np.random.get_state())), tensors(torch.get_rng_state())], loaders=[(o.passes, o.rng.getstate()) for o in learn.dls.loaders],
        tfms=[(id(f), {k:tensors(v) for k,v in vars(f).items()}) for f in dl.after_batch.fs], autocast=torch.is_autocast_enabled('cpu'))

def same(a, b):
    for k in a: assert a[k]==b[k], k

opts = dict(fused=None, adam=Adam, sgd=partial(OptimWrapper, opt=torch.optim.SGD, momentum=.9), adamw=partial(OptimWrapper, opt=torch.optim.AdamW), ranger=ranger)

@pytest.mark.parametrize('name', opts)
@pytest.mark.parametrize('used', [False,True])
def test_no_trace(name, used):
    learn = classifier(**({'opt_func':opts[name]} if opts[name] else {}))
    if used: fit(learn)
    before = everything(learn)
    trace(learn)
    same(before, everything(learn))

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

def trace(learn, **kwargs):
    "A sweep of what may be unable to learn"
    try: return sweep(learn, **kwargs)
    except ValueError as e: assert 'falls nowhere' in str(e) or 'lost after' in str(e), e

class Boom(Callback):
    "Raise at the `at`-th time of `event`"
    def __init__(self, event, at, ex): self.n,self.at,self.ex = 0,at,ex; setattr(self, event, self.count)
    def count(self):
        self.n += 1
        if self.n==self.at: raise self.ex

@pytest.mark.parametrize('ex', [KeyboardInterrupt(),RuntimeError('out of memory')])
@pytest.mark.parametrize('event,at', [('before_fit',2),('after_pred',5),('before_step',1),('before_step',17),('after_step',3)])
def test_no_trace_when_interrupted(event, at, ex, pretrained):
    learn = fit(classifier(arch=pretrained, cbs=[Mixout(.1), cpu_bf16(enabled=True), L2SP()]))
    learn.add_cb(boom := Boom(event, at, ex))
    if event=='before_fit': boom.timed = True
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

def test_progress_bar(capsys):
    learn = lm(cbs=ProgressCallback())
    before = everything(learn)
    sweep(learn, num_it=20)
    same(before, everything(learn))
    assert '40/40' in capsys.readouterr().out

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
    for cb in (GradientAccumulation(16), GradientAccumulation(1000)): # the second takes more than a pass for a step
        learn = classifier(cbs=cb)
        before = everything(learn)
        trace(learn, restarts=1)
        same(before, everything(learn))

def test_cache_of_frozen_layers_keeps_to_its_own():
    "A sweep in between, with other groups open, must not leave its states in the cache"
    def run(look):
        learn = classifier(cbs=FrozenCache())
        learn.freeze(); fit(learn)
        learn.freeze_to(-2)
        if look: trace(learn)
        learn.freeze(); set_seed(5)
        return [float(o) for o in fit(learn).recorder.losses]
    assert run(False)==run(True)

def test_few_batches():
    learn = lm(bs=64)
    assert len(learn.dls.train)<3
    before,found = everything(learn),sweep(learn, num_it=20)
    same(before, everything(learn))
    assert found.low<=found.lr<=found.high

def test_restarts_see_other_batches_and_a_repeated_sweep_the_same():
    learn = lm(drop_mult=0.)
    a,b = sweep(learn, num_it=20),sweep(learn, num_it=20)
    assert abs(a.curves.iloc[0,0]-a.curves.iloc[0,1])<.1 # from the same weights
    assert a==b and a.curves.equals(b.curves) and not np.allclose(a.curves[0], a.curves[1])
    assert sweep(learn, num_it=20, restarts=1).curves[0].equals(a.curves[0])

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
    with pytest.raises(ValueError, match=f'lost after {at-1} of 12 steps'): sweep(learn)
    same(before, everything(learn))

def test_number_after_which_there_are_none():
    found = sweep(lm(cbs=NaN(25)), num_it=30)
    assert len(found.curves)==24 and found.curves.notna().all().all()

def test_diverging_at_once():
    learn = classifier()
    before = everything(learn)
    with pytest.raises(ValueError, match='falls nowhere|lost after'): sweep(learn, start_lr=10., end_lr=1e4)
    same(before, everything(learn))

def test_one_class():
    "All labels alike, and a vocabulary of two: there is something to learn, and it is learnt fast"
    set_seed(0)
    dls = classifier_dls(tiny_df().assign(label='good'), tiny_tok(), y_block=CategoryBlock(vocab=['bad','good']), bs=8, device='cpu')
    found = sweep(classifier_learner(dls, tiny_arch('bert', num_hidden_layers=1)), num_it=30, end_lr=.1)
    assert found.curves.mean(axis=1).min()<.1

def test_nothing_open_and_nothing_there():
    learn = classifier()
    for p in learn.model.parameters(): p.requires_grad_(False)
    with pytest.raises(ValueError, match='nothing is open'): sweep(learn)
    learn = classifier()
    learn.dls.train.drop_last,learn.dls.train.bs = True,10_000
    with pytest.raises(ValueError, match='no batch'): sweep(learn)

def test_wrong_learner():
    dl = torch.utils.data.DataLoader([(torch.ones(2), torch.ones(1))]*4)
    learn = Learner(DataLoaders(dl, dl), nn.Linear(2,1), loss_func=nn.MSELoss())
    with pytest.raises((TypeError,AttributeError), match='no texts tokenized'): learn.lr_sweep()

@pytest.mark.parametrize('wrong,says', [(dict(start_lr=0.), 'start_lr'), (dict(start_lr=1., end_lr=.1), 'end_lr'), (dict(num_it=5), 'num_it'), (dict(restarts=0), 'restarts'), (dict(discr=[1.]*3), 'a row of 4 shares'), (dict(end_lr=float('inf')), 'end_lr')])
def test_wrong_arguments(wrong, says):
    learn = classifier()
    before = everything(learn)
    with pytest.raises(ValueError, match=says): sweep(learn, **wrong)
    same(before, everything(learn))

def test_who_looks_on_takes_no_part(tmp_path):
    learn = classifier(cbs=[CSVLogger(tmp_path/'history.csv'), SaveModelCallback(), Resume(tmp_path/'ckpt', every=1)], path=tmp_path)
    trace(learn)
    assert not any(tmp_path.rglob('*.*'))

class Opens(Callback):
    "Opens all groups, and says that it acts within a step"
    def before_fit(self): [p.requires_grad_(True) for p in self.model.parameters()]
    def before_batch(self): pass

def test_groups_that_a_callback_opens_are_frozen_again():
    learn = classifier(cbs=Opens)
    learn.freeze_to(-1)
    before = everything(learn)
    trace(learn)
    same(before, everything(learn))

def test_restarts_begin_with_other_batches():
    class First(Callback):
        order = 5
        def before_batch(self):
            if not self.iter: firsts.append(self.xb[0].cpu().numpy().tobytes())
    learn,firsts = classifier(bs=2, cbs=First()),[]
    assert len(learn.dls.train)>12
    trace(learn, restarts=3)
    assert len(set(firsts))==3

class Skips(Callback):
    def before_batch(self): raise CancelBatchException()

def test_ends_when_every_batch_is_skipped():
    with pytest.raises(ValueError, match='lost after 0 of 12'): sweep(classifier(cbs=Skips()))

def test_long_and_odd_texts():
    texts = ['', ' ', '😡'*50, 'word '*20_000, '\x00', *'plain']
    learn = classifier(pd.DataFrame({'text':texts, 'label':['a','b']*5, 'is_valid':[False]*8+[True]*2}), bs=4)
    before = everything(learn)
    trace(learn)
    same(before, everything(learn))

def test_causal_language_model():
    tok = tiny_tok('gpt2')
    set_seed(0)
    learn = lm_learner(lm_dls(tiny_df(), tok, objective=CLM(tok), seq_len=32, bs=8, device='cpu'), tiny_arch('gpt2'))
    found = sweep(learn, num_it=20)
    assert 1e-5<found.lr<1 and found.usual[:2]==(1e-4,6e-4)

def test_suggestion_follows_the_fall():
    rates = np.geomspace(1e-6, 1, 61)
    for lowest in (-2.4,-2,-1.5): # the suggestion goes where the fall is
        lr,low,high = find_fall([np.interp(np.log10(rates), [lowest-2,lowest,lowest+1], [2,1,1.5])], rates)
        assert abs(np.log10(lr)-(lowest-np.log10(8)))<.1 and abs(np.log10(high)-lowest)<.11 and abs(np.log10(low)-(lowest-1.8))<.15

def test_lr_find_is_still_fastais():
    learn = classifier()
    assert set(learn.lr_find(num_it=10, show_plot=False)._fields)=={'valley'}

def test_usual_rates_by_size():
    class Model(nn.Module):
        def __init__(self, n): super().__init__(); self.config = tiny_arch('bert'); self.config.hidden_size = n
    assert usual_lrs(Model(768))[:2]==(2e-5,5e-5) and usual_lrs(Model(384))[:2]==(3e-5,3e-4) and usual_lrs(nn.Linear(1,1)) is None

def test_what_suggests_nothing_is_drawn_too():
    import matplotlib.pyplot as plt
    plt.close('all')
    learn = classifier(); learn.freeze()
    with pytest.raises(ValueError, match='falls nowhere') as e: sweep(learn, start_lr=1e-9, end_lr=1e-8, show_plot=True)
    assert e.value.curves.shape==(12,2) and len(plt.get_fignums())==1 and 'No rate is suggested' in plt.gca().get_title()
    with pytest.raises(ValueError, match='lost after 0 of 12') as e: sweep(classifier(cbs=NaN(1)), show_plot=True)
    assert not len(e.value.curves) and len(plt.get_fignums())==1
    plt.close('all')

def test_rates_of_groups_in_any_form():
    learn = lm(drop_mult=0.)
    want = sweep(learn, num_it=20, discr=2.6)
    for o in (np.array(2.6), torch.tensor(2.6, dtype=torch.float64), (1/2.6)**np.arange(len(learn.opt.param_lists) if learn.opt else len(learn.splitter(learn.model)))[::-1]): assert sweep(learn, num_it=20, discr=o)==want
    for bad in ([2.6], [1.,2.], float('nan')):
        with pytest.raises(ValueError, match='pass a row of'): sweep(learn, discr=bad)
