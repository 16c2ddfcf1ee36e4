"Where memory is too small, a step reads fewer rows at once"
import pandas as pd, pytest, torch
from fastai.basics import set_seed, to_float
from fastai.callback.fp16 import MixedPrecision
from fastformers.callback import compute
from fastformers.callback.compute import TokenAccumulation
from fastformers.data.block import classifier_dls
from fastformers.learner import train # `fit_plan`
from fastformers.learner.core import classifier_learner
from fastformers.models.core import TextClassifier
from fastformers.testing import tiny_arch, tiny_df, tiny_tok
from fastformers.text.corpora import intents
from fastformers.ulmfit.stage import fine_tune_classifier

@pytest.fixture
def small(monkeypatch):
    "Let the network have room for at most `n` rows in training"
    def room(n, error=torch.OutOfMemoryError('CUDA out of memory')):
        old = TextClassifier.forward
        def forward(self, x):
            if self.training and len(x)>n: raise error
            return old(self, x)
        monkeypatch.setattr(TextClassifier, 'forward', forward)
    return room

def fitted(bs=8, cbs=None):
    set_seed(0)
    learn = classifier_learner(classifier_dls(tiny_df(), tiny_tok(), bs=8, device='cpu'), tiny_arch('bert'), drop_mult=0., precision='fp32', head='LinearHead', cbs=cbs)
    with learn.no_bar(): return learn.fit_plan(learn.plan(bs=bs, epochs=2, lr=1e-3))

@pytest.mark.parametrize('error', [torch.OutOfMemoryError('CUDA out of memory'), MemoryError(),
                                   RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes")], ids=lambda o: type(o).__name__)
def test_fewer_rows_at_once_as_if_they_were_asked_for(small, error, caplog):
    plain = fitted(2, TokenAccumulation(n_acc=8))
    small(3, error)
    learn = fitted()
    assert learn.dls.train.bs==2 and 'memory is too small for 8 rows at once, so 4 are read at once' in caplog.text
    a,b = (o.model.state_dict() for o in (plain,learn))
    assert max(float((v-b[k]).abs().max()) for k,v in a.items())<1e-5
    assert learn.lineage.history[0][1].at_once==2 and len(learn.recorder.losses)==len(plain.recorder.losses)

def test_half_precision_and_a_contrastive_half(small, caplog):
    "What the batch that failed has left is gone: its autocast, and the hook of the contrastive loss"
    class Half(MixedPrecision):
        "fastai's, on the CPU"
        def before_fit(self): self.autocast,self.learn.scaler,self.scales = torch.autocast('cpu', torch.bfloat16),None,[]
        def after_pred(self): self.learn.pred = to_float(self.pred)
        def before_backward(self): self.learn.loss_grad = self.loss_grad
        def before_step(self): pass
        def after_step(self): pass
        def after_fit(self): self.autocast = None
    small(3)
    learn = fitted(cbs=Half())
    assert not torch.is_autocast_enabled('cpu') and learn.dls.train.bs==2
    learn = classifier_learner(classifier_dls(intents(60), 'minilm', bs=16, device='cpu'), 'minilm', precision='fp32')
    with learn.no_bar(): learn.fit_plan(learn.plan(head_init='contrastive', epochs=2))
    assert learn.dls.train.bs==2 and not learn.lineage.history[0][1].contrasted and not learn.model.head._forward_pre_hooks

def test_checkpoints_are_of_one_batch_size(small, tmp_path):
    small(3)
    with pytest.raises(torch.OutOfMemoryError) as e: fine_tune_classifier(tiny_df(), tiny_arch('bert'), tok=tiny_tok(), bs=8, epochs=2, resume=tmp_path/'r')
    assert 'pass a smaller `bs`' in e.value.__notes__[0]

def test_other_errors_and_one_row_that_is_too_large(small):
    small(0)
    with pytest.raises(torch.OutOfMemoryError) as e: fitted()
    assert 'pass a smaller `bs` or `max_len`, or gradient_checkpointing=True' in e.value.__notes__[0]
    small(3, RuntimeError('shapes differ'))
    with pytest.raises(RuntimeError, match='shapes differ'): fitted()

def test_a_stage_trains_again_on_all_rows_with_as_many_steps(small, tmp_path):
    df = pd.concat([tiny_df()]*2, ignore_index=True)
    def stage(): return fine_tune_classifier(df, tiny_arch('bert'), tok=tiny_tok(), path=tmp_path/'c', bs=8, epochs=2, refit=True, precision='fp32', drop_mult=0.)
    plain = stage()
    small(5)
    less = stage()
    assert less.at_once==4 and less.plan['bs']==8
    assert len(less.losses)==pytest.approx(2*len(plain.losses), abs=2)
    assert less.learner.dls.train.bs==4

@pytest.mark.parametrize('free,warns', [(1000,True), (10**12,False), (None,False)])
def test_too_little_memory_is_said_before_training(free, warns, monkeypatch, caplog):
    monkeypatch.setattr(train, 'free_memory', lambda device: free)
    fitted()
    assert ('GB are free, and the system may stop this process' in caplog.text)==warns

def test_free_memory_of_this_machine():
    free = compute.free_memory('cpu')
    assert free is None or 2**20<free<2**50
