"Every objective of the library, found by its name: exact means, accumulation, resuming, hand-over, tables"
import pytest, torch
from fastai.basics import Callback
from fastai.optimizer import Adam, SGD
from fastai.torch_core import set_seed
from fastformers.callback.compute import TokenAccumulation
from fastformers.callback.resume import Resume
from fastformers.inference.predictor import from_hf
from fastformers.learner.core import lm_learner
from fastformers.objectives.core import objectives
from fastformers.text.tokenizer import extend_vocab
from test_contracts_common import *

toks = {'electra':tiny_tok('electra'), 'llama':extend_vocab(tiny_tok('llama'), mask_token='<mask>')}
families = {o:tiny_arch(o) for o in toks}
own = {k:o for k,o in objectives.load().items() if o.__module__.startswith('fastformers.')}
# pairs and XLNet are in test_joint_objectives, dialogues in test_transfertransfo
known = {k:o for k,o in own.items() if any(map(o.supports, families.values())) and k!='dialogue'}
df = tiny_df()[:24]

def learner(name, bs=8, drop_mult=1., arch=None, cbs=None, opt_func=SGD, **kwargs):
    "A small learner with objective `name`, on the first family that fits"
    set_seed(0)
    family = next(k for k,o in families.items() if known[name].supports(o))
    dls = lm_dls(df, toks[family], known[name](toks[family], **kwargs), seq_len=32, bs=bs, device='cpu')
    return quiet(lm_learner(dls, arch or tiny_arch(family, num_hidden_layers=1), drop_mult=drop_mult, precision='fp32', cbs=cbs, opt_func=opt_func))

each = pytest.mark.parametrize('name', sorted(known))
apart = pytest.mark.parametrize('name', sorted({*known}-{'word_similarity'})) # it compares a text with those of its batch, and with the network it starts from

class Grads(Callback):
    order = 1000
    def before_step(self): self.grads = {k:p.grad.clone() for k,p in self.model.named_parameters() if p.grad is not None}

@apart
def test_accumulated_gradients_are_those_of_the_large_batch(name):
    whole,parts = learner(name, 100, 0., cbs=Grads()),learner(name, 5, 0., cbs=[Grads(), TokenAccumulation(n_acc=10**6)])
    for o in (whole,parts): o.model.double(); o.fit(1, 1e-3)
    a,b = whole.grads.grads,parts.grads.grads
    assert a.keys()==b.keys() and max(gap(a[k], b[k]) for k in a)<1e-5 and max(float(o.abs().max()) for o in a.values())>1e-2

def same_after_a_stop(new, tmp_path):
    whole = new(Resume(tmp_path/'a', every=2, minutes=None)); whole.fit_one_cycle(2, 1e-2)
    with pytest.raises(KeyboardInterrupt): new([Resume(tmp_path/'b', every=2, minutes=None), Power(5)]).fit_one_cycle(2, 1e-2)
    again = new(Resume(tmp_path/'b', every=2, minutes=None)); again.fit_one_cycle(2, 1e-2)
    a,b = whole.model.state_dict(),again.model.state_dict()
    assert all(torch.equal(a[k], b[k]) for k in a) and [*whole.validate()]==[*again.validate()]

@pytest.mark.exact
@each
def test_a_stopped_run_ends_as_the_whole_one(name, tmp_path):
    same_after_a_stop(lambda cbs: learner(name, 5, cbs=cbs), tmp_path)

@apart
def test_a_checkpoint_goes_on_where_it_was_left_and_tables_are_shown(name, tmp_path):
    learn = learner(name); learn.fit(1, 1e-2)
    learn.save_encoder(tmp_path/'lm')
    for again in (learner(name, arch=tmp_path/'lm'), learner(name).load_encoder(tmp_path/'lm')):
        assert [*again.validate()]==pytest.approx([*learn.validate()], rel=1e-5)
    learn.dls.show_batch(max_n=2); learn.show_results(max_n=2)

def test_an_encoder_learns_its_words_and_opens_as_one(tmp_path):
    learn = learner('word_similarity', drop_mult=0., opt_func=Adam); rows = learn.dls.train.new(shuffle=False)
    before = learn.validate(dl=rows)[0]; learn.fit(8, 1e-3)
    assert learn.validate(dl=rows)[0]<.8*before
    path = learn.save_encoder(tmp_path/'encoder')
    texts,tok,model = df.text.tolist()[:9],HFTokenizer(toks['electra']),learn.model.eval()
    with torch.no_grad(): want = torch.stack([model(tok(o)[None])[0] for o in texts])
    assert gap(from_hf(path).vectors(texts), torch.nn.functional.normalize(want, dim=1))<1e-5
    learn.dls.show_batch(max_n=2); learn.show_results(max_n=2)

# ---- two ways of reading in one network

@pytest.mark.parametrize('p', [0., .1])
def test_a_hybrid_network_trains_alike_with_recomputed_layers(p):
    "Gradient checkpointing runs the layers again in the backward pass, where the config no longer says in which direction"
    res = []
    for again in (False, True):
        learn = learner('hybrid', 100, cbs=Grads()) if p else learner('hybrid', 100, 0., cbs=Grads())
        if again: learn.model.hf.gradient_checkpointing_enable()
        for m in learn.model.modules():
            if hasattr(m, 'attention_dropout'): m.attention_dropout = p # the faster attention of training on a CPU
        set_seed(1); learn.fit(1, 1e-3); res.append(learn.grads.grads)
    assert max(gap(res[0][k], res[1][k]) for k in res[0])<1e-6

def test_a_causal_row_of_a_hybrid_network_never_sees_what_follows_while_it_trains():
    model = learner('hybrid').model.train()
    for m in model.modules():
        if hasattr(m, 'attention_dropout'): m.attention_dropout = .1
    mask = toks['llama'].mask_token_id
    for last,blind in ((30,True), (mask,False)): # without a mask token, and with one
        ids = torch.randint(300, 600, (2,12)); ids[:,5] = last
        other = ids.clone(); other[:,-1] = 31
        outs = []
        for o in (ids, other): set_seed(2); outs.append(model(TensorTokens(o, predicted=torch.ones_like(o))))
        assert (gap(outs[0][:,:-1], outs[1][:,:-1])==0)==blind
