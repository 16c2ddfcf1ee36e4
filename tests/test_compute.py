"How a step is computed is no part of what is learnt: quicker attention and dropout on a CPU, gradient checkpointing, compiled blocks"
import json, pytest, torch
from transformers import AutoModelForMaskedLM
from fastformers.callback.schedule import gradual_unfreeze
from fastformers.learner.core import classifier_learner, lm_learner
from fastformers.models import fast_cpu
from fastformers.models.load import load_hf
from test_contracts_common import *

df = tiny_df()
with_interface = 'bert roberta distilbert electra albert gpt2 opt modernbert xlm-roberta nomic_bert camembert'.split()
without = 'mpnet deberta-v2 llama'.split() # attention of their own, or grouped keys

def lm(family='bert', seed=0, **kwargs):
    torch.manual_seed(seed)
    tok = tiny_tok(family)
    return quiet(lm_learner(lm_dls(df, tok, (CLM if tok.mask_token is None else MLM)(tok), seq_len=32, bs=8, device='cpu'), tiny_arch(family), precision='fp32', **kwargs))
def classifier_of(family='bert', seed=0, **kwargs):
    torch.manual_seed(seed)
    return quiet(classifier_learner(classifier_dls(df, tiny_tok(family), bs=8, device='cpu'), tiny_arch(family), precision='fp32', **kwargs))

def step(learn, x, y):
    "Loss and gradients of a training step, and how often the formula was asked"
    asked,formula = [],fast_cpu._formula
    fast_cpu._formula = lambda *args: asked.append(1) or formula(*args)
    try:
        learn.model.train(); learn.model.zero_grad()
        torch.manual_seed(1)
        loss = learn.loss_func(learn.model(x), y)
        loss.backward()
    finally: fast_cpu._formula = formula
    return loss.detach(), [p.grad.clone() for p in learn.model.parameters() if p.grad is not None], len(asked)

def near(a, b): return len(a)==len(b)>0 and all(torch.allclose(x, y, atol=1e-5, rtol=1e-4) for x,y in zip(a, b))

@pytest.mark.exact
@pytest.mark.parametrize('make', [lm, classifier_of])
@pytest.mark.parametrize('family', with_interface+without)
def test_a_step_is_the_same_without_dropout(family, make, monkeypatch):
    monkeypatch.setattr(fast_cpu, '_pays', lambda query,key,dropout: query.requires_grad) # float32 without dropout would be left to torch
    fast,plain = make(family, drop_mult=0.),make(family, drop_mult=0.)
    if plain.model.config._attn_implementation=='sdpa_cpu': plain.model.hf.set_attn_implementation('sdpa')
    x,y = plain.dls.train.one_batch()
    (a,g,no),(b,h,yes) = step(plain, x, y),step(fast, x, y)
    assert no==0 and (yes>0)==(family in with_interface) and torch.allclose(a, b, atol=1e-5) and near(g, h)

def test_dropout_makes_it_pay_and_a_seed_repeats_it():
    learn = classifier_of()
    x,y = learn.dls.train.one_batch()
    (b,_,yes),(c,_,_) = step(learn, x, y),step(learn, x, y)
    assert yes>0 and torch.equal(b, c) and any(type(m) is fast_cpu.Dropout for m in learn.model.hf.modules())

def test_evaluation_is_torchs_own():
    fast,plain = (load_hf(AutoModelForMaskedLM, tiny_arch('bert'), attn_implementation=o)[0].eval() for o in (None,'sdpa'))
    plain.load_state_dict(fast.state_dict())
    x = torch.randint(5, 50, (2,9))
    with torch.no_grad(): assert torch.equal(fast(x).logits, plain(x).logits)

def test_an_attention_that_was_chosen_stays(): assert classifier_of(attn_implementation='eager').model.config._attn_implementation=='eager'

def test_long_texts_without_dropout_are_left_to_torch():
    q = torch.randn(1,2,300,8, dtype=torch.bfloat16, requires_grad=True)
    pays = fast_cpu._pays
    assert not pays(q, q, 0.) and pays(q[:,:,:256], q[:,:,:256], 0.) and pays(q, q, .1) and not pays(q.detach(), q.detach(), .1)

@pytest.mark.slow
@pytest.mark.parametrize('make', [lm, classifier_of])
def test_nothing_of_it_is_written(make, tmp_path):
    learn = make(gradient_checkpointing=True, compile_blocks='aot_eager')
    learn.fit(1, 1e-3)
    path = learn.save_encoder(tmp_path/'o')
    said = json.loads((path/'config.json').read_text())
    assert 'sdpa_cpu' not in json.dumps(said) and said.get('use_cache', True)
    assert not any('_orig_mod' in k for k in learn.model.state_dict())
    AutoModelForMaskedLM.from_pretrained(path)

@pytest.mark.exact
@pytest.mark.parametrize('family', ['bert','gpt2','modernbert','deberta-v2'])
def test_checkpointing_leaves_losses_and_weights(family):
    "With dropout and gradual unfreezing, bit by bit"
    runs = [lm(family, gradient_checkpointing=o) for o in (False, True)]
    for o in runs: torch.manual_seed(2); o.fit_schedule(gradual_unfreeze, lr=1e-2, epochs=5)
    a,b = runs
    assert torch.equal(torch.stack(a.recorder.losses), torch.stack(b.recorder.losses))
    assert all(torch.equal(p, q) for p,q in zip(a.model.parameters(), b.model.parameters()))

@pytest.mark.slow
@pytest.mark.parametrize('kw', [dict(), dict(gradient_checkpointing=True)])
def test_compiled_blocks_equal_plain(kw):
    torch._dynamo.reset()
    runs = [classifier_of(drop_mult=0., compile_blocks=o, **kw) for o in (False, 'aot_eager')]
    for o in runs: torch.manual_seed(2); o.fit(2, 1e-3)
    a,b = (torch.stack(o.recorder.losses) for o in runs)
    assert torch.allclose(a, b, atol=1e-5)
    torch._dynamo.reset()

@pytest.mark.exact
@pytest.mark.parametrize('how', [dict(gradient_checkpointing=True), dict(compile_blocks='aot_eager')], ids=str)
def test_all_layers_when_blocks_are_run_another_way(how):
    a,b = classifier_of(drop_mult=0., hidden_states='mix'),classifier_of(drop_mult=0., hidden_states='mix', **how)
    x,y = a.dls.train.one_batch()
    assert near(step(a, x, y)[1], step(b, x, y)[1])
