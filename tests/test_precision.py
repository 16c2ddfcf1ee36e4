"Half precision: bfloat16 stays near float32; a scaled loss (skipped steps) works with the other callbacks"
import pytest, torch
from fastai.basics import Callback, L, set_seed
from fastai.callback.fp16 import MixedPrecision
from fastai.callback.training import GradientClip
from fastformers.models import fast_cpu
from fastformers.callback.compute import TokenAccumulation, cpu_bf16, precision
from fastformers.callback.resume import Resume
from fastformers.callback.schedule import gradual_unfreeze
from fastformers.data.block import classifier_dls, lm_dls
from fastformers.inference.stage_json import read_stage
from fastformers.learner.core import classifier_learner, lm_learner
from fastformers.testing import tiny_arch, tiny_df, tiny_tok

df = tiny_df().iloc[:32].assign(is_valid=[i%4==3 for i in range(32)])
def lm(*cbs, drop_mult=1.):
    set_seed(0)
    return lm_learner(lm_dls(df, tiny_tok(), seq_len=32, bs=4, device='cpu'), tiny_arch('bert'), drop_mult=drop_mult, precision='fp32', cbs=list(cbs))
def classifier(*cbs, drop_mult=1.):
    set_seed(0)
    return classifier_learner(classifier_dls(df, tiny_tok(), bs=4, device='cpu'), tiny_arch('bert'), drop_mult=drop_mult, precision='fp32', cbs=list(cbs))
def fit(learn, how=lambda o: o.fit(2, 1e-3)):
    set_seed(1)
    with learn.no_logging(), learn.no_bar(): how(learn)
    return learn
def losses(learn): return torch.stack(list(learn.recorder.losses))
def same(a, b): b = b.model.state_dict(); return all(torch.equal(v, b[k]) for k,v in a.model.state_dict().items())

class Half(MixedPrecision):
    "fastai's float16 with its scaler on the CPU; the computation stays in float32, where a power of 2 changes no digit"
    def before_fit(self):
        self.autocast,self.scales = torch.autocast('cpu', enabled=False),L()
        self.learn.scaler = torch.amp.GradScaler('cpu', **self.kwargs)

class Skipped(Callback):
    "Count skipped steps and taken steps"
    def before_fit(self): self.skipped,self.taken = 0,0
    def after_cancel_step(self): self.skipped += 1
    def after_step(self): self.taken += 1

@pytest.mark.exact
@pytest.mark.parametrize('make,n', [(lm,8), (classifier,8)])
def test_bf16_stays_near_fp32(make, n):
    "bfloat16 has 8 bits: a number is known to 2^-7 of it, and so are the losses of a model trained with it for some steps"
    a,b = (losses(fit(make(*cbs, drop_mult=0.), lambda o: o.fit(n, 1e-3))) for cbs in ([], [cpu_bf16(True)]))
    assert len(a)>=n*6 and a[-1]<a[0]-.1, 'something is learnt, so that the curves could part'
    assert 0<(a-b).abs().max()<a.max()*2**-7, 'equal would mean that nothing was done in bfloat16'

@pytest.mark.exact
@pytest.mark.parametrize('make', [lm, classifier])
@pytest.mark.parametrize('cbs', [lambda: [], lambda: [TokenAccumulation(n_acc=9)], lambda: [TokenAccumulation(n_tokens=200), GradientClip(.1)]], ids=['alone','accumulation','accumulation and clipping'])
def test_a_scaled_loss_changes_nothing(make, cbs):
    a,b = fit(make(*cbs())),fit(make(Half(init_scale=2.**10, growth_interval=3), *cbs()))
    if any(isinstance(o, GradientClip) for o in cbs()): assert torch.allclose(losses(a), losses(b), atol=1e-4)
    else: assert same(a, b) and torch.equal(losses(a), losses(b))

@pytest.mark.exact
def test_a_scaled_loss_and_frozen_groups():
    how = lambda o: o.fit_schedule(gradual_unfreeze, 1e-2, epochs=6)
    assert same(fit(lm(), how), fit(lm(Half(init_scale=2.**10)), how))
    learn = lm(Half(init_scale=2.**10)); learn.freeze_to(2)
    before = {k:v.clone() for k,v in learn.model.state_dict().items()}
    fit(learn)
    moved = {k for k,v in learn.model.state_dict().items() if not torch.equal(v, before[k])}
    assert moved and not any(o in k for k in moved for o in ('embeddings','layer.0.'))

@pytest.mark.parametrize('acc', [False, True])
def test_steps_with_infinite_gradients_are_skipped(acc):
    learn = lm(Half(init_scale=2.**127, growth_interval=1000), Skipped(), *[TokenAccumulation(n_acc=8)]*acc)
    fit(learn)
    assert learn.skipped.skipped>0 and learn.skipped.taken>learn.skipped.skipped
    assert all(v.isfinite().all() for v in learn.model.state_dict().values() if v.is_floating_point()) and all(o.isfinite() for o in learn.recorder.losses)

@pytest.mark.parametrize('acc', [False, True])
@pytest.mark.parametrize('at,start', [(2,2.**127), (7,2.**10)])
def test_resume_goes_on_with_the_scale_of_the_loss(at, start, acc, tmp_path):
    class Stop(Callback):
        order = 2000
        def after_batch(self):
            if self.training and self.train_iter==at: raise KeyboardInterrupt
    class LastScale(Callback):
        order = 1002
        def after_batch(self): self.scale = self.learn.scaler.get_scale()
    def run(*cbs): return lm(Half(init_scale=start, growth_interval=2), LastScale(), *[TokenAccumulation(n_acc=8)]*acc, *cbs)
    how = lambda o: o.fit_one_cycle(3, 1e-3)
    whole = fit(run(), how)
    assert whole.last_scale.scale!=start
    with pytest.raises(KeyboardInterrupt): fit(run(Resume(tmp_path/'r', every=1), Stop()), how)
    learn = fit(run(Resume(tmp_path/'r', every=1)), how)
    assert same(whole, learn) and learn.last_scale.scale==whole.last_scale.scale

@pytest.mark.exact
@pytest.mark.parametrize('speedup,on', [(.5,False), (3.,True)])
def test_auto_on_a_cpu_asks_the_probe(monkeypatch, speedup, on):
    monkeypatch.delenv('FASTFORMERS_PRECISION', raising=False)
    monkeypatch.setattr(fast_cpu, 'bf16_speedup', lambda: speedup)
    learn = fit(classifier(*precision('auto', 'cpu')))
    assert learn.cpu_bf16.on==on and learn.get_preds()[0].dtype==torch.float32 and not torch.is_autocast_enabled('cpu')

def test_the_probe_measures_one_core_and_leaves_the_threads(monkeypatch):
    seen,linear,before = [],fast_cpu.F.linear,torch.get_num_threads()
    monkeypatch.setattr(fast_cpu.F, 'linear', lambda *args: seen.append(torch.get_num_threads()) or linear(*args))
    torch.set_num_threads(2)
    try:
        assert fast_cpu.bf16_speedup.__wrapped__()>0 and torch.get_num_threads()==2
    finally: torch.set_num_threads(before)
    assert set(seen)=={1}

@pytest.mark.parametrize('name,on', [('bf16',True), ('fp32',False), ('',False)])
def test_the_environment_says_what_auto_is(monkeypatch, name, on):
    monkeypatch.setenv('FASTFORMERS_PRECISION', name)
    monkeypatch.setattr(fast_cpu, 'bf16_speedup', lambda: 1.)
    cbs = fit(classifier(*precision('auto', 'cpu'))).cbs
    assert any(isinstance(o, cpu_bf16) and o.on for o in cbs)==on
    assert precision('fp32', 'cpu')==[] # what is asked for stays

def test_the_environment_cannot_name_an_unknown_format(monkeypatch):
    monkeypatch.setenv('FASTFORMERS_PRECISION', 'half')
    with pytest.raises(ValueError, match="FASTFORMERS_PRECISION .* got 'half'"): precision('auto', 'cpu')

def test_words_for_precision():
    assert precision('fp32', 'cpu')==precision('fp32', 'cuda')==[]
    assert precision('bf16', 'cpu')[0].enabled
    for how in ('fp16','half'):
        with pytest.raises(ValueError, match='precision'): precision(how, 'cpu')

@pytest.mark.gpu
@pytest.mark.parametrize('how', ['auto','bf16','fp16'])
def test_precision_on_a_gpu(how):
    set_seed(0)
    dls = classifier_dls(df, tiny_tok(), bs=4, device='cuda')
    learn = fit(classifier_learner(dls, tiny_arch('bert'), cbs=TokenAccumulation(n_acc=8), precision=how))
    assert all(o.isfinite() for o in learn.recorder.losses) and learn.get_preds()[0].dtype==torch.float32

def test_predictor_in_bf16(tmp_path, monkeypatch):
    from fastformers.inference.predictor import from_hf
    fit(classifier(), lambda o: o.fit(4, 1e-3)).to_hf(tmp_path/'c')
    texts = [*df.text]
    def opened(how): return from_hf(tmp_path/'c', 'cpu', precision=how)
    a,b = opened('fp32'),opened('bf16')
    x,y = a.scores(texts),b.scores(texts)
    assert x.dtype==y.dtype==b.vectors(texts).dtype==torch.float32
    assert 0<(x-y).abs().max()<.03 and (a.vectors(texts)*b.vectors(texts)).sum(1).min()>.99
    assert (b.scores(texts[:1])-y[:1]).abs().max()<.02, 'alone as in a batch'
    monkeypatch.delenv('FASTFORMERS_PRECISION', raising=False)
    for speed,same in (2.,y),(1.,x):
        monkeypatch.setattr(fast_cpu, 'bf16_speedup', lambda: speed)
        assert torch.equal(opened('auto').scores(texts), same)
    with pytest.raises(ValueError, match="or on a GPU 'fp16'; got 'half'"): opened('half')

def test_a_directory_says_in_which_format_it_was_measured(tmp_path):
    for how in ('fp32','bf16'):
        learn = classifier_learner(classifier_dls(tiny_df(), tiny_tok(), bs=8, device='cpu'), tiny_arch('bert'), precision=how)
        learn.fit(1, 1e-3)
        assert read_stage(learn.to_hf(tmp_path/how))['precision']==how
