"What only a GPU can show: half precision as it is there, checkpointing and compiled blocks, a run that is continued; all on tiny models, about a minute"
import pytest, torch
from test_contracts_common import Power
from fastai.basics import Callback, set_seed
from fastai.callback.fp16 import MixedPrecision
from fastformers.callback.compute import TokenAccumulation
from fastformers.data.block import classifier_dls, lm_dls
from fastformers.learner.core import classifier_learner, lm_learner
from fastformers.learner.evaluate import evaluate
from fastformers.callback.resume import Resume
from fastformers.callback.schedule import gradual_unfreeze
from fastformers.testing import tiny_arch, tiny_df, tiny_tok

pytestmark = pytest.mark.gpu
device = 'cuda'
df = tiny_df()
half = dict(fp32=lambda: [], bf16=lambda: [MixedPrecision('bf16')], fp16=lambda: [MixedPrecision('fp16')])

class Keep(Callback):
    "Keep the gradient of each step, as float32 without the scale of the loss"
    order = MixedPrecision.order+2
    def before_fit(self): self.grads = []
    def before_step(self):
        scale = getattr(self.learn, 'scaler', None)
        self.scale = scale.get_scale() if scale is not None else 1.
        self.grads.append(torch.cat([p.grad.flatten() for p in self.model.parameters() if p.grad is not None]).clone())

def lm(*cbs, family='bert', bs=8, drop_mult=1.):
    set_seed(0)
    return lm_learner(lm_dls(df, tiny_tok(family), seq_len=64, bs=bs, device=device), tiny_arch(family), drop_mult=drop_mult, cbs=[Keep(), *cbs])
def classifier(*cbs, drop_mult=1.):
    set_seed(0)
    return classifier_learner(classifier_dls(df, tiny_tok(), bs=8, device=device), tiny_arch('bert'), drop_mult=drop_mult, cbs=[Keep(), *cbs])
def fit(learn, how=lambda o: o.fit(3, 1e-3)):
    set_seed(1)
    with learn.no_logging(), learn.no_bar(): how(learn)
    return learn
def losses(learn): return torch.stack([o.float().cpu() for o in learn.recorder.losses])
def far(a, b):
    "The largest difference of gradients, relative to the largest gradient, over all steps"
    assert len(a.keep.grads)==len(b.keep.grads)>0
    return max(float((x-y).abs().max()/x.abs().max()) for x,y in zip(a.keep.grads, b.keep.grads))

@pytest.mark.parametrize('make', [lm, classifier])
@pytest.mark.parametrize('kind', ['bf16','fp16'])
def test_half_precision_learns_as_fp32(kind, make):
    how = lambda o: o.fit(8, 1e-3)
    a,b = fit(make(drop_mult=0.), how),fit(make(*half[kind](), drop_mult=0.), how)
    assert next(b.model.parameters()).device.type==device and next(b.model.parameters()).dtype==torch.float32
    x,y = losses(a),losses(b)
    assert x[-1]<x[0]-.1 and 0<(x-y).abs().max()<x.max()*2**-6, 'two units in the last place of bfloat16'
    assert all(v.isfinite().all() for v in b.model.state_dict().values() if v.is_floating_point())
    metrics,score,weight = evaluate(b)
    assert metrics['loss']==pytest.approx(evaluate(a)[0]['loss'], rel=2**-6) and len(score)==len(weight)

@pytest.mark.parametrize('family', ['bert','gpt2','modernbert'])
@pytest.mark.parametrize('kind', list(half))
def test_checkpointing_leaves_gradients(kind, family):
    a,b = fit(lm(*half[kind](), family=family)),fit(lm(*half[kind](), family=family, gradient_checkpointing=True))
    assert far(a, b)<(1e-4 if kind=='fp32' else 1e-2), 'with dropout; a GPU adds in an order of its own'
    assert torch.allclose(losses(a), losses(b), rtol=1e-5 if kind=='fp32' else 1e-2)

def test_checkpointing_takes_less_memory():
    def peak(**kwargs):
        learn = lm(bs=64, **kwargs)
        fit(learn, lambda o: o.fit(1, 1e-3))
        torch.cuda.empty_cache(); torch.cuda.reset_peak_memory_stats()
        start = torch.cuda.memory_allocated()
        fit(learn, lambda o: o.fit(1, 1e-3))
        return torch.cuda.max_memory_allocated()-start
    assert peak(gradient_checkpointing=True)<peak()

@pytest.mark.parametrize('make', [lm, classifier])
@pytest.mark.parametrize('kind', list(half))
def test_compiled_blocks_equal_plain(kind, make):
    torch._dynamo.reset()
    a,b = (fit(make(*half[kind](), drop_mult=0., compile_blocks=o)) for o in (False, True))
    eps = 1e-4 if kind=='fp32' else 2**-6
    assert (losses(a)-losses(b)).abs().max()<eps*losses(a).max()
    assert a.model.state_dict().keys()==b.model.state_dict().keys()

def test_checkpointing_and_compiled_blocks_with_a_schedule():
    torch._dynamo.reset()
    how = lambda o: o.fit_schedule(gradual_unfreeze, 1e-3, epochs=6)
    a,b = fit(lm(drop_mult=0.), how),fit(lm(drop_mult=0., gradient_checkpointing=True, compile_blocks=True), how)
    assert (losses(a)-losses(b)).abs().max()<1e-4*losses(a).max()

@pytest.mark.parametrize('kind', list(half))
def test_resume_goes_on(kind, tmp_path):
    "Dropout draws from the GPU's own random state, which is saved too"
    how = lambda o: o.fit_one_cycle(3, 1e-3)
    whole = fit(lm(*half[kind]()), how)
    with pytest.raises(KeyboardInterrupt): fit(lm(*half[kind](), Resume(tmp_path/'r', every=1), Power(7)), how)
    learn = fit(lm(*half[kind](), Resume(tmp_path/'r', every=1)), how)
    assert learn.keep.scale==whole.keep.scale and next(learn.model.parameters()).device.type==device
    n = len(losses(whole))
    assert len(losses(learn))==n and (losses(whole)-losses(learn)).abs().max()<(1e-4 if kind=='fp32' else 2**-6)*losses(whole).max()
    for p,q in zip(whole.model.parameters(), learn.model.parameters()): assert (p-q).abs().max()<1e-2

@pytest.mark.parametrize('kind', list(half))
def test_accumulated_gradients_are_those_of_the_large_batch(kind):
    a = fit(lm(*half[kind](), bs=1000, drop_mult=0.), lambda o: o.fit(1, 1e-3))
    b = fit(lm(*half[kind](), TokenAccumulation(n_acc=10**6), bs=8, drop_mult=0.), lambda o: o.fit(1, 1e-3))
    assert len(a.keep.grads)==len(b.keep.grads)==1 and a.keep.scale==b.keep.scale
    assert far(a, b)<(1e-4 if kind=='fp32' else 2**-5)

def test_an_overflow_skips_the_window_and_no_more():
    learn = lm(MixedPrecision('fp16', init_scale=2.**40), TokenAccumulation(n_acc=16))
    fit(learn, lambda o: o.fit(12, 1e-3))
    assert learn.keep.scale<2.**40 and all(o.isfinite() for o in losses(learn)) and losses(learn)[-1]<losses(learn)[0]
    assert all(v.isfinite().all() for v in learn.model.state_dict().values() if v.is_floating_point())

def test_a_probe_comes_before_the_first_fit():
    learn = classifier_learner(classifier_dls(df, tiny_tok('bert'), bs=8, device=device), tiny_arch('bert')).fit_probe()
    assert {p.device.type for p in learn.model.parameters()}=={'cuda'} and evaluate(learn)[1].mean()>.5
