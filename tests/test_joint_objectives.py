"PLM, NSP, SOP and Joint through everything that an objective meets: exact means, accumulation, resuming, hand-over, stages by name, verbs"
import pandas as pd, pytest, torch
from fastai.basics import Callback
from fastai.optimizer import SGD
from fastai.torch_core import set_seed
from transformers import AutoModel, AutoModelForCausalLM, AutoModelForPreTraining
from fastformers.callback.compute import TokenAccumulation
from fastformers.callback.resume import Resume
from fastformers.inference.predictor import from_hf
from fastformers.learner.core import classifier_learner, lm_learner
from fastformers.papers.sentence_pairs import Joint
from fastformers.papers.xlnet import PLM
from fastformers.papers.sentence_pairs import NSP, SOP
from fastformers.learner.evaluate import evaluate
from fastformers.ulmfit.stage import fine_tune_lm, pretrain_lm
from test_contracts_common import *

def sop_too(tok, seed=42): return Joint([MLM(tok, seed=seed), SOP(tok, seed=seed)])
kinds = dict(plm=('xlnet',PLM), nsp=('bert',NSP), sop=('albert',SOP), joint=('bert',Joint), ordered=('albert',sop_too), big_bird=('big_bird',sop_too))
alone = ['plm','sop','ordered'] # no row depends on another
df = tiny_df()

def learner(kind, bs=8, drop_mult=1., arch=None, data=df, **kwargs):
    family,obj = kinds[kind]
    set_seed(0)
    tok,packing = tiny_tok(family),'doc-sentences' if kind=='plm' else 'segment-pair'
    dls = lm_dls(data, tok, obj(tok), seq_len=32, bs=bs, device='cpu', packing=packing)
    return quiet(lm_learner(dls, arch or tiny_arch(family, num_hidden_layers=1), drop_mult=drop_mult, **kwargs))

@pytest.mark.parametrize('kind', alone)
def test_validation_figures_do_not_depend_on_the_batch_size(kind):
    learns = [learner(kind, bs) for bs in (1, 5, 100)]
    for o in learns[1:]: o.model.load_state_dict(learns[0].model.state_dict())
    figures = [list(o.validate()) for o in learns]
    for o in figures[1:]: assert o==pytest.approx(figures[0], rel=1e-5)
    metrics,rows,weights = evaluate(learns[1])
    assert metrics['loss']==pytest.approx(figures[0][0], rel=1e-5) and -(rows*weights).sum()/weights.sum()==pytest.approx(figures[0][0], rel=1e-5)

@pytest.mark.parametrize('kind', ['nsp','joint'])
def test_validation_with_other_rows_is_the_same_each_time(kind):
    learn = learner(kind)
    first,pairs = [*learn.validate()],[y[-1] for _,*y in learn.dls.valid]
    learn.fit(1, lr=0., wd=0.)
    assert [*learn.validate()]==first
    assert all(torch.equal(a, b) for a,(_,*b) in zip(pairs, [(x,y[-1]) for x,*y in learn.dls.valid]) for b in b)
    assert all(int(y.sum())==len(y)//2 for y in pairs) and sum(map(len, pairs))>8

class Grads(Callback):
    order = 1000
    def before_step(self): self.grads = {k:p.grad.clone() for k,p in self.model.named_parameters() if p.grad is not None}

@pytest.mark.exact
@pytest.mark.parametrize('kind', alone)
def test_accumulated_gradients_are_those_of_the_large_batch(kind):
    whole,parts = learner(kind, 100, 0., opt_func=SGD, cbs=Grads()),learner(kind, 7, 0., opt_func=SGD, cbs=[Grads(), TokenAccumulation(n_acc=10**6)])
    for o in (whole,parts):
        if kind!='plm': o.model.double() # transformers' XLNet has parts in float32
        o.fit(1, 1e-3)
    a,b = whole.grads.grads,parts.grads.grads
    assert a.keys()==b.keys() and max(gap(a[k], b[k]) for k in a)<1e-5 and max(float(o.abs().max()) for o in a.values())>1e-2

@pytest.mark.parametrize('kind', ['plm','nsp','sop','joint'])
def test_a_stopped_run_ends_as_the_whole_one(kind, tmp_path):
    whole = learner(kind, cbs=Resume(tmp_path/'a', every=2, minutes=None)); whole.fit_one_cycle(2, 1e-3)
    with pytest.raises(KeyboardInterrupt): learner(kind, cbs=[Resume(tmp_path/'b', every=2, minutes=None), Power(5)]).fit_one_cycle(2, 1e-3)
    again = learner(kind, cbs=Resume(tmp_path/'b', every=2, minutes=None)); again.fit_one_cycle(2, 1e-3)
    a,b = whole.model.state_dict(),again.model.state_dict()
    assert all(torch.equal(a[k], b[k]) for k in a) and [*whole.validate()]==[*again.validate()]

@pytest.mark.parametrize('kind', list(kinds))
def test_the_network_is_handed_on(kind, tmp_path):
    learn = learner(kind); learn.fit(1, 1e-3)
    learn.save_encoder(tmp_path/'lm')
    body,mine = AutoModel.from_pretrained(tmp_path/'lm').state_dict(),learn.model.body.state_dict()
    assert all(torch.equal(v, mine[k]) for k,v in body.items())
    auto = AutoModelForCausalLM if kind=='plm' else AutoModelForPreTraining
    whole = auto.from_pretrained(tmp_path/'lm').state_dict()
    assert all(torch.equal(v, whole[k]) for k,v in learn.model.hf.state_dict().items())
    c = quiet(classifier_learner(classifier_dls(df, str(tmp_path/'lm'), bs=16, device='cpu'), tmp_path/'lm'))
    assert not c.model.loaded.new
    c.fit(1, 1e-3); c.to_hf(tmp_path/'out')
    assert from_hf(tmp_path/'out')(['a fine film'])[0]['label'] in c.dls.vocab
    for again in (learner(kind, arch=tmp_path/'lm'), learner(kind).load_encoder(tmp_path/'lm')):
        assert [*again.validate()]==pytest.approx([*learn.validate()], rel=1e-6)

@pytest.mark.parametrize('name,family', [('plm','xlnet'), ('sop','albert'), ('joint','bert')])
def test_stages_know_them_by_name(name, family, tmp_path):
    kwargs = dict(objective=name, epochs=1, seq_len=32, bs=16, packing='doc-sentences' if name=='plm' else 'segment-pair')
    pretrain_lm(df, tmp_path/'one', tiny_tok(family), tiny_arch(family, num_hidden_layers=1), **kwargs)
    second = fine_tune_lm(df, tmp_path/'one', path=tmp_path/'two', **kwargs)
    assert second.learner.model.loaded.new==[]

@pytest.mark.parametrize('kind', list(kinds))
def test_verbs(kind, shown):
    learn = learner(kind); learn.fit(1, 1e-3)
    n,two = len(learn.dls.valid_ds),isinstance(learn.dls.train.after_batch.fs[-1], Joint)
    preds,targs,dec,losses = learn.get_preds(with_decoded=True, with_loss=True)
    for o in (preds, targs, dec): assert [*map(len, o)]==[n,n] if two else len(o)==n
    assert len(losses)==n
    learn.dls.show_batch(max_n=2); learn.show_results(max_n=2)
    extra = ['target2'] if two else []
    assert [*shown[0][0]]==['text','target',*extra] and [*shown[1][0]]==['text','target',*extra,'predicted',*(o.replace('target','predicted') for o in extra)]
    learn.predict('a fine film' if kind=='plm' else ('We waited.','It was cold.'))
    assert learn.lr_find(num_it=5, show_plot=False).valley>0

words = 'red blue green black white'.split()

@pytest.mark.parametrize('kind', ['plm','sop','ordered'])
def test_a_tiny_corpus_is_learned(kind):
    stories = [f'The {a} dog ran home. Then it was {b} in the park.' for a in words for b in words]
    data = pd.DataFrame(dict(text=stories*3, is_valid=[i%3==0 for i in range(75)]))
    learn = learner(kind, data=data, drop_mult=0., arch=tiny_arch(kinds[kind][0], num_hidden_layers=1, initializer_range=.2))
    before = dict(zip(('loss',*(m.name for m in learn.metrics)), learn.validate()))
    learn.fit_one_cycle(8, 5e-3)
    after = dict(zip(before, learn.validate()))
    assert after['loss']<before['loss']*.8
    if kind=='sop': assert after['accuracy']>.9

@pytest.mark.parametrize('kind', ['nsp','joint'])
def test_the_pairs_of_a_batch_are_learned(kind):
    learn = learner(kind, data=tiny_df(), drop_mult=0., arch=tiny_arch('bert', num_hidden_layers=1, initializer_range=.2))
    x,*y = learn.dls.one_batch()
    opt = torch.optim.Adam(learn.model.parameters(), 3e-3)
    for _ in range(60):
        pred = learn.model(x)
        learn.loss_func(pred, *y).backward(); opt.step(); opt.zero_grad()
    scores = pred[-1] if kind=='joint' else pred
    assert torch.equal(scores.argmax(-1), y[-1]) and 0<y[-1].sum()<len(x)
