"GPT's inputs and learner through what a classifier meets: a run that is stopped, a network that is handed on, the other order"
import pytest, torch
from fastai.torch_core import set_seed
from fastformers.callback.auxiliary_lm import AuxiliaryLM
from fastformers.callback.resume import Resume
from fastformers.inference.predictor import from_hf
from fastformers.learner.core import lm_learner
from fastformers.papers.gpt import gpt_learner, gpt_tokens
from test_contracts_common import *

def learner(family='gpt2', arch=None, **kwargs):
    set_seed(0)
    dls = classifier_dls(tiny_pairs(), gpt_tokens(tiny_tok(family)), ['text_a','text_b'], pairing='both_orders', bs=8, device='cpu')
    return quiet(gpt_learner(dls, arch or tiny_arch(family, num_hidden_layers=1), **kwargs))

@pytest.mark.parametrize('family', ['gpt2','llama'])
def test_the_order_of_a_pair_does_not_matter(family, tmp_path):
    learn = learner(family); learn.fit(1, 1e-3)
    loud(learn.model)
    predictor = from_hf(learn.to_hf(tmp_path/'m'), device='cpu')
    a,b = zip(*pairs[:6])
    one,other = predictor.scores([*zip(a, b)]),predictor.scores([*zip(b, a)])
    assert gap(one, other)<1e-5 and gap(one[0], one[1])>1e-3

def test_a_stopped_run_ends_as_the_whole_one(tmp_path):
    whole = learner(cbs=Resume(tmp_path/'a', every=2, minutes=None)); whole.fit_one_cycle(2, 1e-3)
    with pytest.raises(KeyboardInterrupt): learner(cbs=[Resume(tmp_path/'b', every=2, minutes=None), Power(5)]).fit_one_cycle(2, 1e-3)
    again = learner(cbs=Resume(tmp_path/'b', every=2, minutes=None)); again.fit_one_cycle(2, 1e-3)
    a,b = whole.model.state_dict(),again.model.state_dict()
    assert all(torch.equal(a[k], b[k]) for k in a)

def test_the_head_of_the_language_model_is_learnt_beside(tmp_path):
    tok = gpt_tokens(tiny_tok('gpt2'))
    lm = quiet(lm_learner(lm_dls(tiny_df(), tok, CLM(tok), bs=16, device='cpu'), tiny_arch('gpt2', num_hidden_layers=1)))
    lm.save_encoder(tmp_path/'lm')
    learn = learner(arch=tmp_path/'lm')
    assert not learn.model.lm.new_head and learn.model.lm.body is learn.model.body
    learn.fit_one_cycle(3, 1e-3)
    assert float(next(o for o in learn.cbs if isinstance(o, AuxiliaryLM)).lm_loss)<6.9 # ln 1024 = 6.93
