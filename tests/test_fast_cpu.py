"Attention and dropout on a CPU: the same as torch's for any family, on in a fit and off after it"
import pytest, torch
from fastai.basics import Callback, set_seed
from fastformers.callback import fast_cpu as module
from fastformers.data.block import classifier_dls, lm_dls
from fastformers.callback.fast_cpu import fast_cpu
from fastformers.learner.core import classifier_learner, lm_learner
from fastformers.objectives.clm import CLM
from fastformers.objectives.mlm import MLM
from fastformers.testing import tiny_arch, tiny_df, tiny_tok
from fastformers.callback.compute import cpu_bf16

df = tiny_df()
with_interface = 'bert roberta distilbert electra albert gpt2 opt modernbert xlm-roberta nomic_bert camembert'.split()
without = 'mpnet deberta-v2 llama'.split() # attention of their own, or grouped keys

def lm(family, **kwargs):
    set_seed(0)
    tok = tiny_tok(family)
    return lm_learner(lm_dls(df, tok, (CLM if tok.mask_token is None else MLM)(tok), seq_len=32, bs=8, packing='doc-sentences', device='cpu'), tiny_arch(family), **kwargs)
def classifier(family, **kwargs):
    set_seed(0)
    return classifier_learner(classifier_dls(df, tiny_tok(family), bs=8, device='cpu'), tiny_arch(family), **kwargs)

def step(learn, on):
    "Loss and gradients of a training step on texts of several lengths, and how often the formula was asked"
    asked,formula = [],module._formula
    def counted(*args): asked.append(1); return formula(*args)
    module._formula = counted
    try:
        xb,*yb = next(iter(learn.dls.train))
        learn.model.train(); learn.model.zero_grad()
        torch.manual_seed(1)
        if on:
            with fast_cpu(learn.model): loss = learn.loss_func(learn.model(xb), *yb)
        else: loss = learn.loss_func(learn.model(xb), *yb)
        loss.backward()
    finally: module._formula = formula
    return loss.detach(), [p.grad.clone() for p in learn.model.parameters() if p.grad is not None], len(asked)

@pytest.mark.parametrize('make', [lm, classifier])
@pytest.mark.parametrize('family', with_interface+without)
def test_a_step_is_the_same_without_dropout(family, make, monkeypatch):
    monkeypatch.setattr(module, '_pays', lambda query,key,dropout: query.requires_grad) # float32 without dropout would be left to torch
    learn = make(family, drop_mult=0.)
    for dl in learn.dls.loaders: dl.seed = 1
    next(iter(learn.dls.train)); learn.dls.train.passes = 0
    (a,plain,no) = step(learn, False); learn.dls.train.passes = 0
    (b,fast,yes) = step(learn, True)
    assert no==0 and (yes>0)==(family in with_interface)
    assert torch.allclose(a, b, atol=1e-5) and len(plain)==len(fast)>0
    assert all(torch.allclose(x, y, atol=1e-5, rtol=1e-4) for x,y in zip(plain, fast))

def test_dropout_makes_it_pay_and_a_seed_repeats_it():
    learn = classifier('bert')
    def run(on): learn.dls.train.passes = 0; return step(learn, on)
    (a,_,no),(b,_,yes),(c,_,_) = run(False),run(True),run(True)
    assert no==0<yes and a!=b and torch.equal(b, c)

def test_evaluation_is_torchs_own():
    learn = classifier('bert').model.eval()
    x = torch.randint(5, 50, (2,9))
    with torch.no_grad():
        a = learn(x)
        with fast_cpu(learn): assert torch.equal(a, learn(x))

@pytest.mark.parametrize('why', [KeyboardInterrupt, MemoryError])
@pytest.mark.parametrize('event', ['before_fit','after_batch','before_validate','after_epoch'])
def test_off_after_anything(event, why):
    class Stop(Callback): order = 10
    def stop(self): raise why('stop')
    setattr(Stop, event, stop)
    learn = classifier('bert')
    with learn.no_logging(), learn.no_bar(), pytest.raises(why): learn.fit(1, cbs=Stop)
    assert learn.model.config._attn_implementation=='sdpa' and not any('forward' in vars(m) for m in learn.model.modules()) and '_with_events' not in vars(learn)

def test_an_attention_that_was_chosen_stays():
    seen = []
    class Look(Callback):
        def before_batch(self): seen.append(self.model.config._attn_implementation)
    learn = classifier('bert', attn_implementation='eager', cbs=Look)
    with learn.no_logging(), learn.no_bar(): learn.fit(1)
    assert set(seen)=={'eager'}

def test_long_texts_without_dropout_are_left_to_torch():
    q = torch.randn(1,2,300,8, dtype=torch.bfloat16, requires_grad=True)
    assert not module._pays(q, q, 0.) and module._pays(q[:,:,:256], q[:,:,:256], 0.) and module._pays(q, q, .1)
    assert not module._pays(q.detach(), q.detach(), .1)

def test_with_bf16_the_loss_is_near():
    def losses(*off):
        learn = lm('bert', drop_mult=0., cbs=cpu_bf16(enabled=True))
        learn.remove_cbs([o for o in learn.cbs if o.name in off])
        set_seed(0)
        with learn.no_logging(), learn.no_bar(): learn.fit(1, 1e-3)
        return torch.stack(list(learn.recorder.losses))
    a,b = losses(),losses('fast_cpu')
    assert (a-b).abs().max()<2**-7*b.max() and not torch.equal(a, b)
