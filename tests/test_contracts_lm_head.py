"The LM head runs on predicted positions alone: the loss and the gradients of the dense computation, for every family"
import pytest, torch, torch.nn.functional as F
from fastformers.learner.core import lm_learner
from test_contracts_common import *

pytestmark = pytest.mark.exact

def data(family, side=None):
    "A padded batch with targets: texts of unequal length, the first with few tokens to predict"
    obj = objective(family)
    obj.tfm.left = side=='left' if side else obj.tfm.left
    x,y = obj((batch(obj.tfm, [texts[0], texts[3], texts[5], 'Fresh fish']),), split_idx=0)
    return obj,x,y

def dense_loss(model, x, y):
    "Logits of every position `(bs, sl, V)` and the mean loss over those with a target"
    inputs = model.model_inputs(x)
    if not x.real[:,0].all(): inputs['position_ids'] = (x.attention_mask.cumsum(1)-1).clamp(min=0) # transformers counts padding on the left
    logits = model.hf(**inputs).logits
    return logits, F.cross_entropy(logits.flatten(0,1), y.flatten(), ignore_index=-100)

def gradients(model, loss):
    model.zero_grad(set_to_none=True)
    loss.backward()
    return {k:p.grad.clone() for k,p in model.named_parameters() if p.grad is not None}

cases = [(f,None) for f in masked+causal] + [('gpt2','left'), ('llama','left')]

@pytest.mark.parametrize('family,side', cases)
def test_loss_and_gradients_are_those_of_the_dense_head(family, side):
    (obj,x,y),model = data(family, side),language_model(family)
    pred = model(x)
    k = int((y!=-100).sum(1).max())
    assert pred.shape==(4,k,model.config.vocab_size) and k<x.shape[1]
    logits,dense = dense_loss(model, x, y)
    loss = obj.loss_func(pred, y)
    for p,l,t in zip(pred, logits, y): assert gap(p[:(t!=-100).sum()], l[t!=-100])<1e-5 # in order of position
    assert gap(loss, dense)<1e-5
    a,b = gradients(model, loss),gradients(model, dense)
    assert a.keys()==b.keys() and max(float(g.abs().max()) for g in b.values())>1e-2
    for n in a: assert gap(a[n], b[n]) < 1e-5*max(1., float(b[n].abs().max())), n

@pytest.mark.parametrize('family', 'bert modernbert xlm gpt2 llama'.split())
def test_reductions_of_the_loss_agree(family):
    (obj,x,y),model = data(family),language_model(family)
    pred = model(x).detach()
    n,f = (y!=-100).sum(1), obj.loss_func
    rows = f(pred, y, reduction='none')
    assert rows.shape==(4,) and gap((rows*n).sum()/n.sum(), f(pred, y))<1e-5 and gap(f(pred, y, reduction='sum'), f(pred, y)*n.sum())<1e-3
    for i in range(4): assert gap(f(pred[i:i+1], y[i:i+1]), rows[i])<1e-5

@pytest.mark.parametrize('family', masked+causal)
def test_a_batch_with_nothing_predicted_costs_nothing(family):
    obj,model = objective(family),language_model(family)
    x,y = obj((batch(obj.tfm, ['', '']),), split_idx=0)
    assert not x.predicted.any() and bool((y==-100).all())
    for how in ('mean','sum','none'):
        loss = obj.loss_func(model(x), y, reduction=how)
        assert loss.shape==((2,) if how=='none' else ()) and bool((loss==0).all())
    grads = gradients(model, obj.loss_func(model(x), y))
    assert grads and all(bool((g==0).all()) for g in grads.values()) # zero, so also finite

def test_a_learner_survives_batches_with_nothing_predicted():
    df = tiny_df().iloc[:8].assign(text=['!']*7+['? !'], is_valid=[True,False]*4)
    obj = CLM(tiny_tok('gpt2'))
    learn = quiet(lm_learner(lm_dls(df, obj.tfm, obj, bs=1), tiny_arch('gpt2'), lr=1e-3))
    before = {k:v.clone() for k,v in learn.model.state_dict().items()}
    learn.fit(1, wd=0.)
    assert all(v.isfinite().all() for v in learn.model.state_dict().values()) and all(o==o for o in learn.recorder.losses)
    assert any(not torch.equal(v, before[k]) for k,v in learn.model.state_dict().items()) # one text has something to predict
    assert all(p is None for p in learn.validate()) # there is no mean of nothing

def test_families_that_cannot_learn_an_objective_say_so():
    for family,cls,words in (('xlnet',MLM,'MLM does not fit xlnet'), ('xlnet',CLM,'CLM does not fit xlnet'), ('bert',CLM,'objectives that do: MLM'), ('gpt2',MLM,'objectives that do: CLM')):
        tok = tiny_tok('bert' if (family,cls)==('gpt2',MLM) else family)
        with pytest.raises(ValueError, match=words) as e: cls(tok).build(tiny_arch(family))
        assert family in str(e.value)
    with pytest.raises(ValueError, match='no mask token.*use `CLM`'): MLM(tiny_tok('gpt2'))
