"Frozen layers are in eval mode, whatever else happens around a step"
import pytest, torch
from fastai.basics import Callback, set_seed
from torch import nn
from fastformers.callback.freeze import frozen_modules
from fastformers.callback.schedule import Schedule, gradual_unfreeze
from fastformers.data.block import classifier_dls, lm_dls
from fastformers.learner.core import classifier_learner, lm_learner
from fastformers.models.families import block_modules
from fastformers.testing import tiny_arch, tiny_df, tiny_tok

df = tiny_df()
small = df.iloc[:16].assign(is_valid=[i%4==3 for i in range(16)])

def classifier(family='bert', *cbs, bs=5, arch=None, data=small, **kwargs):
    set_seed(0)
    return classifier_learner(classifier_dls(data, tiny_tok(family), bs=bs, device='cpu'), arch or tiny_arch(family), cbs=[*cbs], **kwargs)

def twice(n): "Gradual unfreezing, two epochs a step"; return Schedule(gradual_unfreeze(n).factors, [2]*n)
def gradually(o, lr=1e-3): o.fit_schedule(twice, lr)
def head_alone(o): o.freeze(); o.fit(3, 1e-3)
def one_epoch(o): o.fit(1, 1e-3)

def fit(learn, how=gradually):
    set_seed(1)
    with learn.no_logging(), learn.no_bar(): how(learn)
    return learn

def losses(learn): return torch.stack(list(learn.recorder.losses))
def same(a, b, tol=1e-5):
    "Are losses, metrics and weights of two learners equal up to `tol`?"
    assert len(losses(a))==len(losses(b))>0
    assert (losses(a)-losses(b)).abs().max()<tol
    assert torch.tensor(a.recorder.values).sub(torch.tensor(b.recorder.values)).abs().max()<tol
    return all((p-q).abs().max()<tol for p,q in zip(a.model.parameters(), b.model.parameters()))

whole = 'bert roberta distilbert electra deberta-v2 albert fnet xlnet funnel'.split()

class Unfreeze(Callback):
    def __init__(self, to, order): self.to,self.order = to,order
    def before_batch(self):
        if self.training and self.train_iter==4: self.learn.freeze_to(self.to)

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
    assert same(fit(classifier(), head_alone), fit(classifier('bert', Look()), head_alone))

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
