"Where memory is too small, a step reads fewer rows at once"
import pandas as pd, pytest, torch
from fastai.basics import set_seed, to_float
from fastai.callback.fp16 import MixedPrecision
from transformers import BertConfig, BertModel
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

def fitted(bs=8, cbs=None, family='bert'):
    set_seed(0)
    learn = classifier_learner(classifier_dls(tiny_df(), tiny_tok(), bs=8, device='cpu'), tiny_arch(family), drop_mult=0., precision='fp32', head='LinearHead', cbs=cbs)
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

@pytest.fixture
def shallow(monkeypatch):
    "Let the network have room for `n` rows in training if it checkpoints its blocks, and for none if not"
    def room(n):
        old = TextClassifier.forward
        def forward(self, x):
            recomputes = any(getattr(o, 'gradient_checkpointing', False) for o in self.body.modules())
            if self.training and len(x)>n*recomputes: raise torch.OutOfMemoryError('CUDA out of memory')
            return old(self, x)
        monkeypatch.setattr(TextClassifier, 'forward', forward)
    return room

def test_blocks_are_checkpointed_where_one_row_is_too_large(shallow, caplog):
    plain = fitted(2, TokenAccumulation(n_acc=8))
    shallow(3)
    learn = fitted()
    said = [o for o in caplog.messages if 'memory is too small' in o]
    assert ['gradient checkpointing' in o for o in said]==[False]*3+[True]+[False]*2 and 'takes a third more time' in said[3]
    a,b = (o.model.state_dict() for o in (plain,learn))
    assert max(float((v-b[k]).abs().max()) for k,v in a.items())<1e-5
    res = learn.lineage.history[0][1]
    assert res.at_once==learn.dls.train.bs==2 and res.checkpointed

def test_batches_of_so_many_tokens_are_checkpointed_too(shallow, caplog):
    shallow(3)
    dls = classifier_dls(tiny_df(), tiny_tok(), max_tokens=30, bs=3, device='cpu')
    learn = classifier_learner(dls, tiny_arch('bert'), precision='fp32', head='LinearHead')
    with learn.no_bar(): learn.fit_plan(learn.plan(epochs=1, lr=1e-3))
    res = learn.lineage.history[0][1]
    assert res.checkpointed and not res.at_once and caplog.text.count('memory is too small')==1 and learn.dls.train.max_tokens==30

@pytest.mark.parametrize('n,at_once', [(3,2), (8,0)])
def test_a_training_on_all_rows_is_checkpointed_too(shallow, tmp_path, n, at_once):
    shallow(n)
    stage = fine_tune_classifier(tiny_df(), tiny_arch('bert'), tok=tiny_tok(), path=tmp_path/'c', bs=8, epochs=1, refit=True, precision='fp32')
    assert stage.checkpointed and stage.at_once==at_once and stage.learner.dls.train.bs==(at_once or 8)

def test_checkpoints_are_of_one_batch_size(small, tmp_path):
    small(3)
    with pytest.raises(torch.OutOfMemoryError) as e: fine_tune_classifier(tiny_df(), tiny_arch('bert'), tok=tiny_tok(), bs=8, epochs=2, resume=tmp_path/'r')
    assert 'pass a smaller `bs`' in e.value.__notes__[0]

def test_other_errors_and_one_row_that_is_too_large(small):
    small(0)
    for family in ('bert','albert'): # which cannot checkpoint
        with pytest.raises(torch.OutOfMemoryError) as e: fitted(family=family)
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

@pytest.mark.slow
def test_a_network_of_base_size_learns_at_the_rate_of_the_rule(tmp_path):
    BertModel(BertConfig(vocab_size=len(tiny_tok()))).save_pretrained(tmp_path/'base') # 12 layers of width 768
    tiny_tok().save_pretrained(tmp_path/'base')
    df = pd.DataFrame([(f'a {word} {noun} {end}', label) for word,label in (('good','yes'), ('bad','no')) for noun in ('film','book','song','town') for end in ('it is','we saw','they say','again','in the end','of ours')], columns=['text','label'])
    stage = fine_tune_classifier(df, tmp_path/'base', head_init='random', epochs=4)
    assert 85e6<sum(o.numel() for o in stage.learner.model.parameters())<95e6
    assert stage.plan['lr']==1e-4 and stage.metrics['accuracy']>=.9
