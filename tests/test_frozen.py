"Frozen layers in eval mode, the states of a frozen body kept: the same losses and weights as without, whatever else happens around a step"
import pytest, torch
from fastai.basics import Callback, set_seed
from fastai.callback.schedule import lr_find
from torch import nn
from fastformers.callback.auxiliary_lm import AuxiliaryLM
from fastformers.callback.compute import TokenAccumulation, cpu_bf16
from fastformers.callback.freeze import FrozenCache, frozen_modules
from fastformers.callback.regularize import RDrop
from fastformers.callback.resume import Resume
from fastformers.callback.schedule import Schedule, chain_thaw, gradual_unfreeze, lp_ft
from fastformers.data.block import classifier_dls, lm_dls
from fastformers.learner.core import classifier_learner, lm_learner
from fastformers.models.families import block_modules
from fastformers.testing import tiny_arch, tiny_df, tiny_tok
from test_contracts_common import Power

df = tiny_df()
small = df.iloc[:16].assign(is_valid=[i%4==3 for i in range(16)])

def classifier(family='bert', *cbs, bs=5, arch=None, data=small, **kwargs):
    set_seed(0)
    return classifier_learner(classifier_dls(data, tiny_tok(family), bs=bs, device='cpu'), arch or tiny_arch(family), cbs=[Ran(), *cbs], **kwargs)

def twice(n): "Gradual unfreezing, two epochs a step"; return Schedule(gradual_unfreeze(n).factors, [2]*n)
def gradually(o, lr=1e-3): o.fit_schedule(twice, lr)
def head_alone(o): o.freeze(); o.fit(3, 1e-3)
def one_epoch(o): o.fit(1, 1e-3)

def fit(learn, how=gradually):
    set_seed(1)
    with learn.no_logging(), learn.no_bar(): how(learn)
    return learn

class Ran(Callback):
    "How many rows the lowest block read in each epoch"
    def after_create(self):
        m = next(o for m in block_modules(self.model.body)[0] for o in m.modules() if not list(o.children()) and list(o.parameters()))
        m.register_forward_hook(self.note)
    def before_fit(self): self.n = []
    def before_epoch(self): self.n.append(0)
    def note(self, m, args, out):
        if hasattr(self, 'n') and self.n: self.n[-1] += len(out)

def losses(learn): return torch.stack(list(learn.recorder.losses))
def same(a, b, tol=1e-5):
    "Are losses, metrics and weights of two learners equal up to `tol`?"
    assert len(losses(a))==len(losses(b))>0
    assert (losses(a)-losses(b)).abs().max()<tol
    assert torch.tensor(a.recorder.values).sub(torch.tensor(b.recorder.values)).abs().max()<tol
    return all((p-q).abs().max()<tol for p,q in zip(a.model.parameters(), b.model.parameters()))
def rows(learn): return len(learn.frozen_cache.rows)

# --- equal to the run without

whole = 'bert roberta distilbert electra deberta-v2 albert fnet xlnet funnel'.split()
norm_trains = 'modernbert gpt2 llama t5'.split() # the last norm is in the head's group

@pytest.mark.parametrize('family', whole+norm_trains)
def test_equal_to_the_plain_run(family):
    a,b = fit(classifier(family)),fit(classifier(family, FrozenCache()))
    assert same(a, b), 'with dropout in all layers that train'
    assert b.model.state_cache is None
    if family in whole: assert b.ran.n[1]==0<a.ran.n[1], 'the second epoch of the head alone'
    assert b.ran.n[2:]==a.ran.n[2:]

def test_the_plain_run_is_random():
    "Otherwise the test above says nothing about dropout"
    a,b = fit(classifier()),classifier()
    b.ran.before_train = lambda: torch.rand(1)
    assert (losses(a)-losses(fit(b))).abs().max()>1e-5

def test_left_padding_and_single_rows():
    for family,bs in (('xlnet',3), ('bert',1)):
        data = small.iloc[:10].assign(is_valid=[i%4==3 for i in range(10)])
        assert same(fit(classifier(family, bs=bs, data=data)), fit(classifier(family, FrozenCache(), bs=bs, data=data)))

def test_other_schedules():
    def thaw(o): o.fit_schedule(chain_thaw, 1e-3, epochs=12)
    def by_hand(o):
        for k in (-1,-1,-2,2): o.freeze_to(k); o.fit(2, 1e-3)
        o.unfreeze(); o.fit(1, 1e-3)
    def parts(o): o.fit_schedule(lp_ft, 1e-3, epochs=2.7)
    for how in (thaw, by_hand, parts): assert same(fit(classifier(), how), fit(classifier('bert', FrozenCache()), how))

class Unfreeze(Callback):
    def __init__(self, to, order): self.to,self.order = to,order
    def before_batch(self):
        if self.training and self.train_iter==4: self.learn.freeze_to(self.to)

@pytest.mark.parametrize('order', [0, 3000])
def test_unfrozen_within_an_epoch(order):
    a,b = (fit(classifier('bert', Unfreeze(-2, order), *o), head_alone) for o in ((), (FrozenCache(),)))
    assert len(a.dls.train)==3 and same(a, b) # the fifth batch is in the middle of an epoch

@pytest.mark.parametrize('make', [RDrop, AuxiliaryLM, lambda: TokenAccumulation(n_acc=9), lambda: cpu_bf16(enabled=True)], ids=['RDrop','AuxiliaryLM','TokenAccumulation','cpu_bf16'])
def test_with_other_callbacks(make):
    a,b = fit(classifier('bert', make()), head_alone),fit(classifier('bert', make(), FrozenCache()), head_alone)
    assert same(a, b, 2e-2 if make().name=='cpu_bf16' else 1e-5) and sum(b.ran.n)<sum(a.ran.n)
    assert rows(b)==len(small), 'masked texts are not kept'

@pytest.mark.parametrize('hidden_states', [[-1,-2], -2, 'mix'], ids=str)
def test_several_hidden_states(hidden_states):
    def how(o): o.freeze(); o.fit(3, 1e-2); o.unfreeze(); o.fit(1, 1e-3)
    made = dict(arch=tiny_arch('bert', num_hidden_layers=3), hidden_states=hidden_states)
    kept = fit(classifier('bert', FrozenCache(), **made), head_alone)
    assert rows(kept)==(0 if hidden_states=='mix' else len(small)) # the mix trains with the head
    assert same(fit(classifier('bert', **made), how), fit(classifier('bert', FrozenCache(), **made), how))

@pytest.mark.parametrize('cut', [2, 6])
def test_a_stopped_run_needs_no_cache(tmp_path, cut):
    def how(o): o.fit_schedule(lp_ft, 1e-3, epochs=4)
    whole = fit(classifier('bert', FrozenCache()), how)
    with pytest.raises(KeyboardInterrupt): fit(classifier('bert', Resume(tmp_path, every=2), FrozenCache(), Power(cut)), how)
    assert same(whole, fit(classifier('bert', Resume(tmp_path, every=2)), how))

def test_a_model_is_right_after_an_interrupted_fit():
    learn = classifier('bert', FrozenCache())
    x = learn.dls.valid.one_batch()[0]
    learn.freeze()
    with pytest.raises(KeyboardInterrupt): fit(learn, lambda o: o.fit(3, cbs=Power(7)))
    with torch.no_grad():
        a = learn.model.eval()(x)
        for p in learn.model.body.parameters(): p.add_(torch.randn_like(p)*.1)
        b = learn.model(x)
        learn.model.state_cache = None
        assert torch.equal(b, learn.model(x)) and (a-b).abs().max()>1e-3
    learn.validate(); learn.get_preds(); learn.predict(df.text[0]); learn.lr_find(show_plot=False, num_it=5)

# --- what is thrown away, and when

def test_weights_that_changed_are_noticed():
    learn = classifier('bert', FrozenCache())
    learn.freeze()
    fit(learn, one_epoch); fit(learn, one_epoch)
    assert learn.ran.n==[0]
    word,state = learn.model.body.embeddings.word_embeddings.weight,learn.model.state_dict()
    for change in (lambda: nn.init.normal_(word), lambda: learn.model.load_state_dict({k:v+.1 if v.is_floating_point() else v for k,v in state.items()})):
        change()
        fit(learn, one_epoch)
        assert learn.ran.n[0]>0

def test_weights_that_change_within_a_fit_are_noticed():
    class Load(Callback):
        "As `SaveModelCallback` and `Resume` do"
        def before_batch(self):
            if self.training and self.train_iter==4:
                with torch.no_grad(): self.model.body.embeddings.word_embeddings.weight.add_(torch.linspace(-1, 1, 32)) # a layer norm would hide a constant
    assert same(fit(classifier('bert', Load()), head_alone), fit(classifier('bert', Load(), FrozenCache()), head_alone))

@pytest.mark.exact
def test_other_precision_is_noticed():
    learn = classifier('bert', FrozenCache()); learn.freeze()
    fit(learn, one_epoch); fit(learn, lambda o: o.fit(1, cbs=cpu_bf16(enabled=True)))
    assert learn.ran.n[0]>0

def test_nothing_is_kept_when_all_trains():
    learn = fit(classifier('bert', FrozenCache()), head_alone)
    assert rows(learn)==len(small)
    learn.unfreeze(); fit(learn, one_epoch)
    assert rows(learn)==0

def test_budget():
    plain = fit(classifier(), head_alone)
    learn = fit(classifier('bert', FrozenCache(max_gb=1.5e-5)), head_alone)
    assert 0<learn.frozen_cache.nbytes<=1.5e4 and 0<rows(learn)<len(small) and learn.ran.n[0]>learn.ran.n[1]>0
    assert same(plain, learn) and same(plain, fit(classifier('bert', FrozenCache(max_gb=1e-9)), head_alone))

# --- modes

def drops(learn): return [any(o.training for m in b for o in m.modules() if isinstance(o, nn.Dropout)) for b in block_modules(learn.model.body)]

class Modes(Callback):
    order = 3000
    def before_fit(self): self.seen = []
    def before_batch(self):
        if self.training: self.seen.append(drops(self.learn))
        else: assert not any(drops(self.learn))

def test_frozen_blocks_are_in_eval_mode():
    learn = fit(classifier('bert', Modes()))
    per = len(learn.dls.train)*2
    assert learn.modes.seen==[[False]*max(3-i,0)+[True]*min(i,3) for i in range(5) for _ in range(per)]
    learn.freeze(); fit(learn, one_epoch); learn.unfreeze(); fit(learn, one_epoch)
    assert all(map(all, learn.modes.seen))
    learn.model.train(); assert all(m.training for m in learn.model.modules())

def test_unfrozen_within_an_epoch_drops_at_once():
    learn = fit(classifier('bert', Unfreeze(-2, 0), Modes()), head_alone)
    assert learn.modes.seen==[[False]*3]*4+[[False,False,True]]*5

def test_training_mode_set_by_another_callback_changes_nothing():
    class Look(Callback):
        def after_batch(self):
            if self.training: self.model.eval(); torch.no_grad()(self.model)(self.xb[0]); self.model.train()
    plain = fit(classifier(), head_alone)
    assert same(plain, fit(classifier('bert', Look()), head_alone)) and same(plain, fit(classifier('bert', Look(), FrozenCache()), head_alone))

@pytest.mark.parametrize('family', whole)
def test_two_passes_of_a_frozen_body_agree(family):
    learn = classifier(family); learn.create_opt(); learn.freeze()
    x = learn.dls.one_batch()[0]
    learn.model.train()
    for m in frozen_modules(learn.model): m.training = False
    assert torch.equal(learn.model.states(x), learn.model.states(x))

def test_language_models_run_frozen_layers_in_eval_mode_too():
    set_seed(0)
    learn = lm_learner(lm_dls(small, tiny_tok(), seq_len=32, bs=4), tiny_arch('bert'), cbs=Modes())
    learn.create_opt(); learn.freeze_to(2)
    fit(learn, one_epoch)
    assert learn.modes.seen and all(b==[False,True,True] for b in learn.modes.seen)
    with pytest.raises(TypeError, match='for classifiers'): fit(learn, lambda o: o.fit(1, cbs=FrozenCache()))

# --- texts

def test_awkward_texts():
    data = small.assign(text=['', ' ', '😀'*50, 'word '*20000, 'é'*300, *small.text[5:]])
    def make(*cbs): set_seed(0); return classifier_learner(classifier_dls(data, tiny_tok(), bs=5, max_len=64, device='cpu'), tiny_arch('bert'), cbs=[Ran(), *cbs])
    a,b = fit(make(), head_alone),fit(make(FrozenCache()), head_alone)
    assert same(a, b) and sum(b.ran.n)<sum(a.ran.n)

def test_repeated_texts_are_kept_once():
    learn = fit(classifier('bert', FrozenCache(), data=small.assign(text=small.text.iloc[0])), head_alone)
    assert rows(learn)==1
