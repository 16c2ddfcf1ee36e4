"A loss that diverges: back to the last checkpoint with half the rate, and the same bits if the run is killed as well"
import logging, math, pytest, torch
from fastai.basics import Callback, Learner
from fastai.torch_core import set_seed
from fastformers.callback.progress import Diverged # and `fit_halving`
from fastformers.callback.resume import Resume
from fastformers.callback.schedule import full_tune
from fastformers.data.block import lm_dls
from fastformers.inference.predictor import from_hf
from fastformers.learner.core import as_predictor, lm_learner
from fastformers.testing import tiny_arch, tiny_df, tiny_tok
from fastformers.ulmfit.stage import fine_tune_classifier, fine_tune_lm
from transformers import AutoModelForMaskedLM

class Die(Callback):
    "Raise after the `n`-th training step, those of earlier tries included"
    order,n = 2000,0
    def __init__(self, at=None): self.at = at
    def after_batch(self):
        if not self.training: return
        self.n += 1
        if self.n==self.at: raise SystemError('killed')

def train(resume=None, at=None, lr=1e3, halvings=30, cbs=(), epochs=3):
    set_seed(0)
    learn = lm_learner(lm_dls(tiny_df(), tiny_tok(), seq_len=32, bs=8, device='cpu'), tiny_arch('bert', num_hidden_layers=2), cbs=[*([resume] if resume else []), Die(at), *cbs])
    learn.before = learn.validate()[0]
    with learn.no_bar(), learn.no_logging(): learn.fit_halving(full_tune, lr, halvings=halvings, epochs=epochs)
    return learn

def weights(learn): return {k:v.clone() for k,v in learn.model.state_dict().items()}
def same(a, b): return all(torch.equal(a[k], b[k]) for k in a)

@pytest.mark.exact
def test_a_rate_of_1000_ends_in_a_usable_model(caplog):
    learn = train(epochs=6)
    rates = [max(o) for o in learn.recorder.hps['lr']]
    assert learn.validate()[0]<learn.before and all(map(math.isfinite, learn.recorder.losses)) and all(o.isfinite().all() for o in learn.model.parameters())
    says = [o.getMessage() for o in caplog.records if 'of the rates' in o.getMessage()]
    assert 5<len(says)<31 and says[0].startswith('the loss is ') and says[0].endswith('so 0.5 of the rates are used, and fit 0 continues after epoch 0, batch 0')
    assert max(rates)<=1e3*.5**len(says) and len(rates)==6*len(learn.dls.train)

@pytest.mark.exact
@pytest.mark.parametrize('at', [1, 5, 12, 20, 26])
def test_a_run_that_went_back_and_was_killed_ends_bitwise_equal(at, tmp_path):
    whole = train(Resume(tmp_path/'whole', every=2, minutes=None))
    with pytest.raises(SystemError): train(Resume(tmp_path/'cut', every=2, minutes=None), at)
    again = train(Resume(tmp_path/'cut', every=2, minutes=None))
    assert same(weights(again), weights(whole)) and again.recorder.losses==whole.recorder.losses and again.recorder.hps==whole.recorder.hps
    assert at==1 or again.die.n<whole.die.n # some steps were not repeated

@pytest.mark.exact
def test_a_fit_that_does_not_diverge_is_as_without(tmp_path):
    a,b = train(lr=1e-3),train(lr=1e-3, halvings=0)
    assert same(weights(a), weights(b))
    with pytest.raises(SystemError): train(Resume(tmp_path/'cut', every=100, minutes=None), 3, lr=1e-3)
    assert [o.name for o in (tmp_path/'cut').glob('fit*')]==['fit000-00000000']
    assert same(weights(train(Resume(tmp_path/'cut', every=100, minutes=None), lr=1e-3)), weights(b)) # from the beginning of the fit

class Burst(Callback):
    "Spoil the loss of one step, the first time"
    def __init__(self, epoch): self.at,self.done = epoch,False
    def after_loss(self):
        if self.training and self.epoch==self.at and self.iter==4 and not self.done: self.done,self.learn.loss_grad,self.learn.loss = True,self.loss*float('nan'),self.loss*float('nan')

def test_one_bad_step(caplog):
    "It goes back to the last epoch, and the rate is half from there on"
    learn = train(lr=1e-3, halvings=1, cbs=[Burst(1)])
    whole = train(lr=1e-3)
    rates,usual = ([max(o) for o in l.recorder.hps['lr']] for l in (learn,whole))
    n = len(learn.dls.train)
    assert rates==[*usual[:n], *(o/2 for o in usual[n:])] and f'continues after epoch 0, batch {n}' in caplog.text

def test_after_the_last_halving_it_stops():
    with pytest.raises(Diverged, match='try half of it'): train(halvings=2)
    with pytest.raises(Diverged, match='try half of it'): train(lr=1e-3, halvings=0, cbs=[Burst(1)])

def test_a_stage(tmp_path):
    kw = dict(seq_len=32, bs=8, epochs=2., cbs=[Burst(1)])
    with pytest.raises(Diverged): fine_tune_lm(tiny_df(), tiny_arch('bert'), tok=tiny_tok(), **kw)
    stage = fine_tune_lm(tiny_df(), tiny_arch('bert'), tmp_path/'lm', tok=tiny_tok(), halvings=2, **kw | dict(cbs=[Burst(1)]))
    assert stage.settings['halvings']==2 and math.isfinite(stage.metrics['loss'])

def test_a_training_on_all_rows_that_diverges_writes_the_first(tmp_path, monkeypatch, caplog):
    fits,fit = [],Learner.fit_halving
    def second(self, *args, **kwargs):
        fits.append(self)
        if len(fits)==2: raise Diverged('the loss is nan')
        return fit(self, *args, **kwargs)
    monkeypatch.setattr(Learner, 'fit_halving', second)
    torch.manual_seed(0)
    AutoModelForMaskedLM.from_config(tiny_arch('bert')).save_pretrained(tmp_path/'arch'); tiny_tok('bert').save_pretrained(tmp_path/'arch')
    stage = fine_tune_classifier(tiny_df(), tmp_path/'arch', tmp_path/'c', refit=True, epochs=1, bs=8)
    texts = tiny_df().text.tolist()
    assert 'the loss is nan' in caplog.text and torch.allclose(from_hf(tmp_path/'c').scores(texts), as_predictor(stage.learner).scores(texts), atol=1e-5)
