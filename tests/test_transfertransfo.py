"Dialogues through everything that an objective meets: exact means, accumulation, resuming, hand-over, verbs"
import numpy as np, pandas as pd, pytest, torch
from fastai.basics import Callback
from fastai.optimizer import SGD
from fastai.torch_core import set_seed
from transformers import AutoModel, AutoModelForCausalLM
from fastformers.callback.compute import TokenAccumulation
from fastformers.callback.resume import Resume
from fastformers.learner.core import classifier_learner, lm_learner
from fastformers.papers.transfertransfo import Dialogue, DialogueTokenizer, dialogue_dls, reply
from fastformers.learner.evaluate import evaluate
from test_contracts_common import *

words = tiny_df().text.str.split('.').str[0].tolist()
talks = pd.DataFrame(dict(turns=[words[4*i:4*i+2+2*(i%2)] for i in range(14)], is_valid=[i>8 for i in range(14)]))

def learner(family='gpt2', bs=4, drop_mult=1., arch=None, data=talks, **kwargs):
    set_seed(0)
    dls = dialogue_dls(data, Dialogue(tiny_tok(family)), n_distractors=(2,3), bs=bs, device='cpu')
    return quiet(lm_learner(dls, arch or tiny_arch(family, num_hidden_layers=1), drop_mult=drop_mult, **kwargs))

@pytest.mark.parametrize('family', ['gpt2','llama'])                       # llama pads on the left
def test_validation_figures_do_not_depend_on_the_batch_size(family):
    learns = [learner(family, bs) for bs in (1, 3, 100)]
    for o in learns[1:]: o.model.load_state_dict(learns[0].model.state_dict())
    figures = [list(o.validate()) for o in learns]
    for o in figures[1:]: assert o==pytest.approx(figures[0], rel=1e-5)
    metrics,rows,weights = evaluate(learns[1])
    assert metrics['loss']==pytest.approx(figures[0][0], rel=1e-5) and -(rows*weights).sum()/weights.sum()==pytest.approx(figures[0][0], rel=1e-5)

@pytest.mark.exact
@pytest.mark.parametrize('family', ['gpt2','opt','bloom'])
def test_the_loss_is_that_of_transformers_on_the_reply(family):
    learn = learner(family)
    loud(learn.model)
    for b in learn.dls.valid:
        x,y,first = b
        seqs = [o[o.real] for o in x.as_subclass(TensorTokens)]
        total = n = 0
        for row,t in zip(seqs, y):
            ids = row.ids[row.sequence_starts.cumsum(0)==0]
            last = int((ids==learn.dls.train.after_batch.fs[-1].tfm.ids[1]).nonzero()[-1])
            labels = ids.masked_fill(torch.arange(len(ids))<=last, -100)
            k = len(ids)-last-1
            total += float(learn.model.hf(input_ids=ids[None], labels=labels[None]).loss)*k; n += k
        pred = learn.model(x)
        assert float(learn.loss_func.members[0].loss_func(pred[0], y))==pytest.approx(total/n, rel=1e-5)
        assert int((y!=-100).sum())==n and float(first.sum())==0

class Grads(Callback):
    order = 1000
    def before_step(self): self.grads = {k:p.grad.clone() for k,p in self.model.named_parameters() if p.grad is not None}

@pytest.mark.exact
def test_accumulated_gradients_are_those_of_the_large_batch():
    whole,parts = learner(bs=100, drop_mult=0., opt_func=SGD, cbs=Grads()),learner(bs=3, drop_mult=0., opt_func=SGD, cbs=[Grads(), TokenAccumulation(n_acc=10**6)])
    for o in (whole,parts): o.model.double(); o.fit(1, 1e-3)
    a,b = whole.grads.grads,parts.grads.grads
    assert a.keys()==b.keys() and 'choice.weight' in a and max(gap(a[k], b[k]) for k in a)<1e-5 and max(float(o.abs().max()) for o in a.values())>1e-2

def test_a_stopped_run_ends_as_the_whole_one(tmp_path):
    whole = learner(cbs=Resume(tmp_path/'a', every=2, minutes=None)); whole.fit_one_cycle(2, 1e-3)
    with pytest.raises(KeyboardInterrupt): learner(cbs=[Resume(tmp_path/'b', every=2, minutes=None), Power(5)]).fit_one_cycle(2, 1e-3)
    again = learner(cbs=Resume(tmp_path/'b', every=2, minutes=None)); again.fit_one_cycle(2, 1e-3)
    a,b = whole.model.state_dict(),again.model.state_dict()
    assert all(torch.equal(a[k], b[k]) for k in a) and [*whole.validate()]==[*again.validate()]

def test_the_network_is_handed_on(tmp_path):
    learn = learner(); learn.fit(1, 1e-3)
    learn.save_encoder(tmp_path/'lm')
    for auto,mine in ((AutoModel,learn.model.body), (AutoModelForCausalLM,learn.model.hf)):
        theirs,mine = auto.from_pretrained(tmp_path/'lm').state_dict(),mine.state_dict()
        assert all(torch.equal(v, mine[k]) for k,v in theirs.items())
    assert [*learner(arch=tmp_path/'lm').validate()]==pytest.approx([*learn.validate()], rel=1e-6)
    assert learner().load_encoder(tmp_path/'lm').validate()[1]==pytest.approx(learn.validate()[1], rel=1e-6) # of the reply
    c = quiet(classifier_learner(classifier_dls(tiny_df(), str(tmp_path/'lm'), bs=16, device='cpu'), tmp_path/'lm'))
    assert not c.model.loaded.new
    c.fit(1, 1e-3)

@pytest.mark.parametrize('family', ['gpt2','bert'])                        # a BERT decoder has segments
def test_a_reply_ends_with_the_turn(family):
    learn = learner(family, arch=tiny_arch(family, num_hidden_layers=1, **dict(is_decoder=True) if family=='bert' else {}))
    hf,tok = learn.model.hf,tokenizer_in(learn)
    torch.manual_seed(0)
    said = {reply(hf, tok, words[:3], max_new_tokens=8) for _ in range(3)}
    assert len(said)>1 and not any('<a>' in o or '<b>' in o for o in said)
    with torch.no_grad(): hf.get_output_embeddings().bias = torch.nn.Parameter(torch.zeros(hf.config.vocab_size).index_fill(0, torch.tensor(tok.ids[0]), 100.))
    assert reply(hf, tok, words[:1])==''                                   # the end at once

def tokenizer_in(learn): return learn.dls.train.after_batch.fs[-1].tfm

def test_distractors_are_of_other_dialogues_of_the_same_part():
    dls = learner().dls
    tok = dls.train.after_batch.fs[-1].tfm
    own = [{t for d in talks.turns[talks.is_valid==v] for t in d[1::2]} for v in (False,True)]
    for ds,replies,n in zip((dls.train_ds, dls.valid_ds), own, (3,4)):
        for x, in ds:
            seqs = x.tensor_split(x.sequence_starts.nonzero().flatten())
            said = [tok.tok.decode(s.ids).split('<b>')[-1].removesuffix('<a>') for s in seqs]
            before = {tok.tok.decode(s.ids).rsplit('<b>', 1)[0] for s in seqs}
            assert len({*said})==len(said)==n and {*said}<=replies and len(before)==1
            assert [bool(s.predicted.any()) for s in seqs]==[True]+[False]*(n-1)

def test_verbs(shown):
    learn = learner(); learn.fit(1, 1e-3)
    n = len(learn.dls.valid_ds)
    preds,targs,dec,losses = learn.get_preds(with_decoded=True, with_loss=True)
    for o in (preds, targs, dec): assert [*map(len, o)]==[n,n]
    assert len(losses)==n and preds[1].shape==(n,1,4)
    learn.dls.show_batch(max_n=2); learn.show_results(max_n=2)
    assert [*shown[0][0]]==['text','target','target2'] and [*shown[1][0]]==['text','target','target2','predicted','predicted2']
    learn.predict(words[:2])
    assert learn.lr_find(num_it=5, show_plot=False).valley>0

@pytest.mark.parametrize('turns', [['Hi.'], [], 'Hi.', ['Hi.',''], ['Hi.',None], None, 3.])
def test_a_dialogue_of_one_turn_or_with_a_blank_one_is_refused(turns):
    with pytest.raises(ValueError, match='two or more turns'): learner(data=pd.concat([talks, pd.DataFrame(dict(turns=[turns], is_valid=False))], ignore_index=True))

def test_one_dialogue_has_no_distractor():
    with pytest.raises(ValueError, match='replies of other dialogues'): learner(data=talks[8:])

def test_without_is_valid_dialogues_are_held_out_by_a_hash():
    df = pd.DataFrame(dict(talk=[[f'Who is {i}?', f'I am {i}.'] for i in range(300)]))
    parts = [dialogue_dls(o, Dialogue(tiny_tok('gpt2')), 'talk', (1,1), valid_pct=.3, device='cpu') for o in (df, df[::-1])]
    sizes = [(len(o.train_ds), len(o.valid_ds)) for o in parts]
    assert sizes[0]==sizes[1] and sum(sizes[0])==300 and 60<sizes[0][1]<120

def test_a_row_may_be_longer_than_the_network_reads():
    learn = learner(arch=tiny_arch('gpt2', num_hidden_layers=1, n_positions=128))
    assert learn.dls.valid.lengths.max()>128
    learn.fit(1, 1e-3)

def test_long_dialogues_lose_their_beginning():
    tok = DialogueTokenizer(tiny_tok('gpt2'))
    short,whole = (DialogueTokenizer(tok.tok, max_len=n).encode_batch([words[:4]])[0] for n in (15,None))
    assert len(short)==15<len(whole) and torch.equal(short.as_subclass(Tensor), whole.as_subclass(Tensor)[-15:])
