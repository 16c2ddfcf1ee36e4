"A window of batches steps as the large batch does"
import pytest, torch, torch.nn.functional as F
from fastai.basics import Callback, CancelTrainException
from fastai.callback.training import GradientClip
from fastai.callback.fp16 import MixedPrecision
from fastai.optimizer import SGD
from fastai.torch_core import set_seed
from fastformers.callback.compute import TokenAccumulation
from fastformers.data.block import classifier_dls, lm_dls
from fastformers.learner.core import classifier_learner, lm_learner
from fastformers.objectives.clm import CLM
from fastformers.objectives.mlm import MLM
from fastformers.objectives.core import gather_targets
from fastformers.callback.schedule import gradual_unfreeze
from fastformers.testing import tiny_arch, tiny_df, tiny_tags, tiny_tok
from fastformers.callback.compute import cpu_bf16
from fastformers.learner.optimizer import FusedAdam

class Keep(Callback):
    "Keep the gradient of each step, after clipping"
    order = MixedPrecision.order+2
    def before_fit(self): self.grads,self.clock = [],[]
    def after_loss(self): self.learn.loss = self.loss.float() # the recorder takes no float64
    def before_step(self):
        self.grads.append({k:p.grad.clone() for k,p in self.model.named_parameters() if p.grad is not None})
        self.clock.append(self.train_iter)

def exact(pred, y): return F.cross_entropy(pred.flatten(0,1), gather_targets(y, pred.shape[1]).flatten(), ignore_index=-100)

class First(torch.nn.Linear):
    "A head in float64"
    def forward(self, h, mask): return super().forward(h[:,0].to(self.weight.dtype))

def learner(kind, bs, *cbs, opt_func=SGD, double=True, loss=None):
    set_seed(0)
    df = tiny_df()
    if kind=='tags':
        dls = classifier_dls(tiny_tags(), tiny_tok(), bs=bs, device='cpu')
        learn = classifier_learner(dls, tiny_arch('bert', num_hidden_layers=1), drop_mult=0., precision='fp32', opt_func=opt_func, cbs=[Keep(), *cbs])
        double = False                                                    # outputs at words are float32
    elif kind=='classifier':
        tok,kw = tiny_tok(),dict(loss_func=loss or torch.nn.CrossEntropyLoss(), head=First(32, 3))
        learn = classifier_learner(classifier_dls(df, tok, bs=bs), tiny_arch('bert', num_hidden_layers=1), drop_mult=0., precision='fp32', opt_func=opt_func, cbs=[Keep(), *cbs], **kw)
    else:
        family,obj = dict(mlm=('bert',MLM), clm=('gpt2',CLM))[kind]
        tok = tiny_tok(family)
        learn = lm_learner(lm_dls(df, tok, obj(tok), seq_len=32, bs=bs), tiny_arch(family, num_hidden_layers=1), drop_mult=0., precision='fp32', opt_func=opt_func, cbs=[Keep(), *cbs])
        if double: learn.loss_func = exact
    if double: learn.model.double()
    return learn

def fit(learn, n=1, lr=1e-2):
    with learn.no_logging(), learn.no_bar(): learn.fit(n, lr)
    return learn.keep.grads

def distance(a, b): return max(float((a[k]-b[k]).abs().max()) for k in a)

@pytest.mark.exact
@pytest.mark.parametrize('kind', ['mlm','clm','classifier','tags'])
def test_window_equals_large_batch(kind):
    whole,parts = fit(learner(kind, 1000)),fit(learner(kind, 7, TokenAccumulation(n_acc=10**6)))
    assert len(whole)==len(parts)==1 and whole[0].keys()==parts[0].keys()
    assert distance(whole[0], parts[0])<(1e-6 if kind in ('classifier','tags') else 1e-10) and max(float(o.abs().max()) for o in whole[0].values())>1e-3

def test_class_weights():
    w = torch.tensor([1.,5.,.2], dtype=torch.float64)
    a,b = (fit(learner('classifier', bs, *cbs, loss=torch.nn.CrossEntropyLoss(weight=w))) for bs,cbs in ((1000,()), (7,[TokenAccumulation(n_acc=10**6)])))
    assert distance(a[0], b[0])<1e-6

@pytest.mark.parametrize('opt_func', [SGD,FusedAdam])
def test_weights_after_epochs_with_clipping(opt_func):
    a,b = learner('mlm', 1000, GradientClip(.1), opt_func=opt_func),learner('mlm', 7, TokenAccumulation(n_tokens=10**6), GradientClip(.1), opt_func=opt_func)
    fit(a, 3); fit(b, 3)
    assert len(a.keep.grads)==len(b.keep.grads)==3
    for p,q in zip(a.model.parameters(), b.model.parameters()): assert float((p-q).detach().abs().max())<1e-10
    assert len(b.recorder.losses)==3*len(b.dls.train)                      # losses of batches

def test_windows_close_where_they_should():
    learn = learner('mlm', 4, TokenAccumulation(n_tokens=250))
    sizes = []
    class Count(Callback):
        order = 0
        def after_loss(self):
            if self.training: sizes.append(int(self.xb[0].as_subclass(torch.Tensor).bitwise_right_shift(32).bitwise_and(1).eq(0).sum()))
    learn.add_cb(Count()); fit(learn)
    want,n = [],0
    for i,o in enumerate(sizes):
        n += o
        if n>=250 or i+1==len(sizes): want.append(i); n = 0
    assert learn.keep.clock==want and 1<len(want)<len(sizes)

def test_frozen_stays_frozen_and_windows_end_with_steps_of_a_schedule():
    learn = learner('classifier', 4, TokenAccumulation(n_acc=20), opt_func=FusedAdam)
    with learn.no_logging(), learn.no_bar(): learn.fit_schedule(gradual_unfreeze, 1e-3, epochs=2.5)
    opened = [sum(v>0 for v in o) for o in learn.recorder.hps['lr']]
    assert {i for i in range(len(opened)) if i+1==len(opened) or opened[i]!=opened[i+1]} <= set(learn.keep.clock)
    assert [len(g) for g in learn.keep.grads]==sorted(len(g) for g in learn.keep.grads)
    learn = learner('classifier', 4, TokenAccumulation(n_acc=20), opt_func=FusedAdam); learn.freeze()
    low = [p for ps in learn.splitter(learn.model)[:-1] for p in ps]
    before = [p.detach().clone() for p in low]
    fit(learn)
    assert all(torch.equal(p, q) for p,q in zip(low, before)) and any(p.requires_grad for p in learn.model.parameters())

def test_with_bf16():
    a = fit(learner('mlm', 1000, cpu_bf16(True), double=False))
    b = fit(learner('mlm', 7, TokenAccumulation(n_acc=10**6), cpu_bf16(True), double=False))
    size = max(float(o.abs().max()) for o in a[0].values())
    assert distance(a[0], b[0])<.05*size

def test_tokens_or_rows_are_counted_not_both():
    for o in ({}, dict(n_tokens=9, n_acc=9)):
        with pytest.raises(ValueError, match='one of them'): TokenAccumulation(**o)
